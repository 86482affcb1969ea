"""The tables, the pipeline's state and the console's own control table, and how both are read together."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from enum import StrEnum
from typing import Any, cast

import sqlalchemy as sa

from console.core.item import Condition
from console.core.policy import Phase, RetryPolicy
from console.sql.conditions import ConditionPredicates, FactColumns, holds, whole_number
from console.sql.database import Binds, Database
from console.sql.layout import Expression, Layout, Predicate, Roles, Segment, everything, outside
from console.sql.times import Aware, IsoText
from console.sql.values import excerpt_sql
from console.sql.where import Where, shown_error
from plugins.partition_store.rows import DIGEST_LENGTH, MARKED, OVERRULED, PHASES, TEXT_MARKER, PartitionRows

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

ROWS, MARK, DIGEST = "retriage_control_rows", "retriage_mark", "retriage_digest"
"""If the control table is in another database: the parameter with its rows, or the function that finds one."""
_TIMES = frozenset({"terminal_at", "paused_at", "next_run_at", "request_at"})


def control_ddl(*, sqlite: bool) -> str:
    """Creates the console's own table. Run by the first confirmed write that needs it, never by reading."""
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
    """Where the control table is."""

    NOWHERE = "there is none yet"
    SAME = "the same database"
    OTHER = "another database"


def given_control(parameter: str, *, sqlite: bool) -> str:
    """The rows of the control table, for a statement in a database that does not have it."""
    if sqlite:
        blobs = ", ".join(f"CAST({name} AS BLOB)" for name in KEY)
        marks = [f"{MARK}({n}, {blobs}) AS {name}" for n, name in enumerate(CONTROLS)]
        return f"SELECT {', '.join((*KEY, *marks))} FROM {TABLE}"  # noqa: S608  names are ours
    kinds = dict.fromkeys(_TIMES, "timestamptz") | {"logical_date": "date"}
    names = enumerate((*KEY, *CONTROLS))
    picked = [f"CAST(r ->> {n} AS {kinds.get(name, 'text')}) AS {name}" for n, name in names]
    return f"SELECT {', '.join(picked)} FROM jsonb_array_elements(CAST({parameter} AS jsonb)) AS r"  # noqa: S608


def text_digest(error: str, *, sqlite: bool) -> str:
    """The digest of an error that marks its partition as terminal; otherwise NULL."""
    error = f"CAST({excerpt_sql(error, 'sqlite' if sqlite else 'postgresql')} AS TEXT)"
    if sqlite:
        return f"CASE WHEN instr({error}, '{TEXT_MARKER}') > 0 THEN {DIGEST}(CAST({error} AS BLOB)) END"
    digest = f"substr(md5(convert_to({error}, 'UTF8')), 1, {DIGEST_LENGTH})"
    return f"CASE WHEN strpos({error}, '{TEXT_MARKER}') > 0 THEN {digest} END"


def _gaps(start: date, end: date | None, sqlite: bool) -> Any:
    """The days in the range for which a known series has no row."""
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
    """The state table or its gaps, joined with the control table if there is one."""

    def __init__(self, rows: Any, joins: Joins, *, explicit: bool, sqlite: bool, ours: bool) -> None:
        self._ours = ours
        key = [rows.c[name] for name in KEY]
        self.key = tuple(key)
        self.table = rows
        self._joins = joins
        self._control: Any = None
        if joins is Joins.SAME or (joins is Joins.OTHER and not sqlite):
            found = _C if joins is Joins.SAME else _given_rows()
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
        error = self.state("error_message")
        ready: Predicate = status == sa.literal_column("'pending'") if self.explicit else sa.true()
        runs = sa.and_(
            ready, sa.or_(self.control("paused").is_(None), self.control("paused") == sa.literal_column("''"))
        )
        return Roles(
            key=self.key,
            tiebreaker=self.key if self._sqlite else (*(sa.collate(part, "C") for part in self.key[:3]), self.key[3]),
            row=(
                *self.key,
                status,
                self.state("attempt_count"),
                shown_error(error),
                self.state("updated_at"),
                self.state("current_run_id"),
                *(self.control(name) for name in _OF_CONTROL),
                sa.literal_column("1" if self.explicit else "0"),
            ),
            type=self.key[2] if self._sqlite else sa.collate(self.key[2], "C"),
            status=status,
            attempts=whole_number(self.state("attempt_count"), sqlite=self._sqlite),
            error=sa.func.nullif(sa.cast(error, sa.Text), sa.literal_column("''")),
            created=self.born,
            updated=self.state("updated_at"),
            next=sa.case((runs, self.control("next_run_at"))) if self._ours else None,
            native_key=None if self._sqlite else _native_key,
        )


