"""Kills a requeue or cuts its connections, for each way of writing: every row is requeued once and recorded."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psycopg
import pymysql
import pytest

from console.core.backend import Attempts, Operation
from console.core.query import Filter
from tests import mariadb
from tests.plugins.postgres_analyses.operating import ANN, HERE, Operator, operating
from tests.plugins.sql_table.systems import SYSTEMS
from tests.plugins.sql_table.world import Queue

ROOT = Path(__file__).parents[3]
ITEMS = 200
ALL = f"FROM generate_series(1, {ITEMS}) n"
WAYS = {
    # a key of two parts, a function: what fills the tables, and what once looks like; other ways are in tests/faults
    "pg_boss": (
        f"INSERT INTO pgboss.job (name, state, retry_limit, retry_count, started_on) SELECT 'mail', 'failed', 2, 2, now() {ALL}",
        "SELECT count(*) FROM pgboss.job WHERE state = 'retry' AND retry_limit = 3",
    ),
    "procrastinate": (
        f"INSERT INTO procrastinate_jobs (queue_name, task_name, status, attempts) SELECT 'q', 'mail', 'failed', 1 {ALL}",
        "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo' AND attempts = 2",
    ),
    # MySQL: a plain UPDATE, and several statements
    "delayed_job_mysql": (
        "INSERT INTO delayed_jobs (handler, attempts, failed_at, run_at, created_at, updated_at) SELECT '--- !ruby/struct:M',"
        f" 25, now(6), now(6), now(6), now(6) FROM seq_1_to_{ITEMS}",
        "SELECT count(*) FROM delayed_jobs WHERE failed_at IS NULL AND attempts = 25",
    ),
    "solid_queue_mysql": (
        "INSERT INTO solid_queue_jobs (queue_name, class_name, arguments, created_at, updated_at)"
        f" SELECT 'q', 'M', '{{\"executions\": 3}}', now(6), now(6) FROM seq_1_to_{ITEMS}",
        "SELECT count(*) FROM solid_queue_jobs j JOIN solid_queue_ready_executions r ON r.job_id = j.id"
        " WHERE json_extract(j.arguments, '$.executions') = 0",
    ),
}
ALSO = {"solid_queue_mysql": "INSERT INTO solid_queue_failed_executions (job_id, error, created_at) SELECT id, 'x', now(6)"
                             " FROM solid_queue_jobs"}
CHILD = """
import sys
from datetime import timedelta
from pathlib import Path
from console.core.confirm import Limits
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.sql_table.test_kill import planned
from tests.plugins.sql_table.world import Queue
limits = Limits(chunk_target=timedelta(milliseconds=1))
queue = Queue(sys.argv[1], lambda *_: [], {"preset": sys.argv[3]})
with operating(queue.open(), Path(sys.argv[2]), limits=limits) as operator:
    plan = planned(operator)
    print("ready", flush=True)
    operator.apply(plan)
"""


def planned(operator: Operator):  # type: ignore[no-untyped-def]
    attempts = Attempts.KEEP if Attempts.KEEP in operator.backend.abilities.attempts else Attempts.RESET
    return operator.plan(Filter.parse("condition:terminal"), operation=Operation(attempts=attempts))


def fill(queue: Queue, preset: str) -> None:
    for sql in filter(None, (WAYS[preset][0], ALSO.get(preset))):
        queue.run(sql, [])


def assert_each_once(queue: Queue, operator: Operator, override_id: str, preset: str) -> None:
    last = {o.ordinal: o.outcome for batch in operator.trail.outcomes(override_id) for o in batch}
    assert Counter(last.values()) == {"applied": ITEMS}
    assert queue.run(WAYS[preset][1], []) == [(ITEMS,)]


@pytest.mark.parametrize("preset", WAYS)
def test_killed_at_any_moment_and_resumed(preset: str, tmp_path: Path) -> None:
    with SYSTEMS[preset].queue() as queue:
        fill(queue, preset)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, queue.url, str(tmp_path), preset], cwd=ROOT, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(random.Random(preset).uniform(0.02, 0.3))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with operating(queue.open(), tmp_path) as operator:
            operator.operations.settle_unresolved(ANN, HERE)
            for override in operator.trail.overrides():
                if not override.state.over:
                    operator.operations.resume(override.override_id, ANN, HERE)
                assert_each_once(queue, operator, override.override_id, preset)


@pytest.mark.parametrize("preset", WAYS)
def test_connections_cut_in_mid_chunk(preset: str, tmp_path: Path) -> None:
    chance, done = random.Random(preset), threading.Event()
    spared: set[int] = set()

    def cut(url: str) -> None:
        if preset.endswith("_mysql"):
            with mariadb.connection(url) as server, server.cursor() as cursor:
                for _ in range(3):
                    if done.wait(chance.uniform(0.05, 0.3)):
                        return
                    cursor.execute("SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
                    for id in {id for (id,) in cursor.fetchall()} - spared:
                        with suppress(pymysql.Error):  # it has ended by itself
                            cursor.execute(f"KILL {id}")
            return
        with psycopg.connect(url, autocommit=True) as killer:
            for _ in range(3):
                if done.wait(chance.uniform(0.05, 0.3)):
                    return
                killer.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'retriage'"
                               " AND datname = current_database()")

    with SYSTEMS[preset].queue() as queue, operating(queue.open(), tmp_path) as operator:
        fill(queue, preset)
        if preset.endswith("_mysql"):
            spared.add(queue.one("SELECT connection_id()")[0])
        plan = planned(operator)
        killer = threading.Thread(target=cut, args=(queue.url,))
        killer.start()
        try:
            override = operator.apply(plan)
        finally:
            done.set()
            killer.join()
        for _ in range(5):
            if not override.state.over:
                override = operator.operations.resume(override.override_id, ANN, HERE)
        assert_each_once(queue, operator, override.override_id, preset)
