"""Jobs in all states, requeued through a preset, and executed by the queue's own worker: promised and taken are the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import procrastinate
import pytest

from console.core.backend import Attempts, Operation
from console.core.confirm import Confirmation
from console.core.pace import parse_pace
from console.core.plan import Matching, Plan
from console.core.query import Filter
from tests.depth import campaign
from tests.plugins.postgres_analyses.operating import ANN, HERE, Operator, operating
from tests.plugins.sql_table.world import Queue, postgres_queue
from tests.real_systems.libraries import call, node, oban, until, working

RAN = "CREATE TABLE ran (job text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())"
TERMINAL = Filter.parse("condition:terminal")


@contextmanager
def queue_of(preset: str, folder: Path) -> Iterator[tuple[Queue, Operator]]:
    with postgres_queue(RAN, {"preset": preset}) as queue, operating(queue.open(), folder) as ann:
        yield queue, ann


def requeued(ann: Operator, plan: Plan) -> None:
    override = ann.operations.carry_out(plan, Confirmation(ANN, HERE, "disk is back", plan.changes))
    assert ann.outcomes(override) == {("applied", ""): plan.changes}


def runs(queue: Queue) -> Counter[str]:
    return Counter(job for (job,) in queue.run("SELECT job FROM ran", []))


# --- Oban ---------------------------------------------------------------------------------------------------


@campaign
@pytest.mark.parametrize("pace", ["now", "over 20s"])
def test_oban(tmp_path: Path, pace: str) -> None:
    with queue_of("oban", tmp_path) as (queue, ann):
        call(oban("install", queue.url))
        queue.run(
            "INSERT INTO oban_jobs (state, worker, attempt, max_attempts, scheduled_at, discarded_at, completed_at, cancelled_at,"
            " attempted_at) SELECT s.state::oban_job_state, '__main__.Ran', CASE WHEN n % 3 = 0 THEN 4 ELSE 20 END, 20,"
            " timezone('UTC', now()) + CASE WHEN s.state IN ('scheduled', 'retryable') THEN interval '1 day' ELSE interval '0' END,"
            " CASE s.state WHEN 'discarded' THEN timezone('UTC', now()) END, CASE s.state WHEN 'completed' THEN timezone('UTC', now()) END,"
            " CASE s.state WHEN 'cancelled' THEN timezone('UTC', now()) END, timezone('UTC', now())"
            " FROM generate_series(1, 1000) n, unnest(ARRAY['discarded', 'discarded', 'discarded', 'discarded', 'discarded', 'retryable',"
            " 'completed', 'cancelled', 'executing', 'scheduled', 'suspended']) WITH ORDINALITY s(state, place) WHERE n % 11 = s.place - 1",
            [],
        )
        plan = ann.operations.propose(Matching(TERMINAL), Operation(), parse_pace(pace))
        promised = {str(id) for (id,) in queue.run("SELECT id FROM oban_jobs WHERE state = 'discarded'", [])}
        assert plan.changes == len(promised) > 400
        requeued(ann, plan)
        due = dict(queue.run("SELECT id::text, scheduled_at AT TIME ZONE 'UTC' FROM oban_jobs", []))
        with working(oban("work", queue.url)):
            until(lambda: queue.one("SELECT count(DISTINCT job) FROM ran")[0] >= len(promised))
        assert runs(queue) == dict.fromkeys(promised, 1)
        early = [job for job, at in queue.run("SELECT job, at FROM ran", []) if at < due[job]]
        assert early == []


# --- pg-boss ------------------------------------------------------------------------------------------------


@campaign
def test_pg_boss(tmp_path: Path) -> None:
    with queue_of("pg_boss", tmp_path) as (queue, ann):
        call(node("pg_boss.mjs", "install", queue.url))
        queue.run(
            "INSERT INTO pgboss.job (name, state, retry_limit, retry_count, started_on, completed_on, keep_until, start_after)"
            " SELECT 'mail', s.state::pgboss.job_state, 2, CASE WHEN n % 3 = 0 THEN 0 ELSE 2 END, now(),"
            " CASE WHEN s.state IN ('failed', 'completed', 'cancelled') THEN now() END,"
            " now() + CASE WHEN s.state = 'failed' AND n % 2 = 0 THEN interval '-1 hour' ELSE interval '14 days' END,"
            " now() + CASE WHEN s.state IN ('created', 'retry') THEN interval '1 day' ELSE interval '0' END"
            " FROM generate_series(1, 1000) n, unnest(ARRAY['failed', 'failed', 'failed', 'failed', 'created', 'retry', 'completed',"
            " 'cancelled']) WITH ORDINALITY s(state, place) WHERE n % 8 = s.place - 1", [],
        )
        promised = {str(id) for (id,) in queue.run("SELECT id FROM pgboss.job WHERE state = 'failed'", [])}
        plan = ann.plan(TERMINAL)
        assert plan.changes == len(promised) == 500
        requeued(ann, plan)
        call(node("pg_boss.mjs", "maintain", queue.url))
        left = {str(id) for (id,) in queue.run("SELECT id FROM pgboss.job WHERE state = 'retry'", [])}
        assert promised <= left, "maintenance deleted a requeued job"
        with working(node("pg_boss.mjs", "work", queue.url)):
            until(lambda: queue.one("SELECT count(DISTINCT job) FROM ran")[0] >= len(promised))
        assert runs(queue) == dict.fromkeys(promised, 1)


# --- Graphile Worker ----------------------------------------------------------------------------------------


@campaign
def test_graphile_worker(tmp_path: Path) -> None:
    with queue_of("graphile_worker", tmp_path) as (queue, ann):
        call(node("graphile_worker.mjs", "install", queue.url))
        queue.run("INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('mail')", [])
        queue.run(
            "INSERT INTO graphile_worker._private_jobs (task_id, attempts, last_error, run_at, locked_at, locked_by)"
            " SELECT t.id, CASE WHEN n % 4 < 2 THEN 25 ELSE 3 END, 'no', now() + CASE WHEN n % 4 = 2 THEN interval '1 day'"
            " ELSE interval '0' END, CASE WHEN n % 4 = 3 THEN now() END, CASE WHEN n % 4 = 3 THEN 'somebody' END"
            " FROM generate_series(1, 1000) n, graphile_worker._private_tasks t", [],
        )
        plan = ann.plan(TERMINAL, operation=Operation(attempts=Attempts.RESET))
        promised = {str(id) for (id,) in queue.run("SELECT id FROM graphile_worker._private_jobs WHERE attempts = 25", [])}
        assert plan.changes == len(promised) == 500
        requeued(ann, plan)
        with working(node("graphile_worker.mjs", "work", queue.url)):
            until(lambda: queue.one("SELECT count(DISTINCT job) FROM ran")[0] >= len(promised))
        assert runs(queue) == dict.fromkeys(promised, 1)


# --- Procrastinate ------------------------------------------------------------------------------------------


def work_off(url: str) -> None:
    async def run() -> None:
        connector = procrastinate.PsycopgConnector(conninfo=url)
        app = procrastinate.App(connector=connector)

        @app.task(name="mail", pass_context=True)  # type: ignore[untyped-decorator,unused-ignore]
        async def mail(context: Any) -> None:
            await connector.execute_query_async("INSERT INTO ran (job) VALUES (%(job)s)", job=str(context.job.id))

        async with app.open_async():
            await app.run_worker_async(wait=False, install_signal_handlers=False, listen_notify=False, concurrency=4)

    asyncio.run(run())


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=campaign)])
def test_procrastinate(tmp_path: Path, count: int) -> None:
    from procrastinate.schema import SchemaManager

    with queue_of("procrastinate", tmp_path) as (queue, ann):
        queue.run(SchemaManager.get_schema(), [])
        queue.run("SET session_replication_role = replica", [])
        queue.run(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, status, attempts, scheduled_at)"
            " SELECT 'default', 'mail', s.status::procrastinate_job_status, 1, CASE s.status WHEN 'todo' THEN now() + interval '1 day' END"
            f" FROM generate_series(1, {count}) n, unnest(ARRAY['failed', 'failed', 'doing', 'todo', 'succeeded', 'cancelled'])"
            " WITH ORDINALITY s(status, place) WHERE n % 6 = s.place - 1", [],
        )
        queue.run("SET session_replication_role = origin", [])
        plan = ann.plan(Filter.parse("condition:terminal,stuck"))
        promised = {str(id) for (id,) in queue.run("SELECT id FROM procrastinate_jobs WHERE status IN ('failed', 'doing')", [])}
        assert plan.changes == len(promised) >= count // 2 - 2
        requeued(ann, plan)
        work_off(queue.url)
        assert runs(queue) == dict.fromkeys(promised, 1)
