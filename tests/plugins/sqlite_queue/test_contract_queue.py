"""The contract queue's five invariants on its SQLite storage, and what the console reads from it."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.advice import Advice, Notice, Step
from console.core.backend import Attempts, Draft, Operation, PageRequest
from console.core.item import Condition, ItemKey
from console.core.ports import Never
from console.core.query import Field, Filter, Op, Sort, Term
from console.testing import FrozenClock
from plugins._contract_queue import Claimed, interval_of
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.engine import ContractQueue
from plugins.sqlite_queue.schema import TASKS_DDL
from tests.plugins.sqlite_queue import queue_files as files

SECOND = timedelta(seconds=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return files.create(tmp_path / "queue.db", TASKS_DDL)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def console(path: Path) -> SqliteQueue:
    return files.open_queue(path, "tasks", read_only=True)


@pytest.fixture
def queue(path: Path, clock: FrozenClock) -> ContractQueue:
    backend = files.open_queue(path, "tasks")
    return ContractQueue(backend.database, backend.policy, clock, random.Random(5))


def query(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def claimed(queue: ContractQueue) -> Claimed:
    task = queue.claim()
    assert task is not None
    return task


def test_atomic_claim(path: Path, queue: ContractQueue) -> None:
    """One UPDATE moves PENDING to RUNNING and counts; a trigger sees every write there is."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE seen (old TEXT, new TEXT, attempts INTEGER);"
            "CREATE TRIGGER watch AFTER UPDATE ON tasks BEGIN"
            " INSERT INTO seen VALUES (old.status, new.status, new.attempts - old.attempts); END"
        )
    queue.enqueue("app.work", [1], {"a": 2})
    task = claimed(queue)
    assert task[1:] == ("app.work", {"args": "[1]", "kwargs": '{"a": 2}'}, 1)
    assert query(path, "SELECT * FROM seen") == [("PENDING", "RUNNING", 1)]
    assert queue.claim() is None


def test_attempt_counting(path: Path, queue: ContractQueue, clock: FrozenClock) -> None:
    """Plus one for each PENDING to RUNNING; neither failing nor finishing counts."""
    queue.enqueue("app.work", max_retries=5)
    counted = []
    for attempt in range(1, 5):
        task = claimed(queue)
        assert task.attempts == attempt
        queue.fail(task, "ERR: again") if attempt < 4 else queue.complete(task, "fine")
        counted += query(path, "SELECT attempts FROM tasks")[0]
        clock.tick(timedelta(minutes=2))
    assert counted == [1, 2, 3, 4]
    assert query(path, "SELECT status, attempts, result FROM results") == [("SUCCESS", 4, '"fine"')]


@pytest.mark.parametrize("max_retries", [0, 1, 3, None, "2x"])
def test_retry_predicate(path: Path, queue: ContractQueue, clock: FrozenClock, max_retries: Any) -> None:
    """`attempts < max_retries` after the claim: three means three executions, the third failure is final."""
    queue.enqueue("app.work", max_retries=max_retries)
    executions = 0
    while (task := queue.claim()) is not None:
        executions += 1
        queue.fail(task, f"ERR: failure {executions}")
        clock.tick(timedelta(minutes=2))
    assert executions == {0: 1, 1: 1, 3: 3, None: 3, "2x": 2}[max_retries]
    assert query(path, "SELECT status FROM tasks") == [("FAILED",)]
    assert query(path, "SELECT status, error FROM results") == [("FAILED", f"ERR: failure {executions}")]


def test_queue_owned_policy(path: Path, queue: ContractQueue, clock: FrozenClock) -> None:
    """The queue waits 1, 2, 4, 8, 16, 32, then 60 s, each varied by a quarter at most; both etas agree."""
    queue.enqueue("app.work", max_retries=100)
    shares = []
    for delay in (1, 2, 4, 8, 16, 32, 60, 60, 60):
        task = claimed(queue)
        queue.fail(task, "ERR: again")
        ((eta, schedule),) = query(path, "SELECT eta, schedule FROM tasks")
        assert json.loads(schedule) == {"eta": eta, "interval": None}
        waits = datetime.fromisoformat(eta) - clock.now()
        assert 0.75 * delay * SECOND <= waits <= 1.25 * delay * SECOND
        shares.append(waits / (delay * SECOND))
        clock.tick(waits - timedelta(microseconds=1))
        assert queue.claim() is None
        clock.tick()
    assert len({round(share, 6) for share in shares}) == len(shares), "jitter varies"
    assert min(shares) < 1 < max(shares)


