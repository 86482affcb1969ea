"""1 000 failed jobs requeued through a preset: the result is what the handlers of the queue's own worker did, job by job.

Every fourth job fails again. Finished jobs vanish where the library deletes them. In a second run some jobs kill their
worker, and before it begins others delete some jobs and end some without an execution.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pytest
from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment
from procrastinate.schema import SchemaManager

from console.core import recovery
from console.core.backend import Attempts, Operation
from console.core.item import ItemKey
from console.core.recovery import Result
from console.core.watch import OverrideWatch
from tests.depth import campaign
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.sql_table.world import Queue, mysql_queue, postgres_queue
from tests.real_systems.libraries import call, dbos, delayed_job, node, oban, python, until
from tests.real_systems.test_real_systems import RAN, RAN_MYSQL, TERMINAL, requeued, runs

KEEP, RESET = Operation(), Operation(attempts=Attempts.RESET)
UTC_NOW = "timezone('UTC', now())"


class Library(NamedTuple):
    preset: str
    table: str
    install: Callable[[Queue], object]
    fill: str | Callable[[Queue, int], object]
    """Makes `{count}` failed jobs."""
    work: Callable[[Queue], Sequence[str]]
    """Its own worker, as a command. It ends when its standard input is closed, or when nothing is due."""
    active: str
    """The condition of the jobs that a worker has."""
    ended: str
    """What ends the job `?` without an execution."""
    operation: Operation = KEEP
    key: str = "id"
    most_deaths: int = 9
    """How many workers may die. DBOS gives up what it has recovered three times."""


def _fill_bullmq(queue: Queue, count: int) -> None:
    call(node("bullmq_postgres.mjs", "add", queue.url, str(2 * count)))
    queue.run("DELETE FROM bullmq.job WHERE state::text <> 'failed'", [])


def _fill_dbos(queue: Queue, count: int) -> None:
    call(dbos("add", queue.url, str(count)))
    queue.run(
        "UPDATE dbos.workflow_status SET status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED', recovery_attempts = 4, queue_name = NULL,"
        " started_at_epoch_ms = NULL WHERE status = 'SUCCESS'", [],
    )
    queue.run("DELETE FROM dbos.workflow_output WHERE workflow_uuid IN (SELECT workflow_uuid FROM dbos.workflow_status WHERE status LIKE 'MAX%')", [])
    queue.run("DELETE FROM dbos.workflow_status WHERE status NOT LIKE 'MAX%'", [])
    queue.run("DELETE FROM ran", [])


DELAYED_JOB = Library(
    "delayed_job",
    "delayed_jobs",
    lambda queue: call(delayed_job("install", queue.url)),
    "INSERT INTO delayed_jobs (handler, attempts, last_error, run_at, created_at, updated_at, failed_at) SELECT"
    f" E'--- !ruby/struct:Mail\nnumber: 1\n', 25, 'no', t.at, t.at, t.at, t.at FROM generate_series(1, {{count}}), (SELECT {UTC_NOW} - interval '1 hour' AS at) t",
    lambda queue: delayed_job("work", queue.url),
    "locked_at IS NOT NULL AND failed_at IS NULL",
    f"UPDATE delayed_jobs SET failed_at = {UTC_NOW} WHERE id::text = ?",
)
LIBRARIES = {
    "procrastinate": Library(
        "procrastinate",
        "procrastinate_jobs",
        lambda queue: queue.run(SchemaManager.get_schema(), []),
        "INSERT INTO procrastinate_jobs (queue_name, task_name, status, attempts)"
        " SELECT 'default', 'mail', 'failed', 1 FROM generate_series(1, {count})",
        lambda queue: python("procrastinate_worker.py", queue.url),
        "status = 'doing'",
        "UPDATE procrastinate_jobs SET status = 'cancelled' WHERE id::text = ?",
    ),
    "pgqueuer": Library(
        "pgqueuer",
        "pgqueuer",
        lambda queue: queue.run(QueryBuilderEnvironment().build_install_query(), []),
        "INSERT INTO pgqueuer (priority, status, entrypoint, attempts, execute_after)"
        " SELECT 0, 'failed', 'mail', 1, now() FROM generate_series(1, {count})",
        lambda queue: python("pgqueuer_worker.py", queue.url),
        "status = 'picked'",
        "UPDATE pgqueuer SET status = 'canceled' WHERE id::text = ?",
        RESET,
    ),
    "oban": Library(
        "oban",
        "oban_jobs",
        lambda queue: call(oban("install", queue.url)),
        "INSERT INTO oban_jobs (state, worker, attempt, max_attempts, scheduled_at, attempted_at, discarded_at)"
        f" SELECT 'discarded', '__main__.Ran', 20, 20, {UTC_NOW}, {UTC_NOW}, {UTC_NOW} FROM generate_series(1, {{count}})",
        lambda queue: oban("work", queue.url),
        "state = 'executing'",
        f"UPDATE oban_jobs SET state = 'cancelled', cancelled_at = {UTC_NOW} WHERE id::text = ?",
    ),
    "pg_boss": Library(
        "pg_boss",
        "pgboss.job",
        lambda queue: call(node("pg_boss.mjs", "install", queue.url)),
        "INSERT INTO pgboss.job (name, state, retry_limit, retry_count, started_on, completed_on)"
        " SELECT 'mail', 'failed', 2, 2, now(), now() FROM generate_series(1, {count})",
        lambda queue: node("pg_boss.mjs", "work", queue.url),
        "state = 'active'",
        "UPDATE pgboss.job SET state = 'cancelled', completed_on = now() WHERE id::text = ?",
    ),
    "graphile_worker": Library(
        "graphile_worker",
        "graphile_worker._private_jobs",
        lambda queue: call(node("graphile_worker.mjs", "install", queue.url)),
        "INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('mail');"
        " INSERT INTO graphile_worker._private_jobs (task_id, attempts, last_error, run_at)"
        " SELECT t.id, 25, 'no', now() FROM generate_series(1, {count}), graphile_worker._private_tasks t",
        lambda queue: node("graphile_worker.mjs", "work", queue.url),
        "locked_at IS NOT NULL",
        "SELECT graphile_worker.permanently_fail_jobs(ARRAY[?::bigint], 'given up')",
        RESET,
    ),
    "delayed_job": DELAYED_JOB,
    "delayed_job_mysql": DELAYED_JOB._replace(
        preset="delayed_job_mysql",
        fill="INSERT INTO delayed_jobs (handler, attempts, last_error, run_at, created_at, updated_at, failed_at) SELECT"
        " '--- !ruby/struct:Mail\nnumber: 1\n', 25, 'no', t.at, t.at, t.at, t.at"
        " FROM seq_1_to_{count}, (SELECT utc_timestamp(6) - INTERVAL 1 HOUR AS at) t",
        ended="UPDATE delayed_jobs SET failed_at = utc_timestamp(6) WHERE id = ?",
    ),
    "bullmq_postgres": Library(
        "bullmq_postgres",
        "bullmq.job",
        lambda queue: call(node("bullmq_postgres.mjs", "install", queue.url)),
        _fill_bullmq,
        lambda queue: node("bullmq_postgres.mjs", "work", queue.url),
        "state::text = 'active'",
        "UPDATE bullmq.job SET state = 'failed', finished_at_ms = extract(epoch FROM now()) * 1000 WHERE id = ?",
    ),
    "dbos": Library(
        "dbos",
        "dbos.workflow_status",
        lambda queue: None,
        _fill_dbos,
        lambda queue: dbos("work", queue.url),
        "status = 'PENDING'",
        "UPDATE dbos.workflow_status SET status = 'CANCELLED', queue_name = NULL WHERE workflow_uuid = ?",
        RESET,
        key="workflow_uuid",
        most_deaths=2,
    ),
}


@pytest.fixture(autouse=True)
def no_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished row that its system has deleted must be missing for a while; a test has no minute."""
    monkeypatch.setattr(recovery, "GONE_FOR", recovery.GONE_FOR / 60)


