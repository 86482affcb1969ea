"""Signals close the console the way `q` does: the terminal is restored, and the chunk that is being written ends.

asyncio's own handler cancels whatever the app happens to wait for. Widgets are then left half made, and Textual can
take the cancellation for that of a timer or a widget, so that the console stays open.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from console.signals import ENDING, received_by

SECONDS_TO_CLOSE = 30.0
"""After that it is interrupted, because something in it waits without end."""


class ClosingSignals:
    """The signals that close the console. A second SIGINT raises KeyboardInterrupt, as does a slow closing."""

    def __init__(self) -> None:
        self._early: list[int] = []

    @contextmanager
    def kept_until_started(self) -> Iterator[None]:
        """Keep signals that come before `close_with`. The previous handlers are back when the block ends."""
        with received_by(self._keep):
            yield

    def _keep(self, number: int, _frame: FrameType | None) -> None:
        if number in self._early and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._early.append(number)

    def close_with(self, leave: Callable[[int], None]) -> None:
        """Call `leave` in the running loop with the number of every signal that has come or comes."""
        loop = asyncio.get_running_loop()

        def receive(number: int) -> None:
            if number == signal.SIGINT:
                loop.remove_signal_handler(number)  # back to the handler that raises KeyboardInterrupt
            loop.call_later(SECONDS_TO_CLOSE, _interrupt)
            leave(number)

        for number in ENDING:
            with suppress(ValueError, RuntimeError):  # not in the main thread: a test
                loop.add_signal_handler(number, receive, number)
        for early in self._early:
            receive(early)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
