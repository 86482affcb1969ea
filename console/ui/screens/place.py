"""What every place has: the first line, the footer, keys from the catalogue, and the rule for dangerous ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.timer import Timer

from console.core.catalogue import EVERYWHERE, Action, action_named, actions_of
from console.ui.messages import HealthChanged
from console.ui.reports import Reports
from console.ui.widgets.key_line import KeyLine
from console.ui.widgets.top_bar import TopBar

if TYPE_CHECKING:
    from console.core.desk import Desk
    from console.ui.app import Console


class Place(Reports, Screen[Any]):
    """A screen with a name in the catalogue."""

    PLACE: ClassVar[str] = ""
    AUTO_FOCUS = "LineTable, TextPane, BackendCard"
    """What has the focus from the start, so that a key typed ahead is not a character of the filter."""
    TAB: ClassVar[str] = ""
    """Which tab of the first line it belongs to."""
    LEAST_BETWEEN: ClassVar[float] = 0.0
    """Seconds after which it is read again by itself at the soonest, whatever is configured."""

    def __init__(self) -> None:
        super().__init__()
        self._seated = asyncio.Event()

    @property
    def console_app(self) -> Console:
        from console.ui.app import Console

        app = self.app
        assert isinstance(app, Console)
        return app

    @property
    def desk(self) -> Desk:
        return self.console_app.desk

    def compose(self) -> ComposeResult:
        yield TopBar(self.TAB or self.PLACE)
        yield from self.compose_place()
        yield KeyLine()

    def compose_place(self) -> ComposeResult:
        """What is between the first line and the footer."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.set_interval(1.0, self._tick)
        self._tick()
        self._refreshing = self._refresh_as_configured()
        self._seated.set()

    def _refresh_as_configured(self) -> Timer:
        seconds = max(self.desk.refresh.total_seconds(), self.LEAST_BETWEEN)
        return self.set_interval(seconds, self._read_again_if_shown)

    def _tick(self) -> None:
        if self.is_current:
            for bar in self.query(TopBar):  # none while the place is composed anew
                bar.now = self.desk.clock.now()
                bar.healths = self.console_app.healths
                bar.read_only = self.desk.read_only
                bar.running = self.console_app.run_words()
            self.ticked()

    def ticked(self) -> None:
        """A second has passed."""

    def _read_again_if_shown(self) -> None:
        if self.is_current:
            self.read_again()

    def read_again(self) -> None:
        """Read what is on this screen again."""

    def _on_screen_resume(self, event: events.ScreenResume) -> None:
        super()._on_screen_resume(event)
        self._tick()

    @on(HealthChanged)
    def _healths_changed(self) -> None:
        self._tick()

    async def reseated(self, renamed: bool) -> None:  # noqa: ARG002
        """The backends are open now; `renamed` says that they are not those that were named before. What the config
        says was not known until here either. A place that is only coming up is waited for: it may have begun to read
        from what was there before."""
        await self._seated.wait()
        self._refreshing.stop()
        self._refreshing = self._refresh_as_configured()

    def narrow(self, text: str) -> None:
        """Show only what matches this filter, where the place lists items."""

    def errors_seen(self) -> Mapping[str, str]:
        """Causes that are listed here, each with an error of it."""
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
        from textual.widgets import Input

        return isinstance(self.focused, Input)

    def refusal(self, action: Action) -> str:
        """Why an action is not offered here at all, in words."""
        if action.dangerous and self.desk.read_only:
            return "this console is read-only"
        if action.dangerous and self.desk.operations is None:
            return "there is no trail to record it in"
        return ""

    def on_key(self, event: events.Key) -> None:
        """A greyed key says why when it is pressed."""
        for action in (*actions_of(self.PLACE), *actions_of(EVERYWHERE)):
            if event.key in self.console_app.keys_of(action):
                if why := self.refusal(action):
                    self.console_app.say(f"{action.label} is not possible: {why}", severity="warning")
                elif action.needs and not self.has(action.needs):
                    self.console_app.say(f"{action.label} needs {action.needs}", severity="information")
