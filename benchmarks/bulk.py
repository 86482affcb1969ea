"""Bulk requeue: propose and carry out, against the raw statements that do the same to the same rows."""

from __future__ import annotations

import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.data import CACHE, CAUSES, async_tasks, copy_of
from benchmarks.measure import Result, from_pairs, timed
from console.core.backend import Attempts, Operation
from console.core.confirm import Confirmation, Limits, Origin, Who
from console.core.operations import Operations
from console.core.pace import Over
from console.core.plan import Matching, Plan
from console.core.policy import PolicyOverride
from console.core.query import Filter
from console.core.signature import signature_of
from console.process import SystemClock
from console.trail.leases import owner_token
from console.trail.store import TrailStore, open_trail
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.backend import Options

FILTER = Filter.parse("condition:terminal")
ORDER = Operation(attempts=Attempts.RESET)
RELEASE = Over(timedelta(minutes=30))
WHO, ORIGIN = Who(0, "bench"), Origin("host", "", "", 0, "")


class Bench:
    """A fresh copy of the data with a fresh trail."""

    def __init__(self, source: Path, name: str) -> None:
        self.path = copy_of(source, f"{name}.db")
        for leftover in CACHE.glob(f"{name}_trail.db*"):
            leftover.unlink()
        self.backend = SqliteQueue.open(
            "queue", Options(url=f"sqlite:///{self.path}"), PolicyOverride(),
            read_only=False, deadline=timedelta(seconds=60),
        )
        clock = SystemClock()
        self.trail: TrailStore = open_trail(
            f"sqlite:///{CACHE / f'{name}_trail.db'}", read_only=False, anchor=None, clock=clock
        )
        self.operations = Operations(
            {"queue": self.backend}, self.trail, clock, limits=Limits(max_items=10**8), owner=owner_token()
        )

    def propose(self, filter: Filter = FILTER) -> Plan:
        return self.operations.propose(Matching(filter), ORDER, RELEASE)

    def carry_out(self, plan: Plan) -> None:
        done = self.operations.carry_out(plan, Confirmation(WHO, ORIGIN, "benchmark", plan.changes))
        assert done.counts == {"applied": plan.changes}, done

    def close(self) -> None:
        self.backend.close()
        self.trail.close()


def raw_propose(path: Path) -> None:
    """The before-images in the plan's order, into a table of another file."""
    other = CACHE / "raw_plan.db"
    for leftover in CACHE.glob("raw_plan.db*"):
        leftover.unlink()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("ATTACH ? AS plan", (str(other),))
    connection.execute("CREATE TABLE plan.item (n INTEGER PRIMARY KEY, key TEXT, before TEXT)")
    connection.execute(
        "INSERT INTO plan.item (key, before) SELECT task_id, json_array(status, attempts, next_run_at, updated_at)"
        " FROM async_tasks WHERE status = 'FAILED' AND attempts >= 4 ORDER BY next_run_at DESC, rowid DESC"
    )
    connection.close()


