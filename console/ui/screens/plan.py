"""Plan: what would change, what is blocked and why; budget and release; a reason, and a yes that is meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Button, Checkbox, Input, Label, Static

from console.core.backend import Abilities, Budget, Flag, Order, Requeues
from console.core.faults import Fault
from console.core.operations import Operations
from console.core.plan import Confirmation, Plan, Selection
from console.core.release import Release, parse_release
from console.ui import safe
from console.ui.cells import Cell, thousands
from console.ui.lanes import Raised, off_loop
from console.ui.messages import PlanReady
from console.ui.preview import UNDO, becoming, budget_words, condition, counted, release_words
from console.ui.reports import Reports
from console.ui.widgets.filter_bar import QueryInput
from console.ui.widgets.text_pane import Line, TextPane
from console.ui.words import SWITCHES, here

if TYPE_CHECKING:
    from console.ui.app import Console

_DEBOUNCE = 0.4
_ITEMS_SHOWN = 200


class Toggle(Checkbox):
    """A checkbox whose state is a character, not only a colour."""

    @property
    def _button(self) -> Content:
        style = self.get_visual_style("toggle--button")
        return Content.assemble(("[x]" if self.value else "[ ]", style))


class PlanScreen(Reports, ModalScreen[tuple[Plan, Confirmation] | None]):
    """Every change of budget, release or flags makes a new plan; the old one is forgotten."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel"),
        # Before the next key is looked at: what is typed after it is meant for the next field, also when it is slow.
        Binding("tab", "app.focus_next", show=False, priority=True),
        Binding("shift+tab", "app.focus_previous", show=False, priority=True),
        # Whatever field has the focus: what is to know about a plan may lie below what fits.
        Binding("pagedown", "read(1)", show=False, priority=True),
        Binding("pageup", "read(-1)", show=False, priority=True),
    ]

    HORIZONTAL_BREAKPOINTS = [(0, "narrow"), (96, "wide")]  # noqa: RUF012 - Textual declares it so
    """From the second on all switches fit on one line."""

    plan: reactive[Plan | None] = reactive(None, init=False)
    problem: reactive[str] = reactive("", init=False)

    def __init__(self, selection: Selection | None, undo_of: str | None = None) -> None:
        super().__init__()
        self._selection = selection
        self._undo_of = undo_of
        self._generation = 0
        self._stop = Raised()
        self._timer: Timer | None = None
        self._items: list[str] = []
        self._wanted: tuple[Order, Release] | None = None

    @property
    def console_app(self) -> Console:
        from console.ui.app import Console

        app = self.app
        assert isinstance(app, Console)
        return app

    @property
    def undoes(self) -> str | None:
        """The override this would take back, if it is an undo."""
        return self._undo_of

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog plan") as dialog:
            dialog.border_title = self._heading()
            yield TextPane(id="preview")
            if self._undo_of is None:
                with Horizontal(classes="row"):
                    yield Label("release", classes="name")
                    yield QueryInput("now", id="release", placeholder="now · over 30m · 10/s · canary 20")
                    yield Label("now · over 30m · 10/s · canary 20", classes="hint")
                with Container(classes="switches"):
                    yield from self._switches()
            with Horizontal(classes="row"):
                yield Label("reason", classes="name")
                hint = "required: why this is done, for whoever reads the trail"
                yield QueryInput(id="reason", placeholder=hint, select_on_focus=False)
            with Horizontal(classes="row"):
                yield Label("ticket", classes="name")
                yield QueryInput(id="ticket", placeholder="optional")
                yield Label("type", classes="name count")
                yield QueryInput(id="count", classes="count")
            yield Static(id="problem")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Requeue", id="confirm", variant="warning", compact=True, disabled=True)

    def _switches(self) -> Iterator[Toggle]:
        """What can be chosen with one of the backends that are concerned."""
        selection, desk = self._selection, self.console_app.desk
        meant = [b for b in desk.backends if isinstance(b, Requeues) and selection and selection.concerns(b.name)]
        if any(Budget.FRESH in backend.abilities.budgets for backend in meant):
            yield Toggle("fresh budget", id="fresh", compact=True)
        for flag, name in SWITCHES.items():
            if any(flag in backend.abilities.flags for backend in meant):
                yield Toggle(name, id=flag, compact=True)

    def _heading(self) -> Content:
        if self._undo_of is not None:
            return safe.phrase("[b]Undo[/] $what", what=self._undo_of)
        return safe.phrase("[b]Requeue[/] $what", what=str(self._selection))

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()
        for part in self.query(".count"):
            part.display = False
        self.watch_problem()
        preview = self.query_one("#preview", TextPane)
        for moved in ("scroll_y", "virtual_size", "size"):
            self.watch(preview, moved, self._look_below, init=False)
        self._propose()

    # -- proposing ---------------------------------------------------------------------------------

    def _order(self) -> tuple[Order, Release]:
        chosen = {box.id for box in self.query(Checkbox) if box.value}
        flags = frozenset(flag for flag in Flag if flag.value in chosen)
        order = Order(budget=Budget.FRESH if "fresh" in chosen else Budget.KEEP, flags=flags)
        return order, parse_release(self.query_one("#release", QueryInput).value)

    def _propose_if_changed(self) -> None:
        """An input also tells of the value it starts with."""
        try:
            same = self._order() == self._wanted
        except Fault:
            same = False
        if not same:
            self._propose()

    def _propose(self) -> None:
        self._forget()
        self._wanted = None
        self._generation += 1
        self._stop.requested = True
        self._stop = Raised()
        try:
            wanted = self._order() if self._undo_of is None else None
        except Fault as fault:
            self.problem = here(str(fault))
            return
        self._wanted = wanted
        self.problem = ""
        self._preview([[Cell("working out what would change…", "muted")]])
        self.start(partial(self._proposed, self._generation, self._stop, wanted), "plan")

    async def _proposed(self, generation: int, stop: Raised, wanted: tuple[Order, Release] | None) -> None:
        operations = self.console_app.desk.operations
        assert operations is not None
        try:
            plan = await off_loop(lambda: self._make(operations, stop, wanted))
            items = await off_loop(lambda: _first_items(operations, plan))
        except Fault as fault:
            self.post_message(PlanReady(generation, None, (), fault))
        else:
            self.post_message(PlanReady(generation, plan, items))

    def _make(self, operations: Operations, stop: Raised, wanted: tuple[Order, Release] | None) -> Plan:
        if wanted is None or self._selection is None:
            return operations.undo(self._undo_of or "", stop)
        return operations.propose(self._selection, *wanted, stop=stop)

    @on(PlanReady)
    def _ready(self, message: PlanReady) -> None:
        if message.generation != self._generation:
            if message.plan is not None:
                self._discard(message.plan.id)
            return
        self._items = list(message.items)
        self.plan = message.plan
        if message.fault is not None:
            self._preview([[Cell("✗ ", "error"), Cell(safe.line(here(str(message.fault)), 600), "error")]])

    def _forget(self) -> None:
        if self.plan is not None:
            self._discard(self.plan.id)
            self.plan = None

    def _discard(self, plan_id: str) -> None:
        book = self.console_app.desk.book
        if book is not None:
            discard = partial(book.discard, plan_id)
            self.console_app.start(partial(off_loop, discard), "discard", exclusive=False)

    # -- the preview -------------------------------------------------------------------------------

    def watch_plan(self, plan: Plan | None) -> None:
        if plan is not None:
            self._preview(list(self._told(plan)))
            typed = plan.changes >= self.console_app.desk.limits.confirm_from
            for part in self.query(".count"):
                part.display = typed
            self.query_one("#count", QueryInput).placeholder = f"{plan.changes} to confirm"
            word = "Undo" if self._undo_of is not None else "Requeue"
            self.query_one("#confirm", Button).label = f"{word} {thousands(plan.changes)}"
        self._judge()

    def _preview(self, lines: list[Line]) -> None:
        self.query_one("#preview", TextPane).lines = tuple(lines)

    def action_read(self, pages: int) -> None:
        preview = self.query_one("#preview", TextPane)
        preview.scroll_relative(y=pages * max(preview.size.height - 1, 1), animate=False)

    def _look_below(self) -> None:
        """Once it is laid out anew; it may be left by then."""
        self.call_after_refresh(_tell_what_is_below, self.query_one("#preview", TextPane))

    def _told(self, plan: Plan) -> Iterator[Line]:
        yield [
            Cell(f"{thousands(plan.changes)} would change", "accent" if plan.changes else "error"),
            Cell(
                f"   of {thousands(plan.selected)} selected, {thousands(plan.selected - plan.changes)} blocked", "muted"
            ),
        ]
        width = max((len(share.backend) for share in plan.shares), default=0)
        for share in plan.shares:
            told = list(self._abilities(share.backend)) if share.changes else []
            yield [
                Cell(f"  {safe.fit(thousands(share.changes), 8, right=True)}  "),
                Cell(safe.line(share.backend).ljust(width + 3), "plain"),
                *told[:1],
            ]
            yield from ([Cell(" " * 12), cell] for cell in told[1:])
        yield from counted("⚠ to know", _told_here(plan.warnings), "warning")
        yield from counted("blocked, and untouched", _told_here(plan.blocked), "error")
        if self._undo_of is None:
            yield from counted("by condition", {condition(name): n for name, n in plan.by_condition.items()}, "plain")
            yield from counted("by cause", self._causes(plan.by_signature), "plain")
        yield []
        if self._undo_of is None:
            yield [Cell("release  ", "muted"), Cell(release_words(plan))]
            yield [Cell("budget   ", "muted"), Cell(budget_words(plan.order.budget))]
        yield [
            Cell("plan     ", "muted"),
            Cell(f"{plan.id}  {plan.hash[:16]}…  good until {plan.expires_at:%H:%M:%S}Z", "muted"),
        ]
        if self._items:
            yield []
            yield [Cell("item by item", "muted")]
            yield from ([Cell("  "), Cell(safe.line(told))] for told in self._items)
            if plan.changes > len(self._items):
                yield [Cell(f"  and {thousands(plan.changes - len(self._items))} more", "muted")]

    def _causes(self, counts: Mapping[str, int]) -> dict[str, int]:
        """By the error itself, where the lists have seen one of them."""
        seen = self.console_app.errors_seen()
        return {f"{cause}  {seen.get(cause, '')}".rstrip(): count for cause, count in counts.items()}

    def _abilities(self, name: str) -> Iterator[Cell]:
        lanes = self.console_app.lanes
        backend = lanes[name].backend if name in lanes else None
        abilities: Abilities | None = backend.abilities if isinstance(backend, Requeues) else None
        if abilities is None:
            return
        yield Cell(UNDO[abilities.undo], "muted")
        if abilities.guard_is_weak:
            yield Cell("weak guard: a change and back would not be noticed", "warning")

    # -- confirming --------------------------------------------------------------------------------

    @on(Checkbox.Changed)
    def _chosen(self) -> None:
        self._propose()

    @on(Input.Changed, "#release")
    def _release_typed(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(_DEBOUNCE, self._propose_if_changed)

    @on(Input.Changed, "#reason")
    @on(Input.Changed, "#count")
    def _typed(self) -> None:
        if self.plan is not None:  # otherwise it is the release that is wrong, and stays so
            self.problem = ""
        self._judge()

    def _judge(self) -> None:
        self.query_one("#confirm", Button).disabled = self._confirmation() is None

    def _confirmation(self) -> Confirmation | None:
        """The yes, if it is complete."""
        plan, desk = self.plan, self.console_app.desk
        reason = self.query_one("#reason", QueryInput).value.strip()
        typed = self.query_one("#count", QueryInput).value.strip()
        if plan is None or not plan.changes or not reason:
            return None
        if plan.changes >= desk.limits.confirm_from and typed != str(plan.changes):
            return None
        ticket = self.query_one("#ticket", QueryInput).value.strip() or None
        return Confirmation(desk.who, desk.whence, reason, plan.changes, ticket)

    def watch_problem(self) -> None:
        line = self.query_one("#problem", Static)
        line.update(safe.phrase("[$error]✗ $problem[/]", problem=self.problem) if self.problem else Content(""))
        line.display = bool(self.problem)

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        """On to what is still missing for a yes. Whoever types the number of items and enter has said it."""
        if event.input.id == "count":
            self._counted(event.value.strip())
            return
        missing = ("#count", "#confirm") if event.input.id == "reason" else ()
        for widget in (self.query_one(id) for id in missing):
            if widget.focusable and widget.display:
                widget.focus()
                return
        self.focus_next()

    def _counted(self, typed: str) -> None:
        if self.plan is not None and typed != str(self.plan.changes):
            self.problem = f"{self.plan.changes} items would change: type that number"
        elif self.plan is not None and not self.query_one("#reason", QueryInput).value.strip():
            self.problem = "a reason is required: why is this done?"
            self.query_one("#reason").focus()
        else:
            self._confirmed()

    def on_key(self, event: events.Key) -> None:
        """Whoever types while a button has the focus means the reason, also with keys that were on their way."""
        reason = self.query_one("#reason", QueryInput)
        meant = isinstance(self.focused, Button) or self.focused is reason
        if meant and event.character and event.is_printable and (reason.value or event.character != " "):
            self.set_focus(reason)
            reason.insert_text_at_cursor(event.character)
            event.stop()

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        self._stop.requested = True
        self._forget()
        self.dismiss(None)

    @on(Button.Pressed, "#confirm")
    def _confirmed(self) -> None:
        confirmation = self._confirmation()
        if self.plan is not None and confirmation is not None:
            self.dismiss((self.plan, confirmation))


def _tell_what_is_below(preview: TextPane) -> None:
    below = round(preview.max_scroll_y - preview.scroll_y)
    told = safe.phrase("pgdn: $below more $lines", below=below, lines="line" if below == 1 else "lines")
    if isinstance(preview.parent, Vertical):
        preview.parent.border_subtitle = told if below > 0 else Content("")


def _told_here(counts: Mapping[str, int]) -> dict[str, int]:
    return {here(text): count for text, count in counts.items()}


def _first_items(operations: Operations, plan: Plan) -> list[str]:
    today = plan.created_at.date()
    return [f"{key}  {becoming(change, today)}" for key, change in operations.foreseen(plan, _ITEMS_SHOWN)]
