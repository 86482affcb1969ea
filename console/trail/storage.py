"""What the book needs from a database, whichever it is. SQL has `?` for values and nothing of one dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

Row = tuple[Any, ...]
T = TypeVar("T")

PATIENCE = 1.5
"""Seconds a writer waits for a store that does not answer. The operator is told within two."""


class Reading(Protocol):
    """Statements that only look."""

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Every row a statement returns."""

    def now(self, ours: datetime) -> datetime:
        """The time for all who share the trail: the server's where there is one, else that of our machine."""


class Writing(Reading, Protocol):
    """One transaction; no other writer is in one at the same time."""

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it changed."""

    def bulk(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert many rows in the fastest way the driver has."""


class Storage(Protocol):
    """A database that holds a trail, or will once something is written."""

    place: str
    """Where it is, safe to show."""

    def read(self, work: Callable[[Reading], T], empty: T) -> T:
        """What `work` finds, or `empty` where there is no trail yet. `work` may be called more than once."""

    def write(self, work: Callable[[Writing], T], *, lasting: bool = True) -> T:
        """Run `work` in a transaction and make it durable, or raise and change nothing.

        What is not `lasting` may be lost in a crash until something lasting is written after it.
        """

    def close(self) -> None: ...


def select(storage: Storage, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
    """The rows of one statement; none where there is no trail yet."""
    nothing: list[Row] = []
    return storage.read(lambda reading: reading.all(sql, parameters), nothing)