def raw_carry_out(path: Path) -> None:
    """One transaction: an audit row for each task, then the update."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE audit (key TEXT, before TEXT, at TEXT)")
    now = datetime.now(UTC).isoformat()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO audit SELECT task_id, json_array(status, attempts, next_run_at, updated_at), ?"
        " FROM async_tasks WHERE status = 'FAILED'", (now,)
    )
    connection.execute(
        "UPDATE async_tasks SET status = 'PENDING', attempts = 0, next_run_at = ?, updated_at = ?"
        " WHERE status = 'FAILED'", (now, now)
    )
    connection.execute("COMMIT")
    connection.close()


def cases(quick: bool) -> Iterator[Result]:
    rows, turns = (200_000, 3) if quick else (1_000_000, 5)
    source = async_tasks(rows)
    items = rows // 10
    proposing, carrying, holds = [], [], []
    for _ in range(turns):
        proposed, carried, hold = _turn(source)
        proposing.append(proposed)
        carrying.append(carried)
        holds.append(hold)
    yield from_pairs(f"plan {items} on SQLite", 3.5, proposing)
    yield _one_cause(source, items, turns)
    yield from_pairs(f"carry out {items} on SQLite", 2.0, carrying)
    target = Limits().chunk_target.total_seconds()
    yield from_pairs("a chunk holds the writer lock (median)", 1.0, [(hold, target) for hold in holds])
    yield _memory((20_000, 200_000) if quick else (100_000, 1_000_000))
    if not quick:
        yield from _million()


def _one_cause(source: Path, items: int, turns: int) -> Result:
    """A fifth of them, selected by their cause: all are read, against the before-images of all."""
    raw = copy_of(source, "raw.db")
    bench = Bench(source, "ours")
    with closing(sqlite3.connect(source)) as connection:
        (error,) = connection.execute("SELECT last_error FROM async_tasks WHERE status = 'FAILED' LIMIT 1").fetchone()
    cause = FILTER.and_(Filter.parse(f"cause:{signature_of(error)}"))
    assert bench.propose(cause).changes == items // len(CAUSES)
    pairs = [(timed(lambda: bench.propose(cause)), timed(lambda: raw_propose(raw))) for _ in range(turns)]
    bench.close()
    return from_pairs(f"plan one cause of {items} on SQLite", 3.5, pairs)


def _memory(rows: tuple[int, int]) -> Result:
    """What a process needs at most to propose and carry out ten times as many items."""
    small, large = (_peak(count) for count in rows)
    return from_pairs(f"memory, {rows[1] // 10} items against {rows[0] // 10}", 1.3, [(large, small)], unit="MB")


def _peak(rows: int) -> float:
    async_tasks(rows)
    command = [sys.executable, "-m", "benchmarks.programs.requeue", str(rows)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _million() -> Iterator[Result]:
    """A million of ten million: what one transaction would write at once, and how long its log grows."""
    source = async_tasks(10_000_000)
    turns = [_large_turn(source) for _ in range(3)]
    yield from_pairs("carry out 1 M of 10 M on SQLite", 0.8, [carried for carried, _ in turns])
    yield from_pairs("longest log, 1 M of 10 M", 0.02, [logs for _, logs in turns], unit="MB")


def _large_turn(source: Path) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ours and raw, each on a fresh copy: how long it takes, and how large the log was in megabytes."""
    raw = copy_of(source, "raw.db")
    with Growing(Path(f"{raw}-wal")) as raw_log:
        raw_carried = timed(lambda: raw_carry_out(raw))
    raw.unlink()
    bench = Bench(source, "ours")
    plan = bench.propose()
    with Growing(Path(f"{bench.path}-wal")) as log:
        carried = timed(lambda: bench.carry_out(plan))
    bench.close()
    bench.path.unlink()
    return (carried, raw_carried), (log.most / 1e6, raw_log.most / 1e6)


class Growing:
    """How large a file was at most, looked at every few milliseconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self.most = 0

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            with suppress(FileNotFoundError):
                self.most = max(self.most, self._path.stat().st_size)

    def __enter__(self) -> Growing:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watching.join()


def _turn(source: Path) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Raw and ours, proposing and carrying out, each on a fresh copy; and how long a chunk took."""
    raw = copy_of(source, "raw.db")
    bench = Bench(source, "ours")
    plans: list[Plan] = []
    raw_proposed = timed(lambda: raw_propose(raw))
    proposed = timed(lambda: plans.append(bench.propose()))
    raw_carried = timed(lambda: raw_carry_out(raw))
    chunks = _timed_chunks(bench)
    carried = timed(lambda: bench.carry_out(plans[0]))
    bench.close()
    return (proposed, raw_proposed), (carried, raw_carried), statistics.median(chunks)


def _timed_chunks(bench: Bench) -> list[float]:
    """How long each guarded write takes, seen from outside it."""
    chunks: list[float] = []
    compare_and_set = bench.backend.compare_and_set

    def watched(*arguments: object) -> object:
        began = time.perf_counter()
        try:
            return compare_and_set(*arguments)  # type: ignore[arg-type]
        finally:
            chunks.append(time.perf_counter() - began)

    bench.backend.compare_and_set = watched  # type: ignore[method-assign, assignment]
    return chunks
