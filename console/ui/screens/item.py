"""Item: its verdict, next runs, history and whole error; its payload, its native row, the overrides of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from time import monotonic
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Input, Static

from console.actions import catalogue
from console.core.faults import Fault, ReadTooLong
from console.core.item import Detail, Item
from console.core.plan import Marked
from console.core.text import as_of, keep_ends, plural
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.backend_calls import off_loop
from console.ui.cells import Cell
from console.ui.item_text import ItemText, when_and_ago
from console.ui.messages import DetailReady
from console.ui.screens.base import BaseScreen
from console.ui.widgets.filter_bar import LeavableInput, QueryInput
from console.ui.widgets.status_line import StatusLine
from console.ui.widgets.text_pane import Line, TextPane

_SIDE_BY_SIDE = 120
_LONG = 20_000
_ITEM = "item"
"""The question of the reading budget."""
_SHORTEST_KEY = 12
"""With less room the key is not shown beside the tabs."""
TABS = ("timeline", "payload", "native row", "overrides")
_PAYLOADS = ("payload", "args", "kwargs", "arguments", "params", "parameters", "data", "body", "input", "input_data")
_LONGEST_PAYLOAD = 200_000
Step = Callable[[int], Item | None]
"""Moves the list's cursor by this many items, and returns the item there; None at the end of the list."""


