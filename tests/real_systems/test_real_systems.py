"""Jobs in all states, requeued through a preset, and executed by the queue's own worker: promised and taken are the same."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console.core import recovery
from console.core.backend import Attempts, Operation, PageRequest
from console.core.confirm import Confirmation
from console.core.item import Condition, Item, ItemKey
from console.core.pace import parse_pace
from console.core.plan import Matching, Plan
from console.core.query import Filter
from console.core.recovery import Result
from tests.depth import campaign
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.operating import ANN, HERE, Operator, operating
from tests.plugins.sql_table.systems import SYSTEMS
from tests.plugins.sql_table.world import Queue, mysql_queue, postgres_queue
from tests.promises import Record
from tests.real_systems.libraries import answer, call, dbos, delayed_job, laravel, node, oban, python, until, working

RAN = (
    "CREATE TABLE ran (job text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());"
    " CREATE TABLE failing (job text NOT NULL); CREATE TABLE deadly (job text NOT NULL)"
)
"""What the handlers note, the jobs that they let fail, and those that kill their worker the first time."""
EVERYTHING = Filter.parse("condition:*")
TERMINAL = Filter.parse("condition:terminal")
IDLE = 3
"""After so many seconds without a job a worker is taken to have found all there are."""


@pytest.fixture(autouse=True)
def no_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished row that its system has deleted must be missing for a while; a test has no minute."""
    monkeypatch.setattr(recovery, "GONE_FOR", timedelta(seconds=1))


@contextmanager
def queue_of(preset: str, folder: Path) -> Iterator[tuple[Queue, Operator]]:
    with postgres_queue(RAN, {"preset": preset}) as queue, operating(queue.open(), folder) as ann:
        yield queue, ann


def requeued(ann: Operator, plan: Plan) -> None:
    override = ann.operations.carry_out(plan, Confirmation(ANN, HERE, "disk is back", plan.changes))
    assert ann.outcomes(override) == {("applied", ""): plan.changes}


def runs(queue: Queue) -> Counter[str]:
    return Counter(job for (job,) in queue.run("SELECT job FROM ran", []))


def predicted(ann: Operator) -> dict[str, bool | None]:
    """Whether each job that nobody works on is predicted to run soon, that is while a test waits."""
    soon = ann.backend.now() + timedelta(minutes=10)
    found: dict[str, bool | None] = {}
    request = PageRequest(EVERYTHING, ann.backend.now(), limit=500)
    while True:
        page = ann.backend.page(request)
        for item in page.items:
            if item.condition is not Condition.RUNNING:
                will, at = item.verdict.will_run_again, item.verdict.next_retry_at
                found[item.key.parts[-1]] = False if will and at is not None and at > soon else will
        if page.next is None:
            return found
        request = replace(request, after=page.next)


def check_runs(system: str, queue: Queue, outlook: dict[str, bool | None], promises: Record) -> None:
    """The system's own worker ran every job that was predicted to run, once, and no other."""
    ran = runs(queue)
    promises(f"{system}, by its own worker", outlook, ran)
    assert set(ran.values()) == {1}
    assert set(ran) <= set(outlook)


def check_results(ann: Operator, queue: Queue) -> None:
    """Every requeued job has recovered, because the handler of the system's own worker has counted it."""
    ran = runs(queue)
    watch = ann.operations.watch(ann.operations.trail.overrides()[0].override_id)
    until(lambda: not watch.look(asked=True).open)
    recovered = {ItemKey.parse(one.key).parts[-1] for batch in watch.items(Result.RECOVERED) for one in batch}
    assert recovered <= set(ran)
    assert watch.progress.counts.record() == {**dict.fromkeys(Result, 0), Result.RECOVERED: watch.plan.changes}


def until_idle(queue: Queue, outlook: dict[str, bool | None]) -> None:
    """Wait until so many jobs have run as are predicted to, and then until none has run for a while: perhaps others do."""
    wanted, seen, end = sum(will is True for will in outlook.values()), -1, time.monotonic() + PATIENCE
    while queue.one("SELECT count(DISTINCT job) FROM ran")[0] < wanted and time.monotonic() < end:
        time.sleep(0.1)
    while (count := queue.one("SELECT count(*) FROM ran")[0]) != seen:
        seen = count
        time.sleep(IDLE)


