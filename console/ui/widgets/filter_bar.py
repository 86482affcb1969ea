"""The filter bar: a line of the query language, tried while it is typed, with the mistake in one line below."""

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
from console.ui.widgets.line_table import LineTable

_DEBOUNCE = 0.25
_TAKEN_WITHIN = 1.0


class QueryInput(Input):
    """An input whose text is harmless whatever is pasted. Its cursor stands still: nothing is sent for nothing."""

    def on_mount(self) -> None:
        self.cursor_blink = False

    def validate_value(self, value: str) -> str:
        return safe.line(value, 2_000)


class LeftInput(QueryInput):
    """An input that is left by enter or escape. The app carries that out before it looks at the next key, which is
    meant for what is behind the input; a message of ours would come after it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "leave(False)", show=False, priority=True),
        Binding("escape", "leave(True)", show=False, priority=True),
    ]

    def __init__(self, leave: Callable[[bool], None], placeholder: str, id: str | None = None) -> None:
        super().__init__(placeholder=placeholder, id=id)
        self._leave = leave

    async def on_key(self, event: events.Key) -> None:
        """Keys that edit are carried out here, in turn: from the app they would come after an enter behind them."""
        editing = [binding for binding in self._bindings.key_to_bindings.get(event.key, ()) if not binding.priority]
        if editing:
            event.stop()
            event.prevent_default()
            await self.run_action(editing[0].action)

    async def action_leave(self, dropped: bool) -> None:
        await self._taken()
        self._leave(dropped)

    async def _taken(self) -> None:
        """Until every key that was typed before is a character of the text."""
        taken = asyncio.Event()
        self.call_later(taken.set)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TAKEN_WITHIN):
                await taken.wait()


class FilterBar(Vertical):
    """`filter` is the last one that was understood; a mistake does not change it."""

    filter: reactive[Filter] = reactive(Filter, init=False)
    problem: reactive[str] = reactive("")

    class Changed(Message):
        """Another filter holds."""

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
            yield LeftInput(self._leave, self._placeholder)
        yield Static(classes="problem")

    @property
    def input(self) -> QueryInput:
        return self.query_one(QueryInput)

    def set_text(self, text: str) -> None:
        """Put a filter in, as if it had been typed and entered."""
        self.input.value = text
        self._try(text)

    def watch_problem(self, problem: str) -> None:
        line = self.query_one(".problem", Static)
        line.update(safe.phrase("[$error]✗[/] $problem", problem=problem) if problem else Content(""))
        line.display = bool(problem)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(_DEBOUNCE, lambda: self._try(event.value))

    def _leave(self, dropped: bool) -> None:
        if dropped:
            self.input.value = str(self.filter)
        self._try(self.input.value)
        if not self.problem:
            self.screen.set_focus(self.screen.query_one(LineTable))

    def _try(self, text: str) -> None:
        if self._timer is not None:
            self._timer.stop()
        try:
            found = Filter.parse(text)
        except Fault as fault:
            self.problem = f"{fault.where}: {fault.detail}. {fault.fix}"
            return
        self.problem = ""
        if found != self.filter:
            self.filter = found
            self.post_message(self.Changed(found))
