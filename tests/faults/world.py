"""The fixture of tests of operations: a real queue file with an oracle in it, a real trail, and consoles on both.

The oracle is a trigger: whatever changes a row of the queue, whoever does it, is written into `oracle` by SQLite
itself, in the same transaction. Nothing of the console is asked about it.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from console.core.backend import Attempts, Operation, Throughput
from console.core.confirm import Confirmation, Limits, Origin, Who
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import NOT_APPLIED, Override
from console.core.plan import Marked, Matching, Plan, PlanRow
from console.core.policy import PolicyOverride
from console.core.ports import Clock
from console.core.query import Filter
from console.process import SystemClock
from console.sql.guarded import LOCKED
from console.testing import FrozenClock
from console.trail.leases import owner_token
from console.trail.store import TrailStore, open_trail
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.backend import Options
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL, TASKS_DDL

WHO = Who(1000, "ann", "Ann A.")
ORIGIN = Origin("host", "pts/1", "10.0.0.9", 4711, "0.1.0")
NOON = datetime(2026, 11, 10, 12, tzinfo=UTC)
QUICK = Throughput(10_000, timedelta(seconds=1))
"""Workers that are never waited for."""
NO_POLICY = PolicyOverride()
KEEP, RESET = Operation(), Operation(attempts=Attempts.RESET)
TIMEOUT = "ERR_TIMEOUT: upstream timed out"

ORACLE = """
CREATE TABLE oracle_actor (name TEXT, at TEXT);
INSERT INTO oracle_actor VALUES ('', '');
CREATE TABLE oracle (
    n INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT, actor TEXT, at TEXT, old_status TEXT, new_status TEXT,
    old_attempts, new_attempts, old_updated TEXT, new_updated TEXT
);
CREATE TRIGGER oracle_update AFTER UPDATE ON async_tasks BEGIN
    INSERT INTO oracle (task_id, actor, at, old_status, new_status, old_attempts, new_attempts, old_updated, new_updated)
    SELECT OLD.task_id, name, at, OLD.status, NEW.status, OLD.attempts, NEW.attempts, OLD.updated_at, NEW.updated_at
    FROM oracle_actor;
END;
CREATE TRIGGER oracle_delete AFTER DELETE ON async_tasks BEGIN
    INSERT INTO oracle (task_id, actor, at, old_status) SELECT OLD.task_id, name, at, OLD.status FROM oracle_actor;
END;
CREATE TRIGGER oracle_insert AFTER INSERT ON async_tasks BEGIN
    INSERT INTO oracle (task_id, actor, at, new_status) SELECT NEW.task_id, name, at, NEW.status FROM oracle_actor;
