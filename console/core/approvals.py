"""What a person can do with proposals: submit, look at, approve, reject and withdraw them. Front ends use this.

`Operations` is the only way to write, so an approval ends there: it confirms the proposed plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from console.core.access import same_person
from console.core.confirm import Confirmation, Origin, Who, recorded
from console.core.executor import Progress
from console.core.faults import NotAllowed, NotConfirmed, PlanAltered, PlanExpired, PlanStale
from console.core.operations import Operations, Watcher
from console.core.override import Override
from console.core.plan import Plan
from console.core.plan_checks import require_unaltered
from console.core.ports import Clock, Stop
from console.core.proposals import Proposal, ProposalState, Recheck, recheck, require_may_approve
from console.core.text import is_blank


def _unwatched(_progress: Progress) -> None:
    return


class Approvals:
    """Proposals on the trail of these operations, as one person sees and decides them."""

    def __init__(self, operations: Operations, clock: Clock, who: Who, origin: Origin) -> None:
        self._operations = operations
        self._trail = operations.trail
        self._clock = clock
        self._who, self._origin = who, origin

    # -- reading ---------------------------------------------------------------------------------

    def all(self, limit: int | None = None) -> Sequence[Proposal]:
        """Newest first, decided ones too."""
        return self._trail.proposals(limit)

    def open(self) -> Sequence[Proposal]:
        """Those that wait for a decision, newest first."""
        return [proposal for proposal in self.all() if proposal.state is ProposalState.OPEN]

    def get(self, proposal_id: str) -> Proposal:
        """`NoSuchProposal` when there is none. A unique prefix of the id is enough."""
        return self._trail.proposal(proposal_id)

    def plan(self, proposal: Proposal) -> Plan:
        """The plan that was proposed. `PlanAltered` unless it is the one on record."""
        plan = self._trail.plan(proposal.plan_id)
        recorded_plan = self._trail.planned(plan.id)
        if recorded_plan is None or not plan.hash == proposal.plan_hash == recorded_plan[0]:
            raise PlanAltered(plan.id, fix="Reject this proposal, and make a new plan.")
        return plan

    def recheck(self, plan: Plan) -> Recheck:
        """Compare every item of a proposed plan with its row as it is now."""
        return recheck(self._trail, plan, self._operations.writable_backend)

    def may_approve(self, proposal: Proposal) -> NotAllowed | None:
        """Why this person may not approve it, by the rules of the config; None if they may."""
        try:
            require_may_approve(self._operations.rules, proposal, self._who, self._origin)
        except NotAllowed as fault:
            return fault
        return None

    def is_own(self, proposal: Proposal) -> bool:
        """Whether this person has submitted it, and so may withdraw it."""
        return not self._who.in_namespace and same_person(proposal.submitted, recorded(self._who, self._origin))

    # -- deciding --------------------------------------------------------------------------------

    def submit(self, plan: Plan, reason: str, ticket: str | None = None) -> Proposal:
        """Store a plan with its reason, for somebody else to approve within a day. Anybody may do that."""
        operations = self._operations
        operations.require_writable()
        facts: dict[str, Any] = {"plan_id": plan.id, "plan_hash": plan.hash, "action": str(plan.operation.action)}
        with operations.recording_refusals(**facts):
            if not plan.changes:
                raise PlanStale("Nothing in this plan would change", fix="Select other items.")
            if is_blank(reason):
                raise NotConfirmed("a reason is required", fix="Nothing was submitted.")
            require_unaltered(self._trail, plan)
            return self._trail.submit(
                plan, self._who, self._origin, reason, ticket, self._clock.now(), rules=operations.rules
            )

    def approve(
        self, proposal: Proposal, count: int | None, stop: Stop | None = None, watch: Watcher = _unwatched, *,
        reason: str = "", detached: bool = False,
    ) -> Override:
        """Confirm the proposed plan. `count` is the number of changes that the approver has typed.

        Without a reason of their own, the reason of the proposal is recorded.
        """
        operations = self._operations
        operations.require_writable()
        with operations.recording_refusals(**self._facts(proposal)):
            self._require_open(proposal)
            plan = self.plan(proposal)
        why = proposal.reason if is_blank(reason) else reason
        confirmation = Confirmation(self._who, self._origin, why, count, proposal.ticket)
        return operations.carry_out(plan, confirmation, stop, watch, proposal=proposal, detached=detached)

    def reject(self, proposal: Proposal, reason: str) -> None:
        """Record that a proposal is rejected, and why. The right to approve it includes this."""
        operations = self._operations
        operations.require_writable()
        with operations.recording_refusals(**self._facts(proposal)):
            self._require_open(proposal)
            if is_blank(reason):
                raise NotConfirmed("a reason is required", fix="The proposal is still open.")
            operations.rules.require_approver(self._who, proposal.action, proposal.changes)
            self._decline(proposal, ProposalState.REJECTED, reason)

    def withdraw(self, proposal: Proposal, reason: str = "") -> None:
        """Record that the proposer gives a proposal up."""
        self._operations.require_writable()
        with self._operations.recording_refusals(**self._facts(proposal)):
            self._require_open(proposal)
            if not self.is_own(proposal):
                raise NotAllowed(f"Only {proposal.who} can withdraw it", fix="Reject it instead.")
            self._decline(proposal, ProposalState.WITHDRAWN, reason)

    def _decline(self, proposal: Proposal, state: ProposalState, reason: str) -> None:
        self._trail.decline(proposal, state, self._who, self._origin, reason, self._clock.now())

    def _require_open(self, proposal: Proposal) -> None:
        match proposal.at(self._clock.now()).state:
            case ProposalState.OPEN:
                return
            case ProposalState.EXPIRED:
                expired = f"The proposal expired at {proposal.expires_at:%Y-%m-%d %H:%M}Z"
                raise PlanExpired(expired, fix="Make a new plan.")
            case (ProposalState.APPROVED | ProposalState.REJECTED | ProposalState.WITHDRAWN) as state:
                by = f" by {proposal.decided_by}" if proposal.decided_by else ""
                raise PlanStale(f"The proposal was {state.value} already{by}")
            case state:
                assert_never(state)

    def _facts(self, proposal: Proposal) -> dict[str, Any]:
        return {"plan_id": proposal.plan_id, "plan_hash": proposal.plan_hash, "proposal": proposal.seq}