def test_no_double_reschedule(path: Path, queue: ContractQueue, clock: FrozenClock) -> None:
    """One failure schedules one retry, however often it is reported; and there is one row for it."""
    queue.enqueue("app.work")
    task = claimed(queue)
    assert queue.fail(task, "ERR: first")
    first = query(path, "SELECT status, eta, attempts, updated_at FROM tasks")
    clock.tick()
    assert not queue.fail(task, "ERR: reported again")
    assert not queue.complete(task)
    assert query(path, "SELECT status, eta, attempts, updated_at FROM tasks") == first
    assert query(path, "SELECT error FROM results") == [("ERR: first",)]
    clock.tick(timedelta(minutes=2))
    claimed(queue)
    assert not queue.fail(task, "ERR: of an older execution")
    assert not queue.complete(task)
    assert query(path, "SELECT status, attempts FROM tasks") == [("RUNNING", 2)]


def test_no_eta_is_due_now_and_first(queue: ContractQueue, clock: FrozenClock) -> None:
    later = queue.enqueue("app.later", delay=timedelta(seconds=5))
    now = queue.enqueue("app.now")
    clock.tick(timedelta(seconds=6))
    assert [claimed(queue).id, claimed(queue).id] == [now, later]


def test_the_console_reads_three_executions(queue: ContractQueue, console: SqliteQueue, clock: FrozenClock) -> None:
    """The message is the result's, not the task's JSON null; the verdict follows max_retries as total executions."""
    key = ItemKey("queue", (queue.enqueue("app.work", max_retries=3),))
    for attempt in (1, 2):
        queue.fail(claimed(queue), f"boom {attempt}")
        item = console.item(key, clock.now()).item
        assert (item.condition, item.error, item.max_attempts) == (Condition.RETRYING, f"boom {attempt}", 3)
        assert item.verdict.will_run_again
        assert item.verdict.next_retry_at is not None
        assert item.verdict.why.startswith(f"{attempt} of 3 attempts used, due in ")
        clock.tick(timedelta(minutes=2))
    queue.fail(claimed(queue), "boom 3")
    detail = console.item(key, clock.now())
    assert detail.item.condition is Condition.TERMINAL
    assert detail.item.verdict.why == "3 of 3 attempts used"
    assert (detail.item.error, detail.error) == ("boom 3", "boom 3")
    assert dict(detail.native)["error"] == "null"
    assert not detail.item.verdict.will_run_again
    assert detail.schedule == ()


@pytest.mark.parametrize(
    ("result", "own", "shown"),
    [
        ("in results", "in tasks", "in results"),
        (None, "in tasks", "in tasks"),
        ("", "in tasks", "in tasks"),
        (None, "null", None),
        (None, " null\n", None),
        (None, "\t", None),
        (None, None, None),
        (None, '{"message": "json"}', '{"message": "json"}'),
        (b"bytes", "in tasks", "bytes"),
        (b"", "in tasks", "in tasks"),
        (None, "\u00a0null\u00a0", "\u00a0null\u00a0"),
        (None, "\x1cnull", "\x1cnull"),
    ],
)
def test_which_error_is_shown(path: Path, console: SqliteQueue, clock: FrozenClock, result: Any, own: Any, shown: str | None) -> None:
    files.insert(path, "tasks", [{"id": "t", "status": "FAILED", "attempts": 3, "error": own}])
    if result is not None:
        files.insert(path, "results", [{"task_id": "t", "error": result}])
    key = ItemKey("queue", ("t",))
    assert console.item(key, clock.now()).item.error == shown
    asked = Filter((Term(Field.ERROR, Op.CONTAINS, (shown or "null",)),))
    assert len(console.page(PageRequest(asked, clock.now())).items) == (shown is not None)


