"""The filter language on one card."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.ui import safe
from console.ui.cells import Cell
from console.ui.screens.dialog import Dialog
from console.ui.widgets.text_pane import Line, TextPane

_QUERY = (
    ("backend:queue", "one system; a comma means or, * matches anything"),
    ("condition:terminal,stuck", "without one, only what needs attention; condition:* shows all"),
    ("attempts>=3", "numbers compare with < <= > >="),
    ("updated<2h  next<15m", "a duration before or after now"),
    ("updated>2026-11-01T12:00Z", "a date or time, in UTC"),
    ('error~"rate limit"', "contains, upper or lower case"),
    ("cause:7f3a", "one cause, by its signature"),
    ("recoverable:no", "errors that the policy lists as unrecoverable"),
    ("-error~timeout", "- in front means not"),
    ("timeout", "a plain word is searched in error, id and references"),
)


class LanguageScreen(Dialog[None]):
    """The filter language on one card."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        pane = TextPane()
        pane.add_class("dialog")
        pane.border_title = safe.phrase("[b]The filter language[/]")
        pane.border_subtitle = safe.phrase("[$muted]esc closes[/]")
        yield pane

    def on_mount(self) -> None:
        pane = self.query_one(TextPane)
        pane.lines = ([Cell("Every term must hold.", "muted")], *query_lines())
        pane.focus()


def query_lines() -> list[Line]:
    """One line for each kind of term, with an example."""
    return [[Cell(f"{example:<26} ", "accent"), Cell(words)] for example, words in _QUERY]
