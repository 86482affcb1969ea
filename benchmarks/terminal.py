"""A program in a pty, watched from outside: what it wrote and when, what it showed, what it holds in memory.

Everything is written down with its time and looked at afterwards, so that looking costs the program nothing.
Byte code is cached, as it is for an installed program. Whatever is waited for and does not come is an error that
says what was awaited and what was there instead.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyte

SIZE = (40, 120)
_QUIET = 0.04
"""It is idle when nothing has been written for so long."""
_BURST = 0.012
"""One repaint comes without a longer gap; what follows later is a clock that ticks."""
_IDLE_WITHIN = 10.0
_REPAINT_WITHIN = 5.0


class Sight(NamedTuple):
    """Something a screen may show, and its name for whoever waited in vain."""

    name: str
    seen: Callable[[pyte.Screen], bool]


class Terminal:
    """One run of one program."""

    def __init__(
        self, command: Sequence[str], size: tuple[int, int] = SIZE, environment: Mapping[str, str] | None = None
    ) -> None:
        dropped = ("PYTHONDONTWRITEBYTECODE", "NO_COLOR", "COLUMNS", "LINES")
        inherited = {name: value for name, value in os.environ.items() if name not in dropped}
        surroundings = {**inherited, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(environment or {})}
        self.size = size
        self.command = command
        self.writes: list[tuple[float, bytes]] = []
        self.screen = pyte.Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self.screen)
        self._looked_at = 0
        self._ended = False
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=surroundings, start_new_session=True,
            preexec_fn=_own_this_terminal,
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, within: float) -> bytes:
        """The next bytes, or none within that time."""
        if not select.select([self._master], [], [], within)[0]:
            return b""
        try:
            data = os.read(self._master, 1 << 18)
        except OSError:
            data = b""
        if not data:
            self._ended = True
            return b""
        self.writes.append((time.perf_counter(), data))
        return data

    def settle(self, quiet: float = 0.5, within: float = 20.0) -> None:
        """Until it has nothing more to say for a while, or has said something new all the time."""
        end = time.perf_counter() + within
        while self.read(quiet) and time.perf_counter() < end:
            pass

    def press(self, key: bytes) -> tuple[float, int]:
        """Seconds from the key to the last byte of the repaint, and the bytes of it."""
        end = time.perf_counter() + _IDLE_WITHIN
        while self.read(_QUIET):
            if time.perf_counter() > end:
                raise self._in_vain(f"a pause of {_QUIET:g} s before the key {key!r}", _IDLE_WITHIN)
        began = time.perf_counter()
        os.write(self._master, key)
        written, data = 0, self.read(_REPAINT_WITHIN)
        if not data:
            raise self._in_vain(f"a repaint after the key {key!r}", _REPAINT_WITHIN)
        while data:
            written += len(data)
            data = self.read(_BURST)
        return self.writes[-1][0] - began, written

    def send(self, keys: bytes) -> None:
        os.write(self._master, keys)

    # -- looking back ------------------------------------------------------------------------------

    def when(self, sight: Sight, within: float = 60.0) -> float:
        """Seconds from the start until this was on the screen; reads on until it is."""
        end = time.perf_counter() + within
        while time.perf_counter() < end:
            self.settle(_QUIET, 0.3)
            for at, data in self._unseen():
                self._stream.feed(data)
                if sight.seen(self.screen):
                    return at - self.began
            if self._ended:
                break
        raise self._in_vain(sight.name, within)

    def shows(self, words: str) -> bool:
        """Whether these words are on the screen now, as far as it was read."""
        for _, data in self._unseen():
            self._stream.feed(data)
        return any(words in line for line in self.screen.display)

    def _unseen(self) -> Iterator[tuple[float, bytes]]:
        """Each write once, in order."""
        while self._looked_at < len(self.writes):
            self._looked_at += 1
            yield self.writes[self._looked_at - 1]

    def _in_vain(self, awaited: str, within: float) -> TimeoutError:
        for _, data in self._unseen():
            self._stream.feed(data)
        how = f"it ended with {self.process.wait()}" if self._ended else f"waited {within:g} s"
        shown = "\n".join(line.rstrip() for line in self.screen.display).strip() or "(nothing)"
        return TimeoutError(f"{' '.join(self.command)}: awaited {awaited}, {how}; the screen shows:\n{shown}")

    def memory(self) -> float:
        """Megabytes of its own, without what it shares with others."""
        rollup = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        fields = dict(line.split()[:2] for line in rollup.splitlines()[1:])
        return (int(fields["Private_Dirty:"]) + int(fields["Private_Clean:"])) / 1024


def _own_this_terminal() -> None:
    """As a shell's child does, so that it hears when the terminal goes: a stopped benchmark leaves nothing behind."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _painted(screen: pyte.Screen) -> bool:
    across = (0, screen.columns // 2, screen.columns - 1)
    return all(screen.buffer[y][x].bg != "default" for y in range(screen.lines) for x in across)


PAINTED = Sight("a first frame: a colour in every cell", _painted)


def says(text: str) -> Sight:
    return Sight(f"the words {text!r}", lambda screen: any(text in line for line in screen.display))
