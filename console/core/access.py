"""Who may do what, how much at a time, and when a second person is needed: the rules of the config.

They are guard rails against mistakes, kept by every front end. A PostgreSQL trail enforces one of them by itself: a
proposal that needs a second person cannot be approved by the database role that submitted it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, assert_never

from console.core.advice import Advice, Step
from console.core.backend import Action
from console.core.confirm import Who
from console.core.faults import NotAllowed
from console.core.plan import Plan
from console.core.text import and_list, duration


class Right(StrEnum):
    """What a person may be allowed to do in a backend."""

    REQUEUE = "requeue"
    """Also every other change but a discard: an undo, the actions of plugins."""
    DISCARD = "discard"
    APPROVE = "approve"
    """Approve a proposal of somebody else. If nobody is listed for it, the right to make the change is enough."""


def right_for(action: str) -> Right:
    """The right to do an action. An undo, and an action of a plugin's own, need that of a requeue."""
    if action not in list(Action):
        return Right.REQUEUE
    known = Action(action)
    match known:
        case Action.REQUEUE | Action.UNDO:
            return Right.REQUEUE
        case Action.DISCARD:
            return Right.DISCARD
        case _:
            assert_never(known)


class Compare(StrEnum):
    """What tells a second person from the first."""

    ROLE = "role"
    """Their role in the trail's database, which the database itself compares, and their login."""
    LOGIN = "login"
    """Their login only, for a team that shares one database role."""


class Permission(NamedTuple):
    """Who has a right in one backend: logins and unix groups."""

    backend: str
    right: Right
    names: tuple[str, ...]
    line: str = ""
    """Where the config says so."""


class Limit(NamedTuple):
    """How many items may be changed in a time, over all overrides of everybody on the trail."""

    backends: tuple[str, ...]
    items: int
    per: timedelta
    line: str = ""


class Approval(NamedTuple):
    """The number of items from which somebody else must approve a plan."""

    backends: tuple[str, ...]
    first: int
    compare: Compare = Compare.ROLE
    line: str = ""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """All rules of the config. Without any, everybody may do everything."""

    permissions: tuple[Permission, ...] = ()
    limits: tuple[Limit, ...] = ()
    approvals: tuple[Approval, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.permissions or self.limits or self.approvals)

    def body(self) -> dict[str, Any]:
        """The rules as a record stores them."""
        return {
            "permissions": [
                {"backend": one.backend, "right": one.right.value, "names": list(one.names)} for one in self.permissions
            ],
            "limits": [
                {"backends": list(one.backends), "items": one.items, "seconds": one.per.total_seconds()}
                for one in self.limits
            ],
            "approvals": [
                {"backends": list(one.backends), "from": one.first, "compare": one.compare.value}
                for one in self.approvals
            ],
        }

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> AccessRules:
        """Read what `body` made; raises one of many errors for anything else."""
        return cls(
            tuple(
                Permission(one["backend"], Right(one["right"]), tuple(one["names"])) for one in body["permissions"]
            ),
            tuple(
                Limit(tuple(one["backends"]), one["items"], timedelta(seconds=one["seconds"])) for one in body["limits"]
            ),
            tuple(
                Approval(tuple(one["backends"]), one["from"], Compare(one["compare"])) for one in body["approvals"]
            ),
        )

    # -- permissions -----------------------------------------------------------------------------

    def permission(self, backend: str, right: Right) -> Permission | None:
        """Who has this right; None if everybody has it."""
        return next((one for one in self.permissions if (one.backend, one.right) == (backend, right)), None)

    def require(self, who: Who, action: str, backends: Iterable[str]) -> None:
        """Refuse an action in a backend where this person may not do it."""
        for backend in backends:
            _require(self.permission(backend, right_for(action)), who, action)

    def require_approver(self, who: Who, action: str, backends: Iterable[str]) -> None:
        """Refuse an approval by somebody without that right; if nobody is listed for it, without that of the action."""
        for backend in backends:
            if (permission := self.permission(backend, Right.APPROVE)) is not None:
                _require(permission, who, "approve")
            else:
                self.require(who, action, (backend,))

    # -- limits ----------------------------------------------------------------------------------

    def longest(self) -> timedelta:
        """How far back the confirmed overrides are needed to check the limits."""
        return max((limit.per for limit in self.limits), default=timedelta(0))

    def require_within_limits(
        self, parts: Mapping[str, int], before: Sequence[tuple[datetime, Mapping[str, int]]], now: datetime
    ) -> None:
        """Refuse changes that, with those confirmed before, are more than a limit allows. Every confirmed item
        counts, also one that could not be changed."""
        for limit in self.limits:
            wanted = _sum(parts, limit.backends)
            used = sum(_sum(earlier, limit.backends) for at, earlier in before if now - at < limit.per)
            if wanted and used + wanted > limit.items:
                allowed = f"{limit.items} items may be changed in {duration(limit.per)}"
                left = max(limit.items - used, 0)
                raise NotAllowed(
                    f"In {and_list(limit.backends)}, {allowed}. {used} were changed, and this plan changes"
                    f" {wanted} more",
                    where=limit.line, fix=f"Select at most {left}, or wait." if left else "Wait.",
                )

    # -- a second person -------------------------------------------------------------------------

    def approval_for(self, parts: Mapping[str, int]) -> Approval | None:
        """The rule by which somebody else must approve these numbers of changes; None if there is none."""
        demanded = [rule for rule in self.approvals if _sum(parts, rule.backends) >= rule.first]
        return min(demanded, key=lambda rule: rule.compare is not Compare.ROLE, default=None)

    def require_no_approval(self, plan: Plan) -> None:
        """Refuse to apply a plan directly that somebody else must approve."""
        if (rule := self.approval_for(changes_in(plan))) is not None:
            raise NotAllowed(
                f"Somebody else must approve a plan of {rule.first} items or more in {and_list(rule.backends)}",
                where=rule.line, advice=Advice(Step.SUBMIT),
            )


