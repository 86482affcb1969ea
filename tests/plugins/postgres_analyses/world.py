"""Tables of analyses for tests, in PostgreSQL and in SQLite, and what the conformance suite needs of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg

from console.core.item import Item, ItemKey
from console.core.policy import PolicyOverride
from console.testing import FrozenClock, Harness, Sample, Store
from plugins.postgres_analyses import PostgresAnalyses
from plugins.postgres_analyses.backend import Options
from plugins.postgres_analyses.schema import ddl
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.server import ZONE, database

TABLE = "selfology.answer_analysis"
STATUSES = ("pending", "success", "failed", "skipped")
NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)
NO_POLICY = PolicyOverride()
INDEX = "; ".join(f"CREATE INDEX ON {TABLE} ({p}_status, id)" for p in ("vectorization", "dp_update"))


class Table:
    """A table of analyses somewhere, to be filled and looked at by its own means."""

    def __init__(self, url: str, run: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]) -> None:
        self.url = url
        self._run = run
        self.is_sqlite = url.startswith("sqlite")

    def stored(self, at: Any) -> Any:
        """A time as this table's system writes it."""
        if not isinstance(at, datetime):
            return at
        return at.isoformat() if self.is_sqlite else at.astimezone(ZoneInfo(ZONE)).replace(tzinfo=None)

    def add(self, **values: Any) -> int:
        """One analysis; what is not said is as the system creates it."""
        marks = ", ".join(["?"] * len(values))
        name = "answer_analysis" if self.is_sqlite else TABLE
        found = self._run(
            f"INSERT INTO {name} ({', '.join(values)}) VALUES ({marks}) RETURNING id",
            [self.stored(value) for value in values.values()],
        )
        return int(found[0][0])

    def failed(self, **values: Any) -> int:
        """Vectorization failed for a recoverable reason, processed an hour ago."""
        usual: dict[str, Any] = {
            "vectorization_status": "failed", "vectorization_error": "connection timeout", "dp_update_status": "success",
            "processed_at": NOW - timedelta(hours=1),
        }
        return self.add(**(usual | values))

    def set(self, id: int, **values: Any) -> None:
        name = "answer_analysis" if self.is_sqlite else TABLE
        sets = ", ".join(f"{column} = ?" for column in values)
        self._run(f"UPDATE {name} SET {sets} WHERE id = ?", [*map(self.stored, values.values()), id])

    def row(self, id: int) -> dict[str, Any]:
        name = "answer_analysis" if self.is_sqlite else TABLE
        columns = (
            "vectorization_status", "vectorization_error", "vectorization_completed_at", "dp_update_status",
            "dp_update_error", "retry_count", "last_retry_at", "processed_at",
        )
        found = self._run(f"SELECT {', '.join(columns)} FROM {name} WHERE id = ?", [id])
        return dict(zip(columns, found[0], strict=True))

    def all(self) -> list[tuple[Any, ...]]:
        return self._run(f"SELECT * FROM {'answer_analysis' if self.is_sqlite else TABLE} ORDER BY id", [])

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._run(sql, [])

    def execute(self, sql: str) -> None:
        self._run(sql, [])

    def open(
        self, *, name: str = "analyses", policy: PolicyOverride = NO_POLICY, read_only: bool = False, **options: Any
    ) -> PostgresAnalyses:
        chosen = Options(url=self.url, **options)
        return PostgresAnalyses.open(name, chosen, policy, read_only=read_only, deadline=timedelta(seconds=PATIENCE))


@contextmanager
def postgres_table(extra: str = "", zone: str = ZONE) -> Iterator[Table]:
    with database(f"{ddl()} {extra}", zone) as url, psycopg.connect(url, autocommit=True) as connection:
        def run(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
            cursor = connection.execute(sql.replace("?", "%s"), list(values) or None)
            return cursor.fetchall() if cursor.description else []

        yield Table(url, run)


@contextmanager
def sqlite_table(path: Path) -> Iterator[Table]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(ddl(sqlite=True))

        def run(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
            return connection.execute(sql, list(values)).fetchall()

        yield Table(f"sqlite:///{path}", run)


def _text(value: str | None) -> str | None:
    return None if value is None else value.encode("utf-8", "replace").decode()


def _number(value: Any, table: Table) -> Any:
    if table.is_sqlite:
        return value
    return max(min(value, 2**31 - 1), -(2**31)) if isinstance(value, int) else None


def _time(value: Any, table: Table) -> Any:
    if isinstance(value, datetime) or not table.is_sqlite:
        return value if isinstance(value, datetime) else None
    return _text(value)


def harness(table: Table, policy: PolicyOverride = NO_POLICY, now: datetime = NOW) -> Harness:
    """Each sample is one row; its second pipeline is what the next sample is."""
    references: dict[str, Sequence[str]] = {}

    def put(samples: Sequence[Sample]) -> int:
        for n, (one, other) in enumerate(zip(samples, (*samples[1:], samples[0]), strict=True)):
            id = table.add(
                user_answer_id=700 + n,
                vectorization_status=_text(one.status), vectorization_error=_text(one.error),
                vectorization_completed_at=_time(one.updated, table),
                dp_update_status=_text(other.status), dp_update_error=_text(other.error),
                retry_count=_number(one.attempts, table), last_retry_at=_time(one.due, table),
                processed_at=_time(one.created, table),
            )
            references[str(id)] = [str(700 + n)]
        return 2 * len(samples)

    def referred(item: Item) -> Sequence[str]:
        return references[item.key.parts[0]]

    backend = table.open(policy=policy)
    return Harness(backend, put, STATUSES, FrozenClock(now), referred, table.all, store(table, policy))


def store(table: Table, policy: PolicyOverride) -> Store:
    """The rows as any client sees them; both pipelines of a row share it."""
    name = "answer_analysis" if table.is_sqlite else TABLE

    def rows() -> Mapping[ItemKey, object]:
        return {
            ItemKey("analyses", (str(row[0]), pipeline)): row
            for row in table.rows(f"SELECT id, * FROM {name}") for pipeline in ("vectorization", "dp_update")
        }

    def touch(key: ItemKey) -> None:
        table.set(int(key.parts[0]), retry_count=2, last_retry_at=NOW - timedelta(seconds=1))

    def remove(key: ItemKey) -> None:
        table.execute(f"DELETE FROM {name} WHERE id = {int(key.parts[0])}")

    return Store(rows, touch, remove, lambda: table.open(policy=policy, read_only=True))
