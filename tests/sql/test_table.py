"""A declared queue table on PostgreSQL keeps the contract; `sqlite_queue` shows the same on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from console.core.item import ItemKey
from console.core.policy import Exponential, Phase, RetryPolicy
from console.sql.backend import QueueTableBackend
from console.sql.postgres import PostgresDatabase
from console.sql.table import QueueTable, RequeueRule, StoredTime, columns_of
from console.sql.times import Aware
from console.testing import Harness, Sample, Store, exercise_backend, exercise_requeue
from tests.plugins.postgres_analyses.server import database

DDL = """
CREATE TABLE tasks (id text PRIMARY KEY, kind text, customer text, state text, tries bigint, max_tries bigint,
    run_at timestamptz, seconds bigint, error text, payload text, created_at timestamptz, updated_at timestamptz);
CREATE INDEX tasks_state ON tasks (state, run_at);
"""
COLUMNS = (
    "id", "kind", "customer", "state", "tries", "max_tries", "run_at", "seconds", "error", "payload", "created_at",
    "updated_at",
)
TASKS = QueueTable(
    table=columns_of("tasks", *COLUMNS),
    key="id",
    type="kind",
    status="state",
    statuses={"dead": Phase.FAILED, "queued": Phase.READY, "working": Phase.RUNNING, "ok": Phase.DONE},
    attempts="tries",
    max_attempts="max_tries",
    due="run_at",
    time_limit="seconds",
    error="error",
    created="created_at",
    updated="updated_at",
    references=("customer",),
    index=("state", "run_at"),
    requeue=RequeueRule(
        guard=("state", "tries", "updated_at"),
        changes_on_every_transition="updated_at",
        assigns={"state": "queued", "run_at": StoredTime.DUE, "updated_at": StoredTime.NOW},
        resets={"tries": 0},
    ),
)
POLICY = RetryPolicy(
    3, Exponential(timedelta(minutes=1)), stuck_after=timedelta(minutes=6), unrecoverable=("invalid json",),
    max_age=timedelta(days=300),
)
PAYLOAD = "payload 4711"


def _text(value: Any) -> Any:
    """As PostgreSQL can hold it: valid Unicode without NUL."""
    return value.encode("utf-8", "replace").decode().replace("\0", "") if isinstance(value, str) else None


def _number(value: Any) -> Any:
    return value if type(value) is int and abs(value) < 2**63 else None


def _time(value: Any) -> Any:
    return value if isinstance(value, datetime) else None


def _row(sample: Sample) -> tuple[Any, ...]:
    return (
        _text(sample.id), _text(sample.type), _text(sample.reference), _text(sample.status), _number(sample.attempts),
        _number(sample.max_attempts), _time(sample.due), _number(sample.timeout), _text(sample.error), PAYLOAD,
        _time(sample.created), _time(sample.updated),
    )


def harness(url: str) -> Harness:
    def open_backend(*, read_only: bool = False) -> QueueTableBackend:
        attached = PostgresDatabase(url, read_only=read_only, deadline=timedelta(seconds=60))
        return QueueTableBackend("tasks", "tasks", attached, TASKS, POLICY, Aware())

    def run(sql: str, *values: Any) -> list[Any]:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(sql, values)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    references: dict[str, list[str]] = {}

    def put(samples: Sequence[Sample]) -> int:
        rows = {row[0]: row for row in map(_row, samples)}
        with psycopg.connect(url, autocommit=True) as connection:
            marks = ", ".join(["%s"] * len(COLUMNS))
            connection.cursor().executemany(f"INSERT INTO tasks VALUES ({marks})", list(rows.values()))
        references.update({id: [row[2]] if row[2] else [] for id, row in rows.items()})
        return len(rows)

    def rows() -> Mapping[ItemKey, object]:
        return {ItemKey("tasks", (row[0],)): row[1:] for row in run("SELECT * FROM tasks")}

    store = Store(
        rows,
        lambda key: run("UPDATE tasks SET state = 'working', updated_at = now() WHERE id = %s", key.parts[0]),
        lambda key: run("DELETE FROM tasks WHERE id = %s", key.parts[0]),
        lambda: open_backend(read_only=True),
        PAYLOAD,
    )
    return Harness(
        open_backend(), put, tuple(TASKS.statuses), references=lambda item: references[item.key.parts[0]],
        fingerprint=lambda: run("SELECT md5(string_agg(t::text, '' ORDER BY id)) FROM tasks t"), store=store,
    )


def _exercise(exercise: Callable[..., None], *promises: str) -> None:
    with ExitStack() as stack:
        exercise(lambda: harness(stack.enter_context(database(DDL))), *promises)


@pytest.mark.parametrize("promise", ["conditions_partition", "single_items_agree", "check_reports"])
def test_it_reads_as_promised(promise: str) -> None:
    _exercise(exercise_backend, promise)


@pytest.mark.parametrize("promise", ["images_survive_storage", "writes_are_exact", "undo_restores", "changed_rows_are_not_touched"])
def test_it_requeues_as_promised(promise: str) -> None:
    _exercise(exercise_requeue, promise)
