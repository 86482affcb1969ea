"""Plan: a preview of what a requeue or an undo would change, its options, and the confirmation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Button, Checkbox, Input, Label, Static

from console.core.backend import Abilities, Action, Attempts, Operation, Requeues
from console.core.confirm import Confirmation, ConfirmationForm
from console.core.faults import Fault
from console.core.operations import Operations
from console.core.pace import Pace, parse_pace
from console.core.plan import Plan, Selection
from console.ui import safe
from console.ui.advice import RESET_ATTEMPTS, Switches, fault_text, with_advice
from console.ui.backend_calls import CancelFlag, off_loop
from console.ui.cells import Cell, thousands
from console.ui.messages import PlanReady
from console.ui.preview import attempts_words, change_words, condition, counted, pace_words, undo_words
from console.ui.textual_workarounds import TextCheckbox
from console.ui.widgets.filter_bar import QueryInput
from console.ui.widgets.text_pane import Line, TextPane
from console.ui.worker_errors import ReportsWorkerErrors

if TYPE_CHECKING:
    from console.ui.app import Console

_DEBOUNCE = 0.4
_ITEMS_SHOWN = 200
_PACES = "now · over 30m · 10/s · canary 20"


class PlanScreen(ReportsWorkerErrors, ModalScreen[tuple[Plan, Confirmation] | None]):
    """Returns the plan and its confirmation. Every change of an option makes a new plan and discards the old one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel"),
        # With priority, so that what is typed next goes to the next field even when the app is slow.
        Binding("tab", "app.focus_next", show=False, priority=True),
        Binding("shift+tab", "app.focus_previous", show=False, priority=True),
        # With priority, so that the preview scrolls whichever field has the focus.
        Binding("pagedown", "read(1)", show=False, priority=True),
        Binding("pageup", "read(-1)", show=False, priority=True),
    ]

    HORIZONTAL_BREAKPOINTS = [(0, "narrow"), (90, "wide")]  # noqa: RUF012 - Textual declares it so
    """Two or three switches per line."""

    plan: reactive[Plan | None] = reactive(None, init=False)
    problem: reactive[str] = reactive("", init=False)

    def __init__(self, selection: Selection | None, action: str = "requeue", undo_of: str | None = None) -> None:
        super().__init__()
        self._selection = selection
        self._action = Action(action)
        self._undo_of = undo_of
        self._generation = 0
        self._stop = CancelFlag()
        self._debounce: Timer | None = None
        self._items: list[str] = []
        self._options: tuple[Operation, Pace] | None = None

    @property
    def console_app(self) -> Console:
        return cast("Console", self.app)

    @property
    def undoes(self) -> str | None:
        """The override to be undone, if this is an undo."""
        return self._undo_of

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog plan") as dialog:
            dialog.border_title = self._heading()
            yield TextPane(id="preview")
            if self._undo_of is None:
                with Horizontal(classes="row"):
                    yield Label("Pace", classes="name")
                    yield QueryInput("now", id="pace", placeholder=_PACES)
                    yield Label(_PACES, classes="hint")
                with Container(classes="switches"):
                    yield from self._switches()
            with Horizontal(classes="row"):
                yield Label("Reason", classes="name")
                hint = "required: why you do this, for readers of the trail"
                yield QueryInput(id="reason", placeholder=hint, select_on_focus=False)
            with Horizontal(classes="row"):
                yield Label("Ticket", classes="name")
                yield QueryInput(id="ticket", placeholder="optional")
                yield Label("Confirm", classes="name count")
                yield QueryInput(id="count", classes="count")
            yield Static(id="problem")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button(safe.shown(self._verb), id="confirm", variant="warning", compact=True, disabled=True)

    def _switches(self) -> Iterator[TextCheckbox]:
        """The options that at least one of the selected systems offers."""
        selection, session = self._selection, self.console_app.session
        selected = [b for b in session.backends if isinstance(b, Requeues) and selection and selection.concerns(b.name)]
        if any(Attempts.RESET in backend.abilities.attempts for backend in selected):
            yield TextCheckbox(RESET_ATTEMPTS, id="reset", compact=True)
        for switch in session.switches.values():
            if any(switch.id in backend.abilities.flags for backend in selected):
                yield TextCheckbox(switch.label, id=switch.id, compact=True)

    @property
    def _verb(self) -> str:
        return (self._action.label if self._undo_of is None else "undo").capitalize()

    def _heading(self) -> Content:
        what = self._undo_of if self._undo_of is not None else str(self._selection)
        return safe.phrase("[b]$verb[/] $what", verb=self._verb, what=what)

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()
        for widget in self.query(".count"):
            widget.display = False
        self.watch_problem()
        preview = self.query_one("#preview", TextPane)
        for attribute in ("scroll_y", "virtual_size", "size"):
            self.watch(preview, attribute, self._scrolled, init=False)
        self._make_plan()

    # -- making the plan ---------------------------------------------------------------------------

    def _chosen_options(self) -> tuple[Operation, Pace]:
        chosen = {box.id for box in self.query(Checkbox) if box.value}
        flags = frozenset(id for id in self.console_app.session.switches if id in chosen)
        operation = Operation(self._action, Attempts.RESET if "reset" in chosen else Attempts.KEEP, flags)
        return operation, parse_pace(self.query_one("#pace", QueryInput).value)

    def _make_plan_if_changed(self) -> None:
        """An input also sends a change for its initial value."""
        try:
            same = self._chosen_options() == self._options
        except Fault:
            same = False
        if not same:
            self._make_plan()

    def _make_plan(self) -> None:
        self._discard_plan()
        self._options = None
        self._generation += 1
        self._stop.requested = True
        self._stop = CancelFlag()
        try:
            options = self._chosen_options() if self._undo_of is None else None
        except Fault as fault:
            self.problem = fault_text(fault)
            return
        self._options = options
        self.problem = ""
        self._preview([[Cell("Planning…", "muted")]])
        self.start(partial(self._make_plan_off_loop, self._generation, self._stop, options), "plan")

    async def _make_plan_off_loop(
        self, generation: int, stop: CancelFlag, options: tuple[Operation, Pace] | None
    ) -> None:
        operations = self.console_app.session.operations
        assert operations is not None
        try:
            plan = await off_loop(lambda: self._propose(operations, stop, options))
            items = await off_loop(lambda: _first_items(operations, plan))
        except Fault as fault:
            self.post_message(PlanReady(generation, None, (), fault))
        else:
            self.post_message(PlanReady(generation, plan, items))

    def _propose(self, operations: Operations, stop: CancelFlag, options: tuple[Operation, Pace] | None) -> Plan:
        if options is None or self._selection is None:
            return operations.undo(self._undo_of or "", stop)
        return operations.propose(self._selection, *options, stop=stop)

    @on(PlanReady)
    def _ready(self, message: PlanReady) -> None:
        if message.generation != self._generation:
            if message.plan is not None:
                self._discard(message.plan.id)
            return
        self._items = list(message.items)
        self.plan = message.plan
        if message.fault is not None:
            self._preview([[Cell("✗ ", "error"), Cell(safe.line(fault_text(message.fault), 600), "error")]])

    def _discard_plan(self) -> None:
        if self.plan is not None:
            self._discard(self.plan.id)
            self.plan = None

    def _discard(self, plan_id: str) -> None:
        trail = self.console_app.session.trail
        if trail is not None:
            discard = partial(trail.discard, plan_id)
            self.console_app.start(partial(off_loop, discard), "discard", exclusive=False)

    # -- the preview -------------------------------------------------------------------------------

    def watch_plan(self, plan: Plan | None) -> None:
        if plan is not None:
            self._preview(list(self._lines(plan)))
            for widget in self.query(".count"):
                widget.display = self._form(plan).needs_number
            self.query_one("#count", QueryInput).placeholder = f"type {plan.changes}"
            self.query_one("#confirm", Button).label = f"{self._verb} {thousands(plan.changes)}"
        self._update_confirm()

    def _preview(self, lines: list[Line]) -> None:
        self.query_one("#preview", TextPane).lines = tuple(lines)

    def action_read(self, pages: int) -> None:
        preview = self.query_one("#preview", TextPane)
        preview.scroll_relative(y=pages * max(preview.size.height - 1, 1), animate=False)

    def _scrolled(self) -> None:
        """After the next layout, when the dialog may already be closed."""
        self.call_after_refresh(_show_lines_below, self.query_one("#preview", TextPane))

    def _lines(self, plan: Plan) -> Iterator[Line]:
        will = "will be requeued" if self._undo_of is None else "will be restored"
        yield [
            Cell(f"{thousands(plan.changes)} {will}", "accent" if plan.changes else "error"),
            Cell(
                f"   {thousands(plan.selected)} selected, {thousands(plan.selected - plan.changes)} skipped", "muted"
            ),
        ]
        width = max((len(part.backend) for part in plan.parts), default=0)
        for part in plan.parts:
            abilities = list(self._abilities(part.backend)) if part.changes and self._undo_of is None else []
            yield [
                Cell(f"  {safe.fit(thousands(part.changes), 8, right=True)}  "),
                Cell(safe.line(part.backend).ljust(width + 3), "plain"),
                *abilities[:1],
            ]
            yield from ([Cell(" " * 12), cell] for cell in abilities[1:])
        switches = self.console_app.session.switches
        yield from counted("⚠ Warnings", _worded(plan, switches, plan.warnings), "warning")
        yield from counted("Skipped, not touched", _worded(plan, switches, plan.skipped), "error")
        if self._undo_of is None:
            yield from counted("By condition", {condition(name): n for name, n in plan.by_condition.items()}, "plain")
        yield from counted("By cause", self._causes(plan.by_cause), "plain")
        yield []
        if self._undo_of is None:
            yield [Cell("Pace      ", "muted"), Cell(pace_words(plan))]
            yield [Cell("Attempts  ", "muted"), Cell(attempts_words(plan.operation.attempts))]
        yield [
            Cell("Plan      ", "muted"),
            Cell(f"{plan.id}  {plan.hash[:16]}…  valid until {plan.expires_at:%H:%M:%S}Z", "muted"),
        ]
        if self._items:
            yield []
            yield [Cell("Items", "muted")]
            yield from ([Cell("  "), Cell(safe.line(item))] for item in self._items)
            if plan.changes > len(self._items):
                yield [Cell(f"  and {thousands(plan.changes - len(self._items))} more", "muted")]

    def _causes(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The counts by signature, with an error where a list has shown one."""
        seen = self.console_app.errors_seen()
        return {f"{cause}  {seen.get(cause, '')}".rstrip(): count for cause, count in counts.items()}

    def _abilities(self, name: str) -> Iterator[Cell]:
        callers = self.console_app.callers
        backend = callers[name].backend if name in callers else None
        abilities: Abilities | None = backend.abilities if isinstance(backend, Requeues) else None
        if abilities is None:
            return
        yield Cell(undo_words(abilities.undo), "muted")
        if abilities.guard_is_weak:
            yield Cell("weak guard: does not notice an item that changed and changed back", "warning")

    # -- confirming --------------------------------------------------------------------------------

    @on(Checkbox.Changed)
    def _switched(self) -> None:
        self._make_plan()

    @on(Input.Changed, "#pace")
    def _pace_typed(self) -> None:
        if self._debounce is not None:
            self._debounce.stop()
        self._debounce = self.set_timer(_DEBOUNCE, self._make_plan_if_changed)

    @on(Input.Changed, "#reason")
    @on(Input.Changed, "#count")
    def _typed(self) -> None:
        if self.plan is not None:  # without a plan, the problem is the pace
            self.problem = ""
        self._update_confirm()

    def _update_confirm(self) -> None:
        self.query_one("#confirm", Button).disabled = self._confirmation() is None

    def _confirmation(self) -> Confirmation | None:
        """The confirmation; None while something is missing."""
        if self.plan is None:
            return None
        session, form = self.console_app.session, self._form(self.plan)
        reason, ticket = (self.query_one(f"#{name}", QueryInput).value.strip() for name in ("reason", "ticket"))
        typed = self.query_one("#count", QueryInput).value
        count = form.confirmed_count(typed) if form.needs_number else self.plan.changes
        if form.problem(reason, count) is not None:
            return None
        return form.confirmation(session.who, session.origin, reason, count, ticket or None)

    def _form(self, plan: Plan) -> ConfirmationForm:
        return ConfirmationForm(plan, self.console_app.session.limits)

    def watch_problem(self) -> None:
        line = self.query_one("#problem", Static)
        line.update(safe.phrase("[$error]✗ $problem[/]", problem=self.problem) if self.problem else Content(""))
        line.display = bool(self.problem)

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        """Go to the next missing field. Enter after the number of items confirms."""
        if event.input.id == "count":
            self._count_entered(event.value.strip())
            return
        missing = ("#count", "#confirm") if event.input.id == "reason" else ()
        for widget in (self.query_one(id) for id in missing):
            if widget.focusable and widget.display:
                widget.focus()
                return
        self.focus_next()

    def _count_entered(self, typed: str) -> None:
        if self.plan is not None and typed != str(self.plan.changes):
            self.problem = f"Type {self.plan.changes}, the number of items that will change."
        elif self.plan is not None and not self.query_one("#reason", QueryInput).value.strip():
            self.problem = "A reason is required."
            self.query_one("#reason").focus()
        else:
            self._confirm()

    def on_key(self, event: events.Key) -> None:
        """Text typed while a button has the focus goes to the reason, also keys that were typed early."""
        reason = self.query_one("#reason", QueryInput)
        for_reason = isinstance(self.focused, Button) or self.focused is reason
        if for_reason and event.character and event.is_printable and (reason.value or event.character != " "):
            self.set_focus(reason)
            reason.insert_text_at_cursor(event.character)
            event.stop()

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        self._stop.requested = True
        self._discard_plan()
        self.dismiss(None)

    @on(Button.Pressed, "#confirm")
    def _confirm(self) -> None:
        confirmation = self._confirmation()
        if self.plan is not None and confirmation is not None:
            self.dismiss((self.plan, confirmation))


def _show_lines_below(preview: TextPane) -> None:
    below = round(preview.max_scroll_y - preview.scroll_y)
    hint = safe.phrase("pgdn: $below more $lines", below=below, lines="line" if below == 1 else "lines")
    if isinstance(preview.parent, Vertical):
        preview.parent.border_subtitle = hint if below > 0 else Content("")


def _worded(plan: Plan, switches: Switches, counts: Mapping[str, int]) -> dict[str, int]:
    return {with_advice(text, plan.advice, switches): count for text, count in counts.items()}


def _first_items(operations: Operations, plan: Plan) -> list[str]:
    today = plan.created_at.date()
    return [f"{key}  {change_words(change, today)}" for key, change in operations.foreseen(plan, _ITEMS_SHOWN)]
