"""Item: its verdict, next runs, history, whole error and native row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from console.core.faults import Fault
from console.core.item import Attempt, Detail, Item
from console.core.plan import Marked
from console.core.text import ago, countdown
from console.ui import cells, safe
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.backend_calls import off_loop
from console.ui.cells import Cell
from console.ui.messages import DetailReady
from console.ui.screens.base import BaseScreen
from console.ui.widgets.filter_bar import LeavableInput, QueryInput
from console.ui.widgets.status_line import StatusLine
from console.ui.widgets.text_pane import Line, TextPane

_SIDE_BY_SIDE = 120
_ROW_VALUE = 4_000
_LONG = 20_000
_RUNS_AGAIN = {
    True: Cell("runs again automatically", "calm"),
    False: Cell("does not run again automatically", "muted"),
    None: Cell("cannot tell whether it runs again", "warning"),
}


class ItemScreen(BaseScreen):
    """Shows the item as the list knew it until its details are read."""

    PLACE = "item"
    TAB = "failures"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("item"))

    def __init__(self, item: Item) -> None:
        super().__init__()
        self._item = item
        self._detail: Detail | None = None
        self._fault: Fault | None = None
        self._overrides: Sequence[tuple[datetime, str]] = ()

    def compose_content(self) -> ComposeResult:
        yield LeavableInput(self._leave_search, "search", id="search")
        with Horizontal(id="panes"):
            yield TextPane(id="facts")
            yield TextPane(id="error")
        yield StatusLine(id="found")

    def on_mount(self) -> None:
        self.query_one("#search").display = False
        self.query_one("#found").display = False
        facts = self.query_one("#facts", TextPane)
        facts.border_title = safe.phrase("[b]$key[/]", key=str(self._item.key))
        facts.focus()
        self.query_one("#error", TextPane).border_title = safe.phrase("[b]error[/]")
        self._fill()
        self.read_again()

    def read_again(self) -> None:
        self.start(self._read, "detail")

    async def _read(self) -> None:
        key = self._item.key
        try:
            caller = self.console_app.callers[key.backend]
            detail = await caller.call(lambda backend: backend.item(key, self.session.clock.now()))
        except Fault as fault:
            self.post_message(DetailReady(None, fault))
            return
        trail = self.session.trail
        overrides = [] if trail is None else await off_loop(lambda: trail.history_of(str(key)))
        self.post_message(DetailReady(detail, overrides=overrides))

    @on(DetailReady)
    def _ready(self, message: DetailReady) -> None:
        self._fault = message.fault
        if message.detail is not None:
            self._detail = message.detail
            self._item = message.detail.item
            self._overrides = message.overrides
        self._fill()

    def on_resize(self) -> None:
        self._fill()

    def ticked(self) -> None:
        """Update the countdown, unless the error is so long that wrapping it again would be slow."""
        if self._item.verdict.next_retry is not None and len(self._item.error or "") < _LONG:
            self._fill()

    def _fill(self) -> None:
        side_by_side = self.size.width >= _SIDE_BY_SIDE
        facts, error = self.query_one("#facts", TextPane), self.query_one("#error", TextPane)
        error.display = side_by_side
        facts_lines = list(self._facts())
        error_lines = list(self._error())
        if not side_by_side:
            facts_lines += [[], [Cell("error", "muted")], *error_lines, [], *self._native()]
        else:
            facts_lines += [[], *self._native()]
            _set(error, error_lines)
        _set(facts, facts_lines)

    # -- text ---------------------------------------------------------------------------------

    def _facts(self) -> Iterator[Line]:
        item, now = self._item, self.session.clock.now()
        if self._fault is not None:
            yield [Cell("✗ ", "error"), Cell(safe.line(fault_text(self._fault), 400), "error")]
            yield []
        state = cells.condition(item.condition)
        yield [Cell(f"{state.text}  ", state.tone), Cell(safe.line(item.verdict.why, 400))]
        yield [_RUNS_AGAIN[item.verdict.will_run_again]]
        yield []
        yield from self._table(item, now)
        schedule = self._detail.schedule if self._detail else ()
        if schedule:
            yield []
            yield [Cell("Next", "muted")]
            yield from ([Cell("  ○ ", "calm"), Cell(safe.line(step))] for step in schedule)
        yield []
        yield from self._timeline(now)
        for note in item.notes:
            yield [Cell("⚠ ", "warning"), Cell(safe.line(note, 400))]
        if self._detail:
            yield from (_pair(name, value) for name, value in self._detail.extra)

    def _table(self, item: Item, now: datetime) -> Iterator[Line]:
        yield _pair("type", item.type)
        yield _pair("native status", item.native_status)
        yield _pair("attempts", cells.attempts(item, now).text)
        window = item.verdict.next_retry
        if window is not None:
            when = (
                cells.moment(window.earliest)
                if window.exact
                else f"{cells.moment(window.earliest)} – {cells.moment(window.latest)}"
            )
            yield _pair("next retry", f"{cells.next_retry(item, now).text}  ({when})")
        recoverable = {None: "unclear", True: "yes", False: "no"}[item.verdict.recoverable]
        yield _pair("recoverable", recoverable)
        for name, moment in (("created", item.created_at), ("updated", item.updated_at)):
            if moment is not None:
                yield _pair(name, f"{cells.moment(moment)}  ({ago(now - moment)})")
        if item.signature is not None:
            yield _pair("cause", item.signature)
        if item.error and (page := self.session.runbook(item.error)):
            yield _pair("runbook", page, "link", safe.address(page))

    def _timeline(self, now: datetime) -> Iterator[Line]:
        attempts = self._detail.attempts if self._detail else ()
        yield [Cell("History", "muted")]
        if not attempts and not self._overrides:
            yield [Cell("  no history is stored", "muted")]
        for attempt in attempts:
            yield from _attempt_lines(attempt, now)
        for at, words in self._overrides:
            yield [Cell("  ◆ ", "accent"), Cell(safe.line(f"{cells.moment(at)} ({ago(now - at)})  {words}", 400))]

    def _error(self) -> Iterator[Line]:
        text = self._detail.error if self._detail else self._item.error
        if not text:
            yield [Cell("no error text", "muted")]
            return
        yield from ([Cell(line)] for line in safe.lines(text))

    def _native(self) -> Iterator[Line]:
        yield [Cell("native row", "muted")]
        for name, value in self._detail.native if self._detail else ():
            if value is None:
                yield [Cell(f"  {safe.fit(safe.line(name), 18)} ", "muted"), Cell("NULL", "muted")]
                continue
            first, *more = safe.lines(value, _ROW_VALUE)
            yield [Cell(f"  {safe.fit(safe.line(name), 18)} ", "muted"), Cell(first)]
            yield from ([Cell(" " * 21), Cell(line)] for line in more[:20])

    # -- actions -----------------------------------------------------------------------------------

    def action_back(self) -> None:
        if self.query_one("#search").display:
            self._leave_search(dropped=True)
        else:
            self.dismiss(None)

    def action_requeue(self) -> None:
        self.console_app.plan(Marked((self._item.key,)))

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
            search.display = False
        self._look_for("" if dropped else search.value)
        if not dropped:
            self.action_next_match()

    def _look_for(self, needle: str) -> None:
        panes = list(self.query(TextPane))
        for pane in panes:
            pane.needle = needle
        found = sum(len(pane.matches) for pane in panes if pane.display)
        line = self.query_one("#found", StatusLine)
        line.left = safe.phrase(
            "[$muted] $count lines contain[/] $needle  [$muted]n next, N previous[/]", count=found, needle=needle
        )
        line.display = bool(needle)

    def _go(self, by: int) -> None:
        for pane in reversed(list(self.query(TextPane))):
            if pane.display and pane.go_to_match(by):
                return
        self.console_app.say("No match. Press / to search.")

    def action_next_match(self) -> None:
        self._go(1)

    def action_previous_match(self) -> None:
        self._go(-1)

    def action_copy(self) -> None:
        text = self._detail.error if self._detail else self._item.error
        if text:
            self.console_app.copy(text, "the error")
        else:
            self.console_app.say("This item has no error text.")

    def action_copy_key(self) -> None:
        self.console_app.copy(str(self._item.key), "the key of this item")

    def action_same_cause(self) -> None:
        if self._item.signature is None:
            self.console_app.say("This item has no error text, so it has no cause.")
        else:
            signature = self._item.signature
            self.dismiss(None)
            self.console_app.show_failures(f"cause:{signature}")

    def action_runbook(self) -> None:
        page = self.session.runbook(self._item.error) if self._item.error else None
        if page:
            self.console_app.copy(page, "the runbook link")
        else:
            self.console_app.say("No runbook is configured for this error.")


def _set(pane: TextPane, lines: list[Line]) -> None:
    if pane.lines != tuple(lines):
        pane.lines = tuple(lines)


def _pair(name: str, value: str, tone: str = "plain", link: str = "") -> Line:
    return [Cell(f"{safe.fit(safe.line(name), 14)} ", "muted"), Cell(safe.line(value, 1_000), tone, link)]


def _attempt_lines(attempt: Attempt, now: datetime) -> Iterator[Line]:
    number = "" if attempt.number is None else f"attempt {attempt.number}"
    when = "time unknown" if attempt.at is None else f"{cells.moment(attempt.at)} ({ago(now - attempt.at)})"
    parts = [part for part in (number, attempt.outcome, when) if part]
    if attempt.took is not None:
        parts.append(f"took {countdown(attempt.took)}")
    bad = attempt.error is not None
    yield [Cell("  ● ", "error" if bad else "good"), Cell(safe.line("  ".join(parts), 400))]
    if attempt.error:
        yield [Cell("  │ ", "muted"), Cell(safe.line(cells.telling_line(attempt.error)), "muted")]
    if attempt.next_delay is not None:
        yield [Cell("  │ ", "muted"), Cell(f"then waited {countdown(attempt.next_delay)}", "muted")]
