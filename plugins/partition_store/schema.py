"""The state table as its system has it, the console's own control table, and how both are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, timedelta
from enum import StrEnum
from typing import Any, cast

import sqlalchemy as sa

from console.core.item import Condition
from console.core.policy import RetryPolicy
from console.sql.database import Database
from console.sql.layout import Expression, Layout, Predicate, Residual, Roles, Segment, everything, outside
from console.sql.statement import Binds
from console.sql.times import Aware, IsoText
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

ROWS, MARK = "retriage_control_rows", "retriage_mark"
"""Where the control table lives apart: the parameter that carries it, or the function that looks it up."""
_TIMES = frozenset({"terminal_at", "paused_at", "next_run_at", "request_at"})


def control_ddl(*, sqlite: bool) -> str:
    """Ours; run by the first confirmed write that needs it, never by reading."""
    day, time = ("TEXT", "TEXT") if sqlite else ("DATE", "TIMESTAMP WITH TIME ZONE")
    columns = [f"{name} {day if name == 'logical_date' else 'TEXT'} NOT NULL" for name in KEY]
    columns += [f"{name} {time if name in _TIMES else 'TEXT'}" for name in CONTROLS]
    return f"CREATE TABLE IF NOT EXISTS {CONTROL} ({', '.join(columns)}, PRIMARY KEY ({', '.join(KEY)}))"


_P = sa.table(TABLE, *(sa.column(name) for name in STATE))
_C = sa.table(CONTROL, *(sa.column(name) for name in (*KEY, *CONTROLS)))
_TEXT: sa.types.TypeEngine[Any] = sa.Text()
_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "attempt_count": sa.Integer(),
    **dict.fromkeys(("updated_at", *_TIMES), sa.DateTime(timezone=True)),
}
_OF_CONTROL = tuple(name for name in CONTROLS if name != "backoff_strategy")


class Joins(StrEnum):
    """Where the control table is read from."""

    NOWHERE = "there is none yet"
    BESIDE = "the same database"
    APART = "another database"


def given_control(parameter: str, *, sqlite: bool) -> str:
    """What the control table holds of rows of the state table, for a database it is not in."""
    if sqlite:
        blobs = ", ".join(f"CAST({name} AS BLOB)" for name in KEY)
        marks = [f"{MARK}({n}, {blobs}) AS {name}" for n, name in enumerate(CONTROLS)]
        return f"SELECT {', '.join((*KEY, *marks))} FROM {TABLE}"  # noqa: S608  names are ours
    kinds = dict.fromkeys(_TIMES, "timestamptz") | {"logical_date": "date"}
    names = enumerate((*KEY, *CONTROLS))
    picked = [f"CAST(r ->> {n} AS {kinds.get(name, 'text')}) AS {name}" for n, name in names]
    return f"SELECT {', '.join(picked)} FROM jsonb_array_elements(CAST({parameter} AS jsonb)) AS r"  # noqa: S608


def _gaps(start: date, end: date | None, sqlite: bool) -> Any:
    """The days of the range that a known series has no row for."""
    same = " AND ".join(f"p.{name} = s.{name}" for name in KEY[:3])
    series = f"(SELECT DISTINCT source, customer_id, query_name FROM {TABLE}) AS s"  # noqa: S608  names are ours
    if sqlite:
        last = f"'{end.isoformat()}'" if end else "date('now')"
        days = (
            f"(WITH RECURSIVE every(day) AS (SELECT '{start.isoformat()}' UNION ALL"  # noqa: S608  only dates
            f" SELECT date(day, '+1 day') FROM every WHERE day < {last}) SELECT day FROM every)"
        )
    else:
        last = f"DATE '{end.isoformat()}'" if end else "CAST(now() AT TIME ZONE 'UTC' AS date)"
        days = (
            "(SELECT CAST(each_day AS date) AS day"  # noqa: S608  only dates
            f" FROM generate_series(DATE '{start.isoformat()}', {last}, interval '1 day') AS each_day)"
        )
    return (
        sa.text(
            "SELECT s.source, s.customer_id, s.query_name, days.day AS logical_date"  # noqa: S608  only dates
            f" FROM {series} CROSS JOIN {days} AS days"
            f" WHERE NOT EXISTS (SELECT 1 FROM {TABLE} AS p WHERE {same} AND p.logical_date = days.day)"
        )
        .columns(*(sa.column(name) for name in KEY))
        .subquery("gaps")
    )


class _Source:
    """One place rows come from: the state table or its gaps, each with the control table beside it if there is one."""

    def __init__(self, rows: Any, joins: Joins, *, explicit: bool, sqlite: bool) -> None:
        key = [rows.c[name] for name in KEY]
        self.key = tuple(key)
        self.table = rows
        self._joins = joins
        self._control: Any = None
        if joins is Joins.BESIDE or (joins is Joins.APART and not sqlite):
            found = _C if joins is Joins.BESIDE else _apart()
            self._control = found.c
            same = sa.and_(*(column == found.c[name] for column, name in zip(key, KEY, strict=True)))
            self.table = rows.outerjoin(found, same)
        self._state = rows.c if explicit else None
        self._sqlite = sqlite
        self.explicit = explicit

    def state(self, name: str) -> Expression:
        return _nothing(name) if self._state is None else self._state[name]

    def control(self, name: str) -> Expression:
        if self._control is not None:
            return cast("Expression", self._control[name])
        if self._joins is Joins.NOWHERE:
            return _nothing(name)
        place: Expression = sa.literal_column(str(CONTROLS.index(name)))
        return cast("Expression", getattr(sa.func, MARK)(place, *(sa.cast(part, sa.LargeBinary) for part in self.key)))

    @property
    def born(self) -> Expression:
        """When the day began, as the other times are stored."""
        day: Expression = self.key[3]
        if self._sqlite:
            return day
        return cast("Expression", sa.func.timezone(sa.literal_column("'UTC'"), sa.cast(day, sa.DateTime())))

    def roles(self) -> Roles:
        status = self.state("status")
        counted = sa.func.coalesce(sa.cast(self.state("attempt_count"), sa.Integer), sa.literal_column("0"))
        larger = sa.func.max if self._sqlite else sa.func.greatest
        error = self.state("error_message")
        ready: Predicate = status == sa.literal_column("'pending'") if self.explicit else sa.true()
        runs = sa.and_(
            ready, sa.or_(self.control("paused").is_(None), self.control("paused") == sa.literal_column("''"))
        )
        return Roles(
            key=self.key,
            tie=self.key if self._sqlite else (*(sa.collate(part, "C") for part in self.key[:3]), self.key[3]),
            row=(
                *self.key,
                status,
                self.state("attempt_count"),
                head_of(error),
                self.state("updated_at"),
                self.state("current_run_id"),
                *(self.control(name) for name in _OF_CONTROL),
                sa.literal_column("1" if self.explicit else "0"),
            ),
            type=self.key[2] if self._sqlite else sa.collate(self.key[2], "C"),
            status=status,
            attempts=larger(counted, sa.literal_column("0")),
            error=sa.func.nullif(head_of(error), sa.literal_column("''")),
            created=self.born,
            updated=self.state("updated_at"),
            next=sa.case((runs, self.control("next_run_at"))),
            native_key=None if self._sqlite else _native_key,
        )


def _apart() -> Any:
    given = sa.text(given_control(f":{ROWS}", sqlite=False))
    return given.columns(*(sa.column(name) for name in (*KEY, *CONTROLS))).subquery("control_rows")


def _nothing(name: str) -> Expression:
    """A NULL that knows its type, because a UNION does not guess it from the other side everywhere."""
    return sa.cast(sa.null(), _TYPES.get(name, _TEXT))


_DAY = re.compile(r"\d{4,7}-\d\d-\d\d|-?infinity", re.ASCII)


def _native_key(parts: tuple[str, ...]) -> tuple[Any, ...] | None:
    """None for what no column of type date can hold."""
    return parts if _DAY.fullmatch(parts[3]) and _is_day(parts[3]) else None


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return not text[:1].isdecimal() or text[4:5] != "-"
    return True


def _failed(
    policy: RetryPolicy, where: Where, time: IsoText | Aware, roles: Roles, source: _Source
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
            born = time.compared(source.born)
            yield sa.func.coalesce(born <= binds.from_now(time.bound, -policy.max_age), sa.false())

    def terminal(binds: Binds) -> Predicate:
        return sa.or_(*ends(binds))

    return {Condition.TERMINAL: terminal, Condition.FAILED: lambda binds: sa.not_(terminal(binds))}


def layout(
    backend: str,
    database: Database,
    policy: RetryPolicy,
    time: IsoText | Aware,
    rows: PartitionRows,
    *,
    joins: Joins,
    expected: tuple[date, date | None] | None,
) -> Layout:
    where = Where(backend, database.dialect, time, policy)
    sqlite = database.dialect.name == "sqlite"
    source = _Source(_P, joins, explicit=True, sqlite=sqlite)
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
        gaps = _Source(_gaps(*expected, sqlite), joins, explicit=False, sqlite=sqlite)
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
