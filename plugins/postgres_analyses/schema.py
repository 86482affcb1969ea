"""The table, and how Retriage reads it in PostgreSQL and in SQLite."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any, cast

import sqlalchemy as sa

from console.core.item import Condition
from console.core.policy import RetryPolicy, later
from console.sql.conditions import ConditionPredicates, FactColumns, whole_number
from console.sql.layout import Expression, Layout, Predicate, Residual, Roles, Segment, everything, outside
from console.sql.times import IsoText, Naive
from console.sql.where import Where, shown_error
from plugins.postgres_analyses.loop_order import (
    PIPELINES,
    AnalysisTable,
    Literals,
    LoopOrder,
    literal_text,
    number,
    texts,
)
from plugins.postgres_analyses.prediction import LoopPosition, Schedule
from plugins.postgres_analyses.rows import AnalysisRows

ADD_SECONDS = "retriage_later"
"""The name of an SQL function that Retriage adds to SQLite: a stored time plus seconds."""

_CALENDAR = timedelta(days=date.max.toordinal())
"""A longer wait would end after the last day of the calendar, and an interval cannot hold much more."""
_is_integer = re.compile("0|-?[1-9][0-9]{0,18}").fullmatch


def ddl(table: str = "selfology.answer_analysis", *, sqlite: bool = False) -> str:
    """The DDL of the system itself, for the demo and for tests. It is never run on an attached database."""
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


def add_seconds_function(time: IsoText) -> Callable[[Any, Any], str | None]:
    """The function `ADD_SECONDS` for times that are stored like this."""

    def add_seconds(base: Any, seconds: float) -> str | None:
        at = time.decode(base)
        return None if at is None else time.bound(later(at, timedelta(seconds=seconds)))

    return add_seconds


class _Pipeline:
    """The expressions of one pipeline."""

    def __init__(
        self, table: AnalysisTable, pipeline: str, policy: RetryPolicy, time: Naive | IsoText, where: Where
    ) -> None:
        self.source = table.alias(pipeline)
        self._table = table
        self._schedule = Schedule.of(policy)
        self._time = time
        self._order = LoopOrder(table, policy, time, where)
        self._c = c = self.source.c
        self.name: Expression = sa.cast(sa.literal_column(f"'{pipeline}'"), sa.Text)
        self.status: Expression = c[f"{pipeline}_status"]
        self.error: Expression = c[f"{pipeline}_error"]
        self.completed: Expression = c[f"{pipeline}_completed_at"]
        self.retries = whole_number(c.retry_count, sqlite=table.sqlite)
        self.base: Expression = sa.func.coalesce(c.last_retry_at, c.processed_at)
        self._pipeline = pipeline
        self._no_answer: Predicate = c.user_answer_id.is_(None) if table.needs_answer else sa.false()
        self._place = self._order.place(c, pipeline)
        # A row with this status has been executed once, and again for each retry.
        facts = FactColumns(
            attempts=self.retries + number(1), error=self.error, since=c.processed_at,
            marker=lambda _: self._no_answer,
        )
        self._predicates = ConditionPredicates(facts, policy, where, time)

    # -- conditions ------------------------------------------------------------------------------

    def segments(self) -> list[Segment]:
        roles = self._roles()
        known: dict[str, dict[Condition, Residual]] = {
            "failed": self._failed(),
            "pending": self._pending(),
            "success": {Condition.DONE: everything},
            "skipped": {Condition.DONE: everything},
        }
        # Literals instead of binds: a generic query plan would not use the index for a rare status.
        listed = [
            Segment(self.source, self.status == status, roles, cases)
            for status, cases in zip(texts(*known), known.values(), strict=True)
        ]
        other = Segment(self.source, outside(self.status, known), roles, {Condition.UNKNOWN: everything})
        return [*listed, other]

    def _never_retried(self) -> Predicate:
        unreadable = sa.and_(self.base.is_not(None), self._time.compared(self.base).is_(None))
        return sa.or_(self._c.retry_count.is_(None), unreadable, self._place == number(LoopPosition.STARVED))

    def _failed(self) -> dict[Condition, Residual]:
        terminal = self._predicates.terminal
        return {
            Condition.TERMINAL: terminal,
            Condition.FAILED: lambda binds: sa.and_(sa.not_(terminal(binds)), self._never_retried()),
            Condition.RETRYING: lambda binds: sa.and_(sa.not_(terminal(binds)), sa.not_(self._never_retried())),
        }

    def _pending(self) -> dict[Condition, Residual]:
        stuck, none_yet = self._predicates.stuck, self.retries == number(0)
        return {
            Condition.STUCK: stuck,
            Condition.WAITING: lambda binds: sa.and_(sa.not_(stuck(binds)), none_yet),
            Condition.RUNNING: lambda binds: sa.and_(sa.not_(stuck(binds)), sa.not_(none_yet)),
        }

    # -- roles -----------------------------------------------------------------------------------

    def _roles(self) -> Roles:
        c = self._c
        address = c.id if self._table.sqlite else sa.cast(c.ctid, sa.Text)
        first = sa.or_(c.processed_at.is_not(None), self.status.in_(texts("failed", "success")))
        done = sa.case((self._is("success"), self.completed))
        return Roles(
            key=(c.id, self.name),
            tiebreaker=(c.id, self.name),
            row=(
                c.id, self.name, shown_error(self.error), c.retry_count, c.last_retry_at, c.processed_at,
                self.completed, address, sa.not_(self._no_answer), sa.case((self._is("failed"), self._place)),
                self._first(),
                *(c[f"{p}_status"] for p in self._table.pipelines),
                *(self._order.recoverable(c, p) for p in self._table.pipelines),
            ),
            type=self.name,
            status=self.status,
            attempts=self.retries + sa.case((first, number(1)), else_=number(0)),
            error=self.error,
            created=c.processed_at,
            updated=sa.func.coalesce(done, self.base),
            next=self._next(),
            references=(c.user_answer_id,),
            native_key=self._native_key,
        )

    def _is(self, status: str) -> Predicate:
        return self.status == literal_text(status)

    def _first(self) -> Expression:
        """Whether the row is among the first ten, where another pipeline of it may be retried, too."""
        others = [self._c[f"{name}_status"] for name in self._table.pipelines if name != self._pipeline]
        busy = sa.or_(sa.false(), *(other.in_(texts("failed", "pending")) for other in others))
        statuses = ("failed", "pending")
        whens = ((sa.and_(self._is(s), busy), self._order.is_first(self._c, self._pipeline, s)) for s in statuses)
        return sa.case(*whens)

    def _next(self) -> Expression:
        waits = self._schedule.delays
        cases = [(self.retries == number(n), self._after(wait)) for n, wait in enumerate(waits[:-1])]
        later = sa.case(*cases, else_=self._after(waits[-1])) if cases else self._after(waits[-1])
        retrying = sa.and_(
            self._is("failed"),
            sa.not_(self._predicates.terminal(Literals())),
            sa.not_(self._never_retried()),
        )
        return sa.case((retrying, later))

    def _after(self, wait: timedelta) -> Expression:
        """The base plus a wait. It adds instants, because the wall clock may jump in between."""
        wait = min(wait, _CALENDAR)
        seconds: Any = sa.literal_column(f"{wait.total_seconds():f}")
        if isinstance(self._time, IsoText):
            return cast("Expression", getattr(sa.func, ADD_SECONDS)(self.base, seconds))
        interval: Any = sa.literal_column(f"interval '{wait.total_seconds():f} seconds'")
        return self._time.later(self.base, interval)

    def _native_key(self, parts: tuple[str, ...]) -> tuple[Any, ...] | None:
        id, pipeline = parts
        if pipeline != self._pipeline or not _is_integer(id):
            return None
        return (int(id), pipeline) if -(2**63) <= int(id) < 2**63 else None


def layout(
    table: AnalysisTable, policy: RetryPolicy, time: Naive | IsoText, rows: AnalysisRows, where: Where
) -> Layout:
    segments = [
        segment
        for pipeline in table.pipelines
        for segment in _Pipeline(table, pipeline, policy, time, where).segments()
    ]
    return Layout(
        tuple(segments),
        rows.read,
        time,
        natural=lambda _: None,
        nullable=frozenset({"updated", "created", "next"}),
        segments_are_indexed=table.indexed,
    )
