"""The analysis queue's rules on a real file with a clock that is held, as its engine keeps them and the console reads them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.item import Condition, Item, ItemKey
from console.core.text import instant
from console.testing import FrozenClock
from plugins._contract_queue import Claimed
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.engine import AsyncTaskQueue
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL
from tests.plugins.sqlite_queue import queue_files as files

SECOND = timedelta(seconds=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return files.create(tmp_path / "queue.db", ASYNC_TASKS_DDL)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def console(path: Path) -> SqliteQueue:
    return files.open_queue(path, read_only=True)


@pytest.fixture
def queue(path: Path, clock: FrozenClock) -> AsyncTaskQueue:
    backend = files.open_queue(path)
    return AsyncTaskQueue(backend.database, backend.policy, clock)


def native(path: Path, id: str) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return dict(connection.execute("SELECT * FROM async_tasks WHERE task_id = ?", (id,)).fetchone())


def read(console: SqliteQueue, id: str, clock: FrozenClock) -> Item:
    return console.item(ItemKey("queue", (id,)), clock.now()).item


def claimed(queue: AsyncTaskQueue) -> Claimed:
    task = queue.claim()
    assert task is not None
    return task


def test_the_truth_table(path: Path, queue: AsyncTaskQueue, console: SqliteQueue, clock: FrozenClock) -> None:
    """Failures 1 to 3 wait 300, 900, 3600 s, the 4th is final; the console reads each step as it is."""
    id = queue.enqueue("ANALYZE", "position-1")
    assert read(console, id, clock).condition is Condition.WAITING
    for attempt, delay in enumerate((300, 900, 3600), start=1):
        task = claimed(queue)
        assert task == Claimed(id, "ANALYZE", {"entity_id": "position-1"}, attempt)
        running = read(console, id, clock)
        assert (running.condition, running.attempts) == (Condition.RUNNING, attempt)
        assert running.verdict.why == f"running since {instant(clock.now())}"
        clock.tick()
        assert queue.fail(task, f"ERR_VALIDATION: no position, attempt {attempt}")

        due = clock.now() + delay * SECOND
        row = native(path, id)
        assert (row["status"], row["attempts"], row["next_run_at"]) == ("PENDING", attempt, due.isoformat())
        item = read(console, id, clock)
        assert item.condition is Condition.RETRYING
        assert item.verdict.next_retry_at == due
        assert item.verdict.will_run_again
        assert item.error == f"ERR_VALIDATION: no position, attempt {attempt}"
        words = {300: "5m 00s", 900: "15m 00s", 3600: "1h 00m"}[delay]
        assert item.verdict.why == f"{attempt} of 4 attempts used, due in {words}"

        clock.tick(delay * SECOND - SECOND)
        assert queue.claim() is None, "not before its time"
        clock.tick()

    assert queue.fail(claimed(queue), "ERR_VALIDATION: still no position")
    row = native(path, id)
    assert (row["status"], row["attempts"]) == ("FAILED", 4)
    item = read(console, id, clock)
    assert item.condition is Condition.TERMINAL
    assert item.verdict.why == "4 of 4 attempts used"
    assert item.verdict.next_retry_at is None
    assert not item.verdict.will_run_again
    clock.tick(timedelta(days=30))
    assert queue.claim() is None


def test_the_schedule_ahead_is_the_one_that_happens(queue: AsyncTaskQueue, console: SqliteQueue, clock: FrozenClock) -> None:
    id = queue.enqueue("ANALYZE", "position-1")
    queue.fail(claimed(queue), "ERR: no")
    detail = console.item(ItemKey("queue", (id,)), clock.now())
    assert detail.schedule == (
        f"attempt 2 at {instant(clock.now() + 300 * SECOND)}",
        "attempt 3 15m after that fails",
        "attempt 4 1h after that fails",
        "then terminal",
    )


def test_success_clears_the_error(path: Path, queue: AsyncTaskQueue, console: SqliteQueue, clock: FrozenClock) -> None:
    id = queue.enqueue("ANALYZE", "position-1")
    queue.fail(claimed(queue), "ERR: no")
    clock.tick(300 * SECOND)
    assert queue.complete(claimed(queue))
    row = native(path, id)
    assert (row["status"], row["last_error"], row["attempts"]) == ("DONE", None, 2)
    assert read(console, id, clock).condition is Condition.DONE


def test_the_soonest_due_task_is_claimed_first(queue: AsyncTaskQueue, clock: FrozenClock) -> None:
    late = queue.enqueue("ANALYZE", "late", delay=20 * SECOND)
    soon = queue.enqueue("ANALYZE", "soon", delay=10 * SECOND)
    clock.tick(30 * SECOND)
    assert [claimed(queue).id, claimed(queue).id] == [soon, late]
    assert queue.claim() is None


def test_a_worker_that_lost_its_task_changes_nothing(path: Path, queue: AsyncTaskQueue, clock: FrozenClock) -> None:
    queue.enqueue("ANALYZE", "position-1")
    lost = claimed(queue)
    clock.tick(361 * SECOND)
    assert queue.reclaim() == 1
    again = claimed(queue)
    assert not queue.complete(lost)
    assert not queue.fail(lost, "ERR: too late")
    row = native(path, lost.id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("RUNNING", 2, None)
    assert queue.complete(again)


@pytest.mark.parametrize(
    ("attempts", "status", "why"),
    [
        (1, "PENDING", "running for 6m 01s, limit 6m"),
        (3, "PENDING", "running for 6m 01s, limit 6m"),
        (4, "FAILED", "running for 6m 01s, limit 6m; 4 of 4 attempts used"),
        (9, "FAILED", "running for 6m 01s, limit 6m; 9 of 4 attempts used"),
    ],
)
def test_the_stuck_are_reclaimed(
    path: Path, queue: AsyncTaskQueue, console: SqliteQueue, clock: FrozenClock, attempts: int, status: str, why: str
) -> None:
    born = clock.now().isoformat()
    files.insert(path, "async_tasks", [{
        "task_id": "t", "status": "RUNNING", "attempts": attempts, "next_run_at": born, "updated_at": born,
        "last_error": "ERR: before",
    }])
    clock.tick(360 * SECOND)
    assert read(console, "t", clock).condition is Condition.RUNNING
    assert queue.reclaim() == 0
    clock.tick()
    stuck = read(console, "t", clock).verdict
    assert (stuck.condition, stuck.why, stuck.will_run_again) == (Condition.STUCK, why, status == "PENDING")
    assert queue.reclaim() == 1
    row = native(path, "t")
    assert (row["status"], row["attempts"], row["last_error"]) == (status, attempts, "ERR: before")
    if status == "PENDING":
        assert row["next_run_at"] == clock.now().isoformat()
    assert queue.reclaim() == 0


@pytest.mark.parametrize("attempts", [None, "many", -2])
def test_an_odd_counter_does_not_stop_the_reclaiming(
    path: Path, queue: AsyncTaskQueue, clock: FrozenClock, attempts: Any
) -> None:
    born = clock.now().isoformat()
    files.insert(path, "async_tasks", [
        {"task_id": "odd", "status": "RUNNING", "attempts": attempts, "next_run_at": born, "updated_at": born},
        {"task_id": "plain", "status": "RUNNING", "attempts": 1, "next_run_at": born, "updated_at": born},
    ])
    clock.tick(361 * SECOND)
    assert queue.reclaim() == 2
    assert {native(path, "odd")["status"], native(path, "plain")["status"]} == {"PENDING"}
