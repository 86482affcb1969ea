"""Proposals: plans that wait for somebody else's approval, and one of them with what has changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message

from console.actions.catalogue import A_PROPOSAL, AN_OPEN_PROPOSAL
from console.core.approvals import Approvals
from console.core.backend import Action, Operation
from console.core.confirm import ConfirmationForm
from console.core.faults import Fault
from console.core.operations import Operations
from console.core.override import Actions
from console.core.pace import Pace
from console.core.plan import Plan
from console.core.proposals import Proposal, ProposalState, Recheck
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.backend_calls import CancelFlag, off_loop
from console.ui.cells import Cell, Column, moment, thousands
from console.ui.command_line import approval_words
from console.ui.live_overrides import TypedText
from console.ui.messages import ProposalsReady
from console.ui.preview import PlannedItem
from console.ui.screens.base import EntriesScreen
from console.ui.screens.pick import PickScreen
from console.ui.screens.plan import PlanScreen
from console.ui.widgets.entry_table import EntryTable
from console.ui.widgets.status_line import StatusLine
from console.ui.widgets.text_pane import Line

_LISTED = 200
_DIFFERING_SHOWN = 20
_COLUMNS = (
    Column("submitted", 20, 3),
    Column("state", 11, 9),
    Column("change", 14, 8, grows=1, most=30),
    Column("who", 6, 5, grows=1, most=24),
    Column("reason", 12, 6, grows=4),
    Column("systems", 8, 4, grows=2),
)
_LOOKS = {
    ProposalState.OPEN: Cell("○ open", "accent"),
    ProposalState.APPROVED: Cell("✓ approved", "good"),
    ProposalState.REJECTED: Cell("✗ rejected", "error"),
    ProposalState.WITHDRAWN: Cell("– withdrawn", "muted"),
    ProposalState.EXPIRED: Cell("– expired", "muted"),
}


def _change(proposal: Proposal, actions: Actions) -> str:
    """What it would do, and to how many items."""
    known = actions.get(proposal.action)
    return f"{proposal.action if known is None else known.label} {thousands(proposal.items)}"


class ProposalList(EntryTable[Proposal]):
    """Newest first."""

    class Moved(Message):
        """Another proposal is under the cursor."""

    def __init__(self) -> None:
        super().__init__(_COLUMNS, margin=1)
        self.actions: Actions = {}
        """The plugins' own actions, for their words."""

    def identity(self, entry: Proposal) -> str:
        return entry.plan_id

    def moved(self) -> None:
        super().moved()
        self.screen.refresh_bindings()
        self.post_message(self.Moved())

    def stamp(self, row: int) -> object:
        return self.entries[row].plan_id, self.entries[row].state

    def cells_at(self, row: int) -> Sequence[Cell]:
        proposal = self.entries[row]
        return (
            Cell(moment(proposal.submitted_at), "muted"),
            _LOOKS[proposal.state],
            Cell(safe.line(_change(proposal, self.actions))),
            Cell(safe.line(proposal.proposer)),
            Cell(safe.line(proposal.reason)),
            Cell(safe.line(", ".join(proposal.changes)), "muted"),
        )

    def entered(self) -> None:
        if isinstance(self.screen, ProposalsScreen):
            self.screen.action_open()


def _plan_facts(proposal: Proposal, actions: Actions) -> Iterator[Line]:
    """What it would change. Attempts and a pace mean something for a requeue only."""
    submitted, is_requeue = proposal.submitted, proposal.action == Action.REQUEUE
    yield from _pairs(
        {
            "change": _change(proposal, actions),
            "systems": "   ".join(f"{name} {thousands(count)}" for name, count in proposal.changes.items()),
            "selection": str(submitted.get("selection", "")),
            "attempts": str(submitted.get("attempts", "")) if is_requeue else "",
            "pace": str(submitted.get("pace", "")) if is_requeue else "",
        }
    )


def _facts(proposal: Proposal) -> Iterator[Line]:
    """Who proposed it and why, and what was decided."""
    facts = {
        "proposed": f"{moment(proposal.submitted_at)} by {proposal.proposer}",
        "reason": proposal.reason,
        "ticket": proposal.ticket or "",
        "expires": moment(proposal.expires_at) if proposal.state is ProposalState.OPEN else "",
        "decided": f"{moment(proposal.decided_at)} by {proposal.decided_by}" if proposal.decided_at else "",
        "because": proposal.note,
        "override": proposal.override_id or "",
    }
    yield from _pairs(facts)


def _pairs(facts: Mapping[str, str]) -> Iterator[Line]:
    for name, value in facts.items():
        if value:
            yield [Cell(f" {name:<9} ", "muted"), Cell(safe.line(value, 1_000))]


