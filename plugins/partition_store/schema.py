"""The state table as its system has it, the console's own control table, and how both are read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta
from typing import Any

import sqlalchemy as sa

from console.core.item import Condition
from console.core.policy import RetryPolicy
from console.sql.database import Database
from console.sql.layout import Expression, Layout, Predicate, Residual, Roles, Segment, everything, outside
from console.sql.statement import Binds
from console.sql.times import IsoText
from console.sql.where import Where, head_of
from plugins.partition_store.rows import MARKED, OVERRULED, TEXT_MARKER, PartitionRows

TABLE, CONTROL = "partition_state", "retriage_partition_control"
KEY = ("source", "customer_id", "query_name", "logical_date")
STATE = (
    *KEY,
    "status",
    "current_run_id",
    "schema_version",
    "record_count",
    "updated_at",
    "error_message",
    "attempt_count",
)
CONTROLS = (
    "terminal",
    "terminal_by",
    "terminal_at",
    "terminal_why",
    "paused",
    "paused_by",
    "paused_at",
    "paused_why",
    "next_run_at",
    "backoff_strategy",
    "request",
    "request_by",
    "request_at",
    "request_why",
    "request_error",
)

STATE_DDL = """
CREATE TABLE partition_state (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date DATE NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'success', 'failed')),
    current_run_id TEXT,
    schema_version TEXT,
    record_count BIGINT,
    updated_at TIMESTAMPTZ,
    error_message TEXT,
    attempt_count INTEGER,
    PRIMARY KEY (source, customer_id, query_name, logical_date)
);
"""
"""What the system itself creates: for demo and tests, never run on an attached database."""

CONTROL_DDL = (
    f"CREATE TABLE IF NOT EXISTS {CONTROL} ("
    + ", ".join(f"{name} TEXT NOT NULL" for name in KEY)
    + "".join(f", {name} TEXT" for name in CONTROLS)
    + f", PRIMARY KEY ({', '.join(KEY)}))"
)
"""Ours; created by the first confirmed write that needs it, never by reading."""

_P = sa.table(TABLE, *(sa.column(name) for name in STATE))
_C = sa.table(CONTROL, *(sa.column(name) for name in (*KEY, *CONTROLS)))


def _gaps(start: date, end: date | None) -> Any:
    """The days of the range that a known series has no row for."""
    last = f"'{end.isoformat()}'" if end else "date('now')"
    same = " AND ".join(f"p.{name} = s.{name}" for name in KEY[:3])
    return (
        sa.text(
            f"WITH RECURSIVE days(day) AS (SELECT '{start.isoformat()}' UNION ALL"  # noqa: S608  only dates
            f" SELECT date(day, '+1 day') FROM days WHERE day < {last})"
            " SELECT s.source, s.customer_id, s.query_name, days.day AS logical_date"
            f" FROM (SELECT DISTINCT source, customer_id, query_name FROM {TABLE}) AS s CROSS JOIN days"
            f" WHERE NOT EXISTS (SELECT 1 FROM {TABLE} AS p WHERE {same} AND p.logical_date = days.day)"
        )
        .columns(*(sa.column(name) for name in KEY))
        .subquery("gaps")
    )


class _Source:
    """One place rows come from: the state table or its gaps, each with the control table beside it if there is one."""

    def __init__(self, rows: Any, has_control: bool, explicit: bool) -> None:
        key = [rows.c[name] for name in KEY]
        self.key = tuple(key)
        self.table = rows
        if has_control:
            same = sa.and_(*(column == _C.c[name] for column, name in zip(key, KEY, strict=True)))
            self.table = rows.outerjoin(_C, same)
        self._has_control = has_control
        self._state = rows.c if explicit else None
        self.explicit = explicit

    def state(self, name: str) -> Expression:
        return sa.null() if self._state is None else self._state[name]

    def control(self, name: str) -> Expression:
        return _C.c[name] if self._has_control else sa.null()

    def roles(self) -> Roles:
        status = self.state("status")
        counted = sa.func.coalesce(sa.cast(self.state("attempt_count"), sa.Integer), sa.literal_column("0"))
        error = self.state("error_message")
        ready: Predicate = status == sa.literal_column("'pending'") if self.explicit else sa.true()
        runs = sa.and_(
            ready, sa.or_(self.control("paused").is_(None), self.control("paused") == sa.literal_column("''"))
        )
        return Roles(
            key=self.key,
            tie=self.key,
            row=(
                *self.key,
                status,
                self.state("attempt_count"),
                head_of(error),
                self.state("updated_at"),
                self.state("current_run_id"),
                *(
                    self.control(name)
                    for name in (
                        "terminal",
                        "terminal_by",
                        "terminal_why",
                        "paused",
                        "paused_by",
                        "paused_why",
                        "next_run_at",
                        "request",
                        "request_error",
                    )
                ),
                sa.literal_column("1" if self.explicit else "0"),
            ),
            type=self.key[2],
            status=status,
            attempts=sa.func.max(counted, sa.literal_column("0")),
            error=sa.func.nullif(head_of(error), sa.literal_column("''")),
            created=self.key[3],
            updated=self.state("updated_at") if self.explicit else None,
            next=sa.case((runs, self.control("next_run_at"))),
        )


def _failed(
    policy: RetryPolicy, where: Where, time: IsoText, roles: Roles, source: _Source
) -> dict[Condition, Residual]:
    def ends(binds: Binds) -> Iterable[Predicate]:
        marker = sa.func.coalesce(source.control("terminal"), sa.literal_column("''"))
        yield marker == sa.literal_column(f"'{MARKED}'")
        yield sa.and_(
            marker != sa.literal_column(f"'{OVERRULED}'"),
            sa.func.coalesce(where.contains(roles.error, TEXT_MARKER, binds), sa.false()),
        )
        if policy.unrecoverable:
            yield sa.func.coalesce(where.hopeless(roles.error, binds), sa.false())
        if policy.max_attempts is not None:
            yield roles.attempts >= sa.literal_column(str(policy.max_attempts))
        if not policy.retryable:
            yield roles.attempts >= sa.literal_column("1")
        if policy.max_age is not None:
            born = time.compared(source.key[3])
            yield sa.func.coalesce(born <= binds.from_now(time.bound, -policy.max_age), sa.false())

    def terminal(binds: Binds) -> Predicate:
        return sa.or_(*ends(binds))

    return {Condition.TERMINAL: terminal, Condition.FAILED: lambda binds: sa.not_(terminal(binds))}


def layout(
    backend: str,
    database: Database,
    policy: RetryPolicy,
    time: IsoText,
    rows: PartitionRows,
    *,
    has_control: bool,
    expected: tuple[date, date | None] | None,
) -> Layout:
    where = Where(backend, database.dialect, time, policy)
    source = _Source(_P, has_control, explicit=True)
    roles = source.roles()
    none_yet = roles.attempts <= sa.literal_column("0")
    known: dict[str, dict[Condition, Residual]] = {
        "failed": _failed(policy, where, time, roles, source),
        "pending": {Condition.WAITING: lambda _: none_yet, Condition.RETRYING: lambda _: sa.not_(none_yet)},
        "success": {Condition.DONE: everything},
    }
    segments = [Segment(source.table, roles.status == native, roles, cases) for native, cases in known.items()]
    segments.append(Segment(source.table, outside(roles.status, known), roles, {Condition.UNKNOWN: everything}))
    if expected is not None:
        gaps = _Source(_gaps(*expected), has_control, explicit=False)
        segments.append(Segment(gaps.table, None, gaps.roles(), {Condition.WAITING: everything}))
    return Layout(
        tuple(segments),
        rows.read,
        time,
        natural=lambda roles: roles.key[3],
        nullable=frozenset({"updated", "created", "next", "type", "id"}),
        leads_are_indexed=False,
    )


LONGEST_RANGE = timedelta(days=3660)
