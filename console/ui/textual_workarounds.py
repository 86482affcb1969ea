"""All uses of Textual's private API and all workarounds. No other module of `ui` touches a private name of Textual.

Checked against Textual 8.2. Each entry says what Textual does, and why that is not enough; try to delete them
after an upgrade.
"""

from __future__ import annotations

import base64
import gc
import os
import select
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, TextIO, TypeVar, cast

from textual import events
from textual._styles_cache import StylesCache
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.css.query import NoMatches
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.driver import Driver
from textual.geometry import Region
from textual.notifications import Notification, Notify, SeverityLevel
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.widget import Widget

Result = TypeVar("Result")


class PatchedApp(App[Result]):
    """An app with the workarounds that concern the whole of it."""

    crash: Exception | None = None
    """The first unhandled error. The caller of `run` raises it once the terminal is restored."""

    def __init__(self, **more: Any) -> None:
        self._until_key: list[Notification] = []
        super().__init__(**more)

    def _handle_exception(self, error: Exception) -> None:
        """Textual prints a traceback with local variables, passwords among them. Keep the error and exit instead.

        Once it exits, Textual mounts nothing more: a widget that is just being mounted misses its children. Without
        `_exit` it would mount them but never start them, and wait for them without end.

        Textual also calls what a screen wanted to be called after a repaint when that screen is being removed and some
        of its widgets are gone.
        """
        if isinstance(error, NoMatches) and (self._exit or _was_being_removed(error)):
            return
        self._exit = True
        if self.crash is None:
            self.crash = error
        self._return_code = 1
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        self._close_messages_no_wait()

    def fail(self, error: Exception) -> None:
        """Exit because of this error."""
        self._handle_exception(error)

    def get_driver_class(self) -> type[Driver]:
        """Textual's writer thread ends with the first error and waits for a stalled terminal without limit."""
        return _with_steady_file(super().get_driver_class())

    def use_fast_stylesheet(self) -> None:
        """Textual parses the whole stylesheet again for every screen that is shown for the first time."""
        self.stylesheet = _FastStylesheet(variables=self.get_css_variables())

    def paint_now(self) -> None:
        """Textual draws the first frame into an open batch and sends it with the next tick of a timer."""
        self.screen.call_later(self.screen._on_timer_update)

    def pop_screen(self) -> AwaitComplete:
        """Textual caches two colours per widget, and with them every widget that was ever painted."""
        StylesCache.get_inner_outer.cache_clear()
        return super().pop_screen()

    def all_screens(self) -> Iterator[Screen[Any]]:
        """The screens of every mode. Textual offers only those of the current one."""
        for stack in self._screen_stacks.values():
            yield from stack

    @property
    def has_screen(self) -> bool:
        """Whether a message can be posted to the current screen. `App.screen` raises before the first and at exit."""
        return self.is_running and bool(self._screen_stacks.get(self.current_mode))

    def copy_exactly(self, text: str) -> None:
        """Copy to the terminal's clipboard. Textual's own raises for text that is not valid UTF-8."""
        self._clipboard = text
        if self._driver is not None:
            encoded = base64.b64encode(text.encode("utf-8", "surrogateescape" if _was_bytes(text) else "replace"))
            self._driver.write(f"\x1b]52;c;{encoded.decode()}\a")

    def notify_until_key(self, message: str, severity: SeverityLevel = "information") -> None:
        """Show a notification that the next key or click takes away. Textual's own stay for their time and pile up."""
        notification = Notification(message, "", severity, self.NOTIFICATION_TIMEOUT, markup=False)
        self._until_key.append(notification)
        self.post_message(Notify(notification))

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, (events.Key, events.MouseDown)) and not event.is_forwarded:
            while self._until_key:
                self._unnotify(self._until_key.pop())
        await super().on_event(event)

    def send_to_terminal(self, sequence: str) -> None:
        """Send a sequence that Textual does not know, such as a desktop notification."""
        if self._driver is not None and sequence:
            self._driver.write(sequence)


def _was_being_removed(error: NoMatches) -> bool:
    """Whether a widget that looked for another one was being removed, or was removed already."""
    callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(isinstance(caller, DOMNode) and (caller._pruning or caller._closing) for caller in callers)


