"""SQLite connections of one kind, taken and given back for every statement.

SQLAlchemy's pool would take a tenth of what reading a page takes, for events and resets nobody asks for here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_KEPT = 4


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


def _close_all(place: list[sqlite3.Connection], but: int = 0) -> None:
    while len(place) > but:
        try:
            place.pop(0).close()
        except IndexError:  # someone else has just taken the last
            return
