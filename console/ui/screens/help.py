"""Help: the keys of a screen, from the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.actions.catalogue import EVERYWHERE, PLACES, KeyAction, actions_of
from console.ui import safe
from console.ui.actions import key_words
from console.ui.cells import Cell
from console.ui.screens.base import BaseScreen
from console.ui.screens.dialog import Dialog
from console.ui.screens.filter_language import query_lines
from console.ui.widgets.text_pane import Line, TextPane


class HelpScreen(Dialog[None]):
    """Lists every action of a screen, the disabled ones with the reason."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,q", "dismiss", "Close")]

    def __init__(self, screen: BaseScreen, keymap: Mapping[str, str]) -> None:
        super().__init__()
        self._place = screen.PLACE
        self._keymap = keymap
        self._refused = {a.id: why for a in actions_of(screen.PLACE) if (why := screen.refusal(a))}

    def compose(self) -> ComposeResult:
        pane = TextPane()
        pane.add_class("dialog", "help")
        pane.border_title = safe.phrase("Keys in [b]$place[/]", place=PLACES[self._place])
        pane.border_subtitle = safe.phrase("[$muted]esc closes[/]")
        yield pane

    def on_mount(self) -> None:
        pane = self.query_one(TextPane)
        pane.lines = tuple(self._lines())
        pane.styles.height = len(pane.lines) + 2  # with the border; the style sheet limits it
        pane.focus()

    def _lines(self) -> list[Line]:
        lines: list[Line] = [self._line(action) for action in actions_of(self._place)]
        lines += [[], [Cell("on every screen", "muted")]]
        lines += [self._line(action) for action in actions_of(EVERYWHERE)]
        lines.append([Cell(f"{'hjkl gg G':<12} ", "accent"), Cell("Move, as the arrow keys, home and end do")])
        if self._place in ("failures", "causes"):
            lines += [[], [Cell("filter", "muted")]]
            lines += query_lines()
        return lines

    def _line(self, action: KeyAction) -> Line:
        keys = key_words(self._keymap.get(action.id, action.key))
        why = self._refused.get(action.id, "")
        text = f"{action.help}  (not available: {why})" if why else action.help
        return [
            Cell(f"{safe.line(keys):<12} ", "muted" if why else "accent"),
            Cell(safe.line(text), "muted" if why else "plain"),
        ]
