"""Which rows the loop looks at, and in which order, as SQL.

Whether a row starves depends on the rows before it. The database finds a few positions of the order once in a while,
and each statement compares its rows with these thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any

import sqlalchemy as sa

from console.core.budget import charge
from console.core.faults import DeadlineExceeded
from console.core.policy import RetryPolicy
from console.sql.conditions import holds, whole_number
from console.sql.database import Binds, BoundStatement, Database
from console.sql.layout import Expression, Predicate
from console.sql.times import IsoText, Naive
from console.sql.where import Where
from plugins.postgres_analyses.prediction import CYCLE, PER_CYCLE, LoopPosition, Schedule

PIPELINES = ("vectorization", "dp_update")
SHARED = ("id", "user_answer_id", "retry_count", "last_retry_at", "processed_at")
_KEPT_FOR, _REST = 30.0, 100
"""Thresholds are kept for this many seconds, or for this many times as long as it took to read them."""


def columns(pipelines: Sequence[str]) -> tuple[str, ...]:
    """The columns that Retriage reads."""
    own = (f"{p}_{what}" for p in pipelines for what in ("status", "error", "completed_at"))
    return (*SHARED, *own)


@dataclass(frozen=True, slots=True)
class AnalysisTable:
    """The attached table: its name, its kind of database, its pipelines and indexes."""

    table: str
    sqlite: bool
    pipelines: tuple[str, ...]
    indexed: bool
    """Whether each pipeline has an index on (status, id)."""
    needs_answer: bool = False
    """The loop joins the table of answers, and so does not see rows without one."""

    def alias(self, name: str) -> Any:
        """The table under an alias, so that one query can read it for several pipelines."""
        schema, _, table = self.table.rpartition(".")
        listed: list[Any] = [sa.column(column) for column in (*columns(self.pipelines), "ctid")]
        source = sa.table(table, *listed, schema=None if self.sqlite or not schema else schema)
        return source.alias(name)


class Literals(Binds):
    """Writes values as literals, for expressions that are used in many statements."""

    def value(self, value: Any) -> Expression:
        return sa.literal(value, sa.Text())


class LoopOrder:
    """Which rows the loop looks at, and in which order, as SQL."""

    def __init__(self, table: AnalysisTable, policy: RetryPolicy, time: Naive | IsoText, where: Where) -> None:
        self._table = table
        self._retries = Schedule.of(policy).retries
        self._time = time
        self._where = where
        self._end: Expression = sa.literal_column("'~'" if isinstance(time, IsoText) else "timestamp 'infinity'")

    def position(self, c: Any) -> Expression:
        """Rows with the lowest value come first. A row without a time comes last."""
        return sa.func.coalesce(self._time.compared(c.processed_at), self._end)

    def room(self, c: Any) -> Predicate:
        """Retries are left, and the row has an answer."""
        answered = c.user_answer_id.is_not(None) if self._table.needs_answer else sa.true()
        count = whole_number(c.retry_count, sqlite=self._table.sqlite)
        return sa.and_(answered, c.retry_count.is_not(None), count < number(self._retries))

    def recoverable(self, c: Any, pipeline: str) -> Predicate:
        """The pipeline has failed and the loop would retry it."""
        return sa.and_(c[f"{pipeline}_status"] == literal_text("failed"), sa.not_(self.hopeless(c, pipeline)))

    def hopeless(self, c: Any, pipeline: str) -> Predicate:
        return holds(self._where.hopeless(c[f"{pipeline}_error"], Literals()))

    def is_first(self, c: Any, pipeline: str, status: str) -> Predicate:
        """Among the first ten that the loop looks at, whatever happens to the others."""
        tenth = self._threshold(f"{pipeline}_failed" if status == "failed" else "pending")
        return sa.func.coalesce(self.position(c) < tenth, sa.true())

    def _looked_at(self, c: Any, pipeline: str, status: str) -> Predicate:
        if status == "failed":
            return sa.and_(c[f"{pipeline}_status"] == literal_text(status), self.room(c))
        pending = [c[f"{name}_status"] == literal_text(status) for name in self._table.pipelines]
        return sa.and_(sa.or_(*pending), self.room(c), self._time.compared(c.processed_at).is_not(None))

    def place(self, c: Any, pipeline: str) -> Expression:
        """The `LoopPosition` of a failed row."""
        position = self.position(c)
        may = position >= self._threshold(f"{pipeline}_skipped")
        does = position > self._threshold(f"{pipeline}_blocking")
        starved = sa.case((does, number(LoopPosition.STARVED)), else_=number(LoopPosition.MAY_STARVE))
        return sa.case((may, starved), else_=number(LoopPosition.FREE))

    def _skipped(self, c: Any, pipeline: str) -> Predicate:
        return sa.and_(c[f"{pipeline}_status"] == literal_text("failed"), self.room(c), self.hopeless(c, pipeline))

    def _may_be_skipped(self, c: Any, pipeline: str) -> Predicate:
        """The loop skips the row, or may once it has retried it: it retries pending rows whatever their error."""
        started = self._time.compared(c.processed_at).is_not(None)
        status = c[f"{pipeline}_status"]
        counts = sa.or_(status == literal_text("failed"), sa.and_(status == literal_text("pending"), started))
        return sa.and_(counts, self.room(c), self.hopeless(c, pipeline))

    def blocks(self, c: Any, pipeline: str) -> Predicate:
        """The loop always skips the row: no other pipeline will use up its retries, and it is always looked at."""
        others = [name for name in self._table.pipelines if name != pipeline]
        started = c.processed_at.is_not(None)
        retried = [
            sa.or_(self.recoverable(c, name), sa.and_(c[f"{name}_status"] == literal_text("pending"), started))
            for name in others
        ]
        return sa.and_(self._skipped(c, pipeline), *(sa.not_(holds(one)) for one in retried), self._rests(c))

    def _rests(self, c: Any) -> Predicate:
        """Not retried in the last minute, by the database's own clock. The loop does not look at those."""
        last = self._time.compared(c.last_retry_at)
        seconds = int(CYCLE.total_seconds())
        if isinstance(self._time, IsoText):
            text = f"strftime('%Y-%m-%dT%H:%M:%f', 'now', '-{seconds} seconds') || '+00:00'"
            limit: Expression = sa.literal_column(text)
        else:
            interval: Any = sa.literal_column(f"interval '{seconds} seconds'")
            limit = sa.func.timezone(sa.literal(str(self._time.zone), sa.Text()), sa.func.now()) - interval
        return sa.or_(c.last_retry_at.is_(None), holds(last < limit))

    # -- thresholds ------------------------------------------------------------------------------

    def thresholds(self) -> dict[str, BoundStatement]:
        """Selects the positions that rows are compared with: each the tenth of some rows, or none if there are fewer.

        The last of a pipeline is only needed where the one before it was found.
        """
        found = {"pending": self._tenth("pending", lambda c: self._looked_at(c, "", "pending"))}
        for name in self._table.pipelines:
            found[f"{name}_failed"] = self._tenth(name, partial(self._looked_at, pipeline=name, status="failed"))
            found[f"{name}_skipped"] = self._tenth(name, partial(self._may_be_skipped, pipeline=name))
            found[f"{name}_blocking"] = self._tenth(name, partial(self.blocks, pipeline=name))
        return found

    @property
    def lowest(self) -> str:
        """A position before every row."""
        return "" if isinstance(self._time, IsoText) else "-infinity"

    def _threshold(self, name: str) -> Expression:
        given: Expression = sa.bindparam(name, type_=sa.Text())
        return given if isinstance(self._time, IsoText) else sa.cast(given, sa.TIMESTAMP())

    def _tenth(self, name: str, which: Callable[[Any], Predicate]) -> BoundStatement:
        source = self._table.alias(f"{name}_rows")
        position = self.position(source.c)
        rows = sa.select(sa.cast(position, sa.Text)).select_from(source).where(which(source.c)).order_by(position)
        return BoundStatement(rows.offset(number(PER_CYCLE - 1)).limit(number(1)), Binds())


