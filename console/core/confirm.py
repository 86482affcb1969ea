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
from console.core.text import is_blank

NOTHING_CHANGED = "Nothing was changed."
_NONE: Mapping[str, Any] = MappingProxyType({})


class Who(NamedTuple):
    """A person: what the operating system knows about them, and the name they claim."""

    uid: int
    login: str
    claimed: str = ""
    in_namespace: bool = False
    """Whether the uid was given in a user namespace. Then `login` is the name of the user outside of it."""

    def __str__(self) -> str:
        name = f"{self.login} (in a user namespace)" if self.in_namespace else self.login
        return f"{name} (says {self.claimed})" if self.claimed and self.claimed != self.login else name


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
    facts = {"uid": who.uid, "tty": origin.tty, "pid": origin.pid, **origin.facts}
    claims = {
        "name": who.claimed, "login": who.login, "host": origin.host, "ssh_peer": origin.ssh_peer,
        "version": origin.version, **origin.claims,
    }
    if not who.in_namespace:  # there, the user could have replaced the files and names that these come from
        facts |= {name: claims.pop(name) for name in ("login", "host", "version")}
    return {"by": str(who), "facts": facts, "claims": claims}


@dataclass(frozen=True, slots=True)
class Limits:
    """How many items at once, how a plan is confirmed, and when a canary stops."""

    confirm_from: int = 20
    """From this many changes on, the number itself must be typed. Below it, yes is enough."""
    max_items: int = 10_000
    canary_failure_limit: float = 0.2
    """The fraction of a canary step that may fail again."""
    canary_deadline: timedelta = timedelta(minutes=15)
    chunk_target: timedelta = timedelta(milliseconds=50)
    """How long one write may take; chunks are sized to stay below it."""


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

    @property
    def needs_number(self) -> bool:
        """Whether the number of changes must be typed."""
        return self.plan.changes >= self.limits.confirm_from

    @property
    def question(self) -> str:
        """What a terminal asks."""
        changes = self.plan.changes
        if self.needs_number:
            return f"This changes {changes} items. Type the number to confirm: "
        return f"Change {changes} item{'' if changes == 1 else 's'}? [y/N] "

    def confirmed_count(self, answer: str) -> int | None:
        """The number of changes that an answer to the question confirms; None when it confirms nothing."""
        answer = answer.strip()
        if not self.needs_number:
            return self.plan.changes if answer.lower() in ("y", "yes") else None
        return int(answer) if answer.isascii() and answer.isdigit() and len(answer) < 12 else None

    def problem(self, reason: str, count: int | None) -> Fault | None:
        """Why these answers do not confirm the plan; None when they do."""
        changes = self.plan.changes
        if not changes:
            reasons, advice = self.plan.skipped, self.plan.advice
            first = next((advice[reason] for reason in reasons if reason in advice), None)
            return AllSkipped(fix=" ".join(reasons) or "Nothing was selected.", advice=first)
        if is_blank(reason):
            return NotConfirmed("a reason is required", fix=NOTHING_CHANGED)
        if count is None:
            return NotConfirmed(fix=NOTHING_CHANGED, advice=Advice(Step.CONFIRM, str(changes)))
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
