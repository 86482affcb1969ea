"""Sitting down: the first frame is shown on what is known at once, the real desk is laid behind it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from textual import events
from textual.app import App

from console.core.catalogue import EVERYWHERE, Action, action_named
from console.core.desk import Desk
from console.core.faults import Fault
from console.core.keymap import checked_keymap
from console.ui import heaps, themes
from console.ui.foretold import Ahead, Foretold
from console.ui.health import Health, Monitor, unopened
from console.ui.lanes import Lanes, off_loop
from console.ui.reports import Reports
from console.ui.runs import Runs
from console.ui.sheet import Sheet

Lay = Callable[[], Desk]

_FORETOLD = ("overview", "failures")
"""Places that have something to show before any backend is open here."""

_OBJECTS_BETWEEN_COLLECTIONS = (700, 10, 10)
"""What is usual, whatever held while everything was loaded: a screen that is closed is freed by the collector alone,
and one that waits for long takes ever more memory."""


DEADLINE = 5.0
"""Seconds a backend may take before it is given up on our side, whatever the plugin does."""


class Opening(Reports, App[None]):
    """An app with a desk. Until `lay` has laid it nothing can be asked of it, and keys wait."""

    def __init__(
        self,
        desk: Desk,
        deadline: float = DEADLINE,
        lay: Lay | None = None,
        demo: Lay | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        self.colourless = bool(os.environ.get("NO_COLOR"))
        """Nothing may be said by a colour, nor any be sent: what is chosen is shown reversed."""
        super().__init__(ansi_color=True if self.colourless else None)
        self.set_class(self.colourless, "colourless")
        self.crash: Exception | None = None
        self.demo = demo
        """Lays the sandbox world, where one is offered."""
        self._deadline = deadline
        self._laying = lay
        self._laid: asyncio.Task[Desk] | None = None
        self._ahead = ahead
        self._foretold = Foretold(ahead, desk.names, self.health_changed)
        self._early: list[events.Key] = []
        """Keys pressed before the desk is laid; they are meant for what is on it."""
        for theme in themes.OURS:
            self.register_theme(theme)
        self._sit_down(desk)
        self.stylesheet = Sheet(variables=self.get_css_variables())

    def _sit_down(self, desk: Desk) -> None:
        self.desk = desk
        chosen = themes.chosen(desk.theme)
        self.theme = themes.ANSI.name if self.colourless else chosen
        self.set_keymap(checked_keymap(desk.keymap))
        lanes = Lanes(desk.backends, self._deadline)
        self.lanes = self._foretold.lanes if self.opening else lanes
        self.monitor = Monitor(desk, lanes, self.health_changed, self._foretold.counts)
        self.runs = Runs(desk, self.run_changed)

    # What the app says.

    def health_changed(self, name: str) -> None:
        """Something new is known of a backend."""
        raise NotImplementedError

    def run_changed(self) -> None:
        """From the override's thread: it has moved on."""
        raise NotImplementedError

    async def reseat(self, renamed: bool) -> None:
        """Another desk is laid than was shown, or the same one with other names on it."""
        raise NotImplementedError

    def opened(self) -> None:
        """The desk is laid."""
        raise NotImplementedError

    def load_the_rest(self) -> None:
        """In a thread: what is needed later."""

    # Opening.

    @property
    def opening(self) -> bool:
        return self._laying is not None

    @property
    def healths(self) -> Mapping[str, Health]:
        return unopened(self.desk, self._foretold.counts) if self.opening else self.monitor.healths

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.fallbacks(self.current_theme)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with suppress(ValueError, RuntimeError):  # not in the main thread: a test
                loop.add_signal_handler(number, partial(self.exit, return_code=128 + number))
        if self._ahead is None:
            self._lay()  # beside the first frame: what waits for a disk there need not wait for what is drawn here
        else:
            self._foretold.listen()
        self.call_next(self._paint)
        self.call_after_refresh(self.start, self._begin, "begin")

    def _paint(self) -> None:
        """The first frame at once: Textual has drawn it into a batch that was still open, and would wait for a tick."""
        self.screen.call_later(self.screen._on_timer_update)

    def _lay(self) -> None:
        """In a thread."""
        if self._laying is not None:
            self._laid = asyncio.create_task(off_loop(self._laying))

    def open_demo(self) -> None:
        """Lay the sandbox world and sit down at it."""
        if not self.opening and self.demo is not None:
            self._laying = self.demo
            self.start(self._begin, "begin")

    async def _begin(self) -> None:
        """Behind the first frame: nothing that is read or loaded may hold it up."""
        await self._foretold.heard_out()
        if self._laid is None:
            self._lay()
        if self._laid is not None:
            try:
                desk, shown = await self._laid, self.desk.names
                self._laying = self._laid = None
                self._sit_down(desk)
            except Fault as fault:
                self._handle_exception(fault)
                return
            self._foretold.close()
            await self.reseat(desk.names != shown)
        await off_loop(heaps.share)  # before many threads ask at once
        for watch in self.monitor.watches():
            self.start(watch, "monitor", exclusive=False)
        self.opened()
        await self._replay()
        await self.monitor.counted(within=3.0)
        await off_loop(self.load_the_rest)
        gc.freeze()  # what was loaded stays: to look through it again and again would hold up the loop
        gc.set_threshold(*_OBJECTS_BETWEEN_COLLECTIONS)
        gc.enable()

    async def _replay(self) -> None:
        """What waited, in order; what is on its way meanwhile, or lies in a queue already, comes behind it."""
        while self._early:
            await super().on_event(self._early[0])
            del self._early[0]

    async def on_event(self, event: events.Event) -> None:
        new = event if isinstance(event, events.InputEvent) and not event.is_forwarded else None
        if new is not None and (self.opening or self._early) and not self._is_meant_now(new):
            self._early += [new] if isinstance(new, events.Key) else []
        else:
            await super().on_event(event)

    def _is_meant_now(self, event: events.InputEvent) -> bool:
        """To leave, always; to go where something was foretold, unless it was typed behind what has to wait."""
        if not isinstance(event, events.Key):
            return False
        if event.key in (*self._keys_named("quit"), "ctrl+q", "ctrl+c"):
            return True
        places = [key for place in _FORETOLD for key in self._keys_named(place)]
        return self.opening and bool(self._foretold.lanes) and not self._early and event.key in places

    def _keys_named(self, name: str) -> list[str]:
        action = action_named(EVERYWHERE, name)
        assert action is not None
        return self.keys_of(action)

    def keys_of(self, action: Action) -> list[str]:
        """The keys that carry it out, as a key event names them."""
        return self._keymap.get(action.id, action.key).split(",")

    def on_unmount(self) -> None:
        for backend in self.desk.backends:
            with suppress(Fault):
                backend.cancel()
