"""Connections of one kind, taken and given back for every statement.

SQLAlchemy's pool would take a tenth of what reading a page takes, for events and resets nobody asks for here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Semaphore
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)

_KEPT = 4


class Few(Generic[C]):
    """At most so many connections at a time, for a server that is not ours to fill; of the idle ones the last used is
    taken first, and no more than a few are kept.
    """

    def __init__(self, open: Callable[[], C], most: int, kept: int) -> None:
        self._open = open
        self._room = Semaphore(most)
        self._kept = kept
        self._idle: list[C] = []

    def take(self, patience: float) -> tuple[list[C], C]:
        """A connection, and the place to give it back to; a TimeoutError when all are at work for so long."""
        if not self._room.acquire(timeout=patience):
            raise TimeoutError
        place = self._idle
        try:
            try:
                return place, place.pop()
            except IndexError:
                return place, self._open()
        except BaseException:
            self._room.release()
            raise

    def give_back(self, place: list[C], connection: C, *, sound: bool) -> None:
        """What is not sound is not used again."""
        try:
            if sound and place is self._idle and len(place) < self._kept:
                place.append(connection)
            else:
                connection.close()
        finally:
            self._room.release()

    def close(self) -> None:
        """Close what is idle; what is at work is closed when it is given back."""
        place, self._idle = self._idle, []
        _close_all(place)


class Idle:
    """Opens a connection where none is idle; of the idle ones the last used is taken first, and a few are kept.

    Shared by threads: each step is one list operation.
    """

    def __init__(self, open: Callable[[], sqlite3.Connection]) -> None:
        self._open = open
        self._idle: list[sqlite3.Connection] = []

    @contextmanager
    def taken(self) -> Iterator[sqlite3.Connection]:
        place, connection = self.take()
        try:
            yield connection
        finally:
            self.give_back(place, connection)

    def take(self) -> tuple[list[sqlite3.Connection], sqlite3.Connection]:
        """A connection, and the place to give it back to."""
        place = self._idle
        try:
            return place, place.pop()
        except IndexError:
            return place, self._open()

    def give_back(self, place: list[sqlite3.Connection], connection: sqlite3.Connection) -> None:
        place.append(connection)
        if len(place) > _KEPT or place is not self._idle:
            _close_all(place, _KEPT if place is self._idle else 0)

    def close(self) -> None:
        """Close what is idle; what is at work is closed when it is given back."""
        place, self._idle = self._idle, []
        _close_all(place)


def _close_all(place: list[C], but: int = 0) -> None:
    while len(place) > but:
        try:
            place.pop(0).close()
        except IndexError:  # someone else has just taken the last
            return
