"""Proposals: plans that wait for somebody else to approve them.

A proposal is a recorded plan with a reason. Approving one confirms its plan: the override then names who proposed it
and who approved it. What an approver sees is checked against the rows as they are now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from console.core.access import AccessRules, Compare, changes_in, role_of, same_person
from console.core.backend import Requeues
from console.core.confirm import Origin, Who, recorded
from console.core.faults import BackendFault, NotAllowed
from console.core.override import Override
from console.core.plan import BackendPart, Plan
from console.core.ports import Trail
from console.core.reconcile import units_of

PROPOSAL_LIFETIME = timedelta(hours=24)


class ProposalState(StrEnum):
    """The state of a proposal. Only an open one can be approved."""

    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the trail knows about a proposal. It has the id of its plan."""

    plan_id: str
    plan_hash: str
    seq: int
    """The record that it was submitted with."""
    submitted_at: datetime
    expires_at: datetime
    who: str
    reason: str
    ticket: str | None
    action: str
    items: int
    """How many items it would change."""
    changes: Mapping[str, int]
    """The same per backend."""
    state: ProposalState = ProposalState.OPEN
    client: str | None = None
    """The program that submitted it for the person, as it calls itself."""
    second_person: Compare | None = None
    """How approver and proposer are compared; None if the proposer may approve it too."""
    decided_by: str | None = None
    decided_at: datetime | None = None
    note: str = ""
    """The reason that the decision has on record."""
    override_id: str | None = None
    """The override that an approval began."""
    submitted: Mapping[str, Any] = field(default_factory=dict)
    """The body of its record."""

    @property
    def role(self) -> str:
        """The database role that submitted it, by the trail's server; empty without one."""
        return role_of(self.submitted)

    @property
    def proposer(self) -> str:
        """Who proposed it, with the program they used."""
        return f"{self.who} (through {self.client})" if self.client else self.who

    def at(self, now: datetime) -> Proposal:
        """The same at a time: an open one may have expired."""
        if self.state is ProposalState.OPEN and now >= self.expires_at:
            return replace(self, state=ProposalState.EXPIRED)
        return self


@dataclass(slots=True)
class Recheck:
    """How the items of a plan compare with their rows now."""

    same: int = 0
    changed: int = 0
    gone: int = 0
    faults: dict[str, BackendFault] = field(default_factory=dict)
    """Backends that could not be read. Their items are in no count."""
    differing: list[str] = field(default_factory=list)
    """The keys of the first items that are no longer as planned."""

    @property
    def total(self) -> int:
        return self.same + self.changed + self.gone

    def summary(self) -> str:
        """One sentence without its full stop."""
        if not self.total:
            return "None of its items could be read"
        if self.same == self.total:
            return "Its item is still as planned" if self.total == 1 else f"All {self.total} items are still as planned"
        parts = [f"{self.changed} of {self.total} changed since"] if self.changed else []
        if self.gone:
            parts.append(f"{self.gone} of {self.total} no longer there")
        return ", ".join(parts)


_SHOWN = 100


def recheck(trail: Trail, plan: Plan, backend_of: Callable[[BackendPart], Requeues]) -> Recheck:
    """Read every item of a plan again and compare it with what was planned. An approval would change only the same."""
    found = Recheck()
    for part in plan.parts:
        if not part.changes:
            continue
        try:
            for key, now, planned in _images(trail, plan, part, backend_of(part)):
                found.same += now == planned
                found.changed += now is not None and now != planned
                found.gone += now is None
                if now != planned and len(found.differing) < _SHOWN:
                    found.differing.append(key)
        except BackendFault as fault:
            found.faults[part.backend] = fault
    return found


def _images(
    trail: Trail, plan: Plan, part: BackendPart, backend: Requeues
) -> Iterator[tuple[str, Sequence[Any] | None, Sequence[Any]]]:
    """Every item of a part with its row now and as planned."""
    at = backend.now()
    for rows in trail.rows(plan.id, part.first, part.first + part.changes - 1):
        units = units_of(plan, part, backend, rows, at)
        images = units.per_row(backend.images(units.changes))
        for row, change, image in zip(rows, units.per_row(units.changes), images, strict=True):
            yield row.key, image, change.before


def require_may_approve(rules: AccessRules, proposal: Proposal, who: Who, origin: Origin) -> None:
    """Require that the rules let this person approve a proposal. One's own needs the right to make the change, and can
    only be approved where nobody else has to."""
    rules.require_approver(who, proposal.action, proposal.changes)
    if not same_person(proposal.submitted, recorded(who, origin)):
        return
    rule = rules.approval_for(proposal.changes)
    if rule is not None or proposal.second_person is not None:
        where = "" if rule is None else rule.line
        raise NotAllowed(f"{proposal.who} proposed this, so somebody else must approve it", where=where)
    rules.require(who, proposal.action, proposal.changes)


def require_approved(trail: Trail, rules: AccessRules, plan: Plan, override: Override) -> None:
    """Require the approval that these rules demand of an override: who confirmed it may have used others."""
    rule = rules.approval_for(changes_in(plan))
    if rule is None:
        return
    name, confirmed = override.override_id, override.confirmed
    fix = "Stop it, and submit the plan."
    if confirmed.get("proposal") is None:
        raise NotAllowed(f"Override {name} was confirmed without approval", where=rule.line, fix=fix)
    submitted = trail.proposal(plan.id)
    same_role = rule.compare is Compare.ROLE and role_of(confirmed) == submitted.role
    if same_role or same_person(submitted.submitted, confirmed):
        raise NotAllowed(f"Override {name} was approved by its proposer", where=rule.line, fix=fix)
