"""Fills stores quickly: a set of sample rows is repeated, each time with new ids."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle, islice
from random import Random
from typing import Any, Protocol, TypeVar

from console.demo.system import BuildContext

Row = tuple[Any, ...]
T = TypeVar("T")

DAY, HOUR, MINUTE = 86_400, 3_600, 60
SAMPLES = 2_048
"""How many different rows are made; a larger demo repeats their texts and times with other ids."""
_BATCH = 20_000


def new_id(number: int) -> str:
    """Eight hex digits that grow with the number, so that an index is filled in order."""
    return f"{0x1F3A_0000 + number * 41:08x}"


def new_uuid(number: int) -> str:
    """A different UUID for each number."""
    digits = f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def sample_rows(build: BuildContext, name: str, number: int, make: Callable[[Random], T]) -> list[T]:
    """At most `SAMPLES` rows of a system, from a random generator of its own."""
    chance = Random(f"{build.seed}:{name}")
    return [make(chance) for _ in range(min(number, SAMPLES))]


class Store(Protocol):
    """A database that is being filled."""

    def many(self, statement: str, rows: Iterable[Row]) -> None: ...


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.many: Any = connection.executemany


class _Postgres:
    """Takes statements with `?`, as SQLite does."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def many(self, statement: str, rows: Iterable[Row]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)


@contextmanager
def sqlite_store(url: str, ddl: str, journal: str = "WAL") -> Iterator[Store]:
    """An empty file, filled in one transaction without a journal: an interrupted build is started again."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        statements = [statement for part in ddl.split(";") if (statement := part.strip())]
        indexes = [statement for statement in statements if " INDEX " in statement]
        connection.execute("BEGIN")
        for statement in statements:
            if statement not in indexes:
                connection.execute(statement)
        yield _Sqlite(connection)
        for statement in indexes:  # after the rows: much faster than keeping them up to date row by row
            connection.execute(statement)
        connection.execute("COMMIT")
        connection.execute(f"PRAGMA journal_mode = {journal}")
    finally:
        connection.close()


@contextmanager
def _postgres_store(url: str, ddl: str) -> Iterator[Store]:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute(ddl)
        yield _Postgres(connection)


def open_store(url: str, ddl: str) -> AbstractContextManager[Store]:
    return _postgres_store(url, ddl) if url.startswith("postgresql:") else sqlite_store(url, ddl)


def fill(store: Store, statement: str, rows: Iterable[Row], report: Callable[[int], None] = lambda _: None) -> None:
    """Insert rows in batches; `report` is called with the number so far."""
    rows, done = iter(rows), 0
    while batch := list(islice(rows, _BATCH)):
        store.many(statement, batch)
        done += len(batch)
        report(done)


def with_new_ids(rows: Sequence[Row], number: int) -> Iterator[Row]:
    """This many rows, repeating the given ones, each with a new id in front."""
    return ((new_id(n), *row) for n, row in zip(range(number), cycle(rows), strict=False))


def pick(chance: Random, shares: Sequence[tuple[float, T]]) -> T:
    """One of the outcomes at random, by its share; the last gets what is left."""
    roll = chance.random()
    for share, outcome in shares:
        roll -= share
        if roll < 0:
            return outcome
    return shares[-1][1]