class ClosesItself(Screen[Result]):
    """A screen that closes only itself."""

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Textual closes the screen on top, whichever it is. This one may have been closed or covered meanwhile: keys
        that come in one burst all find the same screen on top."""
        return super().dismiss(result) if self.is_active else AwaitComplete()


def _was_bytes(text: str) -> bool:
    """Whether every surrogate in the text stands for a byte that was not UTF-8."""
    return all(0xDC80 <= ord(char) <= 0xDCFF for char in text if 0xD800 <= ord(char) <= 0xDFFF)


class TracksDirtyLines(ScrollView):
    """Tells a subclass which of its lines need a repaint, so that it can keep the others.

    Textual repaints a widget from a cache of its own, which costs more than drawing a list's lines does.
    """

    def _set_dirty(self, *regions: Region) -> None:
        super()._set_dirty(*regions)
        self.lines_dirty(regions)

    def lines_dirty(self, regions: tuple[Region, ...]) -> None:
        """These regions need a repaint; without any, the whole widget does."""
        raise NotImplementedError


def bindings_for(widget: Widget, key: str) -> list[Binding]:
    """The widget's own bindings for a key. Textual only offers those of the whole screen."""
    return list(widget._bindings.key_to_bindings.get(key, ()))


class _FastStylesheet(Stylesheet):
    """Parses everything again only when the colours have changed; new rules are parsed when they are needed."""

    _changed = False

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._variables:
            self._changed = True
            super().set_variables(variables)

    def reparse(self) -> None:
        if self._changed:
            super().reparse()
            self._changed = False


# -- a terminal that stalls or vanishes --------------------------------------------------------------

_STALLED_AFTER = 0.5
"""Seconds a terminal may accept nothing before output to it is dropped. It is repainted when it accepts again."""
_CANCEL = b"\x18"
"""Ends an escape sequence that was cut in the middle."""


class SteadyFile:
    """A terminal's file that never raises and never waits long. Dropped output is repainted by `repaint`."""

    def __init__(self, file: TextIO, repaint: Callable[[], object]) -> None:
        self._file = file
        self._repaint = repaint
        self._stalled = False
        self._lock = Lock()
        self._fd = _open_nonblocking(file)  # never closed: a suspended process continues with it
        self.fileno = file.fileno
        self.isatty = file.isatty

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            if self._fd is None:
                self._file.write(text)
            else:
                self._send(self._fd, text.encode(self._file.encoding, self._file.errors or "strict"))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._file.flush()

    def _send(self, fd: int, data: bytes) -> None:
        if self._stalled:
            if not _accepts(fd, 0):
                return
            self._resume(fd)
        while data:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                if not _accepts(fd, _STALLED_AFTER):
                    self._stalled = True
                    Thread(target=self._resume_when_accepted, args=(fd,), daemon=True).start()
                    return

    def _resume_when_accepted(self, fd: int) -> None:
        """A console that shows nothing new writes nothing, so the dropped output is not left to the next write."""
        _accepts(fd, None)
        self._resume(fd)

    def _resume(self, fd: int) -> None:
        with self._lock:
            if not self._stalled:
                return
            with suppress(OSError):
                os.write(fd, _CANCEL)
            self._stalled = False
        self._repaint()


def _open_nonblocking(file: TextIO) -> int | None:
    """The same terminal, opened a second time: the shell and others share the first and expect it to block."""
    if not file.isatty():
        return None
    for name in (os.ttyname, "/proc/self/fd/{}".format):  # in a container a terminal may have no name
        with suppress(OSError):
            return os.open(name(file.fileno()), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    return None


def _accepts(fd: int, within: float | None) -> bool:
    """Whether the terminal takes output within this many seconds. None waits until it does, or until it is gone."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(None if within is None else within * 1000))


def _with_steady_file(driver: type[Driver]) -> type[Driver]:
    """The driver Textual chose, writing through a SteadyFile; one without a file is returned as it is."""

    class SteadyDriver(driver):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            file = getattr(self, "_file", None)
            if file is not None:
                self._file = cast("TextIO", SteadyFile(file, self._repaint))

        def _repaint(self) -> None:
            self._app.call_later(self._app.refresh, layout=True)

    return SteadyDriver


# -- memory ------------------------------------------------------------------------------------------

_ARENA_MAX = -8
"""M_ARENA_MAX of malloc.h."""
_ARENAS = 2
_THRESHOLDS = (700, 10, 10)
"""Python's own defaults. A closed screen is freed by the collector alone, so it has to run often."""


def limit_arenas() -> None:
    """Let all threads share two heaps. glibc gives each thread its own, and none returns what it has freed.

    Does nothing where the allocator is not glibc's. Call it before many threads have started.
    """
    from ctypes import CDLL

    with suppress(OSError, AttributeError):
        CDLL(None).mallopt(_ARENA_MAX, _ARENAS)


def resume_collector() -> None:
    """Collect again, but never look through what was loaded so far. `__main__` stops the collector at the start:
    imports make many objects that stay, and looking through them repeatedly is a tenth of the start."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