# --- Oban ---------------------------------------------------------------------------------------------------


@campaign
@pytest.mark.parametrize("pace", ["now", "over 20s"])
def test_oban(tmp_path: Path, pace: str, promises: Record) -> None:
    with queue_of("oban", tmp_path) as (queue, ann):
        call(oban("install", queue.url))
        queue.run(
            "INSERT INTO oban_jobs (state, worker, attempt, max_attempts, scheduled_at, discarded_at, completed_at, cancelled_at,"
            " attempted_at) SELECT s.state::oban_job_state, '__main__.Ran', CASE WHEN n % 3 = 0 OR s.state = 'available' THEN 4 ELSE 20 END, 20,"
            " timezone('UTC', now()) + CASE WHEN s.state IN ('scheduled', 'retryable') THEN interval '1 day' ELSE interval '0' END,"
            " CASE s.state WHEN 'discarded' THEN timezone('UTC', now()) END, CASE s.state WHEN 'completed' THEN timezone('UTC', now()) END,"
            " CASE s.state WHEN 'cancelled' THEN timezone('UTC', now()) END, timezone('UTC', now())"
            " FROM generate_series(1, 2100) n, unnest(ARRAY['discarded', 'discarded', 'discarded', 'discarded', 'discarded', 'retryable',"
            " 'completed', 'cancelled', 'executing', 'scheduled', 'suspended', 'available']) WITH ORDINALITY s(state, place)"
            " WHERE n % 12 = s.place - 1",
            [],
        )
        plan = ann.operations.propose(Matching(TERMINAL), Operation(), parse_pace(pace))
        promised = {str(id) for (id,) in queue.run("SELECT id FROM oban_jobs WHERE state = 'discarded'", [])}
        assert plan.changes == len(promised) > 400
        requeued(ann, plan)
        due = dict(queue.run("SELECT id::text, scheduled_at AT TIME ZONE 'UTC' FROM oban_jobs", []))
        outlook = predicted(ann)
        assert all(outlook[id] for id in promised)
        with working(oban("work", queue.url)):
            until_idle(queue, outlook)
        check_runs("Oban", queue, outlook, promises)
        check_results(ann, queue)
        early = [job for job, at in queue.run("SELECT job, at FROM ran", []) if at < due[job]]
        assert early == []


# --- pg-boss ------------------------------------------------------------------------------------------------


@campaign
def test_pg_boss(tmp_path: Path, promises: Record) -> None:
    with queue_of("pg_boss", tmp_path) as (queue, ann):
        call(node("pg_boss.mjs", "install", queue.url))
        queue.run(
            "INSERT INTO pgboss.job (name, state, retry_limit, retry_count, started_on, completed_on, keep_until, start_after)"
            " SELECT 'mail', s.state::pgboss.job_state, 2, CASE WHEN n % 3 = 0 THEN 0 ELSE 2 END, now(),"
            " CASE WHEN s.state IN ('failed', 'completed', 'cancelled') THEN now() END,"
            " now() + CASE WHEN s.state = 'failed' AND n % 2 = 0 THEN interval '-1 hour' ELSE interval '14 days' END,"
            " now() + CASE WHEN s.state IN ('created', 'retry') AND n % 3 = 0 THEN interval '1 day' ELSE interval '0' END"
            " FROM generate_series(1, 3000) n, unnest(ARRAY['failed', 'failed', 'failed', 'failed', 'created', 'retry', 'completed',"
            " 'cancelled']) WITH ORDINALITY s(state, place) WHERE n % 8 = s.place - 1", [],
        )
        queue.run(
            "INSERT INTO pgboss.job (name, state, blocked) SELECT 'mail', 'created', n % 2 = 0 FROM generate_series(1, 40) n", []
        )
        # Of every second key, a job is in error before the one that waits: that one is not taken before the other is done.
        queue.run(
            "INSERT INTO pgboss.job (name, state, policy, singleton_key, started_on, completed_on, keep_until)"
            " SELECT 'strict', 'failed', 'key_strict_fifo', 'key ' || n, now(), now(), now() + interval '14 days'"
            " FROM generate_series(2, 40, 2) n", [],
        )
        queue.run(
            "INSERT INTO pgboss.job (name, state, policy, singleton_key) SELECT 'strict', 'created', 'key_strict_fifo', 'key ' || n"
            " FROM generate_series(1, 40) n", [],
        )
        promised = {str(id) for (id,) in queue.run("SELECT id FROM pgboss.job WHERE state = 'failed' AND name = 'mail'", [])}
        plan = ann.plan(Filter.parse("condition:terminal type:mail"))
        assert plan.changes == len(promised) >= 500
        requeued(ann, plan)
        call(node("pg_boss.mjs", "maintain", queue.url))
        left = {str(id) for (id,) in queue.run("SELECT id FROM pgboss.job WHERE state = 'retry'", [])}
        assert promised <= left, "maintenance deleted a requeued job"
        outlook = predicted(ann)
        assert all(outlook[id] for id in promised)
        with working(node("pg_boss.mjs", "work", queue.url)):
            until_idle(queue, outlook)
        check_runs("pg-boss", queue, outlook, promises)
        check_results(ann, queue)


