"""This process: its clock, the signals that end it, and its crash file."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType


class SystemClock:
    """This machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Signals:
    """A Stop that SIGINT, SIGTERM and SIGHUP request, after `listen`.

    The first signal asks to stop after the current step; a second SIGINT interrupts it.
    """

    def __init__(self) -> None:
        self.requested = False
        self.terminal_gone = False

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Receive the signals until the block ends, then restore the previous handlers."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        previous = {number: signal.signal(number, self._receive) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.terminal_gone = self.terminal_gone or (number == signal.SIGHUP and not self.requested)
        self.requested = True


def write_crash_file(error: BaseException, about: str) -> Path | None:
    """Write the traceback to a private file, without locals and with secrets masked; None if that fails."""
    from console.settings import mask_text
    from console.xdg import state_folder

    folder = state_folder() / "crashes"
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.txt"
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"{about}\nPython {python} on {sys.platform}\n\n{''.join(traceback.format_exception(error))}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(mask_text(text))
    except OSError:
        return None
    return path