def _given_rows() -> Any:
    given = sa.text(given_control(f":{ROWS}", sqlite=False))
    return given.columns(*(sa.column(name) for name in (*KEY, *CONTROLS))).subquery("control_rows")


def _nothing(name: str) -> Expression:
    """A typed NULL, because PostgreSQL does not infer its type from the other side of a UNION."""
    return sa.cast(sa.null(), _TYPES.get(name, _TEXT))


_DAY = re.compile(r"\d{4,7}-\d\d-\d\d|-?infinity", re.ASCII)


def _native_key(parts: tuple[str, ...]) -> tuple[Any, ...] | None:
    """The key's parts; None if a column of type date cannot hold the day."""
    return parts if _DAY.fullmatch(parts[3]) and _is_day(parts[3]) else None


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return not text[:1].isdecimal() or text[4:5] != "-"
    return True


def _marker(source: _Source, roles: Roles, *, sqlite: bool) -> Callable[[Binds], Predicate]:
    """Whether a partition is marked terminal: here, or in its error unless that failure was overruled here."""
    mark = sa.func.coalesce(source.control("terminal"), sa.literal_column("''"))
    digest: Expression = sa.literal_column(text_digest(f"{TABLE}.error_message", sqlite=sqlite), sa.Text())
    overrule = sa.literal(f"{OVERRULED} ").concat(sa.cast(roles.attempts, sa.Text)).concat(" ").concat(digest)
    by_text = sa.and_(digest.is_not(None), mark != overrule)
    marked = sa.or_(mark == sa.literal_column(f"'{MARKED}'"), holds(by_text))
    return lambda _: marked


def layout(
    backend: str,
    database: Database,
    policy: RetryPolicy,
    time: IsoText | Aware,
    rows: PartitionRows,
    *,
    joins: Joins,
    expected: tuple[date, date | None] | None,
    ours: bool,
) -> Layout:
    where = Where(backend, database.dialect, time, policy)
    sqlite = database.dialect.name == "sqlite"
    source = _Source(_P, joins, explicit=True, sqlite=sqlite, ours=ours)
    roles = source.roles()
    facts = FactColumns(roles.attempts, roles.error, born=source.born, marker=_marker(source, roles, sqlite=sqlite))
    predicates = ConditionPredicates(facts, policy, where, time)
    segments = [
        Segment(source.table, roles.status == native, roles, predicates.of(phase)) for native, phase in PHASES.items()
    ]
    segments.append(Segment(source.table, outside(roles.status, PHASES), roles, predicates.of(Phase.UNKNOWN)))
    if expected is not None:
        gaps = _Source(_gaps(*expected, sqlite), joins, explicit=False, sqlite=sqlite, ours=ours)
        segments.append(Segment(gaps.table, None, gaps.roles(), {Condition.WAITING: everything}))
    return Layout(
        tuple(segments),
        rows.read,
        time,
        natural=lambda roles: roles.key[3],
        nullable=frozenset({"updated", "created", "next", "type", "id"}),
        segments_are_indexed=False,
    )


LONGEST_RANGE = timedelta(days=3660)
