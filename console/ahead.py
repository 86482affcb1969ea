"""The first figures and rows, read by a process of its own while this one loads what it draws with.

Two sets of libraries cannot be loaded at once in one Python process, but they can in two. The other one is a fork
made before there is a second thread; it has no terminal, is handed nothing that writes, says what it reads of each
backend through a pipe and ends. Whatever goes wrong there is silence: the console reads everything itself behind its
first frame, and from then on only what it reads counts.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from console.core.backend import Count
    from console.core.item import Condition
    from console.core.query import Page

    Word = tuple[str, Mapping[Condition, Count] | Page]
    """A backend's name, and how many items it has of each condition, or the first of what needs eyes."""

_LONGEST = 8
"""Seconds after which it ends in any case, should whoever sent it be gone."""
_AT_ONCE = 1 << 20
_LENGTH = struct.Struct("!I")


class Ahead:
    """The reading end."""

    def __init__(self, child: int, pipe: int) -> None:
        self._child = child
        self._pipe = pipe
        self._heard = b""
        self._over = False

    def fileno(self) -> int:
        return self._pipe

    def heard(self) -> list[Word] | None:
        """What was said since the last time; None when no more will be. Waits for something to be said."""
        read = os.read(self._pipe, _AT_ONCE)
        if not read:
            return None
        self._heard += read
        words = []
        while (end := self._end()) is not None:
            try:
                words.append(pickle.loads(self._heard[_LENGTH.size : end]))  # noqa: S301  of our own fork, to nobody else
            except Exception:  # noqa: BLE001  a plugin's own type may not load here: silence, as for all that goes wrong
                return None
            self._heard = self._heard[end:]
        return words

    def _end(self) -> int | None:
        """Where the first word ends, if all of it is there."""
        if len(self._heard) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._heard)[0]
        return end if end <= len(self._heard) else None

    def close(self) -> None:
        """What it has not said yet is not wanted any more."""
        if not self._over:
            self._over = True
            os.close(self._pipe)
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._child, signal.SIGKILL)
                os.waitpid(self._child, 0)


def said(word: Word) -> bytes:
    """A word as it goes through the pipe."""
    body = pickle.dumps(word, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def send(read: Callable[[], Iterable[Word]], longest: int = _LONGEST) -> Ahead | None:
    """Begin to read in a process of its own; nobody is sent by a process that has threads: no fork of it is sound."""
    if threading.active_count() > 1:
        return None
    import asyncio  # noqa: F401  a good part of what both have to load: once is enough

    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    if child == 0:
        os.close(reading)
        _go(read, writing, longest)
    os.close(writing)
    return Ahead(child, reading)


def worthwhile() -> bool:
    """Whether there is a second core: on a single one it would only be in the way of the first frame."""
    try:
        return len(os.sched_getaffinity(0)) > 1
    except AttributeError:  # not every system has it
        return (os.cpu_count() or 1) > 1


def _go(read: Callable[[], Iterable[Word]], pipe: int, longest: int) -> NoReturn:
    """In the other process, which never comes back from here: nothing of this one's is finished or flushed there."""
    try:
        signal.alarm(longest)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        for word in read():
            os.write(pipe, said(word))
    finally:
        os._exit(0)
