"""The base of every full screen: top bar, footer, keys from the catalogue, and the rule for dangerous actions."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events, on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Input, Static

from console.actions.catalogue import EVERYWHERE, Action, action_named, actions_of
from console.core.query import Filter
from console.ui.messages import HealthChanged
from console.ui.widgets.filter_bar import FilterBar
from console.ui.widgets.key_line import KeyLine
from console.ui.widgets.line_table import LineTable
from console.ui.widgets.status_line import StatusLine
from console.ui.widgets.top_bar import SystemStates, TopBar
from console.ui.worker_errors import ReportsWorkerErrors

if TYPE_CHECKING:
    from console.core.session import Session
    from console.ui.app import Console


_FIRST_FIGURES = 5.0
"""Seconds after a screen was opened in which its first figures arrive."""


class BaseScreen(ReportsWorkerErrors, Screen[Any]):
    """A screen whose actions are in the catalogue. It is read again at the configured interval while it is shown."""

    PLACE: ClassVar[str] = ""
    """Its name in the catalogue."""
    AUTO_FOCUS = "LineTable, TextPane, BackendCard"
    """Never the filter: a key typed early would become a character of it."""
    TAB: ClassVar[str] = ""
    """The tab of the top bar it belongs to, if it is not one itself."""
    _shown_at = 0.0

    @property
    def console_app(self) -> Console:
        return cast("Console", self.app)

    @property
    def session(self) -> Session:
        return self.console_app.session

    def compose(self) -> ComposeResult:
        yield TopBar(self.TAB or self.PLACE)
        yield from self.compose_content()
        yield KeyLine()

    def compose_content(self) -> ComposeResult:
        """The widgets between the top bar and the footer."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.set_interval(1.0, self.update_each_second)
        self.set_interval(self.session.refresh.total_seconds(), self.refresh_if_shown)
        self.update_each_second()

    def update_each_second(self) -> None:
        """Update the top bar and what depends on the time, if this screen is shown."""
        if self.is_current:
            bar = self.query_one(TopBar)
            bar.now = self.session.clock.now()
            bar.systems = SystemStates.of(self.console_app.monitor.healths.values())
            bar.read_only = self.session.read_only
            bar.override = self.console_app.override_words()
            self.ticked()

    def ticked(self) -> None:
        """A second has passed."""

    def refresh_if_shown(self) -> None:
        if self.is_current:
            self.read_again()

    def read_again(self) -> None:
        """Read what is on this screen again."""

    def on_screen_resume(self) -> None:
        self._shown_at = monotonic()
        self.update_each_second()

    @on(HealthChanged)
    def _health_changed(self) -> None:
        """The first figures are shown at once. Later news wait for the next second: many systems have news all the
        time."""
        if monotonic() - self._shown_at < _FIRST_FIGURES:
            self.update_each_second()

    def narrow(self, text: str) -> None:
        """Show only what matches this filter, if the screen lists items."""

    def errors_seen(self) -> Mapping[str, str]:
        """The causes listed here, each with one of its errors."""
        return {}

    def planned(self) -> None:
        """What was marked here is being carried out."""

    # -- what is allowed ---------------------------------------------------------------------------

    def has(self, need: str) -> bool:  # noqa: ARG002
        """Whether what an action needs is there."""
        return True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        known = action_named(self.PLACE, action)
        if known is None:
            return True
        if known.at_once and self.typing:
            return False  # it is a character of what is typed
        if self.refusal(known) or (known.needs and not self.has(known.needs)):
            return None
        return True

    @property
    def typing(self) -> bool:
        """Whether keys are characters of a text now."""
        return isinstance(self.focused, Input)

    def refusal(self, action: Action) -> str:
        """Why an action is not available in this console at all; empty if it is."""
        if (action.dangerous or action.saves) and self.session.read_only:
            return "this console is read-only"
        if action.dangerous and self.session.operations is None:
            return "there is no trail to record it in"
        return ""

    def on_key(self, event: events.Key) -> None:
        """Say why when the key of a disabled action is pressed."""
        for action in (*actions_of(self.PLACE), *actions_of(EVERYWHERE)):
            if event.key in self.console_app.keys_of(action):
                if why := self.refusal(action):
                    self.console_app.say(f"{action.label} is not available: {why}.", severity="warning")
                elif action.needs and not self.has(action.needs):
                    self.console_app.say(f"{action.label} needs {action.needs}.")


class ListScreen(BaseScreen):
    """A screen with a filter, a list and two status lines. A text takes the place of an empty list."""

    HINT: ClassVar[str] = ""
    """What an empty filter means, and some examples."""

    def compose_content(self) -> ComposeResult:
        yield FilterBar(self.HINT)
        yield self.make_list()
        yield Static(classes="empty")
        yield StatusLine(id="why")
        yield StatusLine(id="state")

    def make_list(self) -> LineTable:
        raise NotImplementedError

    def on_mount(self) -> None:
        self.query_one(".empty").display = False
        self.query_one(LineTable).focus()

    @property
    def bar(self) -> FilterBar:
        return self.query_one(FilterBar)

    @property
    def filter(self) -> Filter:
        return self.bar.filter

    def action_filter(self) -> None:
        self.set_focus(self.bar.input)
