"""The analysis queue's rules on a real file with a clock that is held, as its engine keeps them and the console reads them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import Operation, PageRequest, Throughput
from console.core.item import Condition, Item, ItemKey
from console.core.ports import Never
from console.core.query import Filter, Sort
from console.core.text import instant
from console.testing import FrozenClock
from plugins._contract_queue import Claimed
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.engine import AsyncTaskQueue
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL
from tests.faults.world import World, matching
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
    id = queue.enqueue("ANALYZE_EXECUTED", "position-1")
    assert read(console, id, clock).condition is Condition.WAITING
    for attempt, delay in enumerate((300, 900, 3600), start=1):
        task = claimed(queue)
        assert task == Claimed(id, "ANALYZE_EXECUTED", {"entity_id": "position-1"}, attempt)
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
    id = queue.enqueue("ANALYZE_EXECUTED", "position-1")
    queue.fail(claimed(queue), "ERR: no")
    detail = console.item(ItemKey("queue", (id,)), clock.now())
    assert detail.schedule == (
        f"attempt 2 at {instant(clock.now() + 300 * SECOND)}",
        "attempt 3 15m after that fails",
        "attempt 4 1h after that fails",
        "then terminal",
    )


def test_success_clears_the_error(path: Path, queue: AsyncTaskQueue, console: SqliteQueue, clock: FrozenClock) -> None:
    id = queue.enqueue("ANALYZE_EXECUTED", "position-1")
    queue.fail(claimed(queue), "ERR: no")
    clock.tick(300 * SECOND)
    assert queue.complete(claimed(queue))
    row = native(path, id)
    assert (row["status"], row["last_error"], row["attempts"]) == ("DONE", None, 2)
    assert read(console, id, clock).condition is Condition.DONE


def test_the_soonest_due_task_is_claimed_first(queue: AsyncTaskQueue, clock: FrozenClock) -> None:
    late = queue.enqueue("ANALYZE_EXECUTED", "late", delay=20 * SECOND)
    soon = queue.enqueue("ANALYZE_EXECUTED", "soon", delay=10 * SECOND)
    clock.tick(30 * SECOND)
    assert [claimed(queue).id, claimed(queue).id] == [soon, late]
    assert queue.claim() is None


def test_a_worker_that_lost_its_task_changes_nothing(path: Path, queue: AsyncTaskQueue, clock: FrozenClock) -> None:
    queue.enqueue("ANALYZE_EXECUTED", "position-1")
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
        "task_id": "t", "task_type": "ANALYZE_EXECUTED", "status": "RUNNING", "attempts": attempts, "next_run_at": born, "updated_at": born,
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


@pytest.mark.parametrize(
    ("status", "attempts", "condition"),
    [("PENDING", 0, Condition.WAITING), ("PENDING", 1, Condition.RETRYING), ("RUNNING", 1, Condition.RUNNING), ("FAILED", 4, Condition.TERMINAL)],
)
def test_tasks_of_other_types_are_never_taken(
    path: Path, queue: AsyncTaskQueue, console: SqliteQueue, clock: FrozenClock, status: str, attempts: int, condition: Condition
) -> None:
    at = clock.now().isoformat()
    row = {"status": status, "attempts": attempts, "next_run_at": at, "updated_at": at, "last_error": "ERR: no"}
    files.insert(path, "async_tasks", [{"task_id": "other", "task_type": "REINDEX", **row}])
    verdict = read(console, "other", clock).verdict
    assert (verdict.condition, verdict.will_run_again, verdict.next_retry_at) == (condition, False, None)
    if status == "PENDING":
        assert verdict.why == "its system ignores it: its workers take only ANALYZE_EXECUTED"
    assert queue.claim() is None
    if status == "FAILED":
        ((draft,),) = files.open_queue(path).drafts([ItemKey("queue", ("other",))], Sort(), Operation(), clock.now(), Never())
        assert draft.skipped is not None
        assert draft.skipped.text == "Its system would not take it: its workers take only ANALYZE_EXECUTED."
    assert console.page(PageRequest(Filter.parse("condition:* next<100d"), clock.now())).items == ()


def test_a_setting_names_the_types_that_are_taken(path: Path, clock: FrozenClock) -> None:
    backend = files.open_queue(path, task_types=("REINDEX", "CLEAN"))
    queue = AsyncTaskQueue(backend.database, backend.policy, clock, ("REINDEX", "CLEAN"))
    id = queue.enqueue("CLEAN", "x")
    other = queue.enqueue("ANALYZE_EXECUTED", "y")
    assert read(backend, id, clock).verdict.will_run_again
    assert read(backend, other, clock).verdict.why.endswith("its workers take only CLEAN and REINDEX")
    assert claimed(queue).id == id
    assert queue.claim() is None


def test_a_worker_takes_ten_tasks_every_five_minutes(queue: AsyncTaskQueue, path: Path, clock: FrozenClock) -> None:
    ids = [queue.enqueue("ANALYZE_EXECUTED", str(n), delay=timedelta(milliseconds=n)) for n in range(25)]
    clock.tick()
    backend = files.open_queue(path)
    worker = AsyncTaskQueue(backend.database, backend.policy, clock, runs=Throughput(10, timedelta(minutes=5)))
    taken: list[list[str]] = []
    for _ in range(4):
        run = []
        while (task := worker.claim()) is not None:
            run.append(task.id)
        taken.append(run)
        clock.tick(timedelta(minutes=4, seconds=59))
        assert worker.claim() is None
        clock.tick()
    assert taken == [ids[:10], ids[10:20], ids[20:], []]


def test_a_large_requeue_is_forecast_and_its_alarm_is_named(tmp_path: Path) -> None:
    """Ten tasks every five minutes: sixty need half an hour, and above 50 PENDING the queue's own monitoring complains."""
    world = World(tmp_path)
    world.queue.fill(60)
    own = Throughput(10, timedelta(minutes=5))
    backend = world.queue.open(clock=world.clock, throughput=own, alarm_above=50)
    console = world.console(backends=[backend])
    plan = console.propose(matching("condition:terminal"), Operation())
    assert plan.warnings["Its system takes at most 10 items every 5m, so it needs about 30m."] == 60
    assert plan.warnings["Its own monitoring raises an alarm above 50 PENDING tasks; there would be 60."] == 60
    assert backend.plan_warnings(50) == ()
    assert len(backend.plan_warnings(51)) == 1
    assert files.open_queue(world.queue.path).abilities.throughput == own, "unless the config says otherwise"
    world.close()
