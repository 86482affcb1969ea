"""The first screen: it names the systems while the config is checked and the drivers are loaded in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Static

from console.ui.actions import key_words
from console.ui.health import Health
from console.ui.widgets.key_line import KeyLine
from console.ui.widgets.system_table import SystemTable
from console.ui.widgets.top_bar import TopBar

if TYPE_CHECKING:
    from console.ui.app import Console


class StartupScreen(Screen[None]):
    """The Overview without figures. The key of a tab chooses the screen to open; other keys have to wait."""

    AUTO_FOCUS = None

    def __init__(self, systems: Sequence[str]) -> None:
        super().__init__()
        self._systems = systems

    def compose(self) -> ComposeResult:
        yield TopBar("overview")
        if self._systems:
            yield SystemTable([Health(name) for name in self._systems])
        else:
            yield Static("Loading…", classes="empty")
        yield KeyLine()

    def choose(self, place: str) -> None:
        """Show which screen will open."""
        self.query_one(TopBar).place = place

    def on_key(self, event: events.Key) -> None:
        app: Console = self.app  # type: ignore[assignment]
        key = "enter" if event.key == "ctrl+j" else event.key  # a terminal that is not set up yet sends a line feed
        app.hint(f"Still loading. Press {key_words(key)} again in a moment.")
