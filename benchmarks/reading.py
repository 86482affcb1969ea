"""Reading: pages, counts and groups, against raw statements through the driver."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.data import async_tasks
from benchmarks.measure import Result, compare
from console.core.backend import PageRequest
from console.core.groups import Groups
from console.core.policy import PolicyOverride
from console.core.query import Filter
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.backend import Options

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
FAILED = Filter.parse("condition:terminal,failed")
PAGE = (
    "SELECT task_id, task_type, status, attempts, next_run_at, last_error, created_at, updated_at FROM async_tasks"
    " WHERE status = 'FAILED' ORDER BY next_run_at {0}, rowid {0} LIMIT 101"
)


def open_queue(path: Path) -> SqliteQueue:
    return SqliteQueue.open(
        "queue", Options(url=f"sqlite:///{path}"), PolicyOverride(), read_only=False, deadline=timedelta(seconds=60)
    )


def cases(quick: bool) -> Iterator[Result]:
    rows, turns = (200_000, 200) if quick else (1_000_000, 400)
    path = async_tasks(rows)
    backend, raw = open_queue(path), sqlite3.connect(path)
    first = PageRequest(FAILED, NOW)
    last = PageRequest(FAILED, NOW, backward=True)
    yield compare("page of 100 judged items: first", 4.0, lambda: backend.page(first),
                  lambda: raw.execute(PAGE.format("DESC")).fetchall(), turns=turns)
    yield compare("page of 100 judged items: last", 4.0, lambda: backend.page(last),
                  lambda: raw.execute(PAGE.format("ASC")).fetchall(), turns=turns)
    yield compare("last page against first page", 1.3, lambda: backend.page(last), lambda: backend.page(first),
                  turns=turns)
    capped = "SELECT count(*) FROM (SELECT 1 FROM async_tasks WHERE status = 'FAILED' AND attempts >= 4 LIMIT 10001)"
    yield compare("count per condition, bounded", 2.0, lambda: backend.counts(Filter.parse("condition:terminal"), NOW),
                  lambda: raw.execute(capped).fetchall(), turns=max(turns // 10, 5))
    yield compare(f"groups of {rows // 10} failures", 1.3, lambda: Groups([backend], FAILED, NOW).collect(),
                  lambda: _counted(raw), turns=5)
    backend.close()
    raw.close()


def _counted(raw: sqlite3.Connection) -> Counter[str]:
    counted: Counter[str] = Counter()
    cursor = raw.execute("SELECT last_error, updated_at FROM async_tasks WHERE status = 'FAILED'")
    while some := cursor.fetchmany(5_000):
        counted.update(error for error, _ in some)
    return counted
