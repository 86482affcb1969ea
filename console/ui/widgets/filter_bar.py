"""The filter bar: an input for the query language. A filter applies while it is typed; mistakes are shown below."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.timer import Timer
from textual.widgets import Input, Static

from console.core.faults import Fault
from console.core.query import Filter
from console.ui import safe
from console.ui.textual_workarounds import bindings_for
from console.ui.widgets.line_table import LineTable

_DEBOUNCE = 0.25
_ARRIVE_WITHIN = 1.0


class QueryInput(Input):
    """An input with safe text, whatever is pasted. Its cursor does not blink, which would send bytes all the time."""

    def on_mount(self) -> None:
        self.cursor_blink = False

    def validate_value(self, value: str) -> str:
        return safe.line(value, 2_000)


class LeavableInput(QueryInput):
    """An input that is left by enter or escape.

    These are priority bindings, so that the next key already goes to what has the focus then, however fast it comes.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "leave(False)", show=False, priority=True),
        Binding("escape", "leave(True)", show=False, priority=True),
    ]

    def __init__(self, leave: Callable[[bool], None], placeholder: str, id: str | None = None) -> None:
        super().__init__(placeholder=placeholder, id=id)
        self._leave = leave

    async def on_key(self, event: events.Key) -> None:
        """Run editing keys here, in order: run by the app, they could come after an enter that was typed later."""
        editing = [binding for binding in bindings_for(self, event.key) if not binding.priority]
        if editing:
            event.stop()
            event.prevent_default()
            await self.run_action(editing[0].action)

    async def action_leave(self, dropped: bool) -> None:
        await self._typed_keys_arrived()
        self._leave(dropped)

    async def _typed_keys_arrived(self) -> None:
        """Wait until every key that was typed before is part of the text."""
        arrived = asyncio.Event()
        self.call_later(arrived.set)
        with suppress(TimeoutError):
            async with asyncio.timeout(_ARRIVE_WITHIN):
                await arrived.wait()


class FilterBar(Vertical):
    """`filter` is the last valid one; a mistake does not change it."""

    filter: reactive[Filter] = reactive(Filter, init=False)
    problem: reactive[str] = reactive("")

    class Changed(Message):
        """The filter has changed."""

        def __init__(self, filter: Filter) -> None:
            super().__init__()
            self.filter = filter

    def __init__(self, placeholder: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._placeholder = placeholder
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static("/", classes="slash")
            yield LeavableInput(self._leave, self._placeholder)
        yield Static(classes="problem")

    @property
    def input(self) -> QueryInput:
        return self.query_one(QueryInput)

    def set_text(self, text: str) -> None:
        """Apply a filter as if it had been typed."""
        self.input.value = text
        self._apply(text)

    def watch_problem(self, problem: str) -> None:
        line = self.query_one(".problem", Static)
        line.update(safe.phrase("[$error]✗[/] $problem", problem=problem) if problem else Content(""))
        line.display = bool(problem)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(_DEBOUNCE, lambda: self._apply(event.value))

    def _leave(self, dropped: bool) -> None:
        if dropped:
            self.input.value = str(self.filter)
        self._apply(self.input.value)
        if not self.problem:
            self.screen.set_focus(self.screen.query_one(LineTable))

    def _apply(self, text: str) -> None:
        if self._timer is not None:
            self._timer.stop()
        try:
            found = Filter.parse(text)
        except Fault as fault:
            self.problem = str(fault)
            return
        self.problem = ""
        if found != self.filter:
            self.filter = found
            self.post_message(self.Changed(found))
