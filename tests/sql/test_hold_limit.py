"""With a rollback journal a reader of SQLite keeps its writers waiting: reads that nobody asked for are short."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from console.core.budget import hold_limit, metered
from console.core.faults import ReadTooLong
from console.core.item import Condition
from console.core.ports import Never
from console.core.query import Filter
from console.process import SystemClock
from console.sql import counting
from tests.ui.world import make_async, open_queue

ROWS = 30_000
LIMIT = 0.002
"""Seconds. The console's own limit is longer; it would need a larger table."""
FAILURES = Filter.parse("condition:* error~nothing*")
WRITE = """
import sqlite3, sys
sqlite3.connect(sys.argv[1], timeout=0).execute("UPDATE async_tasks SET attempts = 0")
"""


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


def test_counts_that_nobody_asked_for_are_estimated_before_writers_wait(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would never be read: the history would have a gap, and an alert would call the system unreachable."""
    with sqlite3.connect(large) as connection:
        connection.execute("DROP INDEX IF EXISTS idx_async_tasks_status_next_run")
    backend = open_queue(large, "queue", deadline=60)
    now = SystemClock().now()
    exact = backend.counts(Filter(), now, None)
    one_pass, tried = counting.ConditionCounter._in_one_pass, list[bool]()

    def limited(self: counting.ConditionCounter, *given: Any) -> Any:
        tried.append(hold_limit() is not None)
        if tried[-1]:
            raise ReadTooLong("its writers would wait")
        return one_pass(self, *given)

    monkeypatch.setattr(counting.ConditionCounter, "_in_one_pass", limited)
    for _ in range(2):
        with metered(60) as cost:
            found = backend.counts(Filter(), now, 1_000_000)
        assert all(count.estimated and not count.exact for count in found.values())
        assert found[Condition.TERMINAL].value == pytest.approx(exact[Condition.TERMINAL].value, rel=0.5)
        assert cost.seconds > 0
    assert tried == [True], "it is not tried again for a while"
    assert backend.counts(Filter(), now, 1_000_000) == exact, "a person gets the exact counts"
    backend.close()


def test_a_stream_of_errors_that_is_given_up_after_its_first_rows_is_no_time_out(large: Path) -> None:
    """A system whose reads only take too long has not stopped to answer."""
    backend = open_queue(large, "queue", deadline=60)
    with backend.database._reader.connect() as connection:
        connection.info.update(began=perf_counter(), too_long=True)  # the handler has given up, a batch began just now
        with pytest.raises(ReadTooLong), metered(60):
            backend.database._require_short_hold(connection)
    backend.close()


def test_with_a_write_ahead_log_nobody_waits(large: Path) -> None:
    with sqlite3.connect(large) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    backend = open_queue(large, "queue", deadline=60)
    with metered(LIMIT):
        assert backend.counts(FAILURES, SystemClock().now(), None)
    backend.close()


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_short_read_leaves_the_locks_of_a_write_in_the_same_process(tmp_path: Path, mode: str) -> None:
    """Opening and closing the file, to look at its header, would end them: another process could write, too."""
    path = tmp_path / "queue.db"
    make_async(path, 50)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
    backend = open_queue(path, "queue")
    with backend.database.writing() as writer:
        writer.execute("UPDATE async_tasks SET attempts = attempts + 1", {})
        with metered(60):
            assert backend.counts(FAILURES, SystemClock().now(), None)
        other = subprocess.run([sys.executable, "-c", WRITE, path], capture_output=True, text=True, check=False)
        assert "locked" in other.stderr, other
    backend.close()
