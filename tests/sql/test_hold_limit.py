"""With a rollback journal a reader of SQLite keeps its writers waiting: reads that nobody asked for are short."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from console.core.budget import metered
from console.core.faults import ReadTooLong
from console.core.ports import Never
from console.core.query import Filter
from console.process import SystemClock
from tests.ui.world import make_async, open_queue

ROWS = 30_000
LIMIT = 0.002
"""Seconds. The console's own limit is longer; it would need a larger table."""
FAILURES = Filter.parse("condition:* error~nothing*")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "queue.db"
    make_async(path, 2_000)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        for n in range(ROWS // 2_000):
            connection.execute(
                "INSERT INTO async_tasks SELECT ? || task_id, task_type, entity_id, status, attempts, next_run_at,"
                " last_error, created_at, updated_at FROM async_tasks WHERE task_id LIKE 'task-%' ESCAPE '!'", (f"{n}-",)
            )
    return path


def test_a_read_that_nobody_asked_for_gives_up_before_writers_wait(large: Path) -> None:
    backend = open_queue(large, "queue", deadline=60)
    now = SystemClock().now()
    assert sum(count.value for count in backend.counts(FAILURES, now, None).values()) == 0, "a person gets an answer"
    with pytest.raises(ReadTooLong, match="2 ms"), metered(LIMIT):
        backend.counts(FAILURES, now, None)
    with pytest.raises(ReadTooLong), metered(LIMIT):
        list(backend.errors(Filter.parse("condition:*"), now, Never()))
    with sqlite3.connect(large, timeout=0) as writer:
        writer.execute("UPDATE async_tasks SET attempts = attempts WHERE task_id = 'task-00001'")
    backend.close()


def test_with_a_write_ahead_log_nobody_waits(large: Path) -> None:
    with sqlite3.connect(large) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    backend = open_queue(large, "queue", deadline=60)
    with metered(LIMIT):
        assert backend.counts(FAILURES, SystemClock().now(), None)
    backend.close()
