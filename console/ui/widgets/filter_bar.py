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
from textual.widget import Widget
from textual.widgets import Input, Static

from console.core.faults import Fault
from console.core.query import Filter
from console.ui import safe
from console.ui.completion import Completion, Vocabulary, completed, completions
from console.ui.textual_workarounds import bindings_for
from console.ui.widgets.line_table import LineTable

_DEBOUNCE = 0.25
_ARRIVE_WITHIN = 1.0
_SUGGESTED = 12
_APPLIED = 40
"""Characters of the applied filter that stand before the suggestions."""
_MOST_REMEMBERED = 50


class QueryInput(Input):
    """An input with safe text, whatever is pasted. Its cursor does not blink, which would send bytes all the time."""

    def on_mount(self) -> None:
        self.cursor_blink = False

    def validate_value(self, value: str) -> str:
        return safe.line(value, 2_000)


async def typed_keys_arrived(field: Widget | None) -> None:
    """Wait until every key that was typed before is part of the text. For actions that run before keys are handled."""
    if field is not None:
        arrived = asyncio.Event()
        field.call_later(arrived.set)
        with suppress(TimeoutError):
            async with asyncio.timeout(_ARRIVE_WITHIN):
                await arrived.wait()


class LeavableInput(QueryInput):
    """An input that is left by enter or escape.

    These are priority bindings, so that the next key already goes to what has the focus then, however fast it comes.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "leave(False)", show=False, priority=True),
        Binding("escape", "leave(True)", show=False, priority=True),
    ]

    def __init__(self, leave: Callable[[bool], None], placeholder: str, id: str | None = None) -> None:
        super().__init__(placeholder=placeholder, id=id, select_on_focus=False)
        self._leave = leave

    async def on_key(self, event: events.Key) -> None:
        """Run editing keys here, in order: run by the app, they could come after an enter that was typed later."""
        editing = [binding for binding in bindings_for(self, event.key) if not binding.priority]
        if editing:
            event.stop()
            event.prevent_default()
            await self.run_action(editing[0].action)

    async def action_leave(self, dropped: bool) -> None:
        await typed_keys_arrived(self)
        self._leave(dropped)


class FilterInput(LeavableInput):
    """The input of the filter bar. Its further keys act on the bar: complete, history, the language."""

    KEYS_SHOWN = (("tab", "Complete"), ("↑", "History"), ("?", "Language"), ("enter", "Apply"), ("esc", "Leave"))
    """For the footer."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", show=False, priority=True),
        Binding("up", "recall(-1)", show=False),
        Binding("down", "recall(1)", show=False),
        Binding("ctrl+@", "language", show=False),
    ]

    def __init__(self, bar: FilterBar, placeholder: str) -> None:
        super().__init__(bar.leave, placeholder)
        self._bar = bar

    async def on_key(self, event: events.Key) -> None:
        if event.key == "question_mark" and not self.value:
            event.stop()
            event.prevent_default()
            self.action_language()

    async def action_complete(self) -> None:
        await typed_keys_arrived(self)
        self._bar.complete()

    def action_recall(self, by: int) -> None:
        self._bar.recall(by)

    def action_language(self) -> None:
        self._bar.post_message(FilterBar.LanguageAsked())