class ProposalsScreen(EntriesScreen):
    """The plans that wait for a decision, and how the others were decided."""

    PLACE = "proposals"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("proposals"))

    def __init__(self) -> None:
        super().__init__()
        self._known = ProposalsReady((), {})

    def make_list(self) -> ProposalList:
        return ProposalList()

    @property
    def table(self) -> ProposalList:
        return self.query_one(ProposalList)

    # -- reading -----------------------------------------------------------------------------------

    def read_again(self) -> None:
        self.start(self._read, "proposals")

    async def _read(self) -> None:
        approvals = self.session.approvals
        if approvals is None:
            self.post_message(ProposalsReady((), {}))
            return
        try:
            found = await off_loop(lambda: _read_proposals(approvals))
        except Fault as fault:
            self.post_message(ProposalsReady((), {}, fault=fault))
        else:
            self.post_message(found)

    @on(ProposalsReady)
    def _ready(self, message: ProposalsReady) -> None:
        table, found = self.table, list(message.proposals)
        self._known, table.actions = message, self.session.actions
        if found != list(table.entries):
            table.entries = found
        self.show_list(filled=bool(found), fault=message.fault)
        self._show_entry()
        waiting = sum(proposal.state is ProposalState.OPEN for proposal in found)
        if message.fault is None:
            self.console_app.open_proposals = waiting
            self.update_each_second()
        self.query_one("#state", StatusLine).right = safe.phrase(
            "$waiting [$muted]open of[/] $count ", waiting=waiting, count=len(found)
        )
        self.refresh_bindings()

    def _empty_text(self, fault: Fault | None) -> Content:
        if fault is not None:
            return safe.phrase("[b $error]✗ The proposals cannot be read.[/]\n\n$fault", fault=fault_text(fault))
        if self.session.approvals is None:
            return Content.from_markup("[b]There is no trail.[/]\n\n[$muted]Without one, nothing can be proposed.[/]")
        return Content.from_markup(
            "[b]No proposals yet.[/]\n\n[$muted]ctrl+s in a plan submits it, for somebody else to approve.[/]"
        )

    @on(ProposalList.Moved)
    def _show_entry(self) -> None:
        proposal = self.table.entry
        lines: tuple[Line, ...] = ()
        if proposal is not None:
            lines = (*_facts(proposal), [], *_plan_facts(proposal, self.session.actions))
            if why := self._known.refusals.get(proposal.plan_id):
                lines += ([], [Cell(" You cannot approve it. ", "warning"), Cell(safe.line(why, 600))])
        self.show_entry(lines)

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        proposal = self.table.entry
        if need == AN_OPEN_PROPOSAL:
            return proposal is not None and proposal.state is ProposalState.OPEN
        return proposal is not None if need == A_PROPOSAL else super().has(need)

    def command(self) -> Sequence[str]:
        proposal = self.table.entry
        return ["proposals", "list"] if proposal is None else ["proposals", "show", proposal.plan_id]

    def action_open(self) -> None:
        """Show the plan; of an approved one, the override."""
        if (proposal := self.table.entry) is None:
            return
        if proposal.override_id is not None:
            self.start(partial(self._open_override, proposal.override_id), "open")
        else:
            self.console_app.override_dialogs.show_proposal(proposal)

    async def _open_override(self, override_id: str) -> None:
        trail = self.session.trail
        if trail is not None:
            self.console_app.override_dialogs.show(await off_loop(lambda: trail.override(override_id)))

    def action_approve(self) -> None:
        if (proposal := self.table.entry) is None:
            return
        if why := self._known.refusals.get(proposal.plan_id):
            self.console_app.hint(f"You cannot approve it. {why}", severity="warning")
        else:
            self.console_app.override_dialogs.show_proposal(proposal)

    def action_decline(self) -> None:
        if (proposal := self.table.entry) is None:
            return
        own = proposal.plan_id in self._known.own
        verb = "withdraw" if own else "reject"
        ask = PickScreen(f"{verb.capitalize()} proposal {proposal.plan_id}", (), free="required: why", enter=verb)
        self.app.push_screen(ask, partial(self._decline, proposal, own))

    def _decline(self, proposal: Proposal, own: bool, reason: str | None) -> None:
        approvals = self.session.approvals
        if reason and approvals is not None:
            decline = approvals.withdraw if own else approvals.reject
            said = f"Proposal {proposal.plan_id} is {'withdrawn' if own else 'rejected'}."
            self.start(partial(self._declined, partial(decline, proposal, reason), said), "decide", exclusive=False)

    async def _declined(self, decline: Callable[[], None], said: str) -> None:
        try:
            await off_loop(decline)
            self.console_app.say(said)
        finally:
            self.read_again()

    def action_copy(self) -> None:
        if (proposal := self.table.entry) is not None:
            self.console_app.copy(proposal.plan_id, "the proposal id")


