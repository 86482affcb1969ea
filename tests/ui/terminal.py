"""A program under a pty: its bytes, and what a terminal makes of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pexpect
import pyte

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
_ESCAPE_STANDS_ALONE = 0.4
"""Seconds after which the next key is no longer taken for one with alt held."""
_NOT_INHERITED = ("COLUMNS", "LINES", "NO_COLOR", "RETRIAGE_CONFIG")


class Terminal:
    """Types, reads, and says what is on the screen."""

    def __init__(
        self, command: Sequence[str], size: tuple[int, int] = (24, 80), more: Mapping[str, str] | None = None
    ) -> None:
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        environment = {**inherited, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT)}
        program, *arguments = command
        self.child = pexpect.spawn(
            program, arguments, dimensions=size, env={**environment, **(more or {})}, cwd=str(ROOT), use_poll=True
        )
        self.screen = pyte.Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self.screen)
        self._size = size
        self.sent = b""

    def _take(self, within: float) -> bool:
        try:
            data = self.child.read_nonblocking(65536, timeout=within)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return False
        self.sent += data
        self._feed(data)
        return True

    def _feed(self, data: bytes) -> None:
        """CAN ends a sequence that was cut, as in a real terminal. pyte goes on reading the old sequence."""
        first, *more = data.split(b"\x18")
        self._stream.feed(first)
        for piece in more:
            self._stream = pyte.ByteStream(self.screen)
            self._stream.feed(piece)

    def repaint(self) -> str:
        """What a complete repaint shows, after a change of size and back."""
        rows, columns = self._size
        for width in (columns - 1, columns):
            self.child.setwinsize(rows, width)
            self.screen.resize(rows, width)
            time.sleep(0.5)
            self.read()
        return self.read()

    def read(self) -> str:
        while self._take(0.05):
            pass
        return "\n".join(self.screen.display)

    def until(self, text: str, within: float = PATIENCE) -> str:
        end = time.monotonic() + within
        while text not in (shown := self.read()):
            assert time.monotonic() < end, f"{text!r} did not come:\n{shown}"
            if not self.child.isalive():
                shown = self.read()
                assert text in shown, f"ended before {text!r} came:\n{shown}"
        return shown

    def press_until(self, key: str, text: str) -> None:
        """Until the key has led there: right after an escape a key may be taken for one with alt held, and both lost."""
        for turn in range(20):
            if turn:
                self.press("\x1b")
                time.sleep(0.5)
                self.read()
            self.press(key)
            end = time.monotonic() + 3
            while time.monotonic() < end:
                if text in self.read():
                    return
        shown, sent = self.read(), self.sent[-3000:]
        raise AssertionError(f"{key!r} does not lead to {text!r}:\n{shown}\n{sent!r}\nafter a repaint:\n{self.repaint()}")

    def press(self, keys: str) -> None:
        self.child.send(keys)
        if keys.endswith("\x1b"):
            time.sleep(_ESCAPE_STANDS_ALONE)

    def timed(self, key: str) -> float:
        """Seconds from a key to the first bytes of what it changes."""
        self.read()
        began = time.perf_counter()
        self.child.send(key)
        assert self._take(PATIENCE), f"{key!r} changes nothing:\n{self.read()}"
        return time.perf_counter() - began

    def close(self) -> None:
        """End the program, whatever it does and however long the machine takes for it."""
        if self.child.isalive():
            self.child.kill(signal.SIGKILL)
            self.child.wait()
        self.child.close()

    def left(self, within: float = PATIENCE) -> int:
        end = time.monotonic() + within
        while self.child.isalive():
            self.read()
            assert time.monotonic() < end, "it does not end"
        self.read()
        self.child.close()
        status = self.child.exitstatus
        assert isinstance(status, int)
        return status
