"""Real queue files for tests: made by their systems' own statements, filled with anything."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from console.core.item import Item, ItemKey
from console.core.policy import PolicyOverride
from console.testing import FrozenClock, Harness, Sample, Store
from console.testing.clock import NOON
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.backend import Options
from plugins.sqlite_queue.schema import ASYNC_COLUMNS, ASYNC_TASKS_DDL, RESULT_COLUMNS, TASK_COLUMNS, TASKS_DDL
from tests.patience import PATIENCE

Dialect = Literal["async_tasks", "tasks"]

UNCHECKED = ASYNC_TASKS_DDL.replace(" CHECK (status IN ('PENDING', 'RUNNING', 'DONE', 'FAILED'))", "").replace(
    "next_run_at TEXT NOT NULL", "next_run_at TEXT"
)
"""The same table without its constraints, as an older or looser deployment has it."""
UNINDEXED = UNCHECKED[: UNCHECKED.index("CREATE INDEX")]
WITHOUT_ROWID = UNCHECKED.replace("\n);", "\n) WITHOUT ROWID;", 1)

PAYLOAD = "payload 4711"
TAKEN = ("ANALYZE_A", "analyze_b", "t*[x]", "\u00fcber", "T", "job")
"""The types of the contract suites' rows that are taken; some rows have none."""
OWN_RULES = PolicyOverride()
UNRECOVERABLE = PolicyOverride(
    unrecoverable=("invalid json", "invalid api key", "É"), max_age=timedelta(days=300)
)


def create(path: Path, ddl: str, *, wal: bool = False) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        if wal:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(ddl)
    return path


def stored(value: Any) -> Any:
    """As the driver takes it: text that is not Unicode as its bytes, an instant as ISO text."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "surrogateescape")
    return value


def insert(path: Path, table: str, rows: Iterable[dict[str, Any]]) -> None:
    """Rows with whatever values; bytes that stand for text are stored as text, undecodable as it may be."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for row in rows:
            marks = ", ".join(
                "CAST(? AS TEXT)" if isinstance(v, str) and not v.isascii() else "?" for v in row.values()
            )
            connection.execute(
                f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [stored(v) for v in row.values()]
            )


def open_queue(
    path: Path, dialect: Dialect = "async_tasks", *, name: str = "queue", policy: PolicyOverride = OWN_RULES,
    read_only: bool = False, deadline: timedelta = timedelta(seconds=PATIENCE), **settings: Any,
) -> SqliteQueue:
    options = Options(url=f"sqlite:///{path}", dialect=dialect, **settings)
    return SqliteQueue.open(name, options, policy, read_only=read_only, deadline=deadline)


def async_row(sample: Sample) -> dict[str, Any]:
    values = (
        sample.id, sample.type, sample.reference, sample.status, sample.attempts, sample.due, sample.error,
        sample.created, sample.updated,
    )
    return dict(zip(ASYNC_COLUMNS, values, strict=True))


def task_rows(sample: Sample) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A task, and its result when it has an error to tell; every third error is the task's own."""
    own = sum(sample.id.encode("utf-8", "surrogateescape")) % 3 == 0
    values = (
        sample.id, sample.type, f'["{PAYLOAD}"]', "{}", sample.status, '{"eta": null}', sample.due, sample.max_attempts,
        sample.timeout, sample.attempts, sample.created, sample.updated, sample.updated,
        sample.error if own else "null",
    )
    task = dict(zip(TASK_COLUMNS, values, strict=True))
    if own:
        return task, None
    outcome = (sample.id, sample.status, None, sample.error, sample.updated, 1, sample.updated)
    return task, dict(zip(RESULT_COLUMNS, outcome, strict=True))


def file_hash(path: Path) -> dict[str, str]:
    """Every file next to the database, by content."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.parent.iterdir())}


def store(path: Path, dialect: Dialect, policy: PolicyOverride) -> Store:
    """The rows as any SQLite client sees them, without the plugin."""
    table, key = ("async_tasks", "task_id") if dialect == "async_tasks" else ("tasks", "id")

    def run(sql: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            return connection.execute(sql, values).fetchall()

    def rows() -> Mapping[ItemKey, object]:
        return {ItemKey("queue", (row[0],)): row[1:] for row in run(f"SELECT {key}, * FROM {table}")}

    def named(item: ItemKey) -> bytes:
        return item.parts[0].encode("utf-8", "surrogateescape")

    def touch(item: ItemKey) -> None:
        run(f"UPDATE {table} SET status = 'RUNNING', updated_at = '2026-11-10T11:59:59' WHERE CAST({key} AS BLOB) = ?", named(item))

    def remove(item: ItemKey) -> None:
        run(f"DELETE FROM {table} WHERE CAST({key} AS BLOB) = ?", named(item))

    def execute(item: ItemKey, error: str | None) -> None:
        """What a worker writes when it claims a task, and when it has ended."""
        at, done = (NOON + timedelta(seconds=1)).isoformat(), "DONE" if dialect == "async_tasks" else "SUCCESS"
        claimed = "" if dialect == "async_tasks" else ", last_attempt_at = :at"
        ended = "last_error = :error" if dialect == "async_tasks" else "error = coalesce(:error, 'null')"
        counted = "attempts = max(coalesce(CAST(attempts AS INTEGER), 0), 0) + 1"
        values = {"at": at, "error": error, "status": "FAILED" if error else done, "key": named(item)}
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                f"UPDATE {table} SET status = :status, {counted}, updated_at = :at, {ended}{claimed} WHERE CAST({key} AS BLOB) = :key",
                values,
            )

    def takes(item: ItemKey) -> bool:
        """The condition of the claim in both systems, except for the time."""
        return bool(run(f"SELECT 1 FROM {table} WHERE status = 'PENDING' AND CAST({key} AS BLOB) = ?", named(item)))

    payload = PAYLOAD if dialect == "tasks" else ""
    return Store(
        rows, touch, remove, lambda: open_queue(path, dialect, policy=policy, read_only=True, task_types=TAKEN), payload, execute, takes
    )


def async_harness(
    path: Path, ddl: str = UNCHECKED, policy: PolicyOverride = UNRECOVERABLE, read_only: bool = False
) -> Harness:
    create(path, ddl)
    references: dict[str, Sequence[str]] = {}

    def put(samples: Sequence[Sample]) -> int:
        insert(path, "async_tasks", map(async_row, samples))
        references.update({s.id: [s.reference] if s.reference else [] for s in samples})
        return len(samples)

    def referred(item: Item) -> Sequence[str]:
        return references[item.key.parts[0]]

    backend = open_queue(path, policy=policy, read_only=read_only, task_types=TAKEN)
    return Harness(
        backend, put, ("PENDING", "RUNNING", "DONE", "FAILED"), FrozenClock(), referred, lambda: file_hash(path),
        store(path, "async_tasks", policy),
    )


def tasks_harness(path: Path, ddl: str = TASKS_DDL, policy: PolicyOverride = UNRECOVERABLE) -> Harness:
    create(path, ddl)

    def put(samples: Sequence[Sample]) -> int:
        made = list(map(task_rows, samples))
        insert(path, "tasks", (task for task, _ in made))
        insert(path, "results", (result for _, result in made if result is not None))
        return len(made)

    return Harness(
        open_queue(path, "tasks", policy=policy), put, ("PENDING", "RUNNING", "SUCCESS", "FAILED", "CANCELLED"),
        FrozenClock(), lambda item: [item.type], lambda: file_hash(path), store(path, "tasks", policy),
    )
