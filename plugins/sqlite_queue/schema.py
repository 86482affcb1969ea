"""The tables of both dialects, as their systems create them, and how the console reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from console.core.item import Condition
from console.core.policy import RetryPolicy
from console.sql.database import Database
from console.sql.layout import Expression, Layout, Predicate, Residual, Roles, Segment, everything, outside
from console.sql.statement import Binds
from console.sql.times import IsoText, in_bytes
from console.sql.where import Where
from plugins._contract_queue import LONGEST_TIMEOUT
from plugins.sqlite_queue.rows import AsyncTaskRows, ContractTaskRows

ASYNC_TASKS_DDL = """
CREATE TABLE async_tasks (
    task_id TEXT PRIMARY KEY,
    task_type TEXT,
    entity_id TEXT,
    status TEXT CHECK (status IN ('PENDING', 'RUNNING', 'DONE', 'FAILED')),
    attempts INTEGER DEFAULT 0,
    next_run_at TEXT NOT NULL,
    last_error TEXT,
    created_at TEXT,
    updated_at TEXT
);
CREATE INDEX idx_async_tasks_status_next_run ON async_tasks (status, next_run_at);
"""
"""What the analysis queue itself creates: for demo and tests, never run on an attached database."""

TASKS_DDL = """
CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    func_path TEXT,
    args TEXT,
    kwargs TEXT,
    status TEXT,
    schedule TEXT,
    eta TEXT,
    max_retries INTEGER,
    timeout INTEGER,
    attempts INTEGER,
    created_at TEXT,
    updated_at TEXT,
    last_attempt_at TEXT,
    error TEXT
);
CREATE TABLE results (
    task_id TEXT PRIMARY KEY,
    status TEXT,
    result TEXT,
    error TEXT,
    finished_at TEXT,
    attempts INTEGER,
    last_attempt_at TEXT
);
"""
"""What the contract queue itself creates."""

EPOCH = "retriage_epoch"
"""An SQL function of our own, so that "older than" means in SQL exactly what it means to `judge`."""


_START = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def epoch_of(time: IsoText) -> Callable[[Any], int | None]:
    """Stored time → whole microseconds, so that SQL compares as exactly as Python does."""

    def epoch(raw: bytes | None) -> int | None:
        at = time.decode_bytes(raw)
        return None if at is None else _microseconds(at)

    return epoch


def _microseconds(instant: datetime) -> int:
    return (instant - _START) // _MICROSECOND


@dataclass(frozen=True, slots=True)
class Physical:
    """What the attached table has besides its columns."""

    has_rowid: bool
    indexed: bool
    """An index on (status, next_run_at) serves the list."""


def _table(name: str, columns: Iterable[str]) -> sa.TableClause:
    return sa.table(name, *(sa.column(column) for column in ("rowid", *columns)))


ASYNC_COLUMNS = (
    "task_id",
    "task_type",
    "entity_id",
    "status",
    "attempts",
    "next_run_at",
    "last_error",
    "created_at",
    "updated_at",
)
TASK_COLUMNS = (
    "id",
    "func_path",
    "args",
    "kwargs",
    "status",
    "schedule",
    "eta",
    "max_retries",
    "timeout",
    "attempts",
    "created_at",
    "updated_at",
    "last_attempt_at",
    "error",
)
RESULT_COLUMNS = ("task_id", "status", "result", "error", "finished_at", "attempts", "last_attempt_at")

ASYNC_TASKS = _table("async_tasks", ASYNC_COLUMNS)
TASKS = _table("tasks", TASK_COLUMNS)
RESULTS = _table("results", RESULT_COLUMNS)


def _count(column: Expression) -> Expression:
    """A counter as `rows.whole_number` reads it."""
    number = sa.func.coalesce(sa.cast(column, sa.Integer), sa.literal_column("0"))
    return sa.func.max(number, sa.literal_column("0"))


def _head(column: Expression) -> Expression:
    return sa.func.substr(column, sa.literal_column("1"), sa.literal_column("4096"))


class _Conditions:
    """The predicates of both dialects, from the expressions they differ in."""

    def __init__(
        self,
        policy: RetryPolicy,
        where: Where,
        time: IsoText,
        attempts: Expression,
        error: Expression,
        created: Expression,
        updated: Expression,
        limit: Expression | None,
        timeout: Expression | None,
    ) -> None:
        self._policy = policy
        self._where = where
        self._time = time
        self._attempts = attempts
        self._error = error
        self._created = created
        self._updated = updated
        self._limit = limit
        self._timeout = timeout

    def ready(self) -> dict[Condition, Residual]:
        none_yet = self._attempts <= sa.literal_column("0")
        return {Condition.WAITING: lambda _: none_yet, Condition.RETRYING: lambda _: sa.not_(none_yet)}

    def failed(self) -> dict[Condition, Residual]:
        def terminal(binds: Binds) -> Predicate:
            return sa.or_(sa.false(), *self._ends(binds))

        return {Condition.TERMINAL: terminal, Condition.FAILED: lambda binds: sa.not_(terminal(binds))}

    def _ends(self, binds: Binds) -> Iterable[Predicate]:
        """Every way to have ended; none of them is ever NULL."""
        if self._policy.unrecoverable:
            yield sa.func.coalesce(self._where.hopeless(self._error, binds), sa.false())
        configured = None if self._policy.max_attempts is None else sa.literal(self._policy.max_attempts)
        if self._limit is not None:
            yield sa.func.coalesce(self._attempts >= sa.func.coalesce(self._limit, configured), sa.false())
        elif configured is not None:
            yield self._attempts >= configured
        if not self._policy.retryable:
            yield self._attempts >= sa.literal_column("1")
        if self._policy.max_age is not None:
            born = getattr(sa.func, EPOCH)(in_bytes(self._created))
            yield sa.func.coalesce(born <= binds.from_now(_microseconds, -self._policy.max_age), sa.false())

    def running(self) -> dict[Condition, Residual]:
        def stuck(binds: Binds) -> Predicate:
            since = getattr(sa.func, EPOCH)(in_bytes(self._updated))
            allowed: Expression | None = None
            if self._policy.stuck_after is not None:
                allowed = sa.literal(self._policy.stuck_after // _MICROSECOND)
            if self._timeout is not None:
                own = self._timeout * sa.literal_column("1000000")
                allowed = own if allowed is None else sa.func.coalesce(own, allowed)
            if allowed is None:
                return sa.false()
            return sa.func.coalesce(binds.from_now(_microseconds) - since > allowed, sa.false())

        return {Condition.STUCK: stuck, Condition.RUNNING: lambda binds: sa.not_(stuck(binds))}


_NULLABLE = frozenset({"updated", "created", "next", "type", "id"})


def _never_null(database: Database, table: str, column: str) -> bool:
    """Whether the table's own constraint keeps NULLs out, so that pages need not look for them."""
    quoted = database.dialect.identifier_preparer.quote_identifier(table)
    return any(
        name == column and bool(not_null)
        for _, name, _, not_null, *_ in database.fetch(f"PRAGMA table_info({quoted})", ())
    )


