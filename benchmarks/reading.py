"""Reading: pages, counts, groups and times to come, against raw statements through the driver."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

from benchmarks.data import async_tasks
from benchmarks.measure import Result, compare, from_pairs
from benchmarks.opening import open_queue
from console.core.backend import Buckets, PageRequest, Timeline
from console.core.causes import Causes
from console.core.query import Cursor, Filter, Sort
from plugins.sqlite_queue import SqliteQueue

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
FAILED = Filter.parse("condition:terminal,failed")
TERMINAL, RETRYING = Filter.parse("condition:terminal"), Filter.parse("condition:retrying")
COLUMNS = "task_id, task_type, status, attempts, next_run_at, last_error, created_at, updated_at"
PAGE = f"SELECT {COLUMNS} FROM async_tasks WHERE status = 'FAILED' ORDER BY next_run_at {{0}}, rowid {{0}} LIMIT 101"
AFTER = (
    f"SELECT {COLUMNS} FROM async_tasks WHERE status = 'FAILED' AND (next_run_at, rowid) < (?, ?)"
    " ORDER BY next_run_at DESC, rowid DESC LIMIT 101"
)
UNINDEXED = (
    f"SELECT {COLUMNS} FROM (SELECT rowid AS place FROM async_tasks WHERE status = 'FAILED'"
    " ORDER BY updated_at DESC, rowid DESC LIMIT 101) JOIN async_tasks ON async_tasks.rowid = place"
)
CAPPED = "SELECT count(*) FROM (SELECT 1 FROM async_tasks WHERE status = 'FAILED' AND attempts >= 4 LIMIT 10001)"


def cases(quick: bool) -> Iterator[Result]:
    if quick:
        yield from _on(200_000, 200)
        return
    yield from _on(1_000_000, 400)
    yield from _on(10_000_000, 200)
    large, small = open_queue(async_tasks(10_000_000)), open_queue(async_tasks(1_000_000))
    first = PageRequest(FAILED, NOW)
    yield compare("first page of 10 M rows, against 1 M", 1.5, lambda: large.page(first), lambda: small.page(first),
                  turns=200)
    large.close()
    small.close()


def _on(rows: int, turns: int) -> Iterator[Result]:
    path, of = async_tasks(rows), f"{rows / 1e6:g} M rows"
    backend, raw = open_queue(path), sqlite3.connect(path)
    yield from _pages(backend, raw, of, turns)
    yield compare(f"sorted by what no index has, {of}", 1.3,
                  lambda: backend.page(PageRequest(FAILED, NOW, Sort.parse("updated"))),
                  lambda: raw.execute(UNINDEXED).fetchall(), turns=3)
    yield compare(f"count per condition, bounded, {of}", 2.0, lambda: backend.counts(TERMINAL, NOW),
                  lambda: raw.execute(CAPPED).fetchall(), turns=max(turns // 10, 5))
    yield compare(f"groups of {rows // 10} failures", 1.3, lambda: Causes([backend], FAILED, NOW).collect(),
                  lambda: _counted(raw), turns=9 if rows <= 1_000_000 else 3)
    if rows >= 1_000_000:  # fewer are all there before anybody could look
        yield _first_groups(backend, f"first groups of {rows // 10}")
    yield compare(f"times to come of {rows // 20}", 2.0, lambda: to_come(backend), lambda: _raw_to_come(raw), turns=3)
    backend.close()
    raw.close()


def _pages(backend: SqliteQueue, raw: sqlite3.Connection, of: str, turns: int) -> Iterator[Result]:
    first, last = PageRequest(FAILED, NOW), PageRequest(FAILED, NOW, backward=True)
    yield compare(f"rows of a page, {of}", 1.6, lambda: backend.reader.page_rows(first),
                  lambda: raw.execute(PAGE.format("DESC")).fetchall(), turns=turns)
    yield compare(f"judged page: first, {of}", 4.0, lambda: backend.page(first),
                  lambda: raw.execute(PAGE.format("DESC")).fetchall(), turns=turns)
    for name, skipped in (("next", 100), ("in the middle", None)):
        yield compare(f"judged page: {name}, {of}", 4.0, partial(backend.page, request_after(raw, skipped)),
                      partial(_fetched, raw, AFTER, _row(raw, skipped)), turns=turns)
    yield compare(f"judged page: last, {of}", 4.0, lambda: backend.page(last),
                  lambda: raw.execute(PAGE.format("ASC")).fetchall(), turns=turns)
    yield compare(f"last page against first, {of}", 1.3, lambda: backend.page(last), lambda: backend.page(first),
                  turns=turns)


def _fetched(raw: sqlite3.Connection, sql: str, parameters: tuple[str, int]) -> object:
    return raw.execute(sql, parameters).fetchall()


def request_after(raw: sqlite3.Connection, skipped: int | None) -> PageRequest:
    """The page so many rows from the start, or in the middle of all."""
    at, place = _row(raw, skipped)
    return PageRequest(FAILED, NOW, after=Cursor(at, False, (place,)))


def _row(raw: sqlite3.Connection, skipped: int | None) -> tuple[str, int]:
    """Where a page ends that many rows from the start, or in the middle of all."""
    if skipped is None:
        (skipped,) = raw.execute("SELECT count(*) / 2 FROM async_tasks WHERE status = 'FAILED'").fetchone()
    found = raw.execute(
        "SELECT next_run_at, rowid FROM async_tasks WHERE status = 'FAILED'"
        " ORDER BY next_run_at DESC, rowid DESC LIMIT 1 OFFSET ?", (skipped,)
    ).fetchone()
    return found[0], found[1]


def _counted(raw: sqlite3.Connection) -> Counter[str]:
    counted: Counter[str] = Counter()
    cursor = raw.execute("SELECT last_error, updated_at FROM async_tasks WHERE status = 'FAILED'")
    while some := cursor.fetchmany(5_000):
        counted.update(error for error, _ in some)
    return counted


class Looks:
    """When something was looked at, from the start on."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def look(self, _found: object) -> None:
        self.times.append(time.perf_counter())


def _first_groups(backend: SqliteQueue, case: str) -> Result:
    """When the first groups can be shown, against all of them."""
    pairs = []
    for _ in range(3):
        looks = Looks()
        Causes([backend], FAILED, NOW, partial=looks.look).collect()
        looks.look([])
        pairs.append((looks.times[1] - looks.times[0], looks.times[-1] - looks.times[0]))
    return from_pairs(case, 0.1, pairs, note="against all groups")


def to_come(backend: SqliteQueue) -> object:
    buckets = Buckets(NOW - timedelta(days=20), timedelta(days=1), 40)
    return backend.histogram(Timeline.NEXT_RETRY, RETRYING, NOW, buckets)


def _raw_to_come(raw: sqlite3.Connection) -> Counter[int]:
    """The best that can be done in Python: every time read, and put into its bucket."""
    counted: Counter[int] = Counter()
    start = NOW - timedelta(days=20)
    cursor = raw.execute("SELECT next_run_at FROM async_tasks WHERE status = 'PENDING' AND attempts > 0")
    while some := cursor.fetchmany(5_000):
        counted.update((datetime.fromisoformat(at) - start).days for (at,) in some)
    return counted
