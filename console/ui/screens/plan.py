"""Plan: what a requeue, a discard or an undo would change, what can be chosen, and the confirmation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static

from console.core.backend import Action, Attempts, Operation
from console.core.confirm import Confirmation, ConfirmationForm
from console.core.faults import Fault
from console.core.operations import Operations
from console.core.pace import Pace, parse_pace
from console.core.plan import Matching, Plan, Selection
from console.core.query import Field
from console.ui import safe
from console.ui.advice import fault_text
from console.ui.backend_calls import CancelFlag, off_loop
from console.ui.cells import Cell, thousands
from console.ui.command_line import command_line, plan_words
from console.ui.live_overrides import TypedText
from console.ui.messages import PlanReady
from console.ui.plan_form import CUSTOM, PlanChoices, added_by_attempts
from console.ui.plan_preview import plan_lines
from console.ui.preview import PlannedItem, attempts_words, pace_words, planned_item
from console.ui.widgets.choices import FormRow, OptionRow, SwitchRow, TextRow
from console.ui.widgets.filter_bar import QueryInput, typed_keys_arrived
from console.ui.widgets.text_pane import Line, TextPane
from console.ui.worker_errors import ReportsWorkerErrors

if TYPE_CHECKING:
    from console.ui.app import Console

_DEBOUNCE = 0.25
_ITEMS_SHOWN = 200
_PLANNING = "The plan is still being made. Type the number once it is shown."


class PlanScreen(ReportsWorkerErrors, ModalScreen[tuple[Plan, Confirmation] | None]):
    """Returns the plan and its confirmation. Every change of an option makes a new plan and discards the old one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority, so that what is typed next goes to the next field even when the app is slow.
        Binding("enter", "confirm", "Confirm", priority=True),
        Binding("escape", "cancel", "Cancel", priority=True),
        Binding("tab,down", "go(1)", show=False, priority=True),
        Binding("shift+tab,up", "go(-1)", show=False, priority=True),
        # With priority, so that the preview scrolls whichever field has the focus.
        Binding("pagedown", "read(1)", show=False, priority=True),
        Binding("pageup", "read(-1)", show=False, priority=True),
        Binding("ctrl+y", "copy_command", "Copy the command", priority=True),
        Binding("ctrl+s", "submit", "Submit for approval", priority=True),
    ]
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [(0, "narrow"), (116, "wide")]  # noqa: RUF012 - Textual declares it so
    """What will happen stands above the form, or at its left."""

    plan: reactive[Plan | None] = reactive(None, init=False)
    problem: reactive[str] = reactive("", init=False)
    planning: reactive[bool] = reactive(True, init=False)

    def __init__(self, selection: Selection | None, action: str = "requeue", undo_of: str | None = None) -> None:
        super().__init__()
        self._selection = selection
        self._action = Action(action)
        self._undo_of = undo_of
        self._generation = 0
        self._stop = CancelFlag()
        self._debounce: Timer | None = None
        self._items: list[PlannedItem] = []
        self._planned_options: tuple[Operation, Pace] | None = None
        self._shown: Plan | None = None
        """The plan of which the preview is shown; the current one, or the last one while another is made."""
        self._submitting = False

    @property
    def console_app(self) -> Console:
        return cast("Console", self.app)

    @property
    def undoes(self) -> str | None:
        """The override to be undone, if this is an undo."""
        return self._undo_of

    def compose(self) -> ComposeResult:
        yield Static(id="plan-title")
        with Container(id="halves"):
            yield TextPane(id="preview")
            with Vertical(id="form"):
                yield OptionRow("Pace", id="pace-row")
                yield TextRow("", "custom-pace", "over 2h · 5/s · canary 3")
                yield OptionRow("As", id="ways-row")
                yield OptionRow("Attempts", id="attempts-row")
                yield SwitchRow("Include", id="include-row")
                yield SwitchRow("Switches", id="switches-row")
                yield TextRow("Reason", "reason", "required: why, for readers of the trail")
                yield TextRow("Ticket", "ticket", "optional")
                yield TextRow("Confirm", "count")
                yield Static(id="problem")
                yield Static(id="command")
        yield Static(id="plan-keys")

    def on_mount(self) -> None:
        self._choices = PlanChoices(self.console_app.session, self._selection, self._action)
        for hidden in ("#pace-row", "#custom-pace-row", "#include-row", "#switches-row"):
            self.query_one(hidden).display = False
        for id, options in (("ways", self._choices.ways), ("attempts", self._choices.attempts)):
            row = self.query_one(f"#{id}-row", OptionRow)
            row.offer(options)
            row.display = bool(options)
        preview = self.query_one("#preview", TextPane)
        preview.can_focus = False
        preview.lines = ((Cell("Planning…", "muted"),),)
        for attribute in ("scroll_y", "virtual_size"):
            self.watch(preview, attribute, self._update_keys, init=False)
        self.watch(preview, "size", self._show_preview, init=False)
        self.watch(self.query_one("#form"), "virtual_size", self._show_focused, init=False)
        typed = self._typed_text
        self._field("reason").value, self._field("ticket").value = typed.reason, typed.ticket
        self.watch_problem()
        self._update_title()
        self._update_keys()
        self.set_focus(self._field("reason"))
        self._make_plan()

    @property
    def _typed_text(self) -> TypedText:
        return self.console_app.live_overrides.typed

    @property
    def _fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return self._undo_of is not None

    # -- making the plan ---------------------------------------------------------------------------

    def _chosen_options(self) -> tuple[Operation, Pace]:
        attempts = self.query_one("#attempts-row", OptionRow).value or Attempts.KEEP
        operation = Operation(self._action, Attempts(attempts), frozenset(self._flags()))
        return operation, self._chosen_pace()

    @property
    def _offers_pace(self) -> bool:
        """Whether the person could choose a pace so far: without a change there is none to choose."""
        return self._shown is not None and self._shown.changes > 0

    def _chosen_pace(self) -> Pace:
        value = self.query_one("#pace-row", OptionRow).value
        if not value:
            return self._choices.first_pace
        return parse_pace(self._field("custom-pace").value if value == CUSTOM else value)

    def _flags(self) -> set[str]:
        chosen = {switch.id for row in self.query(SwitchRow) for switch in row.switches if switch.on}
        way = self.query_one("#ways-row", OptionRow).value
        return chosen | {way} if way else chosen

    def _make_plan(self) -> None:
        self._discard_plan()
        self._planned_options = None
        self._generation += 1
        self._stop.requested = True
        self._stop = CancelFlag()
        try:
            options = None if self._fixed else self._chosen_options()
        except Fault as fault:
            self.problem = fault_text(fault)
            self.planning = False
            return
        self._planned_options = options
        self.problem = ""
        self.planning = True
        self.start(partial(self._make_plan_off_loop, self._generation, self._stop, options), "plan")

    async def _make_plan_off_loop(
        self, generation: int, stop: CancelFlag, options: tuple[Operation, Pace] | None
    ) -> None:
        operations = self.console_app.session.operations
        assert operations is not None
        try:
            plan = await off_loop(lambda: self._propose(operations, stop, options))
            items = await off_loop(lambda: self.first_items(operations, plan))
        except Fault as fault:
            self.post_message(PlanReady(generation, None, (), fault))
        else:
            self.post_message(PlanReady(generation, plan, items))

    def _propose(self, operations: Operations, stop: CancelFlag, options: tuple[Operation, Pace] | None) -> Plan:
        if options is None or self._selection is None:
            return operations.undo(self._undo_of or "", stop)
        operation, pace = options
        plan = operations.propose(self._selection, operation, pace, stop=stop)
        if not self._offers_pace and (default := self._choices.default_pace(plan)) != pace:
            operations.trail.discard(plan.id)
            plan = operations.propose(self._selection, operation, default, stop=stop)
        return plan

    def first_items(self, operations: Operations, plan: Plan) -> list[PlannedItem]:
        backends = operations.backends
        return [
            planned_item(key, change, backends.get(key.partition("/")[0]), plan.created_at)
            for key, change in operations.foreseen(plan, _ITEMS_SHOWN)
        ]

    @on(PlanReady)
    def _ready(self, message: PlanReady) -> None:
        if message.generation != self._generation:
            if message.plan is not None:
                self._discard(message.plan.id)
            return
        self.planning = False
        if self.problem == _PLANNING:
            self.problem = ""
        self._items = list(message.items)
        if message.plan is not None:
            first = not self._offers_pace
            self._shown = message.plan
            self._offer(message.plan, first=first)
        self.plan = message.plan
        if message.fault is not None:
            self._shown = None
            self.query_one("#preview", TextPane).lines = (
                (Cell("✗ ", "error"), Cell(safe.line(fault_text(message.fault), 600), "error")),
            )
        self._show_preview()

    def _offer(self, plan: Plan, *, first: bool) -> None:
        """Show the options that apply to this plan."""
        if self._fixed:
            return
        choices = self._choices
        choices.note(plan)
        pace = self.query_one("#pace-row", OptionRow)
        pace.offer(choices.paces(plan))
        if first:
            pace.choose(str(plan.pace))
            self._planned_options = plan.operation, plan.pace
        pace.display = bool(pace.options) and plan.changes > 0
        including, others = choices.switches(plan.operation.flags)
        self.query_one("#include-row", SwitchRow).switches = tuple(including)
        self.query_one("#switches-row", SwitchRow).switches = tuple(others)

    def _discard_plan(self) -> None:
        if self.plan is not None:
            self._discard(self.plan.id)
            self.plan = None

    def _discard(self, plan_id: str) -> None:
        trail = self.console_app.session.trail
        if trail is not None:
            discard = partial(trail.discard, plan_id)
            self.console_app.start(partial(off_loop, discard), "discard", exclusive=False)

    # -- what is shown -----------------------------------------------------------------------------

    @property
    def _verb(self) -> str:
        return ("undo" if self._undo_of is not None else self._action.label).capitalize()

    @property
    def _what(self) -> str:
        return self._undo_of if self._undo_of is not None else str(self._selection)

    @property
    def _error(self) -> str:
        """The error of the cause that is planned, as far as a list has shown one."""
        if not isinstance(self._selection, Matching):
            return ""
        terms = [term for term in self._selection.filter.terms_for(Field.CAUSE) if not term.negated]
        seen = self.console_app.errors_seen() if terms else {}
        return next((seen[c] for c in seen if all(term.matches_signature(c) for term in terms)), "")

    def watch_planning(self) -> None:
        self._update_title()

    def watch_plan(self, plan: Plan | None) -> None:
        if plan is not None:
            self._show_fields(plan)
        self._update_title()
        self._update_consequences()
        self._update_command()
        self._update_keys()

    def _show_fields(self, plan: Plan) -> None:
        """Ask for a reason and a number only where something would change."""
        needs_number = self._form(plan).needs_number
        for id, shown in (("reason", True), ("ticket", True), ("count", needs_number)):
            self.query_one(f"#{id}-row").display = shown and plan.changes > 0
        self.query_one("#form").display = not self._fixed or plan.changes > 0
        self._field("count").placeholder = f"type {plan.changes}"
        if self.focused is None or not self.focused.display or not self.focused.parent.display:  # type: ignore[union-attr]
            fields = self._fields()
            self.set_focus(fields[-1] if not plan.changes and fields else self._field("reason"))

    def _show_focused(self) -> None:
        """Rows that have appeared above it may have moved it out of a low form."""
        if (focused := self.focused) is not None:
            self.call_after_refresh(lambda: focused.scroll_visible(animate=False))

    def _update_title(self) -> None:
        plan, verb = self._shown, self._verb
        count = "" if plan is None or not plan.changes else f" {thousands(plan.changes)}"
        if plan is not None and not plan.changes:
            verb = f"Nothing to {verb.lower()}"
        state = "planning… " if self.planning else ""
        self.query_one("#plan-title", Static).update(
            safe.phrase(
                " [b $primary]Retriage[/]  [b $accent]$verb$count[/]  $what  [$muted]$state$error[/]",
                verb=verb,
                count=count,
                what=self._what,
                state=state,
                error=self._error,
            )
        )

    def _update_consequences(self) -> None:
        plan = self._shown
        if plan is None or self._fixed:
            return
        limits = self.console_app.session.limits
        pace, attempts = (self.query_one(f"#{id}-row", OptionRow) for id in ("pace", "attempts"))
        with suppress(Fault):
            pace.consequence = pace_words(self._chosen_pace(), plan, limits)
        ways = self.query_one("#ways-row", OptionRow)
        if ways.options:
            ways.consequence = self._choices.meaning(ways.value)
        if attempts.value:
            chosen = Attempts(attempts.value)
            text = attempts_words(chosen, plan)
            other = Attempts.RESET if chosen is Attempts.KEEP else Attempts.KEEP
            if more := added_by_attempts(plan, other):
                text = f"{text}; {other} would add {thousands(more)}"
            attempts.consequence = text

    def _show_preview(self) -> None:
        if self._shown is not None:
            self.query_one("#preview", TextPane).lines = tuple(self._lines(self._shown))

    def action_read(self, pages: int) -> None:
        preview = self.query_one("#preview", TextPane)
        preview.scroll_relative(y=pages * max(preview.size.height - 1, 1), animate=False)

    def _update_keys(self) -> None:
        self.call_after_refresh(self._show_keys)

    def _show_keys(self) -> None:
        """After the next layout, when the screen may already be closed and empty."""
        preview = next(iter(self.query("#preview").results(TextPane)), None)
        line = next(iter(self.query("#plan-keys").results(Static)), None)
        if preview is None or line is None:
            return
        below = round(preview.max_scroll_y - preview.scroll_y)
        plan, keys = self.plan, []
        if self._can_be_confirmed(plan):
            count = "" if plan is None else f" {thousands(plan.changes)}"
            keys.append(("enter", f"{self._verb}{count}", "screen.confirm"))
        keys += [("esc", "cancel", "screen.cancel"), ("↑↓", "field", ""), ("←→", "option", ""), ("space", "switch", "")]
        if below > 0:
            keys.append(("pgdn", f"{below} more", "screen.read(1)"))
        if self._can_be_submitted and self._can_be_confirmed(plan):
            keys.append(("^s", "submit", "screen.submit"))
        keys.append(("^y", "command", "screen.copy_command"))
        if not isinstance(self.focused, SwitchRow):
            keys = [key for key in keys if key[0] != "space"]
        if not isinstance(self.focused, FormRow):
            keys = [key for key in keys if key[0] != "←→"]
        line.update(self._key_line(keys))

    def _key_line(self, keys: list[tuple[str, str, str]]) -> Content:
        """The keys that fit, each a link for the mouse where it leads to something."""
        line = Content(" ")
        for key, label, action in keys:
            text = "[$muted]$label[/]" if not action else f"[@click={action}]$label[/]"
            piece = safe.phrase(f"[b $accent]$key[/] {text}", key=key, label=label)
            if line.cell_length + piece.cell_length + 2 > self.size.width:
                break
            line = Content.assemble(line, piece, "  ")
        return line

    def _can_be_confirmed(self, plan: Plan | None) -> bool:
        return plan is None or plan.changes > 0

    def _confirmable_until(self, plan: Plan) -> str:
        return f"{plan.expires_at:%H:%M:%S}Z"

    def _lines(self, plan: Plan) -> Iterator[Line]:
        pane = self.query_one("#preview", TextPane)
        width = pane.content_size.width - pane.scrollbar_size_vertical  # it may come with these lines
        yield from plan_lines(
            plan, self._items, self.console_app.session, self.console_app.errors_seen(),
            width=width, until=self._confirmable_until(plan),
        )

    def _update_command(self) -> None:
        command = self._command()
        self.query_one("#command", Static).update(safe.phrase("[$muted]$ $command[/]", command=command))
        self.query_one("#command").display = bool(command) and self._shown is not None and self._shown.changes > 0

    def _command(self) -> str:
        """The command that does the same."""
        if self._shown is None:
            return ""
        return command_line(self.console_app.session, self._words(self._shown))

    def _words(self, plan: Plan) -> list[str]:
        reason, ticket = (self._field(name).value.strip() for name in ("reason", "ticket"))
        return plan_words(plan, self._selection, reason or "…", ticket)

    def action_copy_command(self) -> None:
        if command := self._command():
            self.console_app.copy(command, "the command")
        else:
            self.problem = "There is no plan yet."

    # -- moving between the fields -----------------------------------------------------------------

    def _field(self, name: str) -> QueryInput:
        return self.query_one(f"#{name}", QueryInput)

    def _fields(self) -> list[Widget]:
        """What can have the focus, from top to bottom."""
        form = self.query_one("#form", Vertical)
        return [
            row.query_one(QueryInput) if isinstance(row, TextRow) else row
            for row in form.children
            if row.display and isinstance(row, (TextRow, FormRow))
        ]

    def action_go(self, by: int) -> None:
        fields = self._fields()
        if fields:
            at = fields.index(self.focused) if self.focused in fields else -1
            self.set_focus(fields[(at + by) % len(fields)])

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        for row in self.query(TextRow):
            row.set_class(event.widget in row.children, "focused")
        self._hint(event.widget)
        self._update_keys()

    @on(SwitchRow.Moved)
    def _switch_moved(self) -> None:
        if self.focused is not None:
            self._hint(self.focused)

    def _hint(self, widget: Widget) -> None:
        """Say what a switch does while it can be turned on."""
        if isinstance(widget, SwitchRow) and widget.current is not None:
            self.problem = ""
            self.query_one("#problem", Static).update(safe.shown(widget.current.help, "$muted"))
            self.query_one("#problem").display = True
        elif not self.problem:
            self.watch_problem()

    # -- choosing ----------------------------------------------------------------------------------

    @on(OptionRow.Changed)
    def _option_changed(self, event: OptionRow.Changed) -> None:
        if event.row.id == "pace-row":
            custom = event.row.value == CUSTOM
            self.query_one("#custom-pace-row").display = custom
            if custom:
                self.set_focus(self._field("custom-pace"))
                if not self._field("custom-pace").value:
                    return
        self._changed()

    @on(SwitchRow.Changed)
    def _switched(self) -> None:
        self._changed()

    @on(Input.Changed, "#custom-pace")
    def _pace_typed(self) -> None:
        self._changed()

    def _changed(self) -> None:
        """Plan again once the person has stopped moving through the options."""
        self._update_consequences()
        if self._debounce is not None:
            self._debounce.stop()
        self._debounce = self.set_timer(_DEBOUNCE, self._make_plan_if_changed)

    def _make_plan_if_changed(self) -> None:
        """An input also sends a change for its initial value."""
        try:
            same = self._chosen_options() == self._planned_options
        except Fault:
            same = False
        if not same:
            self._make_plan()
        elif self.problem:
            self.problem = ""

    @on(FormRow.LetterTyped)
    def _letter_typed(self, event: FormRow.LetterTyped) -> None:
        how = "Press space to switch" if isinstance(event.row, SwitchRow) else "Use ← and → to choose"
        asked = self.query_one("#reason-row").display
        self.problem = f"{how}, ↓ to get to the reason." if asked else f"{how}, esc to go back."

    # -- confirming --------------------------------------------------------------------------------

    @on(Input.Changed, "#reason")
    @on(Input.Changed, "#ticket")
    @on(Input.Changed, "#count")
    def _typed(self) -> None:
        if not self.query("#count"):
            return  # the plan was closed meanwhile
        if self.plan is not None:  # without a plan, the problem is the pace
            typed = self._field("count").value.strip()
            unfit = typed and self._form(self.plan).needs_number and not typed.isdecimal()
            self.problem = f"Type the number {self.plan.changes} in Confirm." if unfit else ""
        self._update_command()

    def _form(self, plan: Plan) -> ConfirmationForm:
        return ConfirmationForm(plan, self.console_app.session.limits)

    def watch_problem(self) -> None:
        line = self.query_one("#problem", Static)
        line.update(safe.phrase("[$error]✗ $problem[/]", problem=self.problem) if self.problem else Content(""))
        line.display = bool(self.problem)

    async def action_confirm(self) -> None:
        """Confirm, from whichever field; or go to the field that is missing, and name it."""
        await typed_keys_arrived(self.focused)
        if (found := self._planned_with_reason()) is not None:
            self._confirm(*found)

    def _planned_with_reason(self) -> tuple[Plan, str] | None:
        """The plan and the reason. If one of them is missing: None, and the screen says which."""
        reason = self._reason()
        plan = self.plan
        if plan is not None and not self._is_current(plan):
            plan = None
        if self._submitting:
            self.problem = "The plan is being submitted."
        elif plan is None:
            self._explain_missing_plan(reason)
        elif not plan.changes:
            self.problem = "Nothing would change. Press esc to go back."
        elif not reason:
            self._missing("reason", "A reason is required.")
        else:
            return plan, reason
        return None

    def _reason(self) -> str:
        return self._field("reason").value.strip()

    def _is_current(self, plan: Plan) -> bool:
        """Whether the plan was made with the options that are shown."""
        if self._fixed:
            return True
        try:
            return self._chosen_options() == (plan.operation, plan.pace)
        except Fault:
            return False

    def _explain_missing_plan(self, reason: str) -> None:
        if not self.planning and self.problem:
            return
        if self._shown is None and not self.planning:
            self.problem = "No plan could be made. Press esc to go back."
        elif reason and self.query_one("#count-row").display:
            self._missing("count", _PLANNING)
        else:
            self.problem = _PLANNING

    def _confirm(self, plan: Plan, reason: str) -> None:
        session, form = self.console_app.session, self._form(plan)
        typed = self._field("count").value.strip()
        count = form.confirmed_count(typed) if form.needs_number else plan.changes
        if count != plan.changes:
            self._missing("count", f"Type {plan.changes}, the number of items that will change.")
            return
        ticket = self._field("ticket").value.strip()
        self._typed_text.clear()
        self._stop.requested = True
        self.dismiss((plan, form.confirmation(session.who, session.origin, reason, count, ticket or None)))

    def _missing(self, field: str, why: str) -> None:
        self.set_focus(self._field(field))
        self.problem = why

    # -- submitting --------------------------------------------------------------------------------

    @property
    def _can_be_submitted(self) -> bool:
        return self.console_app.session.approvals is not None

    async def action_submit(self) -> None:
        """Submit the plan, for somebody else to approve."""
        await typed_keys_arrived(self.focused)
        if self._can_be_submitted and (found := self._planned_with_reason()) is not None:
            self._submitting = True
            # By the app, so that the message is shown even if this screen was closed meanwhile.
            ticket = self._field("ticket").value.strip() or None
            self.console_app.start(partial(self._submit, *found, ticket), "submit", exclusive=False)

    async def _submit(self, plan: Plan, reason: str, ticket: str | None) -> None:
        approvals = self.console_app.session.approvals
        assert approvals is not None
        try:
            proposal = await off_loop(lambda: approvals.submit(plan, reason, ticket))
        except Fault as fault:
            self._submitting = False
            if not self.is_current:
                raise
            self.problem = fault_text(fault)
            return
        self._typed_text.clear()
        self.console_app.submitted(proposal)
        if self.is_current:
            self._stop.requested = True
            self.dismiss(None)

    async def action_cancel(self) -> None:
        """Close without a change. The typed text is kept for the next plan."""
        await typed_keys_arrived(self.focused)
        typed = self._typed_text
        typed.reason, typed.ticket = self._field("reason").value, self._field("ticket").value
        self._stop.requested = True
        if not self._submitting:
            self._discard_plan()
        self.dismiss(None)
