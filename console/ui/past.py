"""Going back and forth in the recorded past, on the screens that can show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from textual.app import ComposeResult

from console.actions.catalogue import KeyAction
from console.core.faults import Fault
from console.core.history import Snapshot
from console.core.override import outcome_summary
from console.core.session import Session
from console.core.text import ago
from console.ui.backend_calls import off_loop
from console.ui.screens.base import BaseScreen
from console.ui.widgets.key_line import KeyLine
from console.ui.widgets.time_line import Happening, TimeLine
from console.ui.widgets.top_bar import TopBar

_STEP, _LONG_STEP = timedelta(minutes=10), timedelta(hours=1)
_LONG_FROM = timedelta(hours=6)
"""Older than this, one key goes back an hour."""
_MOST_OVERRIDES = 1_000


class ShowsPast(BaseScreen):
    """A screen that shows the systems as they were. While it does, nothing is read again and nothing can be changed."""

    then: Snapshot | None = None
    """What is shown; None for the present."""
    _wanted: datetime | None = None
    """The time that the keys pressed so far lead to. Several may be pressed before the first read has ended."""

    def compose(self) -> ComposeResult:
        for widget in super().compose():
            if isinstance(widget, KeyLine):
                yield TimeLine()
            yield widget

    def show_past(self, then: Snapshot) -> None:
        """Show the systems as they were."""
        raise NotImplementedError

    def show_present(self) -> None:
        """Show the systems as they are again."""
        raise NotImplementedError

    def action_earlier(self) -> None:
        self._go(-1)

    def action_later(self) -> None:
        if self._wanted is not None:
            self._go(1)

    def _go(self, direction: int) -> None:
        now = self.session.clock.now()
        at = self._wanted or now
        by = (_LONG_STEP if now - at >= _LONG_FROM else _STEP) * direction
        self._wanted = at + by
        self.start(partial(self._step, at, by), "scrub")

    async def _step(self, at: datetime, by: timedelta) -> None:
        history = self.session.history
        wanted = None if history is None else await off_loop(lambda: history.step(at, by))
        if history is None or wanted is None:
            self._wanted = None if self.then is None else self.then.at
            if by > timedelta(0):
                self.leave_past()
            else:
                self.console_app.hint("Nothing older is recorded.")
            return
        then = await off_loop(lambda: history.snapshot(wanted))
        happenings = await off_loop(lambda: _happenings(self.session))
        self.show_past(then)
        self.then, self._wanted = then, wanted
        self.query_one(TimeLine).happenings = happenings
        self.update_each_second()
        self.refresh_bindings()

    @property
    def past_words(self) -> str:
        """Which past is shown, and how to leave it; empty for the present."""
        if self.then is None:
            return ""
        return f"as recorded {self.then.at:%m-%d %H:%M}Z, {ago(self.session.clock.now() - self.then.at)}; esc: now"

    def leave_past(self) -> None:
        self._wanted = None
        if self.then is not None:
            self.then = None
            self.show_present()
            self.update_each_second()
            self.refresh_bindings()

    def back(self) -> Callable[[], object] | None:
        return self.leave_past if self.then is not None else super().back()

    def refusal(self, action: KeyAction) -> str:
        if self.then is not None and (action.dangerous or action.saves):
            return "this is the past. Press escape to return to now"
        return super().refusal(action)

    def update_each_second(self) -> None:
        """The clock of the top bar and the timeline show the same time as the screen."""
        super().update_each_second()
        line = self.query_one(TimeLine)
        line.now, line.at = self.session.clock.now(), None if self.then is None else self.then.at
        if self.is_current:
            bar = self.query_one(TopBar)
            bar.now = bar.now if self.then is None else self.then.at
            bar.past = "" if self.then is None else ago(self.session.clock.now() - self.then.at)


def _happenings(session: Session) -> Sequence[Happening]:
    """The deploy marks, and the overrides on the trail, in order of time."""
    found: list[Happening] = []
    history, trail, now = session.history, session.trail, session.clock.now()
    with suppress(Fault):
        known = None if history is None else history.recorded()
        if history is not None and known is not None:
            found += [Happening(mark.at, mark.text) for mark in history.marks(known[0], now)]
    with suppress(Fault):  # the Trail shows why it cannot be read
        for one in () if trail is None else trail.overrides(_MOST_OVERRIDES):
            done = outcome_summary(one.counts, one.action, session.actions)
            found.append(Happening(one.started_at, f"{one.override_id} {one.who}: {done}", is_override=True))
    return sorted(found)
