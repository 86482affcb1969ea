"""The table as its system creates it, and how the console reads it, in PostgreSQL and in SQLite."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, cast

import sqlalchemy as sa

from console.core.item import Condition
from console.core.policy import RetryPolicy, later
from console.sql.layout import Expression, Layout, Predicate, Residual, Roles, Segment, everything, outside
from console.sql.statement import Binds
from console.sql.times import IsoText, Naive
from console.sql.where import Where, head_of
from plugins.postgres_analyses.rows import AnalysisRows

PIPELINES = ("vectorization", "dp_update")
SHARED = ("id", "user_answer_id", "retry_count", "last_retry_at", "processed_at")
LATER = "retriage_later"
"""An SQL function of our own for SQLite: a stored time plus seconds."""

_LONGEST_SCHEDULE = 64
_CALENDAR = timedelta(days=date.max.toordinal())
"""From whenever it is counted, so long a wait ends after the last day there is; an interval holds not much more."""
_is_integer = re.compile("0|-?[1-9][0-9]{0,18}").fullmatch


def ddl(table: str = "selfology.answer_analysis", *, sqlite: bool = False) -> str:
    """What the system itself creates: for demo and tests, never run on an attached database."""
    schema, _, name = table.rpartition(".")
    lines = [
        "id INTEGER PRIMARY KEY" if sqlite else "id SERIAL PRIMARY KEY",
        "user_answer_id INTEGER",
        *(
            f"{pipeline}_status VARCHAR(20) DEFAULT 'pending', {pipeline}_error TEXT, {pipeline}_completed_at TIMESTAMP"
            for pipeline in PIPELINES
        ),
        "background_task_completed BOOLEAN",
        "background_task_duration_ms INTEGER",
        "retry_count INTEGER DEFAULT 0",
        "last_retry_at TIMESTAMP",
        "processed_at TIMESTAMP",
    ]
    create = f"CREATE TABLE {name if sqlite else table} ({', '.join(lines)});"
    return create if sqlite or not schema else f"CREATE SCHEMA IF NOT EXISTS {schema}; {create}"


def columns(pipelines: Sequence[str]) -> tuple[str, ...]:
    """What the console reads."""
    own = (f"{p}_{what}" for p in pipelines for what in ("status", "error", "completed_at"))
    return (*SHARED, *own)


def delays(policy: RetryPolicy) -> list[timedelta]:
    """The wait before retry 1, 2, …; the last holds for all later ones."""
    retries = max((policy.max_attempts or 1) - 1, 1)
    bounds = [policy.delay_after(n + 1) for n in range(min(retries, _LONGEST_SCHEDULE))]
    return [low for low, _ in filter(None, bounds)] or [timedelta(0)]


def later_of(time: IsoText) -> Callable[[Any, Any], str | None]:
    """`LATER` for this way of storing times."""

    def told(base: Any, seconds: float) -> str | None:
        at = time.decode(base)
        return None if at is None else time.bound(later(at, timedelta(seconds=seconds)))

    return told


@dataclass(frozen=True, slots=True)
class Place:
    """Which table, in which kind of database, and what serves its lists."""

    table: str
    sqlite: bool
    pipelines: tuple[str, ...]
    indexed: bool
    """Each pipeline has an index on (status, id)."""

    def alias(self, name: str) -> Any:
        """The table under a name of its own, so that the pipelines' arms stay apart."""
        schema, _, table = self.table.rpartition(".")
        listed: list[Any] = [sa.column(column) for column in (*columns(self.pipelines), "ctid")]
        source = sa.table(table, *listed, schema=None if self.sqlite or not schema else schema)
        return source.alias(name)


class _Literals(Binds):
    """Binds for expressions that are built once and used in many statements."""

    def value(self, value: Any) -> Expression:
        return sa.literal(value, sa.Text())


