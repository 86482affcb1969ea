"""The sections `permissions`, `limits` and `approvals`: who may change what, how much, and when two are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from console.core.access import AccessRules, Approval, Compare, Limit, Permission, Right
from console.core.text import did_you_mean
from console.settings.models import Name, Positive, StrictModel
from console.settings.section import Section
from console.settings.strict_yaml import Loc, Mistake

KEYS = ("permissions", "limits", "approvals")

Names = tuple[Name, ...]


def _some(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise PydanticCustomError("empty", "must name at least one backend")
    return names


Backends = Annotated[tuple[str, ...], AfterValidator(_some)]


class RightsSettings(StrictModel):
    """Who may do what in one backend: logins and unix groups. A right that is left out is everybody's."""

    requeue: Names | None = None
    discard: Names | None = None
    approve: Names | None = None


class LimitSettings(StrictModel):
    """How many items may be changed in these backends together."""

    backends: Backends
    items: int = Field(ge=1)
    per: Positive


class ApprovalSettings(StrictModel):
    """The number of items from which somebody else must approve a plan."""

    backends: Backends
    first: int = Field(alias="from", ge=1)
    compare: Literal["role", "login"] = "role"


class AccessSettings(StrictModel):
    """The three sections."""

    permissions: Mapping[str, RightsSettings] = Field(default_factory=dict)
    limits: tuple[LimitSettings, ...] = ()
    approvals: tuple[ApprovalSettings, ...] = ()


def read_access(
    section: Section, backends: Iterable[str], *, trail: str | None
) -> tuple[AccessRules, list[Mistake]]:
    """The rules, each with its line in the file, and what is wrong with them. `trail` is the URL of the trail."""
    given = {key: section.values[key] for key in KEYS if section.values.get(key) is not None}
    found, mistakes = Section(section.file, section.at, given, section.lines).check(AccessSettings)
    if found is None:
        return AccessRules(), mistakes
    mistakes += _unknown_backends(section, found, list(backends))
    if found.approvals and not (trail or "").startswith("postgres"):
        what = (
            "approvals need a trail in PostgreSQL, because a trail in a file has one user. "
            "Set console.trail to postgresql://USER@HOST/DATABASE"
        )
        mistakes.append(section.mistake(("approvals",), what))
    return _rules(section, found), mistakes


def _rules(section: Section, found: AccessSettings) -> AccessRules:
    permissions = [
        Permission(backend, right, names, section.where(("permissions", backend, right.value)))
        for backend, rights in found.permissions.items()
        for right in Right
        if (names := getattr(rights, right.value)) is not None
    ]
    limits = [
        Limit(one.backends, one.items, one.per, section.where(("limits", n))) for n, one in enumerate(found.limits)
    ]
    approvals = [
        Approval(one.backends, one.first, Compare(one.compare), section.where(("approvals", n)))
        for n, one in enumerate(found.approvals)
    ]
    return AccessRules(tuple(permissions), tuple(limits), tuple(approvals))


def _unknown_backends(section: Section, found: AccessSettings, known: list[str]) -> Iterator[Mistake]:
    named: list[tuple[Loc, str]] = [(("permissions", backend), backend) for backend in found.permissions]
    for key, lists in (("limits", [rule.backends for rule in found.limits]),
                       ("approvals", [rule.backends for rule in found.approvals])):
        named += [((key, n, "backends", m), name) for n, names in enumerate(lists) for m, name in enumerate(names)]
    for loc, name in named:
        if name not in known:
            yield section.mistake(loc, f"there is no such backend. {did_you_mean(name, known)}")
