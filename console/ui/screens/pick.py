"""A dialog with a list of choices, filtered by typing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from console.core.text import ascii_lower
from console.ui import safe
from console.ui.widgets.filter_bar import QueryInput


class Choice(NamedTuple):
    """A value to return, with its title and a hint."""

    value: str
    title: str
    hint: str = ""


class PickScreen(ModalScreen[str | None]):
    """Enter returns the highlighted choice, or, if `free` is set and nothing matches, the typed text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel"),
        Binding("down", "move(1)", "Down", show=False),
        Binding("up", "move(-1)", "Up", show=False),
    ]

    def __init__(self, title: str, choices: Sequence[Choice], *, free: str = "") -> None:
        super().__init__()
        self._title = title
        self._choices = choices
        self._free = free
        self._matching: Sequence[Choice] = choices

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = safe.shown(self._title)
            yield QueryInput(placeholder=self._free or "type to filter")
            yield OptionList()

    def on_mount(self) -> None:
        self._show("")
        self.query_one(QueryInput).focus()

    def _show(self, typed: str) -> None:
        low = ascii_lower(typed.strip())
        self._matching = [c for c in self._choices if low in ascii_lower(c.title) or low in ascii_lower(c.hint)]
        options = self.query_one(OptionList)
        options.clear_options()
        wide = min(max((len(c.title) for c in self._matching), default=0), 30)
        options.add_options(
            Option(safe.phrase("$title  [$muted]$hint[/]", title=safe.fit(safe.line(c.title), wide), hint=c.hint))
            for c in self._matching
        )
        if self._matching:
            options.highlighted = 0

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._show(event.value)

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        highlighted = self.query_one(OptionList).highlighted
        if self._matching and highlighted is not None:
            self.dismiss(self._matching[highlighted].value)
        elif self._free and event.value.strip():
            self.dismiss(event.value.strip())

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._matching[event.option_index].value)

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        (options.action_cursor_down if by > 0 else options.action_cursor_up)()
