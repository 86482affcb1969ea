"""Confirming a plan: who confirms it, within which limits, and what they must give. Every front end uses this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from console.core.advice import Advice, Step
from console.core.faults import AllSkipped, Fault, NotConfirmed
from console.core.plan import Plan
from console.core.text import is_blank, plural

NOTHING_CHANGED = "Nothing was changed."
_NONE: Mapping[str, Any] = MappingProxyType({})


class Who(NamedTuple):
    """A person: what the operating system knows about them, and the name they claim."""

    uid: int
    login: str
    claimed: str = ""
    in_namespace: bool = False
    """Whether the uid was given in a user namespace. Then `login` is what its map says about the user outside of it."""
    groups: tuple[str, ...] = ()
    """The names of the unix groups of this process."""

    def __str__(self) -> str:
        name = f"{self.login} (not proven, in a user namespace)" if self.in_namespace else self.login
        return f"{name} (says {self.claimed})" if self.claimed and self.claimed != self.login else name


_ALWAYS_FACTS = frozenset({"uid", "pid", "user_namespace", "preloaded"})
"""What the kernel itself says, also in a user namespace."""


class Origin(NamedTuple):
    """The terminal and process they work from."""

    host: str
    tty: str
    ssh_peer: str
    pid: int
    version: str
    facts: Mapping[str, Any] = _NONE
    """What else the system says, in ways a user cannot set."""
    claims: Mapping[str, Any] = _NONE
    """What else the environment says."""


def recorded(who: Who, origin: Origin) -> dict[str, Any]:
    """Who it was, as a record stores it: facts and claims apart."""
    named = {
        "uid": who.uid, "login": who.login, "host": origin.host, "version": origin.version, "tty": origin.tty,
        "pid": origin.pid, **origin.facts,
    }
    # In a user namespace, the user could have replaced the files and names that the others come from.
    facts = {name: value for name, value in named.items() if not who.in_namespace or name in _ALWAYS_FACTS}
    claims = {name: value for name, value in named.items() if name not in facts}
    claims |= {"name": who.claimed, "ssh_peer": origin.ssh_peer, **origin.claims}
    return {"by": str(who), "facts": facts, "claims": claims}


@dataclass(frozen=True, slots=True)
class Limits:
    """How many items at once, how a plan is confirmed, and when a canary stops."""

    confirm_from: int = 20
    """For this many changes or more, the number itself must be typed. For fewer, yes is enough."""
    max_items: int = 10_000
    canary_failure_limit: float = 0.2
    """The fraction of a canary step that may fail again."""
    canary_deadline: timedelta = timedelta(minutes=15)
    chunk_target: timedelta = timedelta(milliseconds=50)
    """How long one write may take; chunks are sized to stay below it."""
    watch_for: timedelta = timedelta(hours=1)
    """How long after the last due time the items of an override are followed."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A person's confirmation of exactly this many changes, and their reason."""

    who: Who
    origin: Origin
    reason: str
    count: int | None
    """The confirmed number; None when nobody confirmed."""
    ticket: str | None = None


@dataclass(frozen=True, slots=True)
class ConfirmationForm:
    """What has to be asked before this plan is applied, and the check of the answers."""

    plan: Plan
    limits: Limits
    changes: int = -1
    """How many items would change: all of the plan, unless some are done already."""
    approves: bool = False
    """It approves a proposal. Then the number is always typed: somebody else has chosen the items."""
    resumes: bool = False
    """It resumes an override, whose plan cannot be applied a second time."""

    def __post_init__(self) -> None:
        if self.changes < 0:
            object.__setattr__(self, "changes", self.plan.changes)

    @property
    def needs_number(self) -> bool:
        """Whether the number of changes must be typed: if there are many, if items are deleted, and for an approval."""
        return self.approves or self.changes >= self.limits.confirm_from or self.plan.deletes

    @property
    def question(self) -> str:
        """What a terminal asks."""
        changes = self.changes
        items = f"{changes} {plural(changes, 'item')}"
        if self.plan.deletes:
            return f"This deletes {items} and cannot be undone. Type the number to confirm: "
        if self.needs_number:
            return f"This changes {items}. Type the number to confirm: "
        return f"Change {items}? [y/N] "

    def confirmed_count(self, answer: str) -> int | None:
        """The number of changes that an answer to the question confirms; None when it confirms nothing."""
        answer = answer.strip()
        if not self.needs_number:
            return self.changes if answer.lower() in ("y", "yes") else None
        return int(answer) if answer.isascii() and answer.isdigit() and len(answer) < 12 else None

    def problem(self, reason: str, count: int | None) -> Fault | None:
        """Why these answers do not confirm the plan; None when they do."""
        changes = self.changes
        if not changes:
            reasons, advice = self.plan.skipped, self.plan.advice
            first = next((advice[reason] for reason in reasons if reason in advice), None)
            return AllSkipped(fix=" ".join(reasons) or "Nothing was selected.", advice=first)
        if is_blank(reason):
            return NotConfirmed("a reason is required", fix=NOTHING_CHANGED)
        if count is None:
            return NotConfirmed(fix=NOTHING_CHANGED, advice=Advice(Step.CONFIRM, str(changes)))
        if count != changes and self.resumes:
            left = f"{changes} {plural(changes, 'item is', 'items are')} left"
            confirm = Advice(Step.CONFIRM, str(changes))
            return NotConfirmed(f"{count} confirmed, but {left}", fix=NOTHING_CHANGED, advice=confirm)
        if count != changes:
            return NotConfirmed(
                f"{count} confirmed, but the plan changes {changes}",
                fix=NOTHING_CHANGED,
                advice=Advice(Step.APPLY_PLAN, self.plan.id),
            )
        return None

    def confirmation(
        self, who: Who, origin: Origin, reason: str, count: int | None, ticket: str | None = None
    ) -> Confirmation:
        """The answers as a confirmation. Raises a fault when they do not confirm the plan."""
        if (fault := self.problem(reason, count)) is not None:
            raise fault
        return Confirmation(who, origin, reason, count, ticket)