# --- Graphile Worker ----------------------------------------------------------------------------------------


@campaign
def test_graphile_worker(tmp_path: Path, promises: Record) -> None:
    with queue_of("graphile_worker", tmp_path) as (queue, ann):
        call(node("graphile_worker.mjs", "install", queue.url))
        queue.run("INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('mail')", [])
        queue.run(
            "INSERT INTO graphile_worker._private_jobs (task_id, attempts, last_error, run_at, locked_at, locked_by)"
            " SELECT t.id, CASE WHEN n % 4 < 2 THEN 25 ELSE 3 END, 'no', now() + CASE WHEN n % 8 = 2 THEN interval '1 day'"
            " ELSE interval '0' END, CASE WHEN n % 4 = 3 THEN now() - CASE WHEN n % 8 = 3 THEN interval '5 hours' ELSE interval '0' END"
            " END, CASE WHEN n % 4 = 3 THEN 'somebody' END"
            " FROM generate_series(1, 1400) n, graphile_worker._private_tasks t", [],
        )
        queue.run(
            "INSERT INTO graphile_worker._private_jobs (task_id, attempts, run_at)"
            " SELECT t.id, n % 25, now() + interval '1 day' FROM generate_series(1, 900) n, graphile_worker._private_tasks t", [],
        )
        plan = ann.plan(TERMINAL, operation=Operation(attempts=Attempts.RESET))
        promised = {str(id) for (id,) in queue.run("SELECT id FROM graphile_worker._private_jobs WHERE attempts = 25", [])}
        assert plan.changes == len(promised) >= 500
        requeued(ann, plan)
        outlook = predicted(ann)
        assert all(outlook[id] for id in promised)
        with working(node("graphile_worker.mjs", "work", queue.url)):
            until_idle(queue, outlook)
        check_runs("Graphile Worker", queue, outlook, promises)
        check_results(ann, queue)


# --- delayed_job --------------------------------------------------------------------------------------------

RAN_MYSQL = (
    "CREATE TABLE ran (job varchar(40) NOT NULL, at datetime(6) NOT NULL DEFAULT current_timestamp(6));\n"
    " CREATE TABLE failing (job varchar(40) NOT NULL);\n CREATE TABLE deadly (job varchar(40) NOT NULL)"
)