class _Pipeline:
    """The expressions of one pipeline's arm."""

    def __init__(self, place: Place, pipeline: str, policy: RetryPolicy, time: Naive | IsoText, where: Where) -> None:
        self.source = place.alias(pipeline)
        self._place = place
        self._policy = policy
        self._time = time
        self._where = where
        self._c = c = self.source.c
        self.name: Expression = sa.cast(sa.literal_column(f"'{pipeline}'"), sa.Text)
        self.status: Expression = c[f"{pipeline}_status"]
        self.error: Expression = c[f"{pipeline}_error"]
        self.completed: Expression = c[f"{pipeline}_completed_at"]
        number = sa.cast(c.retry_count, sa.BigInteger)
        self.retries: Expression = sa.case((number > _number(0), number), else_=_number(0))
        self.base: Expression = sa.func.coalesce(c.last_retry_at, c.processed_at)
        self._pipeline = pipeline

    # -- conditions ------------------------------------------------------------------------------

    def segments(self) -> list[Segment]:
        roles = self._roles()
        known: dict[str, dict[Condition, Residual]] = {
            "failed": self._failed(),
            "pending": self._pending(),
            "success": {Condition.DONE: everything},
            "skipped": {Condition.DONE: everything},
        }
        # Written out, not bound: a plan kept for any status would not use the index for the rare one.
        listed = [
            Segment(self.source, self.status == status, roles, cases)
            for status, cases in zip(_texts(*known), known.values(), strict=True)
        ]
        strange = Segment(self.source, outside(self.status, known), roles, {Condition.UNKNOWN: everything})
        return [*listed, strange]

    def _terminal(self, binds: Binds) -> Predicate:
        used_up = self.retries + _number(1) >= _number(self._policy.max_attempts or 0)
        if not self._policy.retryable:
            return sa.true()
        return sa.or_(used_up, sa.func.coalesce(self._where.hopeless(self.error, binds), sa.false()))

    def _unaided(self) -> Predicate:
        return sa.or_(self._c.retry_count.is_(None), self._time.compared(self.base).is_(None))

    def _failed(self) -> dict[Condition, Residual]:
        return {
            Condition.TERMINAL: self._terminal,
            Condition.FAILED: lambda binds: sa.and_(sa.not_(self._terminal(binds)), self._unaided()),
            Condition.RETRYING: lambda binds: sa.and_(
                sa.not_(self._terminal(binds)), sa.not_(self._unaided())
            ),
        }

    def _pending(self) -> dict[Condition, Residual]:
        none = self.retries == _number(0)

        def stuck(binds: Binds) -> Predicate:
            old = binds.from_now(self._time.bound, -cast("timedelta", self._policy.stuck_after))
            return sa.func.coalesce(self._time.compared(self._c.processed_at) < old, sa.false())

        return {
            Condition.STUCK: stuck,
            Condition.WAITING: lambda binds: sa.and_(sa.not_(stuck(binds)), none),
            Condition.RUNNING: lambda binds: sa.and_(sa.not_(stuck(binds)), sa.not_(none)),
        }

    # -- roles -----------------------------------------------------------------------------------

    def _roles(self) -> Roles:
        c = self._c
        place = c.id if self._place.sqlite else sa.cast(c.ctid, sa.Text)
        first = sa.or_(c.processed_at.is_not(None), self.status.in_(_texts("failed", "success")))
        done = sa.case((self.status == sa.literal_column("'success'"), self.completed))
        return Roles(
            key=(c.id, self.name),
            tie=(c.id, self.name),
            row=(
                c.id, self.name, head_of(self.error), c.retry_count, c.last_retry_at, c.processed_at, self.completed,
                place, *(c[f"{p}_status"] for p in self._place.pipelines),
            ),
            type=self.name,
            status=self.status,
            attempts=self.retries + sa.case((first, _number(1)), else_=_number(0)),
            error=self.error,
            created=c.processed_at,
            updated=sa.func.coalesce(done, self.base),
            next=self._next(),
            references=(c.user_answer_id,),
            native_key=self._native_key,
        )

    def _next(self) -> Expression:
        waits = delays(self._policy)
        cases = [(self.retries == _number(n), self._after(wait)) for n, wait in enumerate(waits[:-1])]
        later = sa.case(*cases, else_=self._after(waits[-1])) if cases else self._after(waits[-1])
        retrying = sa.and_(
            self.status == sa.literal_column("'failed'"),
            sa.not_(self._terminal(_Literals())),
            sa.not_(self._unaided()),
        )
        return sa.case((retrying, later))

    def _after(self, wait: timedelta) -> Expression:
        """The base and a wait, by the instants they mean: a wall clock may jump in between."""
        wait = min(wait, _CALENDAR)
        seconds: Any = sa.literal_column(f"{wait.total_seconds():f}")
        if isinstance(self._time, IsoText):
            return cast("Expression", getattr(sa.func, LATER)(self.base, seconds))
        interval: Any = sa.literal_column(f"interval '{wait.total_seconds():f} seconds'")
        return self._time.later(self.base, interval)

    def _native_key(self, parts: tuple[str, ...]) -> tuple[Any, ...] | None:
        id, pipeline = parts
        if pipeline != self._pipeline or not _is_integer(id):
            return None
        return (int(id), pipeline) if -(2**63) <= int(id) < 2**63 else None


def _number(n: int) -> Expression:
    return sa.literal_column(str(n))


def _texts(*texts: str) -> list[Expression]:
    return [sa.literal_column(f"'{text}'") for text in texts]


def layout(
    backend: str, dialect: Any, place: Place, policy: RetryPolicy, time: Naive | IsoText, rows: AnalysisRows
) -> Layout:
    where = Where(backend, dialect, time, policy)
    segments = [
        segment
        for pipeline in place.pipelines
        for segment in _Pipeline(place, pipeline, policy, time, where).segments()
    ]
    return Layout(
        tuple(segments),
        rows.read,
        time,
        natural=lambda _: None,
        nullable=frozenset({"updated", "created", "next"}),
        leads_are_indexed=place.indexed,
    )