class FilterBar(Vertical):
    """`filter` is the last valid one; a mistake does not change it. While nobody types, only that one is shown."""

    filter: reactive[Filter] = reactive(Filter, init=False)
    problem: reactive[str] = reactive("")

    class Changed(Message):
        """The filter has changed."""

        def __init__(self, filter: Filter) -> None:
            super().__init__()
            self.filter = filter

    class LanguageAsked(Message):
        """The person wants to see the query language."""

    def __init__(self, placeholder: str, vocabulary: Vocabulary | None = None) -> None:
        super().__init__()
        self.vocabulary = vocabulary or Vocabulary()
        self._placeholder = placeholder
        self._timer: Timer | None = None
        self._suggestions: list[Completion] = []
        self._cycling: tuple[str, list[Completion], int] | None = None
        """After a completion: the text before it, what was offered, and which one was taken."""
        self._remembered: list[str] = []
        self._recalled: int | None = None

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static("/", classes="slash")
            yield Static(classes="chips")
            yield FilterInput(self, self._placeholder)
        yield Static(classes="suggestions")
        yield Static(classes="problem")
        yield Static(classes="applied")

    def on_mount(self) -> None:
        self._show_chips()
        self._is_typing(False)

    @property
    def input(self) -> QueryInput:
        return self.query_one(QueryInput)

    def set_text(self, text: str) -> None:
        """Apply a filter as if it had been typed."""
        self.input.value = text
        self._apply(text)

    # -- what is shown -----------------------------------------------------------------------------

    def watch_problem(self) -> None:
        self._show_problem()

    def _show_problem(self) -> None:
        line = self.query_one(".problem", Static)
        line.update(safe.phrase("[$error]✗[/] $problem", problem=self.problem))
        applied = self.query_one(".applied", Static)
        applied.update(safe.phrase("   [$muted]still applied:[/] $filter", filter=str(self.filter) or "no filter"))
        line.display = applied.display = bool(self.problem)

    def watch_filter(self) -> None:
        self._show_chips()
        self._show_problem()

    def _show_chips(self) -> None:
        """The terms that are applied, one after another."""
        chips = [safe.phrase("[$foreground on $panel] $term [/]", term=str(term)) for term in self.filter.terms]
        hint = safe.phrase("[$muted]$hint[/]", hint=self._placeholder)
        self.query_one(".chips", Static).update(Content(" ").join(chips or [hint]))

    @on(events.DescendantFocus)
    def _entered(self) -> None:
        self._is_typing(True)
        self._suggest()

    @on(events.DescendantBlur)
    def _left(self) -> None:
        """What is shown is what is applied, however the input was left."""
        self._is_typing(False)
        if self.input.value != str(self.filter):
            self.input.value = str(self.filter)
            self.problem = ""

    def _is_typing(self, typing: bool) -> None:
        self.set_class(typing, "typing")
        self.input.display = typing  # not left to the style sheet, which is applied later: keys may come at once
        self.query_one(".chips").display = not typing
        if not typing:
            self.query_one(".suggestions").display = False

    def on_click(self) -> None:
        self.edit()

    def edit(self) -> None:
        """Let the person type."""
        self._is_typing(True)  # first: what is not shown cannot have the focus
        self.screen.set_focus(self.input)
        if self.input.value:
            self.input.value = f"{self.input.value.rstrip()} "  # what is typed next is another term
        self.input.cursor_position = len(self.input.value)

    # -- typing ------------------------------------------------------------------------------------

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if self._timer is not None:
            self._timer.stop()
        self._suggest()
        if not self._is_a_field_begun():
            self._timer = self.set_timer(_DEBOUNCE, lambda: self._apply(event.value, typing=True))

    def _is_a_field_begun(self) -> bool:
        """Whether the last word may become the name of a field: then it is not searched for yet."""
        typed = self.input
        return typed.cursor_position == len(typed.value) and any(one.names_field for one in self._suggestions)

    def _suggest(self) -> None:
        typed = self.input
        if not self.has_class("typing"):
            return
        if self._cycling is None or typed.value != self._taken():
            self._cycling = None
            self._suggestions = completions(typed.value, typed.cursor_position, self.vocabulary)
        self._show_suggestions()

    def _taken(self) -> str:
        assert self._cycling is not None
        before, offered, number = self._cycling
        return completed(before, offered[number])[0]

    def _show_suggestions(self) -> None:
        line = self.query_one(".suggestions", Static)
        line.display = bool(self._suggestions)
        chosen = None if self._cycling is None else self._cycling[2]
        parts = []
        for number, one in enumerate(self._suggestions[:_SUGGESTED]):
            colour = "$accent" if number == chosen else "$muted" if number else "$foreground"
            parts.append(safe.phrase(f"[{colour}]$text[/]", text=one.text))
        applied = safe.line(str(self.filter) or "no filter", _APPLIED)
        still = safe.phrase("   [$muted]still applied:[/] $filter", filter=applied) if self._waits() else ""
        tab = Content.from_markup("   [b $accent]tab[/] ")
        line.update(Content.assemble(still, tab, Content("  ").join(parts)))

    def _waits(self) -> bool:
        """Whether what is typed is not applied yet: it may become the name of a field, or is not a filter yet."""
        try:
            typed = Filter.parse(self.input.value)
        except Fault:
            return not self.problem  # which names the filter that is applied
        return typed != self.filter and self._is_a_field_begun()

    def complete(self) -> None:
        """Take the first suggestion; again, the next one."""
        if not self._suggestions:
            return
        if self._cycling is None:
            self._cycling = (self.input.value, self._suggestions, 0)
        else:
            before, offered, number = self._cycling
            self._cycling = (before, offered, (number + 1) % len(offered))
        before, offered, number = self._cycling
        text, cursor = completed(before, offered[number])
        self.input.value = text
        self.input.cursor_position = cursor
        if len(offered) == 1:
            self._cycling = None
            self._suggest()

    def recall(self, by: int) -> None:
        """Show an earlier filter in the input, or a later one."""
        if not self._remembered:
            return
        at = len(self._remembered) if self._recalled is None else self._recalled
        self._recalled = max(0, min(at + by, len(self._remembered)))
        later = self._recalled == len(self._remembered)
        self.input.value = "" if later else self._remembered[self._recalled]
        self.input.cursor_position = len(self.input.value)

    def leave(self, dropped: bool) -> None:
        if dropped:
            self.input.value = str(self.filter)
        self._apply(self.input.value)
        if not self.problem:
            self._remember(str(self.filter))
            self.screen.set_focus(self.screen.query_one(LineTable))

    def _remember(self, text: str) -> None:
        self._recalled = None
        if text:
            self._remembered = [*(one for one in self._remembered if one != text), text][-_MOST_REMEMBERED:]

    def _apply(self, text: str, *, typing: bool = False) -> None:
        if self._timer is not None:
            self._timer.stop()
        if typing and not self.has_class("typing"):
            return  # it was left meanwhile
        try:
            found = Filter.parse(text)
        except Fault as fault:
            self.problem = "" if typing and self._suggestions else str(fault)
            self._suggest()
            return
        self.problem = ""
        if found != self.filter:
            self.filter = found
            self.post_message(self.Changed(found))
