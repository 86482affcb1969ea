"""`proposals`: plans that wait for somebody else."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from console.cli.advice import fault_text
from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.plans import approvals_of, ask_to_confirm, operations_of, preview, reconcile, report_result
from console.cli.progress import override_progress
from console.cli.render import RowFormat, chosen_format, note, print_record, print_rows, print_text
from console.core.confirm import ConfirmationForm
from console.core.proposals import Proposal, ProposalState, Recheck
from console.core.session import Session
from console.core.text import instant

_SHOWN = 5


def list_proposals(args: Namespace, context: CommandContext) -> int:
    approvals = approvals_of(context.session())
    found = list(approvals.all() if args.all else approvals.open())
    print_rows(found[: args.limit or None], _SHAPE, args.format)
    if not found and chosen_format(args.format) == "table":
        note("No proposals wait for a decision. `--all` lists the others.")
    return 0


def show_proposal(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    approvals = approvals_of(session)
    proposal = approvals.get(args.proposal)
    checked = approvals.recheck(approvals.plan(proposal)) if proposal.state is ProposalState.OPEN else None
    if chosen_format(args.format) != "table":
        print_record({**_record(proposal), "recheck": None if checked is None else _recheck_record(checked)})
        return 0
    for line in _lines(session, proposal, checked):
        print_text(line)
    return 0


def _lines(session: Session, proposal: Proposal, checked: Recheck | None) -> Iterator[str]:
    yield f"Proposal {proposal.plan_id}: {proposal.state.value}"
    yield f"  proposed   {instant(proposal.submitted_at.replace(microsecond=0))} by {proposal.proposer}"
    yield f"  reason     {proposal.reason}"
    if proposal.ticket:
        yield f"  ticket     {proposal.ticket}"
    if proposal.decided_by is not None and proposal.decided_at is not None:
        yield f"  decided    {instant(proposal.decided_at.replace(microsecond=0))} by {proposal.decided_by}"
        if proposal.note:
            yield f"             {proposal.note}"
        if proposal.override_id:
            yield f"  override   {proposal.override_id}"
    if checked is None:
        return
    yield f"  expires    {instant(proposal.expires_at.replace(microsecond=0))}"
    yield from _recheck_lines(checked)
    approvals = approvals_of(session)
    plan = approvals.plan(proposal)
    for line in preview(session, plan):
        if not line.startswith(f"Plan {plan.id}"):  # the proposal has an expiry of its own
            yield f"  {line}"
    if (fault := approvals.may_approve(proposal)) is not None:
        yield f"You cannot approve it: {fault_text(fault)}"
    elif not session.read_only:
        yield f"To approve it: retriage proposals approve {proposal.plan_id} --confirm {proposal.items}"


def _recheck_lines(checked: Recheck) -> Iterator[str]:
    yield f"  now        {checked.summary()}"
    for key in checked.differing[:_SHOWN]:
        yield f"             {key}"
    for backend, fault in checked.faults.items():
        yield f"             {backend} could not be read: {fault}"


def approve(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    operations, approvals = operations_of(session), approvals_of(session)
    reconcile(session, operations)
    proposal = approvals.get(args.proposal)
    count = args.confirm
    if count is None and proposal.state is ProposalState.OPEN:
        plan = approvals.plan(proposal)
        for line in _lines(session, proposal, approvals.recheck(plan)):
            note(line)
        count = ask_to_confirm(ConfirmationForm(plan, session.limits, approves=True))
    with override_progress(proposal.items) as watch:
        override = approvals.approve(
            proposal, count, session.stop, watch, reason=args.reason, detached=args.detach
        )
        heads = watch.heads
    return report_result(override, heads)


def reject(args: Namespace, context: CommandContext) -> int:
    approvals = approvals_of(context.session())
    proposal = approvals.get(args.proposal)
    approvals.reject(proposal, args.reason)
    note(f"Proposal {proposal.plan_id} is rejected.")
    return 0


def withdraw(args: Namespace, context: CommandContext) -> int:
    approvals = approvals_of(context.session())
    proposal = approvals.get(args.proposal)
    approvals.withdraw(proposal, args.reason)
    note(f"Proposal {proposal.plan_id} is withdrawn.")
    return 0


def _record(proposal: Proposal) -> dict[str, Any]:
    return {
        "proposal_id": proposal.plan_id, "state": proposal.state.value, "action": proposal.action,
        "items": proposal.items, "changes": dict(proposal.changes), "submitted_at": proposal.submitted_at,
        "expires_at": proposal.expires_at, "who": proposal.who, "client": proposal.client, "reason": proposal.reason,
        "ticket": proposal.ticket, "second_person": proposal.second_person is not None,
        "decided_by": proposal.decided_by, "decided_at": proposal.decided_at, "note": proposal.note or None,
        "override_id": proposal.override_id,
    }


def _recheck_record(checked: Recheck) -> dict[str, Any]:
    return {
        "same": checked.same, "changed": checked.changed, "gone": checked.gone, "differing": checked.differing,
        "faults": {backend: str(fault) for backend, fault in checked.faults.items()},
    }


_SHAPE: RowFormat[Proposal] = RowFormat(
    ("proposal_id", "state", "action", "items", "changes", "submitted_at", "expires_at", "who", "client", "reason",
     "ticket", "second_person", "decided_by", "decided_at", "note", "override_id"),
    _record,
    (
        Column("proposal", lambda one: one.plan_id),
        Column("state", lambda one: one.state.value),
        Column("change", lambda one: f"{one.action.replace('_', ' ')} {one.items}"),
        Column("backend", lambda one: ", ".join(one.changes)),
        Column("by", lambda one: one.proposer),
        Column("submitted", lambda one: instant(one.submitted_at.replace(microsecond=0))),
        Column("reason", lambda one: one.reason, least=15),
    ),
)