class Thresholds:
    """The thresholds of one table, read again after a while. Reading them takes a look at every failed row."""

    def __init__(self, database: Database, order: LoopOrder) -> None:
        self._database = database
        self._statements = order.thresholds()
        self._unknown = {name: order.lowest if name.endswith("_skipped") else None for name in self._statements}
        self._kept: tuple[float, Mapping[str, str | None]] = (0.0, {})

    def values(self, now: datetime) -> Mapping[str, str | None]:
        until, values = self._kept
        began = monotonic()
        if began < until:
            return values
        try:
            values = self._read(now)
        except DeadlineExceeded:
            charge(monotonic() - began)  # a statement that was given up reports nothing
            values = self._unknown  # every row may starve
        took = monotonic() - began
        self._kept = began + max(_KEPT_FOR, took * _REST), values
        return values

    def _read(self, now: datetime) -> Mapping[str, str | None]:
        values: dict[str, str | None] = dict.fromkeys(self._statements)
        above: str | None = ""
        for name, statement in self._statements.items():
            # Fewer than ten rows that may be skipped have no tenth that always is.
            needed = above is not None or not name.endswith("_blocking")
            rows = self._database.read(statement, now) if needed else []
            values[name] = above = rows[0][0] if rows else None
        return values

    def forget(self) -> None:
        self._kept = (0.0, {})


def number(n: int) -> Expression:
    return sa.literal_column(str(n))


def literal_text(text: str) -> Expression:
    return sa.literal_column(f"'{text}'")


def texts(*texts: str) -> list[Expression]:
    return list(map(literal_text, texts))
