"""Verdicts and plans promise exactly what the engines do in a simulated day, and what an independent model does."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import Attempts, Authority, Change, Operation, PageRequest, Throughput
from console.core.item import Condition, Item, ItemKey
from console.core.ports import Never
from console.core.query import NATURAL
from console.testing import ALL, NOON, FrozenClock
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.engine import AsyncTaskQueue, ContractQueue
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL, TASKS_DDL
from tests.depth import in_depth
from tests.plugins.sqlite_queue import queue_files as files
from tests.plugins.sqlite_queue.model import RUN, taken_by_analysis_workers, taken_by_contract_workers
from tests.promises import Record

ITEMS = 1_000
DAY = timedelta(days=1)
TYPES = ("ANALYZE_EXECUTED", "ANALYZE_EXECUTED", "REINDEX", None)
WHO = Authority("ops", "test", None, "o1")
RESET = Operation(attempts=Attempts.RESET, flags=frozenset({"include_claimed", "include_unrecoverable"}))
BEYOND = timedelta(days=2)


def a_due_time(chance: random.Random) -> str:
    """As the queues write it, and as other programs do."""
    at = NOON + timedelta(seconds=chance.randrange(-40_000, 120_000), microseconds=chance.choice((0, 0, 5)))
    return chance.choice((
        at.isoformat(), at.isoformat(), at.isoformat(), at.replace(tzinfo=None).isoformat(),
        at.strftime("%Y-%m-%dT%H:%M:%SZ"), at.isoformat(" "), at.isoformat().replace("+00:00", "+02:00"),
        at.isoformat().replace("+00:00", "-05:00"), at.strftime("%Y-%m-%d"), "soon", "", "0000-00-00",
    ))


def promised(items: list[Item], end: datetime, *, held: bool = True) -> set[str]:
    """The items that are promised to run by then. A task without a due time is due now. What a worker
    holds counts only if the system takes it back (`held`)."""
    return {
        item.key.id for item in items
        if item.verdict.will_run_again and (item.verdict.next_retry_at or NOON) <= end
        and (item.condition is not Condition.RUNNING or held)
    }


def listed(backend: SqliteQueue) -> list[Item]:
    return list(backend.page(PageRequest(ALL, NOON, limit=10 * ITEMS)).items)


def requeue_some(backend: SqliteQueue, ids: list[str]) -> tuple[set[str], set[str]]:
    """Requeue what a plan does not skip; returns the requeued and the skipped ids."""
    keys = [ItemKey("queue", (id,)) for id in ids]
    drafts = [draft for batch in backend.drafts(keys, NATURAL, RESET, NOON, Never()) for draft in batch]
    skipped = {draft.key.removeprefix("queue/") for draft in drafts if draft.skipped is not None}
    changes = []
    for draft in drafts:
        if draft.skipped is None:
            assert draft.before is not None
            change = Change(draft.unit, (ItemKey.parse(draft.key),), draft.before, ())
            changes.append(change._replace(after=backend.after(change, RESET, NOON, NOON)))
    assert {outcome.kind for outcome in backend.compare_and_set(changes, RESET, WHO)} == {"applied"}
    return {change.keys[0].id for change in changes}, skipped


def rows_of(path: Path, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]


@pytest.mark.parametrize("seed", in_depth(range(4), [0]))
def test_the_analysis_queue_takes_what_is_promised(tmp_path: Path, seed: int, promises: Record) -> None:
    chance = random.Random(4711 + seed)
    path = files.create(tmp_path / "queue.db", ASYNC_TASKS_DDL, wal=True)
    ago = [(NOON - timedelta(seconds=seconds)).isoformat() for seconds in (1, 100, 361, 9_000)]
    files.insert(path, "async_tasks", [
        {
            "task_id": f"t{n:04}", "task_type": chance.choice(TYPES), "status": status, "attempts": chance.randrange(6),
            "next_run_at": a_due_time(chance), "updated_at": chance.choice(ago), "created_at": ago[-1],
            "last_error": chance.choice((None, "ERR: no")),
        }
        for n in range(ITEMS) if (status := chance.choice(("PENDING", "PENDING", "RUNNING", "DONE", "FAILED", "FAILED")))
    ])
    backend = files.open_queue(path)
    failed = [row["task_id"] for row in rows_of(path, "async_tasks") if row["status"] == "FAILED"]
    requeued, skipped = requeue_some(backend, failed[::2])
    end = NOON + DAY
    early = promised(listed(backend), end - RUN)
    late, listed_first = promised(listed(backend), NOON + BEYOND), listed(backend)
    expected = taken_by_analysis_workers(rows_of(path, "async_tasks"), NOON, end, {"ANALYZE_EXECUTED"})

    clock = FrozenClock(NOON)
    queue = AsyncTaskQueue(backend.database, backend.policy, clock, runs=Throughput(10, RUN))
    taken: set[str] = set()
    while clock.now() <= end:
        queue.reclaim()
        while (task := queue.claim()) is not None:
            taken.add(task.id)
            queue.complete(task)
        clock.tick(RUN)
    assert taken == expected, "engine and model"
    # Whether a task that is due at the very end of the day runs on that day depends on when its run begins.
    predicted = {item.key.id: True if item.key.id in early else None if item.key.id in late else False for item in listed_first}
    promises("sqlite_queue async_tasks", predicted, taken)
    assert requeued <= taken
    assert not skipped & taken
    assert len(early) > ITEMS / 5
    assert len(skipped) > ITEMS / 20


@pytest.mark.parametrize("seed", in_depth(range(3), [0]))
def test_the_contract_queue_takes_what_is_promised(tmp_path: Path, seed: int, promises: Record) -> None:
    chance = random.Random(815 + seed)
    path = files.create(tmp_path / "queue.db", TASKS_DDL, wal=True)
    ago = [(NOON - timedelta(seconds=seconds)).isoformat() for seconds in (1, 4_000, 9_000)]
    statuses = ("PENDING", "PENDING", "PENDING", "RUNNING", "SUCCESS", "FAILED", "FAILED", "CANCELLED", "PAUSED")
    files.insert(path, "tasks", [
        {
            "id": f"t{n:04}", "func_path": "app.work", "args": "[]", "kwargs": "{}", "status": chance.choice(statuses),
            "schedule": '{"eta": null, "interval": null}', "eta": chance.choice((None, a_due_time(chance))),
            "max_retries": chance.choice((0, 1, 3, None)), "timeout": chance.choice((None, 60)),
            "attempts": chance.randrange(5), "created_at": ago[-1], "updated_at": chance.choice(ago), "error": "null",
        }
        for n in range(ITEMS)
    ])
    backend = files.open_queue(path, "tasks")
    others = [row["id"] for row in rows_of(path, "tasks") if row["status"] != "PENDING"]
    requeued, skipped = requeue_some(backend, others[::2])
    end = NOON + DAY
    items = listed(backend)
    due = promised(items, end, held=False)
    expected = taken_by_contract_workers(rows_of(path, "tasks"), end)

    clock = FrozenClock(NOON)
    queue = ContractQueue(backend.database, backend.policy, clock, random.Random(1))
    taken: set[str] = set()
    while clock.now() <= end:
        while (task := queue.claim()) is not None:
            taken.add(task.id)
            queue.complete(task)
        clock.tick(timedelta(minutes=15))
    assert taken == expected, "engine and model"
    promises("sqlite_queue tasks", {item.key.id: item.key.id in due for item in items}, taken)
    assert requeued <= taken
    assert not skipped & taken
    assert len(due) > ITEMS / 4
    assert len(requeued) > ITEMS / 20