class Workers:
    """The library's own worker. When it has died, the next one begins."""

    def __init__(self, command: Sequence[str], active: Callable[[], set[str]]) -> None:
        self._command = command
        self._active = active
        self.deaths = 0
        self.held: set[str] = set()
        """The jobs that a worker had when it died."""

    def __enter__(self) -> Workers:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)

    def tend(self) -> None:
        if self._process.poll() is not None:
            if self._process.returncode != 0:
                self.deaths += 1
                self.held |= self._active()
            self.__exit__()
            self.__enter__()


def failed_jobs(library: Library, queue: Queue, count: int) -> set[str]:
    library.install(queue)
    if isinstance(library.fill, str):
        queue.run(library.fill.replace("{count}", str(count)), [])
    else:
        library.fill(queue, count)
    return {str(id) for (id,) in queue.run(f"SELECT {library.key} FROM {library.table}", [])}


def found_in(watch: OverrideWatch) -> dict[Result, set[str]]:
    return {result: {ItemKey.parse(one.key).parts[-1] for batch in watch.items(result) for one in batch} for result in Result}


AT_ONCE = 40
"""So many jobs, or fewer, are lost with a worker. DBOS loses all that are due, and takes them up again when it begins."""
SHORT = [("procrastinate", 100), ("pgqueuer", 100)]