@pytest.mark.parametrize(
    ("timeout", "ago", "condition"),
    [
        (30, 3630, Condition.RUNNING), (30, 3631, Condition.STUCK),
        (None, 3600, Condition.RUNNING), (None, 3601, Condition.STUCK),
        (0, 3601, Condition.STUCK), (10**30, 10**6, Condition.RUNNING),
    ],
)
def test_stuck_an_hour_after_its_own_timeout(
    path: Path, console: SqliteQueue, clock: FrozenClock, timeout: Any, ago: int, condition: Condition
) -> None:
    """No worker enforces the timeout: a task may be RUNNING because it was claimed and has not started."""
    since = (clock.now() - ago * SECOND).isoformat()
    stored = str(timeout) if timeout is not None and timeout > 2**62 else timeout
    files.insert(path, "tasks", [{"id": "t", "status": "RUNNING", "attempts": 1, "timeout": stored, "updated_at": since}])
    item = console.item(ItemKey("queue", ("t",)), clock.now()).item
    assert item.condition is condition
    assert not (item.condition is Condition.STUCK and item.verdict.will_run_again), "nobody reclaims here"


def stuck(path: Path, clock: FrozenClock, attempts: int, recorded: int | None = None) -> None:
    since = (clock.now() - timedelta(hours=2)).isoformat()
    row = {"status": "RUNNING", "attempts": attempts, "max_retries": 3, "updated_at": since, "last_attempt_at": since}
    files.insert(path, "tasks", [{"id": "t", **row}])
    if recorded is not None:
        result = {"status": "FAILED", "error": f"boom {recorded}", "attempts": recorded, "finished_at": since}
        files.insert(path, "results", [{"task_id": "t", **result}])


@pytest.mark.parametrize(
    ("attempts", "recorded", "says"),
    [
        (3, 2, "attempt 3 of 3, nothing recorded since; a worker may still hold it"),
        (1, None, "attempt 1 of 3, nothing recorded since; a worker may still hold it"),
        (2, 2, "attempt 2 of 3, its result is recorded; a worker may still hold it"),
    ],
)
def test_what_is_known_about_a_stuck_task(
    path: Path, console: SqliteQueue, clock: FrozenClock, attempts: int, recorded: int | None, says: str
) -> None:
    stuck(path, clock, attempts, recorded)
    assert console.item(ItemKey("queue", ("t",)), clock.now()).item.verdict.why == f"running for 2h 00m, limit 1h; {says}"


def test_an_error_belongs_to_the_attempt_that_its_result_names(
    path: Path, console: SqliteQueue, clock: FrozenClock
) -> None:
    stuck(path, clock, 3, 2)
    detail = console.item(ItemKey("queue", ("t",)), clock.now())
    assert [(attempt.number, attempt.outcome, attempt.error) for attempt in detail.attempts] == [
        (2, "failed", "boom 2"), (3, "running", None),
    ]
    assert "the error is of attempt 2" in detail.item.notes


def draft_of(backend: SqliteQueue, clock: FrozenClock, *flags: str) -> Draft:
    operation = Operation(attempts=Attempts.RESET, flags=frozenset(flags))
    ((draft,),) = backend.drafts([ItemKey("queue", ("t",))], Sort(), operation, clock.now(), Never())
    return draft


def test_a_stuck_task_is_requeued_only_if_a_person_insists(path: Path, clock: FrozenClock) -> None:
    stuck(path, clock, 1)
    backend = files.open_queue(path, "tasks")
    skipped = draft_of(backend, clock).skipped
    assert skipped == Notice(
        "A worker may still hold it, and then it would run twice.", Advice(Step.TURN_ON, "include_claimed")
    )
    assert [switch.label for switch in backend.offered_switches] == ["include claimed"]
    assert "include_claimed" in backend.abilities.flags
    draft = draft_of(backend, clock, "include_claimed")
    assert draft.skipped is None
    assert draft.warning is not None