class ItemScreen(BaseScreen):
    """Shows the item as the list knew it until its details are read."""

    PLACE = "item"
    TAB = "failures"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("item"))

    tab: reactive[str] = reactive(TABS[0], init=False)

    def __init__(self, item: Item, step: Step | None = None) -> None:
        super().__init__()
        self._item = item
        self._step = step
        self._detail: Detail | None = None
        self._fault: Fault | None = None
        self._read_at: datetime | None = None
        self._shown_age = ""
        self._overrides: Sequence[tuple[datetime, str]] = ()

    def compose_content(self) -> ComposeResult:
        yield Static(id="tabs")
        yield LeavableInput(self._leave_search, "search", id="search")
        with Horizontal(id="panes"):
            yield TextPane(id="facts")
            yield TextPane(id="error")
        yield StatusLine(id="found")

    def on_mount(self) -> None:
        self.query_one("#search").display = False
        self.query_one("#found").display = False
        self.query_one("#facts", TextPane).focus()
        self._fill()
        self.read_again()

    def read_again(self) -> None:
        """A person asks."""
        self.start(partial(self._read, asked=True), "detail")

    def refresh_if_shown(self) -> None:
        if self.is_current and self.console_app.callers[self._item.key.backend].budget.wait(_ITEM, monotonic()) <= 0:
            self.start(partial(self._read, asked=False), "detail")

    async def _read(self, *, asked: bool) -> None:
        key = self._item.key
        try:
            caller = self.console_app.callers[key.backend]
            detail = await caller.call(
                lambda backend: backend.item(key, self.session.clock.now()), question=_ITEM, asked=asked
            )
        except ReadTooLong:
            return  # nobody has asked, and its writers would have to wait
        except Fault as fault:
            self.post_message(DetailReady(None, fault))
            return
        trail = self.session.trail
        overrides = [] if trail is None else await off_loop(lambda: trail.history_of(str(key)))
        self.post_message(DetailReady(detail, overrides=overrides))

    @on(DetailReady)
    def _ready(self, message: DetailReady) -> None:
        if message.detail is not None and message.detail.item.key != self._item.key:
            return  # of an item that was left meanwhile
        self._fault = message.fault
        if message.detail is not None:
            self._read_at = self.session.clock.now()
            self._detail = message.detail
            self._item = message.detail.item
            self._overrides = message.overrides
        self._fill()
        self.refresh_bindings()

    def on_resize(self) -> None:
        self._fill()

    def ticked(self) -> None:
        """Update the countdown, unless the error is so long that wrapping it again would be slow."""
        if self._item.verdict.next_retry is not None and len(self._item.error or "") < _LONG:
            self._fill()
        elif self._age() != self._shown_age:
            self.query_one("#tabs", Static).update(self._tabs())

    def _age(self) -> str:
        """How old the item is, if it is older than the refresh."""
        return as_of(self.session.clock.now() - self._read_at, self.session.refresh) if self._read_at else ""

    def watch_tab(self) -> None:
        self._fill()
        self.query_one("#facts", TextPane).scroll_home(animate=False)
        self._look_for(self._needle)

    def _fill(self) -> None:
        side_by_side = self.size.width >= _SIDE_BY_SIDE and self.tab == TABS[0]
        facts, error = self.query_one("#facts", TextPane), self.query_one("#error", TextPane)
        error.display = side_by_side
        life = self.console_app.life_of(self._item.signature) if self._item.signature else None
        text = ItemText(self._item, self._detail, self._overrides, self.session.clock.now(), self._runbook(), life)
        _set(facts, list(self._lines(text, side_by_side)))
        if side_by_side:
            _set(error, [[Cell("Error", "muted")], *text.error(), [], [Cell("Native row", "muted")], *text.native()])
        self.query_one("#tabs", Static).update(self._tabs())

    def _tabs(self) -> Content:
        shown = []
        for number, tab in enumerate(TABS):
            elsewhere = f"[@click=screen.show_tab({number})]$tab[/]"
            shown.append(safe.phrase("[b u $accent]$tab[/]" if tab == self.tab else elsewhere, tab=tab))
        self._shown_age = self._age()
        age = safe.phrase("   [$muted]$age[/]", age=self._shown_age) if self._shown_age else Content("")
        left = Content.assemble(" ", Content("   ").join(shown), age)
        room = self.size.width - left.cell_length - 4
        if room < _SHORTEST_KEY:
            return left
        words = safe.line(keep_ends(str(self._item.key), room), room)
        key = safe.phrase("[$accent]$key[/] ", key=words)
        return Content.assemble(left, " " * (self.size.width - left.cell_length - key.cell_length), key)

    # -- text ---------------------------------------------------------------------------------

    def _lines(self, text: ItemText, side_by_side: bool) -> Iterator[Line]:
        if self._fault is not None:
            yield [Cell("✗ ", "error"), Cell(safe.line(fault_text(self._fault), 400), "error")]
            yield []
        match self.tab:
            case "payload":
                yield from self._payload()
            case "native row":
                yield from text.native()
            case "overrides":
                yield from self._override_lines(text)
            case _:
                yield from self._timeline(text, side_by_side)

    def _timeline(self, text: ItemText, side_by_side: bool) -> Iterator[Line]:
        yield from text.verdict()
        yield []
        if not side_by_side:
            yield [Cell("Error", "muted")]
            yield from text.error()
            yield []
        yield from text.facts()
        yield []
        yield from text.timeline()

    def _payload(self) -> Iterator[Line]:
        if self._detail is None:
            yield [Cell("reading…", "muted")]
            return
        found = False
        for name, value in self._detail.native:
            pretty = None if value is None else _pretty(name, value)
            if pretty is not None:
                found = True
                yield [Cell(safe.line(name), "muted")]
                yield from ([Cell("  "), Cell(line)] for line in safe.lines(pretty, _LONGEST_PAYLOAD))
                yield []
        if not found:
            yield [Cell("Its system stores no payload with it. The native row has everything that is stored.", "muted")]

    def _override_lines(self, text: ItemText) -> Iterator[Line]:
        if self.session.trail is None:
            yield [Cell("There is no trail.", "muted")]
        elif not self._overrides:
            yield [Cell("No override has changed this item.", "muted")]
        for at, words in self._overrides:
            yield [Cell("◆ ", "accent"), Cell(safe.line(f"{when_and_ago(at, text.now)}  {words}", 400))]

    # -- actions -----------------------------------------------------------------------------------

    def _runbook(self) -> str | None:
        return self.session.runbook(self._item.error) if self._item.error else None

    @property
    def _needle(self) -> str:
        search = self.query_one("#search", QueryInput)
        return search.value if search.display else ""

    def has(self, need: str) -> bool:
        match need:
            case catalogue.A_SEARCH:
                return bool(self._needle)
            case catalogue.AN_ERROR:
                return bool(self._item.error)
            case catalogue.A_RUNBOOK:
                return self._runbook() is not None
            case catalogue.A_LIST:
                return self._step is not None
            case _:
                return True

    def back(self) -> Callable[[], object] | None:
        return partial(self._leave_search, dropped=True) if self.query_one("#search").display else None

    def command(self) -> Sequence[str]:
        return ["show", str(self._item.key)]

    def action_next_item(self) -> None:
        self._go_to_item(1)

    def action_previous_item(self) -> None:
        self._go_to_item(-1)

    def _go_to_item(self, by: int) -> None:
        item = self._step(by) if self._step is not None else None
        if item is None:
            self.console_app.hint(f"This is the {'last' if by > 0 else 'first'} item of the list.")
            return
        self._item, self._detail, self._fault, self._overrides, self._read_at = item, None, None, (), None
        self._fill()
        self.query_one("#facts", TextPane).scroll_home(animate=False)
        self.read_again()
        self.refresh_bindings()

    def action_other_text(self) -> None:
        """Scroll the text at the right, or the one at the left again; with one text only, show the next tab."""
        facts, error = self.query_one("#facts", TextPane), self.query_one("#error", TextPane)
        if error.display:
            (facts if error.has_focus else error).focus()
        else:
            self.action_next_tab()

    def action_next_tab(self) -> None:
        self.tab = TABS[(TABS.index(self.tab) + 1) % len(TABS)]

    def action_previous_tab(self) -> None:
        self.tab = TABS[(TABS.index(self.tab) - 1) % len(TABS)]

    def action_show_tab(self, number: int) -> None:
        self.tab = TABS[number]

    def action_requeue(self) -> None:
        self.console_app.plan(Marked((self._item.key,)))

    def action_discard(self) -> None:
        self.console_app.plan(Marked((self._item.key,)), "discard")

    def action_search(self) -> None:
        search = self.query_one("#search", QueryInput)
        search.display = True
        self.set_focus(search)

    @on(Input.Changed, "#search")
    def _typed(self, event: Input.Changed) -> None:
        self._look_for(event.value)

    def _leave_search(self, dropped: bool) -> None:
        search = self.query_one("#search", QueryInput)
        self.set_focus(self.query_one("#facts"))
        if dropped:
            search.value = ""
        if dropped or not search.value:
            search.display = False
        self._look_for(self._needle)
        self.refresh_bindings()
        if not dropped and self._needle:
            self.action_next_match()

    def _look_for(self, needle: str) -> None:
        panes = list(self.query(TextPane))
        for pane in panes:
            pane.needle = needle
        found = sum(len(pane.matches) for pane in panes if pane.display)
        line = self.query_one("#found", StatusLine)
        line.left = safe.phrase(
            "[$muted] $count contain$s[/] $needle  [$muted]n next, N previous[/]",
            count=f"{found} {plural(found, 'line')}",
            s="s" if found == 1 else "",
            needle=needle,
        )
        line.display = bool(needle)

    def _go(self, by: int) -> None:
        for pane in reversed(list(self.query(TextPane))):
            if pane.display and pane.go_to_match(by):
                return
        self.console_app.hint(f"Nothing here contains {self._needle}. The other tabs may.")

    def action_next_match(self) -> None:
        self._go(1)

    def action_previous_match(self) -> None:
        self._go(-1)

    def action_copy(self) -> None:
        text = self._detail.error if self._detail else self._item.error
        if text:
            self.console_app.copy(text, "the error")

    def action_copy_key(self) -> None:
        self.console_app.copy(str(self._item.key), "the key of this item")

    def action_same_cause(self) -> None:
        if self._item.signature is not None:
            self.console_app.show_failures(f"cause:{self._item.signature}")

    def action_runbook(self) -> None:
        if page := self._runbook():
            self.console_app.copy(page, "the runbook link")


def _set(pane: TextPane, lines: list[Line]) -> None:
    if pane.lines != tuple(lines):
        pane.lines = tuple(lines)


def _pretty(name: str, value: str) -> str | None:
    """A stored value as a payload: JSON with line breaks, or as it is if its name says so; None if it is neither."""
    named = name.lower() in _PAYLOADS
    if value[:1] not in "{[" or len(value) > _LONGEST_PAYLOAD:
        return value if named else None
    try:
        return json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return value if named else None