@pytest.mark.parametrize("trouble", [False, True])
@pytest.mark.parametrize(("name", "count"), [*SHORT, *(pytest.param(name, 1_000, marks=campaign) for name in LIBRARIES)])
def test_the_result_is_what_the_handlers_did(tmp_path: Path, name: str, count: int, trouble: bool) -> None:
    library = LIBRARIES[name]
    mysql = name == "delayed_job_mysql"
    made: AbstractContextManager[Queue] = (mysql_queue if mysql else postgres_queue)(RAN_MYSQL if mysql else RAN, {"preset": library.preset})
    with made as queue, operating(queue.open(), tmp_path) as ann:
        jobs = failed_jobs(library, queue, count)
        in_order = sorted(jobs)
        deleted, ended, deadly = (set(in_order[n::40]) if trouble else set() for n in (5, 6, 7))
        deadly = set(sorted(deadly)[::3][: library.most_deaths])
        failing = set(in_order[::4])
        for table, some in (("failing", failing), ("deadly", deadly)):
            for job in sorted(some):
                queue.insert(table, job=job)
        plan = ann.plan(TERMINAL, operation=library.operation)
        assert plan.changes == len(jobs)
        assert len(jobs) >= count * 0.6
        requeued(ann, plan)
        for job in deleted:
            queue.run(f"DELETE FROM {library.table} WHERE {library.key}{'' if mysql else '::text'} = ?", [job])
        for job in ended:
            queue.run(library.ended, [job])

        def active() -> set[str]:
            return {str(id) for (id,) in queue.run(f"SELECT {library.key} FROM {library.table} WHERE {library.active}", [])}

        watch = ann.operations.watch(ann.operations.trail.overrides()[0].override_id)
        with Workers(library.work(queue), active) as workers:

            def over() -> bool:
                workers.tend()
                held = active()
                ran = runs(queue).keys() >= jobs - deleted - ended - held
                left = held <= workers.held and len(held) <= AT_ONCE * workers.deaths
                return ran and left and watch.look(asked=True).open == len(held) and held == active()

            until(over, 3 * PATIENCE)  # a worker that begins again takes its time
            found, held = found_in(watch), active()
        assert {str(job) for (job,) in queue.run("SELECT job FROM deadly", [])} <= held, "the others were begun"
        assert workers.deaths <= len(deadly) <= len(deadly) * workers.deaths
        assert found[Result.RUNNING] | found[Result.FAILED_AGAIN] | found[Result.NOT_RUN_YET] >= held, "nobody has ended these"
        rest = jobs - deleted - ended - held
        expected: dict[Result, set[str]] = {result: set() for result in Result}
        expected |= {Result.RECOVERED: rest - failing, Result.FAILED_AGAIN: rest & failing}
        vanished = Result.NOT_KNOWN if ann.backend.abilities.deletes_finished is None else Result.RECOVERED
        for result, some in ((vanished, deleted), (Result.CHANGED_BY_OTHERS, ended)):
            expected[result] = expected[result] | some
        assert {result: some - held for result, some in found.items()} == expected
        assert watch.progress.counts.total == len(jobs)
