"""Small worlds on real SQLite files, for the console to be opened on."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from console.core.approvals import Approvals
from console.core.confirm import Limits
from console.core.operations import Operations
from console.core.policy import PolicyOverride
from console.core.ports import Clock, Never
from console.core.session import Session
from console.testing import FrozenClock
from console.trail.store import open_trail
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.backend import Options
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL, TASKS_DDL
from tests.patience import PATIENCE

NOON = datetime(2026, 11, 16, 3, 12, 40, tzinfo=UTC)
TYPES = ("ANALYZE_ANSWER", "ANALYZE_PROFILE", "EMBED", "T")
ERRORS = (
    "HTTP 429 rate limit exceeded, retry after {n} s",
    "ConnectionError: timeout after 30 s talking to api.example.com",
    "ValueError: malformed payload in field 'answer' of document {n}",
    "psycopg.errors.DeadlockDetected: deadlock detected while updating row {n}",
    "Traceback (most recent call last):\n  File \"/srv/bot/analyse.py\", line 88, in run\n    raise KeyError(name)\nKeyError: 'user'",
)


class HeldClock(FrozenClock):
    """Stands still until somebody ticks. Who sleeps really waits, so that a watch in another thread does not spin."""

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.05))


def at(moment: datetime) -> str:
    return moment.isoformat()


def async_row(n: int, now: datetime) -> tuple[Any, ...]:
    """Row n of the analysis queue: every condition comes up."""
    kind = n % 10
    status, attempts, due = ("FAILED", 4, now - timedelta(minutes=n))
    error: str | None = ERRORS[n % len(ERRORS)].format(n=n)
    if kind in (3, 4, 5):
        status, attempts, due = "PENDING", 1 + n % 3, now + timedelta(seconds=37 * (n % 97) + 12)
    elif kind == 6:
        status, attempts = "RUNNING", 1
    elif kind == 7:
        status, attempts = "FAILED", 2
    elif kind == 8:
        status, attempts, error = "PENDING", 0, None
    elif kind == 9:
        status, attempts, error = "DONE", 1, None
    made = now - timedelta(minutes=3 * n + 5)
    return (
        f"task-{n:05}",
        TYPES[n % 3],
        f"answer-{n}",
        status,
        attempts,
        at(due),
        error,
        at(made),
        at(made + timedelta(minutes=2)),
    )


def make_async(path: Path, rows: int, now: datetime = NOON) -> None:
    with sqlite3.connect(path) as db:
        db.executescript(ASYNC_TASKS_DDL)
        db.executemany("INSERT INTO async_tasks VALUES (?,?,?,?,?,?,?,?,?)", (async_row(n, now) for n in range(rows)))


def make_tasks(path: Path, rows: int, now: datetime = NOON) -> None:
    with sqlite3.connect(path) as db:
        db.executescript(TASKS_DDL)
        for n in range(rows):
            status = ("FAILED", "FAILED", "PENDING", "SUCCESS", "RUNNING")[n % 5]
            error = ERRORS[n % 3].format(n=n) if status == "FAILED" else None
            then = now - timedelta(minutes=7 * n + 1)
            db.execute(
                "INSERT INTO tasks VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    f"job-{n:04}",
                    "billing.tasks.send_invoice",
                    "[]",
                    "{}",
                    status,
                    None,
                    at(now + timedelta(minutes=20)) if status == "PENDING" else None,
                    3,
                    60,
                    1 + n % 3,
                    at(then),
                    at(then),
                    at(then),
                    None,
                ),
            )
            if error:
                db.execute(
                    "INSERT INTO results VALUES (?,?,?,?,?,?,?)",
                    (f"job-{n:04}", "FAILED", None, error, at(then + timedelta(seconds=4)), 1 + n % 3, at(then)),
                )


def open_queue(
    path: Path,
    name: str,
    dialect: str = "async_tasks",
    *,
    read_only: bool = False,
    policy: PolicyOverride | None = None,
    deadline: float = PATIENCE,
    clock: Clock | None = None,
    types: Sequence[str] = (),
) -> SqliteQueue:
    taken = (*TYPES, *filter(None, types))
    options = Options(url=f"sqlite:///{path}", dialect=dialect, task_types=taken)  # type: ignore[arg-type]
    queue = SqliteQueue.open(
        name, options, policy or PolicyOverride(), read_only=read_only, deadline=timedelta(seconds=deadline)
    )
    if clock is not None:
        queue.database.now = clock.now  # type: ignore[method-assign]
    return queue


def session(entries: Sequence[Any], clock: Clock | None = None, **more: Any) -> Session:
    more.setdefault("refresh", timedelta(seconds=60))
    return Session(tuple(entries), clock or HeldClock(NOON), Never(), Limits(), **more)


def with_trail(given: Session, folder: Path) -> Session:
    """The same session with a trail, so that it can write."""
    url = f"sqlite:///{folder / 'state' / 'trail.db'}"
    trail = open_trail(url, read_only=given.read_only, anchor=None, clock=given.clock)
    backends = {backend.name: backend for backend in given.backends}
    operations = Operations(
        backends, trail, given.clock, limits=given.limits, read_only=given.read_only,
        who=given.who, origin=given.origin, rules=given.rules,
    )
    approvals = Approvals(operations, given.clock, given.who, given.origin)
    return replace(given, trail=trail, operations=operations, approvals=approvals)


def small_world(folder: Path, rows: int = 300, **more: Any) -> Session:
    """Two queues, one warning, two views, a runbook."""
    make_async(folder / "analysis.db", rows)
    make_tasks(folder / "jobs.db", max(rows // 10, 5))
    more.setdefault("views", {"storms": "condition:retrying next<15m", "hopeless": "condition:terminal"})
    more.setdefault("runbooks", {"rate limit": "https://wiki.example/runbooks/rate-limit"})
    more.setdefault("views_file", folder / "state" / "views.json")
    clock = more.setdefault("clock", HeldClock(NOON))
    read_only = bool(more.get("read_only"))
    policy = PolicyOverride(unrecoverable=("malformed",))
    return session(
        [
            open_queue(
                folder / "analysis.db", "analysis-queue", read_only=read_only, policy=policy, clock=clock, deadline=PATIENCE
            ),
            open_queue(folder / "jobs.db", "jobs", "tasks", read_only=read_only, clock=clock, deadline=PATIENCE),
        ],
        **more,
    )
