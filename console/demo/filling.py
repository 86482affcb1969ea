"""Filling stores quickly: a palette of believable rows is laid out again and again, each time with new ids."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

from console.demo.part import Site

Row = tuple[Any, ...]
T = TypeVar("T")

DAY, HOUR, MINUTE = 86_400, 3_600, 60
PALETTE = 2_048
"""So many different rows; a larger world repeats their texts and times under other ids."""
_BATCH = 20_000


def new_id(number: int) -> str:
    """Eight hex digits, each greater than the one before: an index is filled from end to end."""
    return f"{0x1F3A_0000 + number * 41:08x}"


def new_uuid(number: int) -> str:
    """A UUID of its own for each number."""
    digits = f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def palette(site: Site, name: str, number: int, make: Callable[[Random], T]) -> list[T]:
    """At most `PALETTE` rows of a part, by its own dice."""
    chance = Random(f"{site.seed}:{name}")
    return [make(chance) for _ in range(min(number, PALETTE))]


class Store(Protocol):
    """A database that is being filled."""

    def many(self, statement: str, rows: Iterable[Row]) -> None: ...


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.many: Any = connection.executemany


class _Postgres:
    """The same statements, with the other's marks for values."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def many(self, statement: str, rows: Iterable[Row]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)


@contextmanager
def sqlite_store(path: Path, ddl: str, journal: str = "WAL") -> Iterator[Store]:
    """A new file, filled in one transaction without a journal: a build that is cut short is repeated."""
    connection = sqlite3.connect(path, isolation_level=None)
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
        for statement in indexes:  # over what is there: much quicker than row by row
            connection.execute(statement)
        connection.execute("COMMIT")
        connection.execute(f"PRAGMA journal_mode = {journal}")
    finally:
        connection.close()


@contextmanager
def postgres_store(url: str, ddl: str) -> Iterator[Store]:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute(ddl)
        yield _Postgres(connection)


def fill(store: Store, statement: str, rows: Iterable[Row], shown: Callable[[int], None] = lambda _: None) -> None:
    """Rows in batches; `shown` is told how many there are so far."""
    rows, done = iter(rows), 0
    while batch := list(islice(rows, _BATCH)):
        store.many(statement, batch)
        done += len(batch)
        shown(done)


def laid_out(rows: Sequence[Row], number: int) -> Iterator[Row]:
    """So many rows from a palette, each behind an id of its own."""
    return ((new_id(n), *row) for n, row in zip(range(number), cycle(rows), strict=False))


def chosen(chance: Random, shares: Sequence[tuple[float, T]]) -> T:
    """One of the outcomes, by its share; the last takes what is left."""
    roll = chance.random()
    for share, outcome in shares:
        roll -= share
        if roll < 0:
            return outcome
    return shares[-1][1]