@campaign
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_delayed_job(tmp_path: Path, kind: str, promises: Record) -> None:
    preset = {"preset": "delayed_job_mysql" if kind == "mysql" else "delayed_job"}
    made = mysql_queue(RAN_MYSQL, preset) if kind == "mysql" else postgres_queue(RAN, preset)
    with made as queue:
        call(delayed_job("install", queue.url))
        now = datetime.now(UTC).replace(tzinfo=None)
        ago, later, died = now - timedelta(hours=1), now + timedelta(days=1), now - timedelta(hours=5)
        for n in range(2_320):
            is_later = n >= 1_320
            state = "queued" if is_later else ("failed", "failed", "queued", "errored", "locked")[n % 5]
            queue.insert(
                "delayed_jobs", handler=f"--- !ruby/struct:Mail\nnumber: {n}\n",
                attempts={"failed": 25, "queued": 0}.get(state, n % 24 + 1), created_at=ago,
                run_at=later if (is_later or n % 4 == 3) and state != "locked" else ago,
                updated_at=ago, last_error=None if state == "queued" else "no", failed_at=ago if state == "failed" else None,
                locked_at=died if state == "locked" and n % 3 == 0 else now if state in ("failed", "locked") else None, locked_by="other" if state == "locked" else None,
            )
        with operating(queue.open(), tmp_path) as ann:
            plan = ann.plan(TERMINAL, operation=Operation(attempts=Attempts.RESET))
            promised = {str(id) for (id,) in queue.run("SELECT id FROM delayed_jobs WHERE failed_at IS NOT NULL", [])}
            assert plan.changes == len(promised) == 528
            requeued(ann, plan)
            outlook = predicted(ann)
            assert all(outlook[id] for id in promised)
            with working(delayed_job("work", queue.url)):
                until_idle(queue, outlook)
            check_runs(f"delayed_job on {kind}", queue, outlook, promises)
            check_results(ann, queue)


