"""The signals that end this process: received for a while, then left to their previous handlers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def received_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have `handler` called for the signals that end a process. Their previous handlers are back after the block."""
    previous = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)


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
        with received_by(self._receive):
            yield

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.terminal_gone = self.terminal_gone or (number == signal.SIGHUP and not self.requested)
        self.requested = True
