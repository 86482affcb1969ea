"""Discarding tasks of both SQLite queues: what is written, and that no worker runs them again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.backend import Action, Operation
from console.testing import FrozenClock
from plugins.sqlite_queue.engine import AsyncTaskQueue, ContractQueue
from plugins.sqlite_queue.schema import TASKS_DDL
from tests.faults.world import NOON, QueueFile, World, confirm, marked, why_blocked, world_in

DISCARD = Operation(Action.DISCARD)
GIVEN_UP = "Already given up by its system; acknowledge the cause instead."
LATER = timedelta(days=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        yield made


def test_a_retrying_analysis_becomes_failed_as_its_own_code_ends_it(world: World) -> None:
    world.queue.put("a", "PENDING", 2, due=NOON + timedelta(minutes=5))
    before, console = world.queue.row("a"), world.console()
    plan = console.propose(marked("queue/a"), DISCARD)
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"applied": 1}
    assert world.queue.row("a") == before | {"status": "FAILED", "updated_at": NOON.isoformat()}
    clock = FrozenClock(NOON + LATER)
    backend = world.queue.open(clock=clock)
    queue = AsyncTaskQueue(backend.database, backend.policy, clock)
    assert (queue.reclaim(), queue.claim()) == (0, None)
    backend.close()
    undo = console.undo(override.override_id)
    console.carry_out(undo, confirm(undo))
    assert world.queue.row("a") == before


def test_a_failed_analysis_is_given_up_already(world: World) -> None:
    """This queue has no status beyond FAILED, which no worker takes, whether attempts are left or not."""
    keys = [world.queue.put("left", "FAILED", 1), world.queue.put("used", "FAILED", 4)]
    console = world.console()
    plan = console.propose(marked(*keys), DISCARD)
    assert (plan.changes, why_blocked(console, plan)) == (0, dict.fromkeys(keys, GIVEN_UP))


def test_the_worker_of_a_discarded_analysis_cannot_complete_it(world: World) -> None:
    clock = FrozenClock(NOON - timedelta(hours=1))
    world.queue.put("a", "PENDING", 0, due=clock.now())
    backend = world.queue.open(clock=clock)
    queue = AsyncTaskQueue(backend.database, backend.policy, clock)
    task = queue.claim()
    assert task is not None
    console = world.console()
    plan = console.propose(marked("queue/a"), DISCARD)
    assert plan.warnings == {"Ran longer than its limit; a worker may still hold it and finish it.": 1}
    console.carry_out(plan, confirm(plan))
    assert (queue.complete(task), queue.fail(task, "late")) == (False, False)
    assert world.queue.row("a")["status"] == "FAILED"
    backend.close()


@pytest.mark.parametrize(("status", "attempts", "changes"), [
    ("PENDING", 1, 1), ("FAILED", 1, 1), ("RUNNING", 1, 1), ("FAILED", 3, 0), ("PENDING", 0, 0), ("SUCCESS", 1, 0),
    ("CANCELLED", 1, 0),
])
def test_a_task_of_the_contract_queue_is_cancelled(tmp_path: Path, status: str, attempts: int, changes: int) -> None:
    file = QueueFile.create(tmp_path / "tasks.db", oracle=False, ddl=TASKS_DDL)
    long_ago = (NOON - LATER).isoformat()
    file.run(
        "INSERT INTO tasks VALUES ('a', 'app.work', '[]', '{}', ?, '{}', ?, 3, 60, ?, ?, ?, ?, 'null')",
        (status, NOON.isoformat(), attempts, long_ago, long_ago, long_ago),
    )
    before = file.run("SELECT * FROM tasks")
    with world_in(tmp_path) as world:
        clock = FrozenClock(NOON)
        console = world.console(backends=[file.open(dialect="tasks", clock=clock)])
        plan = console.propose(marked("queue/a"), DISCARD)
        assert plan.changes == changes
        if not changes:
            return
        override = console.carry_out(plan, confirm(plan))
        assert file.run("SELECT status, attempts, updated_at FROM tasks") == [("CANCELLED", attempts, NOON.isoformat())]
        clock.tick(LATER)
        backend = file.open(dialect="tasks", clock=clock)
        queue = ContractQueue(backend.database, backend.policy, clock)
        assert (queue.reclaim(), queue.claim()) == (0, None)
        backend.close()
        undo = console.undo(override.override_id)
        console.carry_out(undo, confirm(undo))
        assert file.run("SELECT * FROM tasks") == before
