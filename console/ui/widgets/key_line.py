"""The last line of every place: its keys. One widget, because one per key would be the dearest part of the screen."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from console.core.catalogue import EVERYWHERE
from console.ui import safe

_APART = "  "


class KeyLine(Widget):
    """What does not fit is left out before what holds everywhere: help tells all, so its key is always there."""

    def __init__(self) -> None:
        super().__init__()
        self._spans: list[tuple[int, int, str]] = []
        """Where which key is drawn, for the mouse."""

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if self.is_attached and screen is self.screen:
            self.refresh()

    def _shown(self) -> tuple[list[tuple[Binding, bool]], list[tuple[Binding, bool]]]:
        """Of this place, and everywhere; with whether it can be done now."""
        here: dict[str, tuple[Binding, bool]] = {}
        everywhere: dict[str, tuple[Binding, bool]] = {}
        for _, binding, enabled, _ in self.screen.active_bindings.values():
            if binding.show and binding.id:
                rest = everywhere if binding.id.startswith(f"{EVERYWHERE}.") else here
                rest.setdefault(binding.action, (binding, enabled))
        return list(here.values()), list(everywhere.values())

    def _piece(self, binding: Binding, enabled: bool) -> Content:
        template = "[b $accent]$key[/] [$muted]$label[/]" if enabled else "[dim $muted]$key $label[/]"
        return safe.phrase(template, key=self.app.get_key_display(binding), label=binding.description)

    def render(self) -> Content:
        here, everywhere = self._shown()
        pieces = [(binding.key, self._piece(binding, enabled)) for binding, enabled in (*here, *everywhere)]
        room = self.size.width - 2
        while here and sum(piece.cell_length + len(_APART) for _, piece in pieces) - len(_APART) > room:
            here.pop()
            del pieces[len(here)]
        self._spans, at = [], 1
        for key, piece in pieces:
            self._spans.append((at, at + piece.cell_length, key))
            at += piece.cell_length + len(_APART)
        return Content.assemble(" ", Content(_APART).join(piece for _, piece in pieces))

    def on_click(self, event: events.Click) -> None:
        for begin, end, key in self._spans:
            if begin <= event.x < end:
                self.app.simulate_key(key)