END;
"""


def confirm(plan: Plan, *, reason: str = "disk is back", count: int | None = None) -> Confirmation:
    return Confirmation(WHO, ORIGIN, reason, plan.changes if count is None else count, "OPS-7")


# --- the queue ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueueFile:
    """A queue as its own system made it."""

    path: Path

    @classmethod
    def create(cls, path: Path, *, oracle: bool = True, wal: bool = True, ddl: str = ASYNC_TASKS_DDL) -> QueueFile:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            if wal:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(ddl)
            if oracle:
                connection.executescript(ORACLE)
        return cls(path)

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=30)) as connection:
            return connection.execute(sql, parameters).fetchall()

    def script(self, sql: str) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=30)) as connection:
            connection.executescript(sql)

    def put(
        self, id: str, status: str = "FAILED", attempts: int = 4, *, due: datetime = NOON, error: str | None = TIMEOUT,
        updated: datetime = NOON - timedelta(hours=1), created: datetime = NOON - timedelta(hours=3), type: str = "ANALYZE_EXECUTED",
    ) -> str:
        self.run(
            "INSERT INTO async_tasks VALUES (?, ?, 'entity', ?, ?, ?, ?, ?, ?)",
            (id, type, status, attempts, due.isoformat(), error, created.isoformat(), updated.isoformat()),
        )
        return f"queue/{id}"

    def fill(self, count: int, *, prefix: str = "t", updated: datetime = NOON - timedelta(hours=1)) -> list[str]:
        """Add this many failed tasks with one error, each with its own time."""
        ids = [f"{prefix}{n:06d}" for n in range(count)]
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=30)) as connection:
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO async_tasks VALUES (?, 'ANALYZE_EXECUTED', 'entity', 'FAILED', 4, ?, ?, ?, ?)",
                [
                    (id, moment.isoformat(), TIMEOUT, moment.isoformat(), moment.isoformat())
                    for n, id in enumerate(ids)
                    if (moment := updated + timedelta(microseconds=n + 1))
                ],
            )
            connection.execute("COMMIT")
        return ids

    def row(self, id: str) -> dict[str, Any]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection:
            connection.row_factory = sqlite3.Row
            return dict(connection.execute("SELECT * FROM async_tasks WHERE task_id = ?", (id,)).fetchone())

    def rows(self) -> list[tuple[Any, ...]]:
        return self.run("SELECT * FROM async_tasks ORDER BY task_id")

    def statuses(self) -> Counter[str]:
        return Counter(dict(self.run("SELECT status, count(*) FROM async_tasks GROUP BY 1")))

    def ids(self) -> list[str]:
        return [id for (id,) in self.run("SELECT task_id FROM async_tasks ORDER BY 1")]

    def touched(self) -> set[str]:
        """Every task whose row was changed since the oracle was last forgotten."""
        return {id for (id,) in self.run("SELECT DISTINCT task_id FROM oracle")}

    def requeued(self) -> Counter[str]:
        """How often each task went from FAILED to PENDING, which its own system never does."""
        return Counter(
            dict(self.run("SELECT task_id, count(*) FROM oracle WHERE old_status = 'FAILED' AND new_status = 'PENDING' GROUP BY 1"))
        )

    def forget(self) -> None:
        """Reset the oracle, so that the changes of the test itself are not counted."""
        self.run("DELETE FROM oracle")

    def open(
        self, *, name: str = "queue", clock: Clock | None = None, read_only: bool = False,
        policy: PolicyOverride = NO_POLICY, dialect: str = "async_tasks", kind: type[SqliteQueue] = SqliteQueue,
        deadline: timedelta = timedelta(seconds=30), throughput: Throughput = QUICK, alarm_above: int = 10**9,
    ) -> SqliteQueue:
        options = Options(
            url=f"sqlite:///{self.path}", dialect=dialect, batch=throughput.items, every=throughput.every,  # type: ignore[arg-type]
            alarm_above=alarm_above,
        )
        backend = kind.open(name, options, policy, read_only=read_only, deadline=deadline)
        if clock is not None:
            backend.now = clock.now  # type: ignore[method-assign]  # a database that keeps the test's time
        return backend


# --- consoles -----------------------------------------------------------------------------------------


@dataclass
class World:
    """A queue, a trail and a frozen clock, with as many consoles as a test needs."""

    folder: Path
    clock: FrozenClock = field(default_factory=lambda: FrozenClock(NOON))
    anchor: str | None = None
    _open: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = QueueFile.create(self.folder / "queue.db")
        self.trail_file = self.folder / "state" / "trail.db"
        self.trail_url = f"sqlite:///{self.trail_file}"

    def trail(self, *, read_only: bool = False) -> TrailStore:
        trail = open_trail(self.trail_url, read_only=read_only, anchor=self.anchor, clock=self.clock)
        self._open.append(trail)
        return trail

    def console(
        self, *, read_only: bool = False, limits: Limits | None = None, reach: Callable[[str], None] = lambda _: None,
        backends: Iterable[SqliteQueue] | None = None, policy: PolicyOverride = NO_POLICY, trail: TrailStore | None = None,
        kind: type[SqliteQueue] = SqliteQueue,
    ) -> Operations:
        """A new console with connections and an owner of its own."""
        if backends is None:
            backends = [self.queue.open(clock=self.clock, read_only=read_only, policy=policy, kind=kind)]
        opened = {backend.name: backend for backend in backends}
        self._open += opened.values()
        return Operations(
            opened, trail or self.trail(read_only=read_only), self.clock, limits=limits, read_only=read_only,
            owner=owner_token(), reach=reach, steady=lambda: self.clock.now().timestamp(),
        )

    def close(self) -> None:
        for opened in self._open:
            opened.close()

    def trail_run(self, *statements: str) -> None:
        """Tamper with the trail file."""
        with closing(sqlite3.connect(self.trail_file, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)


@contextmanager
def world_in(folder: Path) -> Iterator[World]:
    world = World(folder)
    try:
        yield world
    finally:
        world.close()


def matching(text: str, **options: Any) -> Matching:
    return Matching(Filter.parse(text), **options)


def marked(*keys: str) -> Marked:
    return Marked(tuple(ItemKey.parse(key) for key in keys))


def planned(console: Operations, plan: Plan) -> list[PlanRow]:
    """What would change, in order."""
    return [row for batch in console.trail.rows(plan.id, 0, max(plan.changes - 1, 0)) for row in batch]


def why_blocked(console: Operations, plan: Plan) -> dict[str, str]:
    rows = (row for batch in console.trail.rows(plan.id, -(2**62), -1) for row in batch)
    return {row.key: row.skipped or "" for row in rows}


def outcomes(console: Operations, override: Override) -> dict[str, tuple[str, str]]:
    """The last outcome of each item, and its detail."""
    return {o.key: (o.outcome, o.detail) for batch in console.trail.outcomes(override.override_id) for o in batch}


def final_outcomes(trail: Any, override_id: str) -> dict[str, list[str]]:
    """Every outcome of each item that is one; what was not applied is still to do."""
    found: dict[str, list[str]] = {}
    for batch in trail.outcomes(override_id):
        for outcome in batch:
            if outcome.outcome != NOT_APPLIED:
                found.setdefault(outcome.key, []).append(outcome.outcome)
    return found


def left_locked(trail: Any, override_id: str) -> set[str]:
    """The items that are recorded as left out because others had locked them."""
    return {item.key for batch in trail.outcomes(override_id) for item in batch if item.detail == LOCKED.detail}


def refusals(trail: TrailStore) -> list[dict[str, Any]]:
    return [dict(record.body) for record in trail.records(limit=10_000) if record.kind == "refusal"]


def hashes(folder: Path) -> dict[str, str]:
    """Every file by content; `-shm` holds lock marks only."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.endswith("-shm")
    }


__all__ = [
    "KEEP",
    "NOON",
    "ORIGIN",
    "RESET",
    "TASKS_DDL",
    "TIMEOUT",
    "WHO",
    "Attempts",
    "FrozenClock",
    "Limits",
    "Operation",
    "QueueFile",
    "SystemClock",
    "World",
    "confirm",
    "final_outcomes",
    "hashes",
    "left_locked",
    "marked",
    "matching",
    "outcomes",
    "planned",
    "refusals",
    "why_blocked",
    "world_in",
]
