"""Follows an override of so many items to its end, and prints what that took of the watched system, and the memory.

    python -m benchmarks.programs.watching prepare FOLDER ITEMS
    python -m benchmarks.programs.watching watch FOLDER

The clock of the watch jumps while it would sleep, so that nobody has to wait. The time of the reads is real.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.bulk import ORDER, ORIGIN, WHO
from benchmarks.measure import peak_memory
from benchmarks.programs import timed_sqlite
from console.core.confirm import Confirmation, Limits
from console.core.operations import Operations
from console.core.plan import Matching
from console.core.policy import PolicyOverride
from console.core.query import Filter
from console.core.watch import WatchProgress
from console.trail.leases import owner_token
from console.trail.store import open_trail
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.backend import Options
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL


class JumpingClock:
    """Real time, plus all that would have been slept."""

    def __init__(self) -> None:
        self.slept = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def steady(self) -> float:
        return time.monotonic() + self.slept


def opened(folder: Path, clock: JumpingClock) -> Operations:
    backend = SqliteQueue.open(
        "queue", Options(url=f"sqlite:///{folder}/queue.db"), PolicyOverride(), read_only=False,
        deadline=timedelta(seconds=60),
    )
    trail = open_trail(f"sqlite:///{folder}/trail.db", read_only=False, anchor=None, clock=clock)
    limits = Limits(max_items=10**8, chunk_target=timedelta(seconds=5))
    return Operations({"queue": backend}, trail, clock, limits=limits, owner=owner_token(), steady=clock.steady)


def prepare(folder: Path, items: int) -> None:
    """A queue with so many failed tasks, all of them requeued."""
    began = datetime.now(UTC) - timedelta(hours=1)
    times = ((began + timedelta(milliseconds=n)).isoformat() for n in range(items))
    with closing(sqlite3.connect(folder / "queue.db")) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(ASYNC_TASKS_DDL)
        connection.executemany(
            "INSERT INTO async_tasks VALUES (?, 'ANALYZE_EXECUTED', 'e', 'FAILED', 4, ?, 'ERR_X: it broke', ?, ?)",
            ((f"t{n:09}", at, at, at) for n, at in enumerate(times)),
        )
    operations = opened(folder, JumpingClock())
    plan = operations.propose(Matching(Filter.parse("condition:terminal")), ORDER)
    operations.carry_out(plan, Confirmation(WHO, ORIGIN, "benchmark", plan.changes))


def watch(folder: Path) -> dict[str, float]:
    """After the first round, workers have executed everything: three quarters succeeded."""
    clock, connect = JumpingClock(), sqlite3.connect
    timed_sqlite.time_connections(lambda database: "queue.db" in database)
    operations = opened(folder, clock)
    began, worked = clock.steady(), False

    def work(progress: WatchProgress) -> None:
        nonlocal worked
        if not worked and not progress.unread:
            worked = True
            with closing(connect(folder / "queue.db", timeout=60)) as connection, connection:
                connection.execute(
                    "UPDATE async_tasks SET attempts = attempts + 1, status = CASE WHEN rowid % 4 THEN 'DONE' ELSE"
                    " 'FAILED' END, last_error = CASE WHEN rowid % 4 THEN NULL ELSE 'ERR_Y: again' END"
                )

    progress = operations.follow(operations.watch(operations.trail.overrides()[0].override_id), show=work)
    elapsed = clock.steady() - began
    assert progress.complete, progress
    return {
        "items": progress.total, "took": timed_sqlite.total, "elapsed": elapsed,
        "peak": peak_memory(),
    }


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        print(json.dumps(watch(Path(sys.argv[2]))))
