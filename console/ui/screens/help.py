"""Help: the keys of a screen, from the catalogue, and the filter language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from console.actions.catalogue import EVERYWHERE, PLACES, Action, actions_of
from console.ui import safe
from console.ui.actions import key_words
from console.ui.cells import Cell
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


class HelpScreen(ModalScreen[None]):
    """Lists every action of a screen, the disabled ones with the reason."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", "Close")]

    def __init__(self, place: str, keymap: Mapping[str, str], refused: Mapping[str, str]) -> None:
        super().__init__()
        self._place = place
        self._keymap = keymap
        self._refused = refused

    def compose(self) -> ComposeResult:
        pane = TextPane()
        pane.add_class("dialog", "help")
        pane.border_title = safe.phrase("Keys in [b]$place[/]", place=PLACES[self._place])
        pane.border_subtitle = safe.phrase("[$muted]esc closes[/]")
        yield pane

    def on_mount(self) -> None:
        pane = self.query_one(TextPane)
        pane.lines = tuple(self._lines())
        pane.focus()

    def _lines(self) -> list[Line]:
        lines: list[Line] = [self._line(action) for action in actions_of(self._place)]
        lines += [[], [Cell("on every screen", "muted")]]
        lines += [self._line(action) for action in actions_of(EVERYWHERE)]
        lines.append([Cell(f"{'^p':<12} ", "accent"), Cell("Command palette: find every action by name")])
        if self._place in ("failures", "causes"):
            lines += [[], [Cell("filter", "muted")]]
            lines += [[Cell(f"{example:<26} ", "accent"), Cell(words)] for example, words in _QUERY]
        return lines

    def _line(self, action: Action) -> Line:
        keys = key_words(self._keymap.get(action.id, action.key))
        why = self._refused.get(action.id, "")
        text = f"{action.help}  (not available: {why})" if why else action.help
        return [
            Cell(f"{safe.line(keys):<12} ", "muted" if why else "accent"),
            Cell(safe.line(text), "muted" if why else "plain"),
        ]