def test_a_recurring_task_enqueues_its_successor(path: Path, queue: ContractQueue, clock: FrozenClock) -> None:
    first = queue.enqueue("app.work", [7], max_retries=5, timeout=9, interval=timedelta(minutes=10))
    queue.fail(claimed(queue), "boom")
    assert query(path, "SELECT count(*) FROM tasks") == [(1,)], "a failure is retried, not repeated"
    clock.tick(timedelta(minutes=2))
    queue.complete(claimed(queue), "fine")
    ((id, status, attempts, args, retries, timeout, eta, schedule),) = query(
        path, f"SELECT id, status, attempts, args, max_retries, timeout, eta, schedule FROM tasks WHERE id <> '{first}'"
    )
    assert (status, attempts, args, retries, timeout) == ("PENDING", 0, "[7]", 5, 9)
    assert datetime.fromisoformat(eta) == clock.now() + timedelta(minutes=10)
    assert json.loads(schedule) == {"eta": eta, "interval": {"type": "timedelta", "total_seconds": 600.0}}
    assert query(path, f"SELECT status FROM tasks WHERE id = '{first}'") == [("SUCCESS",)]
    clock.tick(timedelta(minutes=10))
    assert claimed(queue).id == id


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [
        (None, None), ({"type": "timedelta", "total_seconds": 90.0}, 90), ("PT1M30S", 90), ("P1DT2H", 93_600), (45, 45),
        ("soon", None), ("P", None), (True, None), (10**400, None), ({"total_seconds": None}, None), ("PT1.2.3S", None),
    ],
)
def test_the_ways_in_which_an_interval_is_stored(interval: Any, seconds: int | None) -> None:
    """As JSON, as msgspec writes it, and as a plain number."""
    expected = None if seconds is None else timedelta(seconds=seconds)
    assert interval_of({"interval": interval}) == expected


LATE = "2026-11-10T13:00:00+02:00"
"""Eleven o'clock in UTC. Both queues compare it as text."""


@pytest.mark.parametrize(
    ("eta", "taken"),
    [
        (LATE, "2026-11-10T13:00:00.000001+00:00"),
        ("2026-11-10T12:30:00", "2026-11-10T12:30:00+00:00"),
        ("2026-11-10T12:30:00Z", "2026-11-10T12:30:01+00:00"),
        ("2026-11-10 23:00:00", "2026-11-10T00:00:00+00:00"),
        ("2026-11-10T12:30:00.5+00:00", "2026-11-10T12:30:00.500000+00:00"),
        ("", "0001-01-01T00:00:00+00:00"),
        ("after lunch", None),
        (b"2026-11-10T12:30:00", None),
    ],
)
def test_a_due_time_is_compared_as_text(
    path: Path, queue: ContractQueue, console: SqliteQueue, clock: FrozenClock, eta: Any, taken: str | None
) -> None:
    files.insert(path, "tasks", [{"id": "t", "status": "PENDING", "attempts": 1, "max_retries": 3, "eta": eta}])
    verdict = console.item(ItemKey("queue", ("t",)), clock.now()).item.verdict
    assert verdict.will_run_again is (taken is not None)
    if taken is None:
        assert verdict.why == "its system ignores it: eta is not a time"
        clock.tick(timedelta(days=400))
        assert queue.claim() is None
        return
    at = datetime.fromisoformat(taken)
    assert verdict.next_retry_at == at
    if at > clock.now():
        clock.tick(at - clock.now() - timedelta(microseconds=1))
        assert queue.claim() is None
        clock.tick(timedelta(microseconds=1))
    assert claimed(queue).id == "t"


def test_text_is_read_past_a_nul(path: Path, console: SqliteQueue, clock: FrozenClock) -> None:
    files.insert(path, "tasks", [{"id": "t", "status": "FAILED", "attempts": 3}])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO results (task_id, error) VALUES ('t', ?)", ("before\0after \u00e9",))
    detail = console.item(ItemKey("queue", ("t",)), clock.now())
    assert detail.error == "before\0after \u00e9"
    assert detail.item.error == "before\0after \u00e9"
    assert dict(detail.native)["results.error"] == "before\0after \u00e9"
    for wanted in ("before", "after"):
        asked = Filter((Term(Field.ERROR, Op.CONTAINS, (wanted,)),))
        assert len(console.page(PageRequest(asked, clock.now())).items) == 1, wanted
