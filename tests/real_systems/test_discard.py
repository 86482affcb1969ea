"""Jobs that are due, discarded through a preset: the queue's own worker runs the others, and none of the discarded ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from procrastinate.schema import SchemaManager

from console.core.backend import Action, Operation
from tests.depth import campaign
from tests.plugins.postgres_analyses.operating import Operator
from tests.plugins.sql_table.world import Queue
from tests.promises import Record
from tests.real_systems.libraries import call, node, oban, working
from tests.real_systems.test_real_systems import check_runs, predicted, queue_of, requeued, until_idle, work_off

DISCARD = Operation(Action.DISCARD)


def discard_half(ann: Operator, keys: Sequence[tuple[Any, ...]]) -> tuple[set[str], dict[str, bool | None]]:
    """Discard every second job. Returns their ids, and what is predicted for all."""
    chosen = [tuple(map(str, key)) for key in keys[::2]]
    plan = ann.plan(*chosen, operation=DISCARD)
    assert plan.changes == len(chosen) > 40
    requeued(ann, plan)
    gone = {key[-1] for key in chosen}
    outlook = predicted(ann)
    assert not any(outlook[id] for id in gone)
    assert all(outlook[str(key[-1])] for key in keys[1::2])
    return gone, outlook


def run_the_others(
    name: str, queue: Queue, ann: Operator, keys: Sequence[tuple[Any, ...]], worker: AbstractContextManager[object],
    promises: Record, work: Callable[[], None] = lambda: None,
) -> None:
    gone, outlook = discard_half(ann, keys)
    with worker:
        work()
        until_idle(queue, outlook)
    check_runs(f"{name}, discarded", queue, outlook, promises)
    assert gone.isdisjoint(job for (job,) in queue.run("SELECT job FROM ran", []))


@campaign
def test_oban(tmp_path: Path, promises: Record) -> None:
    with queue_of("oban", tmp_path) as (queue, ann):
        call(oban("install", queue.url))
        queue.run(
            "INSERT INTO oban_jobs (state, worker, attempt, max_attempts, scheduled_at, attempted_at)"
            " SELECT 'retryable', '__main__.Ran', 4, 20, timezone('UTC', now()), timezone('UTC', now())"
            " FROM generate_series(1, 2000)", [],
        )
        keys = queue.run("SELECT id FROM oban_jobs ORDER BY id", [])
        run_the_others("Oban", queue, ann, keys, working(oban("work", queue.url)), promises)
        assert queue.one("SELECT count(*) FROM oban_jobs WHERE state = 'cancelled' AND cancelled_at IS NOT NULL") == (1000,)


@campaign
def test_pg_boss(tmp_path: Path, promises: Record) -> None:
    with queue_of("pg_boss", tmp_path) as (queue, ann):
        call(node("pg_boss.mjs", "install", queue.url))
        queue.run(
            "INSERT INTO pgboss.job (name, state, retry_limit, retry_count, started_on, start_after)"
            " SELECT 'mail', 'retry', 9, 2, now(), now() FROM generate_series(1, 2000)", [],
        )
        keys = queue.run("SELECT name, id FROM pgboss.job ORDER BY id", [])
        run_the_others("pg-boss", queue, ann, keys, working(node("pg_boss.mjs", "work", queue.url)), promises)
        call(node("pg_boss.mjs", "maintain", queue.url))
        assert queue.one("SELECT count(*) FROM pgboss.job WHERE state = 'cancelled'") == (1000,)


@campaign
def test_graphile_worker(tmp_path: Path, promises: Record) -> None:
    with queue_of("graphile_worker", tmp_path) as (queue, ann):
        call(node("graphile_worker.mjs", "install", queue.url))
        queue.run("INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('mail')", [])
        queue.run(
            "INSERT INTO graphile_worker._private_jobs (task_id, attempts, last_error, run_at)"
            " SELECT t.id, 3, 'no', now() FROM generate_series(1, 2000), graphile_worker._private_tasks t", [],
        )
        keys = queue.run("SELECT id FROM graphile_worker._private_jobs ORDER BY id", [])
        worker = working(node("graphile_worker.mjs", "work", queue.url))
        run_the_others("Graphile Worker", queue, ann, keys, worker, promises)


@pytest.mark.parametrize("count", [100, pytest.param(2_000, marks=campaign)])
def test_procrastinate(tmp_path: Path, count: int, promises: Record) -> None:
    with queue_of("procrastinate", tmp_path) as (queue, ann):
        queue.run(SchemaManager.get_schema(), [])
        queue.run(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, status, attempts)"
            f" SELECT 'default', 'mail', 'todo', 1 FROM generate_series(1, {count})", [],
        )
        keys = queue.run("SELECT id FROM procrastinate_jobs ORDER BY id", [])
        run_the_others(
            "Procrastinate", queue, ann, keys, nullcontext(), promises, lambda: work_off(queue.url)
        )
        assert queue.one("SELECT count(*) FROM procrastinate_jobs WHERE status = 'cancelled'") == (count // 2,)
