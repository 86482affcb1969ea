"""The footer: the keys of the screen. One widget, because one per key would be slow to draw."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from console.actions.catalogue import CATALOGUE, EVERYWHERE
from console.ui import safe

_GAP = "  "
_PLACE = {action.id: place for place, action in enumerate(CATALOGUE)}


def _in_catalogue(shown: tuple[Binding, bool]) -> int:
    return _PLACE.get(shown[0].id or "", len(_PLACE))


class KeyLine(Widget):
    """Where there is no room, keys of the screen are left out; those of every screen, such as help, stay."""

    def __init__(self) -> None:
        super().__init__()
        self._spans: list[tuple[int, int, str]] = []
        """First and last column of each key, for the mouse."""

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if self.is_attached and screen is self.screen:
            self.refresh()

    def _shown(self) -> tuple[list[tuple[Binding, bool]], list[tuple[Binding, bool]]]:
        """The bindings of this screen and of every screen, each with whether it is enabled."""
        own: dict[str, tuple[Binding, bool]] = {}
        everywhere: dict[str, tuple[Binding, bool]] = {}
        for _, binding, enabled, _ in self.screen.active_bindings.values():
            if binding.show and binding.id:
                target = everywhere if binding.id.startswith(f"{EVERYWHERE}.") else own
                target.setdefault(binding.action, (binding, enabled))
        return sorted(own.values(), key=_in_catalogue), sorted(everywhere.values(), key=_in_catalogue)

    def _piece(self, binding: Binding, enabled: bool) -> Content:
        template = "[b $accent]$key[/] [$muted]$label[/]" if enabled else "[dim $muted]$key $label[/]"
        return safe.phrase(template, key=self.app.get_key_display(binding), label=binding.description)

    def render(self) -> Content:
        if not self.screen.is_active:
            return Content("")  # a dialog has the keys, and names its own
        if keys := getattr(self.screen.focused, "KEYS_SHOWN", ()):
            return self._of_the_input(keys)
        own, everywhere = self._shown()
        pieces = [(binding.key, self._piece(binding, enabled)) for binding, enabled in (*own, *everywhere)]
        room = self.size.width - 2
        while own and sum(piece.cell_length + len(_GAP) for _, piece in pieces) - len(_GAP) > room:
            own.pop()
            del pieces[len(own)]
        self._spans, at = [], 1
        for key, piece in pieces:
            self._spans.append((at, at + piece.cell_length, key))
            at += piece.cell_length + len(_GAP)
        return Content.assemble(" ", Content(_GAP).join(piece for _, piece in pieces))

    def _of_the_input(self, keys: Sequence[tuple[str, str]]) -> Content:
        """The keys of the input that has the focus."""
        self._spans = []
        pieces = [safe.phrase("[b $accent]$key[/] [$muted]$label[/]", key=key, label=label) for key, label in keys]
        return Content.assemble(" ", Content(_GAP).join(pieces)).truncate(self.size.width, ellipsis=True)

    def on_click(self, event: events.Click) -> None:
        for begin, end, key in self._spans:
            if begin <= event.x < end:
                self.app.simulate_key(key)