def _segments(
    source: Any, status: Expression, roles: Roles, conditions: _Conditions, done: str, cancelled: str | None
) -> tuple[Segment, ...]:
    known: dict[str, dict[Condition, Residual]] = {
        "FAILED": conditions.failed(),
        "PENDING": conditions.ready(),
        "RUNNING": conditions.running(),
        done: {Condition.DONE: everything},
    }
    if cancelled is not None:
        known[cancelled] = {Condition.CANCELLED: everything}
    listed = [Segment(source, status == native, roles, cases) for native, cases in known.items()]
    strange = Segment(source, outside(status, known), roles, {Condition.UNKNOWN: everything}, scattered=True)
    return (*listed, strange)


def async_tasks_layout(
    backend: str,
    database: Database,
    policy: RetryPolicy,
    time: IsoText,
    rows: AsyncTaskRows,
    physical: Physical,
) -> Layout:
    c = ASYNC_TASKS.c
    roles = Roles(
        key=(c.task_id,),
        tie=(c.rowid if physical.has_rowid else c.task_id,),
        row=(
            c.task_id,
            c.task_type,
            c.status,
            c.attempts,
            c.next_run_at,
            _head(c.last_error),
            c.created_at,
            c.updated_at,
        ),
        type=c.task_type,
        status=c.status,
        attempts=_count(c.attempts),
        error=c.last_error,
        created=c.created_at,
        updated=c.updated_at,
        next=sa.case((c.status == "PENDING", c.next_run_at)),
        references=(c.entity_id,),
    )
    conditions = _Conditions(
        policy,
        Where(backend, database.dialect, time, policy),
        time,
        roles.attempts,
        c.last_error,
        c.created_at,
        c.updated_at,
        None,
        None,
    )
    return Layout(
        _segments(ASYNC_TASKS, c.status, roles, conditions, "DONE", None),
        rows.read,
        time,
        natural=lambda _: c.next_run_at if physical.indexed else None,
        nullable=_NULLABLE if _never_null(database, "async_tasks", "next_run_at") else _NULLABLE | {"natural"},
        leads_are_indexed=physical.indexed,
    )


def tasks_layout(
    backend: str,
    database: Database,
    policy: RetryPolicy,
    time: IsoText,
    rows: ContractTaskRows,
    physical: Physical,
) -> Layout:
    t, r = TASKS.c, RESULTS.c
    nothing: tuple[Expression, ...] = (sa.literal_column("''"), sa.literal_column("'null'"))
    blanks: Expression = sa.literal_column("' ' || char(9, 10, 11, 12, 13)")
    own = sa.case((sa.func.trim(t.error, blanks).in_(nothing), sa.null()), else_=t.error)
    error = sa.func.coalesce(sa.func.nullif(sa.cast(r.error, sa.Text), ""), own)
    roles = Roles(
        key=(t.id,),
        tie=(t.rowid if physical.has_rowid else t.id,),
        row=(
            t.id,
            t.func_path,
            t.status,
            t.attempts,
            t.max_retries,
            t.eta,
            t.timeout,
            _head(r.error),
            _head(t.error),
            t.created_at,
            t.updated_at,
            t.last_attempt_at,
        ),
        type=t.func_path,
        status=t.status,
        attempts=_count(t.attempts),
        error=error,
        created=t.created_at,
        updated=t.updated_at,
        next=sa.case((t.status == "PENDING", t.eta)),
        references=(t.func_path,),
    )
    limit = sa.case((t.max_retries.is_not(None), _count(t.max_retries)))
    timeout = sa.case((t.timeout.is_not(None), sa.func.min(_count(t.timeout), sa.literal_column(str(LONGEST_TIMEOUT)))))
    conditions = _Conditions(
        policy,
        Where(backend, database.dialect, time, policy),
        time,
        roles.attempts,
        error,
        t.created_at,
        t.updated_at,
        limit,
        timeout,
    )
    source = TASKS.outerjoin(RESULTS, RESULTS.c.task_id == TASKS.c.id)
    return Layout(
        _segments(source, t.status, roles, conditions, "SUCCESS", "CANCELLED"),
        rows.read,
        time,
        natural=lambda _: None,
        nullable=_NULLABLE,
        served=frozenset({"id"}),
        leads_are_indexed=False,
    )