# --- Laravel ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
@pytest.mark.parametrize("count", [320, pytest.param(4_000, marks=campaign)])
def test_laravel(tmp_path: Path, kind: str, count: int, promises: Record) -> None:
    """A worker also takes jobs to fail them: those without tries left, and those whose time is over."""
    suffix = "_mysql" if kind == "mysql" else ""
    ddl = ";\n".join((
        RAN_MYSQL if suffix else RAN, SYSTEMS[f"laravel{suffix}"].ddl.rstrip(";\n"), SYSTEMS[f"laravel_failed{suffix}"].ddl,
    ))
    with (mysql_queue if suffix else postgres_queue)(ddl, {"preset": f"laravel{suffix}"}) as queue:
        call(laravel("add", queue.url, str(count)))
        now = round(time.time())
        for (id,) in queue.run("SELECT id FROM jobs", []):
            place = (id - 1) // 80 % 4
            reserved = {3: now - 10 if id % 2 else now - 1_000}.get(place)
            due = now + 12 * 3_600 if place == 2 else now - 60
            queue.run("UPDATE jobs SET attempts = ?, available_at = ?, reserved_at = ? WHERE id = ?", [(id - 1) // 20 % 4, due, reserved, id])
        with operating(queue.open(), tmp_path) as ann:
            plan = ann.plan(Filter.parse("condition:retrying next>1h"))
            assert plan.changes > count / 20
            requeued(ann, plan)
            outlook = predicted(ann)
            with working(laravel("work", queue.url)):
                until_idle(queue, outlook)
            check_runs(f"Laravel on {kind}", queue, outlook, promises)
        failed = queue.one("SELECT count(*) FROM failed_jobs")[0]
        with operating(queue.open(preset=f"laravel_failed{suffix}"), tmp_path) as ann:
            shown = [item for item in every_item(ann).values() if item.condition is Condition.TERMINAL]
            assert len(shown) == failed > count / 20
            assert {item.type for item in shown} == {"Mail"}
            assert all("has been attempted too many times" in (item.error or "") for item in shown)


# --- PgQueuer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100, pytest.param(4_000, marks=campaign)])
def test_pgqueuer(tmp_path: Path, count: int, promises: Record) -> None:
    from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment

    with queue_of("pgqueuer", tmp_path) as (queue, ann):
        queue.run(QueryBuilderEnvironment().build_install_query(), [])
        queue.run(
            "INSERT INTO pgqueuer (priority, status, entrypoint, attempts, execute_after, heartbeat, queue_manager_id) SELECT 0,"
            " s.status::pgqueuer_status, 'mail', n % 3, now() + CASE WHEN s.status = 'queued' AND n % 2 = 0 THEN interval '1 day'"
            " ELSE interval '0' END, now() - CASE WHEN n % 8 = 3 THEN interval '2 hours' ELSE interval '0' END,"
            " CASE s.status WHEN 'picked' THEN gen_random_uuid() END"
            f" FROM generate_series(1, {count}) n, unnest(ARRAY['failed', 'failed', 'queued', 'picked'])"
            " WITH ORDINALITY s(status, place) WHERE n % 4 = s.place - 1", [],
        )
        plan = ann.plan(TERMINAL, operation=Operation(attempts=Attempts.RESET))
        promised = {str(id) for (id,) in queue.run("SELECT id FROM pgqueuer WHERE status = 'failed'", [])}
        assert plan.changes == len(promised) >= count // 2 - 2
        requeued(ann, plan)
        outlook = predicted(ann)
        assert all(outlook[id] for id in promised)
        with working(python("pgqueuer_worker.py", queue.url)):
            until_idle(queue, outlook)
        check_runs("PgQueuer", queue, outlook, promises)
        check_results(ann, queue)


# --- BullMQ on PostgreSQL -----------------------------------------------------------------------------------

BULLMQ_STATES = {
    Condition.TERMINAL: {"failed"}, Condition.RETRYING: {"delayed"}, Condition.WAITING: {"delayed", "waiting"}, Condition.DONE: {"completed"},
}


def every_item(ann: Operator) -> dict[str, Item]:
    page = ann.backend.page(PageRequest(EVERYTHING, ann.backend.now(), limit=100_000))
    return {item.key.parts[-1]: item for item in page.items}


def millis(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)


@pytest.mark.parametrize("pace", ["now", "over 10s"])
@pytest.mark.parametrize("count", [80, pytest.param(1_280, marks=campaign)])
def test_bullmq(tmp_path: Path, count: int, pace: str, promises: Record) -> None:
    with queue_of("bullmq_postgres", tmp_path) as (queue, ann):
        call(node("bullmq_postgres.mjs", "install", queue.url))
        call(node("bullmq_postgres.mjs", "add", queue.url, str(count)))
        reported, shown = answer(node("bullmq_postgres.mjs", "report", queue.url)), every_item(ann)
        assert len(reported) == count
        said = {id: (one.type, one.attempts, one.max_attempts, one.error, millis(one.created_at), millis(one.executed_at)) for id, one in shown.items()}
        assert said == {
            id: (job["name"], job["attemptsMade"], job["attempts"], job["failedReason"], job["timestamp"], job["processedOn"])
            for id, job in reported.items()
        }
        assert all(job["state"] in BULLMQ_STATES[shown[id].condition] for id, job in reported.items())
        promised = {id for id, job in reported.items() if job["state"] == "failed"}
        with working(node("bullmq_postgres.mjs", "work", queue.url)):  # idle when they are requeued: they have to wake it
            until(lambda: queue.one("SELECT count(*) FROM ran")[0] >= count // 8)
            plan = ann.operations.propose(Matching(TERMINAL), Operation(), parse_pace(pace))
            assert plan.changes == len(promised) == count // 2
            requeued(ann, plan)
            ran = count // 2 + count // 8
            until(lambda: queue.one("SELECT count(DISTINCT job) FROM ran")[0] >= ran)
        late = {id for id, one in every_item(ann).items() if one.condition in (Condition.RETRYING, Condition.WAITING)}
        outlook: dict[str, bool | None] = {id: id not in late for id in reported}
        check_runs("BullMQ on PostgreSQL", queue, outlook, promises)
        check_results(ann, queue)
        if pace != "now":
            assert queue.one("SELECT max(at) - min(at) > interval '7 seconds' FROM ran WHERE job = ANY(?)", list(promised)) == (True,)


def test_bullmq_undone(tmp_path: Path) -> None:
    with queue_of("bullmq_postgres", tmp_path) as (queue, ann):
        call(node("bullmq_postgres.mjs", "install", queue.url))
        call(node("bullmq_postgres.mjs", "add", queue.url, "40"))
        before = queue.run("SELECT * FROM bullmq.job ORDER BY id", [])
        requeued(ann, ann.plan(Filter.parse("condition:terminal,retrying"), operation=Operation(attempts=Attempts.RESET)))
        assert queue.run("SELECT * FROM bullmq.job ORDER BY id", []) != before
        ann.apply(ann.operations.undo(ann.operations.trail.overrides()[0].override_id))
        assert queue.run("SELECT * FROM bullmq.job ORDER BY id", []) == before


# --- DBOS ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [60, pytest.param(3_000, marks=campaign)])
def test_dbos(tmp_path: Path, count: int, promises: Record) -> None:
    with queue_of("dbos", tmp_path) as (queue, ann):
        call(dbos("add", queue.url, str(count)))
        queue.run("DELETE FROM ran", [])
        # What its own dead-lettering writes, of workflows whose executor died too often.
        queue.run(
            "UPDATE dbos.workflow_status SET status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED', recovery_attempts = 4, queue_name = NULL,"
            " started_at_epoch_ms = NULL WHERE status = 'SUCCESS' AND substr(workflow_uuid, 10)::int % 3 = 2", [],
        )
        queue.run("DELETE FROM dbos.workflow_output o USING dbos.workflow_status s WHERE s.workflow_uuid = o.workflow_uuid"
                  " AND s.status LIKE 'MAX%'", [])
        reported, shown = answer(dbos("status", queue.url)), every_item(ann)
        assert len(reported) == count
        assert {id: [one.native_status, one.type, one.attempts, (one.error or "").removeprefix("ValueError: ") or None]
                for id, one in shown.items()} == reported
        promised = {id for id, (status, *_) in reported.items() if status.startswith("MAX")}
        plan = ann.plan(TERMINAL, operation=Operation(attempts=Attempts.RESET))
        assert plan.changes == len(promised) == count // 3
        requeued(ann, plan)
        outlook = predicted(ann)
        assert {id for id, will in outlook.items() if will} == promised
        with working(dbos("work", queue.url)):
            until_idle(queue, outlook)
            until(lambda: queue.one("SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'") == (count * 2 // 3,))
        check_runs("DBOS", queue, outlook, promises)
        check_results(ann, queue)


# --- Procrastinate ------------------------------------------------------------------------------------------


def work_off(url: str) -> None:
    call(python("procrastinate_worker.py", url))


@pytest.mark.parametrize("count", [100, pytest.param(2_300, marks=campaign)])
def test_procrastinate(tmp_path: Path, count: int, promises: Record) -> None:
    from procrastinate.schema import SchemaManager

    with queue_of("procrastinate", tmp_path) as (queue, ann):
        queue.run(SchemaManager.get_schema(), [])
        queue.run("SET session_replication_role = replica", [])
        queue.run(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, status, attempts, scheduled_at)"
            " SELECT 'default', 'mail', s.status::procrastinate_job_status, 1, CASE WHEN s.status = 'todo' AND n % 4 = 3 THEN now() + interval '1 day' END"
            f" FROM generate_series(1, {count}) n, unnest(ARRAY['failed', 'failed', 'doing', 'todo', 'succeeded', 'cancelled'])"
            " WITH ORDINALITY s(status, place) WHERE n % 6 = s.place - 1", [],
        )
        queue.run("SET session_replication_role = origin", [])
        # Of the jobs with a lock, the first is due tomorrow. It holds those after it, but not one with a higher priority.
        queue.run(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, lock, priority, scheduled_at)"
            " SELECT 'default', 'mail', 'lock ' || n, p.priority, now() + p.later"
            " FROM generate_series(1, 20) n, (VALUES (0, interval '1 day'), (0, NULL), (5, NULL)) p(priority, later)", [],
        )
        plan = ann.plan(Filter.parse("condition:terminal,stuck"))
        promised = {str(id) for (id,) in queue.run("SELECT id FROM procrastinate_jobs WHERE status IN ('failed', 'doing')", [])}
        assert plan.changes == len(promised) >= count // 2 - 2
        requeued(ann, plan)
        outlook = predicted(ann)
        assert all(outlook[id] for id in promised)
        work_off(queue.url)
        check_runs("Procrastinate", queue, outlook, promises)
        check_results(ann, queue)
