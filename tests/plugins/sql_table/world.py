"""Mapped tables for tests, in PostgreSQL and in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import yaml

from console.core.item import Item, ItemKey
from console.core.policy import PolicyOverride
from console.testing import FrozenClock, Harness, Sample, Store
from plugins.sql_table import SqlTable
from plugins.sql_table.mapping import Options
from tests import mariadb
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.server import database

NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)
NO_POLICY = PolicyOverride()
PAYLOAD = "payload of somebody else"
Run = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
Values = Mapping[str, Any]


class Queue:
    """The tables of a queue."""

    def __init__(self, url: str, run: Run, options: Values) -> None:
        self.url = url
        self.run = run
        self.options = options
        self.is_sqlite = url.startswith("sqlite")

    def insert(self, table: str, **values: Any) -> None:
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join(["?"] * len(values))
        self.run(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))

    def one(self, sql: str, *values: Any) -> tuple[Any, ...]:
        return self.run(sql, values)[0]

    def open(self, *, policy: PolicyOverride = NO_POLICY, read_only: bool = False, **more: Any) -> SqlTable:
        chosen = Options.model_validate({"url": self.url, **self.options, **more})
        return SqlTable.open("queue", chosen, policy, read_only=read_only, deadline=timedelta(seconds=PATIENCE))


@contextmanager
def postgres_queue(ddl: str, options: Values, zone: str = "Europe/Berlin") -> Iterator[Queue]:
    """A server whose time zone is not UTC, so that a time in the wrong zone is noticed."""
    with database(ddl, zone) as url, psycopg.connect(url, autocommit=True) as connection:
        def run(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
            cursor = connection.execute(sql.replace("%", "%%").replace("?", "%s") if values else sql, list(values) or None)
            return cursor.fetchall() if cursor.description else []

        yield Queue(url, run, options)


@contextmanager
def mysql_queue(ddl: str, options: Values) -> Iterator[Queue]:
    """A server whose time zone is not UTC, and a column collation that ignores case."""
    with mariadb.database(ddl) as url, mariadb.connection(url, sql_mode="ANSI_QUOTES,STRICT_ALL_TABLES") as connection:
        def run(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
            with connection.cursor() as cursor:
                cursor.execute(sql.replace("%", "%%").replace("?", "%s") if values else sql, list(values) or None)
                return list(cursor.fetchall()) if cursor.description else []

        yield Queue(url, run, options)


@contextmanager
def sqlite_queue(path: Path, ddl: str, options: Values) -> Iterator[Queue]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(ddl)

        def run(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
            stored = [value.isoformat(" ", "microseconds") if isinstance(value, datetime) else value for value in values]
            return connection.execute(sql, stored).fetchall()

        yield Queue(f"sqlite:///{path}", run, options)


def mapping(text: str) -> dict[str, Any]:
    """Options with an inline mapping."""
    return {"mapping": yaml.safe_load(text)}


# --- values a strict table can hold -------------------------------------------------------------------------


def text(value: str | None) -> str | None:
    return None if value is None else value.encode("utf-8", "replace").decode().replace("\0", "")


def number(value: Any, most: int = 2**31 - 1) -> int | None:
    return max(min(value, most), -most - 1) if isinstance(value, int) else None


def instant(value: Any) -> datetime | None:
    return value if isinstance(value, datetime) else None


def naive(value: Any) -> datetime | None:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else None


def some_time(value: Any) -> datetime:
    return instant(value) or NOW


def as_json(value: Any) -> str:
    return json.dumps(value)


# --- what the conformance suite needs -------------------------------------------------------------------------

Add = Callable[[Queue, Sample, int], tuple[str, ...] | None]
"""Writes a sample as the queue would store it; returns the parts of its key, or None if it cannot store it."""


def harness(
    queue: Queue, add: Add, statuses: Sequence[str], *, policy: PolicyOverride = NO_POLICY, table: str = "",
    key: Sequence[str] = ("id",), references: str | None = None, others: Sequence[str] = (), touch: str = "",
    options: Values | None = None,
) -> Harness:
    """`touch` is what the queue sets when it runs an item; `others` are further tables with parts of a row."""
    more = dict(options or {})

    def put(samples: Sequence[Sample]) -> int:
        made = [add(queue, sample, n) for n, sample in enumerate(samples)]
        return sum(parts is not None for parts in made)

    backend = queue.open(policy=policy, **more)
    named = " AND ".join(f"{column} = ?" for column in key)

    def everything() -> object:
        return [queue.run(f"SELECT * FROM {name} ORDER BY 1", []) for name in (table, *others)]

    def rows() -> dict[ItemKey, object]:
        other_tables = {
            name: {str(row[0]): row[1:] for row in queue.run(f"SELECT job_id, {name}.* FROM {name}", [])} for name in others
        }
        found = queue.run(f"SELECT {', '.join(key)}, {table}.* FROM {table}", [])
        return {
            ItemKey("queue", tuple(map(str, row[: len(key)]))): (
                row[len(key) :], *(places.get(str(row[0])) for places in other_tables.values())
            )
            for row in found
        }

    def act(sql: str, item: ItemKey) -> None:
        queue.run(f"{sql} WHERE {named}", [int(part) if part.isdigit() and len(key) == 1 else part for part in item.parts])

    def referred(item: Item) -> Sequence[str]:
        if references is None:
            return ()
        parts = [int(part) if part.isdigit() and len(key) == 1 else part for part in item.key.parts]
        ((found,),) = queue.run(f"SELECT {references} FROM {table} WHERE {named}", parts)
        return [] if found is None else [str(found)]

    store = Store(
        rows, lambda item: act(f"UPDATE {table} SET {touch}", item), lambda item: act(f"DELETE FROM {table}", item),
        lambda: queue.open(policy=policy, read_only=True, **more), PAYLOAD,
    )
    return Harness(backend, put, statuses, FrozenClock(NOW), referred, everything, store)
