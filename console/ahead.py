"""The first figures, read by a process of its own while this one loads what it draws with.

Two sets of libraries cannot be loaded at once in one Python process, but they can in two. The other one is a fork
made before there is a second thread; it has no terminal, is handed nothing that writes, says each backend's counts
through a pipe and ends. Whatever goes wrong there is silence: the console reads everything itself behind its first
frame, and from then on only what it reads counts.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from console.core.backend import Count
    from console.core.item import Condition

    Counted = tuple[str, Mapping[Condition, Count]]
    """A backend's name, and how many items it has of each condition."""

_LONGEST = 8
"""Seconds after which it ends in any case, should whoever sent it be gone."""
_AT_ONCE = 1 << 16
_NICER = 5
"""Where cores are scarce, the first frame goes first."""


class Ahead:
    """The reading end."""

    def __init__(self, child: int, pipe: int) -> None:
        self._child = child
        self._pipe = pipe
        self._heard = b""
        self._over = False

    def fileno(self) -> int:
        return self._pipe

    def heard(self) -> list[Counted] | None:
        """What was said since the last time; None when no more will be. Waits for the first word."""
        from console.core.backend import Count
        from console.core.item import Condition

        read = os.read(self._pipe, _AT_ONCE)
        if not read:
            return None
        *lines, self._heard = (self._heard + read).split(b"\n")
        said = [json.loads(line) for line in lines]
        return [(name, {Condition(word): Count(*count) for word, count in counts.items()}) for name, counts in said]

    def close(self) -> None:
        """What it has not said yet is not wanted any more."""
        if not self._over:
            self._over = True
            os.close(self._pipe)
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._child, signal.SIGKILL)
                os.waitpid(self._child, 0)


def send(count: Callable[[], Iterable[Counted]], longest: int = _LONGEST) -> Ahead | None:
    """Begin to count in a process of its own; nobody is sent by a process that has threads: no fork of it is sound."""
    if threading.active_count() > 1:
        return None
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    if child == 0:
        os.close(reading)
        _go(count, writing, longest)
    os.close(writing)
    return Ahead(child, reading)


def worthwhile() -> bool:
    """Whether there is a second core: on a single one it would only be in the way of the first frame."""
    try:
        return len(os.sched_getaffinity(0)) > 1
    except AttributeError:  # not every system has it
        return (os.cpu_count() or 1) > 1


def _go(count: Callable[[], Iterable[Counted]], pipe: int, longest: int) -> NoReturn:
    """In the other process, which never comes back from here: nothing of this one's is finished or flushed there."""
    try:
        signal.alarm(longest)
        os.nice(_NICER)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        for name, counts in count():
            said = {str(condition): tuple(counted) for condition, counted in counts.items()}
            os.write(pipe, json.dumps((name, said)).encode() + b"\n")
    finally:
        os._exit(0)