def changes_in(plan: Plan) -> dict[str, int]:
    """How many items a plan changes in each backend."""
    return {part.backend: part.changes for part in plan.parts if part.changes}


def same_person(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two records may be by one person, by their facts. Where a login is no fact, they may be."""
    logins = [_login(body) for body in (first, second)]
    return None in logins or logins[0] == logins[1]


def role_of(body: Mapping[str, Any]) -> str:
    """The database role that wrote a record, by the trail's server; empty without one."""
    server = body.get("server")
    return str(server.get("session_user", "")) if isinstance(server, Mapping) else ""


def _login(body: Mapping[str, Any]) -> str | None:
    facts = body.get("facts")
    login = facts.get("login") if isinstance(facts, Mapping) else None
    return login if isinstance(login, str) else None


def _sum(parts: Mapping[str, int], backends: Iterable[str]) -> int:
    return sum(parts.get(backend, 0) for backend in backends)


def _require(permission: Permission | None, who: Who, action: str) -> None:
    if permission is None:
        return
    if who.in_namespace:
        raise NotAllowed(
            f"Only some people may {action.replace('_', ' ')} in {permission.backend}, and a user namespace hides who"
            " you are",
            where=permission.line, fix="Start Retriage outside the namespace.",
        )
    if not {who.login, *who.groups} & set(permission.names):
        allowed = ", ".join(permission.names) or "nobody"
        raise NotAllowed(
            f"{who.login} may not {action.replace('_', ' ')} in {permission.backend}", where=permission.line,
            fix=f"Allowed: {allowed}.",
        )


def table(rules: AccessRules, backends: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The resulting rules per backend, each as one line."""
    for backend in backends:
        said = []
        for right in Right:
            permission = rules.permission(backend, right)
            if permission is not None:
                said.append(f"{right.value}: {', '.join(permission.names) or 'nobody'}")
        for limit in rules.limits:
            if backend in limit.backends:
                others = [name for name in limit.backends if name != backend]
                together = f" (together with {', '.join(others)})" if others else ""
                said.append(f"at most {limit.items} items in {duration(limit.per)}{together}")
        said += [
            f"somebody else approves plans of {rule.first} items or more"
            for rule in rules.approvals if backend in rule.backends
        ]
        if said:
            yield backend, "; ".join(said)
