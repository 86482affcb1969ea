"""A terminal may vanish, or take nothing for a while: an ssh session is lost or hangs, a window is closed. Then what is
written to it is lost, and must not matter.

Textual writes in a thread of its own that ends with the first error, and waits for as long as the terminal likes.
Whoever still has something to say then waits for it for ever: the console would not hear a signal, never end, nor let
go of its leases.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO, cast

from textual.driver import Driver

_PATIENCE = 0.5
"""Seconds a terminal may take nothing before it is written to no more; what it missed is painted anew afterwards."""
_CANCEL = b"\x18"
"""Ends a sequence that was cut in the middle."""


class Steady:
    """A terminal's file; what it cannot take any more is lost with it. `again` is called once it takes something."""

    def __init__(self, file: TextIO, again: Callable[[], object]) -> None:
        self._file = file
        self._again = again
        self._stalled = False
        self._own = _unhurried(file)  # for as long as the process: it may be suspended and come back
        self.fileno = file.fileno
        self.isatty = file.isatty

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            if self._own is None:
                self._file.write(text)
            else:
                self._push(self._own, text.encode(self._file.encoding, self._file.errors or "strict"))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._file.flush()

    def _push(self, own: int, data: bytes) -> None:
        if self._stalled:
            if not _takes(own, 0):
                return
            self._stalled = False
            data = _CANCEL + data
            self._again()
        while data:
            try:
                data = data[os.write(own, data) :]
            except BlockingIOError:
                if not _takes(own, _PATIENCE):
                    self._stalled = True
                    return


def _unhurried(file: TextIO) -> int | None:
    """The same terminal, opened for us alone: not to wait for it is nothing whoever shares the file has asked for."""
    if not file.isatty():
        return None
    for name in (os.ttyname, "/proc/self/fd/{}".format):  # in a container a terminal may have no name
        with suppress(OSError):
            return os.open(name(file.fileno()), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    return None


def _takes(own: int, within: float) -> bool:
    poll = select.poll()
    poll.register(own, select.POLLOUT)
    return bool(poll.poll(within * 1000))


def steadied(driver: type[Driver]) -> type[Driver]:
    """The same driver, whichever Textual chose, over a steady file; one without a file of its own stays as it is."""

    class SteadyDriver(driver):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            file = getattr(self, "_file", None)
            if file is not None:
                self._file = cast("TextIO", Steady(file, self._repaint))

        def _repaint(self) -> None:
            self._app.call_later(self._app.refresh, layout=True)

    return SteadyDriver