def _read_proposals(approvals: Approvals) -> ProposalsReady:
    """In a thread: the newest proposals, and every open one."""
    waiting = approvals.open()
    listed = approvals.all(_LISTED)
    known = {proposal.plan_id for proposal in listed}
    found = [*listed, *(proposal for proposal in waiting if proposal.plan_id not in known)]
    refused = {proposal.plan_id: approvals.may_approve(proposal) for proposal in waiting}
    refusals = {plan_id: fault_text(fault) for plan_id, fault in refused.items() if fault is not None}
    return ProposalsReady(found, refusals, frozenset(one.plan_id for one in waiting if approvals.is_own(one)))


class ProposedPlanScreen(PlanScreen):
    """The plan of a proposal. Nothing can be chosen; who may approve it types its number."""

    def __init__(self, proposal: Proposal) -> None:
        super().__init__(None)
        self._proposal = proposal
        self._own_text = TypedText()
        self._recheck: Recheck | None = None
        self._refusal = ""
        """Why it cannot be approved here."""

    def on_mount(self) -> None:
        self._session = self.console_app.session  # a thread cannot ask the app for it
        self._field("reason").placeholder = "optional: default is the reason of the proposal"

    @property
    def _typed_text(self) -> TypedText:
        return self._own_text

    @property
    def _fixed(self) -> bool:
        return True

    @property
    def _verb(self) -> str:
        return "Approve"

    @property
    def _what(self) -> str:
        return f"proposal {self._proposal.plan_id} by {self._proposal.proposer}"

    @property
    def _can_be_submitted(self) -> bool:
        return False

    def _propose(self, operations: Operations, stop: CancelFlag, options: tuple[Operation, Pace] | None) -> Plan:  # noqa: ARG002
        """In a thread: read the plan, and compare its items with their rows now."""
        approvals = self._session.approvals
        assert approvals is not None
        plan = approvals.plan(self._proposal)
        if self._proposal.state is not ProposalState.OPEN:
            self._refusal = f"The proposal is {self._proposal.state.value}."
            return plan
        self._recheck = approvals.recheck(plan)
        refused = approvals.may_approve(self._proposal)
        if self._session.read_only:
            self._refusal = "It cannot be approved here: this console is read-only."
        elif refused is not None:
            self._refusal = f"You cannot approve it. {fault_text(refused)}"
        return plan

    def first_items(self, operations: Operations, plan: Plan) -> list[PlannedItem]:
        """Of a system that does not answer, only the number is known."""
        readable = self._recheck is not None and not self._recheck.faults
        return super().first_items(operations, plan) if readable else []

    def _discard(self, plan_id: str) -> None:
        """A proposal keeps its plan."""

    def _form(self, plan: Plan) -> ConfirmationForm:
        return ConfirmationForm(plan, self.console_app.session.limits, approves=True)

    def _show_fields(self, plan: Plan) -> None:
        if self._refusal:
            self.set_focus(None)
            for id in ("reason", "ticket", "count"):
                self.query_one(f"#{id}-row").display = False
            self.problem = self._refusal
        else:
            super()._show_fields(plan)
            self.query_one("#ticket-row").display = False
            self.set_focus(self._field("count"))

    def _can_be_confirmed(self, plan: Plan | None) -> bool:
        return not self._refusal and super()._can_be_confirmed(plan)

    def _reason(self) -> str:
        return super()._reason() or self._proposal.reason

    def _confirm(self, plan: Plan, reason: str) -> None:
        if self._refusal:
            self.problem = self._refusal
        else:
            super()._confirm(plan, reason)

    def _confirmable_until(self, plan: Plan) -> str:  # noqa: ARG002
        return moment(self._proposal.expires_at)

    def _lines(self, plan: Plan) -> Iterator[Line]:
        yield from _facts(self._proposal)
        if (now := self._recheck) is not None:
            same = now.same == now.total and not now.faults
            rest = "; those are left alone." if now.changed or now.gone else "."
            yield [Cell(f" {'now':<9} ", "muted"), Cell(f"{now.summary()}{rest}", "good" if same else "warning")]
            for key in now.differing[:_DIFFERING_SHOWN]:
                yield [Cell(" " * 11), Cell(safe.line(key), "warning")]
            if (more := now.changed + now.gone - _DIFFERING_SHOWN) > 0:
                yield [Cell(" " * 11), Cell(f"and {thousands(more)} more", "muted")]
            for backend, fault in now.faults.items():
                yield [Cell(" " * 11), Cell(safe.line(f"{backend} could not be read: {fault}", 600), "error")]
        yield []
        yield from super()._lines(plan)

    def _words(self, plan: Plan) -> list[str]:
        return approval_words(plan)
