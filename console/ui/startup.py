"""The first screen: it names the systems while the config is checked and the drivers are loaded in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Static

from console.ui.health import Health
from console.ui.widgets.backend_card import BackendCard
from console.ui.widgets.key_line import KeyLine
from console.ui.widgets.top_bar import TopBar
from console.ui.widgets.upcoming_chart import UpcomingChart

if TYPE_CHECKING:
    from console.ui.app import Console


class StartupScreen(Screen[None]):
    """Looks like the Overview without figures. A tab's key chooses the screen to open; other keys have to wait."""

    AUTO_FOCUS = None

    def __init__(self, systems: Sequence[str]) -> None:
        super().__init__()
        self._systems = systems

    def compose(self) -> ComposeResult:
        yield TopBar("overview")
        if self._systems:
            with Container(id="cards-scroll"), Container(id="cards"):
                for name in self._systems:
                    yield BackendCard(Health(name))
            yield UpcomingChart()
        else:
            yield Static("Loading…", classes="empty")
        yield KeyLine()

    def on_mount(self) -> None:
        for grid in self.query("#cards"):
            grid.set_classes(card_columns(self.app.size.width, len(self._systems)))

    def choose(self, place: str) -> None:
        """Show which screen will open."""
        self.query_one(TopBar).place = place

    def on_key(self, event: events.Key) -> None:
        app: Console = self.app  # type: ignore[assignment]
        app.say(f"Still loading. Press {event.key} again in a moment.")


def card_columns(width: int, cards: int) -> str:
    """The class that lays out this many cards in a terminal of this width."""
    if width >= 200 and cards > 2:
        return "three"
    return "two" if width >= 120 and cards > 1 else ""
