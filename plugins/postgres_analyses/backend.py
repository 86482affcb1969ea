"""The contract over an attached table of analyses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from console.core.backend import Authority, Change, Draft, Finding, Image, Order, Outcome
from console.core.changes import Changes
from console.core.faults import NoSuchItem
from console.core.item import Attempt, Detail, ItemKey
from console.core.policy import FixedDelays, PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import Filter, Sort, SortField
from console.core.text import DETAIL_LIMIT
from console.sql.ahead import ahead
from console.sql.backend import SqlBackend, require_columns
from console.sql.guarded import SqliteGuard
from console.sql.layout import Layout
from console.sql.opening import open_database
from console.sql.sqlite import SqliteDatabase
from console.sql.statement import Binds, Prepared
from console.sql.times import IsoText, Naive, zone_named
from console.sql.values import text
from plugins.postgres_analyses import schema
from plugins.postgres_analyses.requeue import Requeue, abilities
from plugins.postgres_analyses.rows import AnalysisRows

if TYPE_CHECKING:
    from console.sql.guarded_postgres import PostgresGuard
    from console.sql.postgres import PostgresDatabase

POLICY = RetryPolicy(
    max_attempts=4,
    backoff=FixedDelays(tuple(timedelta(seconds=s) for s in (60, 300, 900, 1800))),
    stuck_after=timedelta(minutes=10),
    recoverable=(
        "timeout", "connection", "unavailable", "rate limit", "too many requests", "service temporarily",
        "network error",
    ),
    unrecoverable=(
        "invalid json", "missing required field", "unauthorized", "invalid api key", "malformed", "invalid format",
    ),
    retries_failed=True,
)
"""The loop's own numbers: a first execution and three retries, so that the fourth delay is out of reach."""

_NAME = r"^[A-Za-z_][A-Za-z0-9_$]*$"
_TABLE = r"^([A-Za-z_][A-Za-z0-9_$]*\.)?[A-Za-z_][A-Za-z0-9_$]*$"


class Options(BaseModel):
    """The config keys of this plugin, beside `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str
    table: str = Field("selfology.answer_analysis", pattern=_TABLE)
    """`schema.table`; in an SQLite file the schema is left out."""
    pipelines: tuple[str, ...] = Field(schema.PIPELINES, min_length=1)
    """`<pipeline>_status`, `<pipeline>_error` and `<pipeline>_completed_at` are its columns."""
    time_zone: str | None = None
    """What TIMESTAMP columns are written in; the server's own zone when it is not said, UTC in SQLite."""
    handler: str | None = None
    """`package.module:function`, called with the pipeline and the analysis by `retriage run`."""


@dataclass(frozen=True, slots=True)
class Known:
    """What only the attached table can tell, and what follows from it."""

    time: Naive | IsoText
    rows: AnalysisRows
    requeue: Requeue
    guard: SqliteGuard | PostgresGuard


class PostgresAnalyses(SqlBackend):
    """Analyses that belong to someone else."""

    options = Options
    sorts = frozenset(SortField) - {SortField.ID}
    """Its own order is by id; as a number, which no other backend's ids could be merged with."""

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> PostgresAnalyses:
        text_time = IsoText(zone_named(options.time_zone)) if options.time_zone else IsoText()
        functions: dict[str, Callable[..., Any]] = {**text_time.functions, schema.LATER: schema.later_of(text_time)}
        database = open_database(options.url, read_only=read_only, deadline=deadline, functions=functions)
        return cls(name, options, policy.over(POLICY), database, text_time)

    def __init__(
        self, name: str, options: Options, policy: RetryPolicy, database: SqliteDatabase | PostgresDatabase,
        text_time: IsoText,
    ) -> None:
        self.is_sqlite = isinstance(database, SqliteDatabase)
        self.table = options.table.rpartition(".")[2] if self.is_sqlite else options.table
        place = f"{database.place} ({self.table})"
        super().__init__(name, "postgres_analyses", place, database, replace(policy, max_age=None))
        self.has_max_age = policy.max_age is not None
        self.database = database
        self.handler = options.handler
        self.pipelines = options.pipelines
        self.abilities = abilities(options.pipelines)
        self._options = options
        self._text_time = text_time
        self._known: Known | None = None

    # -- attaching -------------------------------------------------------------------------------

    def _layout(self) -> Layout:
        layout, self._known = self._look()
        return layout

    def _look(self) -> tuple[Layout, Known]:
        """Columns, zone and indexes are the server's to tell, so they are asked for at the first read."""
        require_columns(self.database, self.table, schema.columns(self.pipelines))
        time = self._time()
        rows = AnalysisRows(self.name, self.policy, time, self.pipelines)
        requeue = Requeue(self.name, self.table, self.pipelines, self.policy, time, rows, sqlite=self.is_sqlite)
        layout = schema.layout(self.name, self.database.dialect, self.layout_place(), self.policy, time, rows)
        return layout, Known(time, rows, requeue, self._guarded(requeue))

    @property
    def known(self) -> Known:
        """What is known of the table, which is looked at first if it was not yet."""
        if self._known is None:
            self._reader  # noqa: B018  attaches
        assert self._known is not None
        return self._known

    def layout_place(self) -> schema.Place:
        indexed = all(self.database.has_index(self.table, (f"{p}_status", "id")) for p in self.pipelines)
        return schema.Place(self.table, self.is_sqlite, self.pipelines, indexed)

    def _time(self) -> Naive | IsoText:
        if isinstance(self.database, SqliteDatabase):
            return self._text_time
        return Naive(zone_named(self._options.time_zone) if self._options.time_zone else self.database.zone())

    def _guarded(self, requeue: Requeue) -> SqliteGuard | PostgresGuard:
        if isinstance(self.database, SqliteDatabase):
            return SqliteGuard(self.database, requeue.target)
        from console.sql.guarded_postgres import PostgresGuard

        return PostgresGuard(self.database, requeue.target)

    # -- check -----------------------------------------------------------------------------------

    def check(self, clock: Clock) -> Sequence[Finding]:
        from plugins.postgres_analyses.checks import findings

        self._look()
        return findings(self, clock)

    # -- requeue ---------------------------------------------------------------------------------

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        reader = self._reader
        if isinstance(wanted, Filter):
            batches: Any = reader.walk(wanted, sort, None, now, stop)
            batches = batches if self.is_sqlite else ahead(batches)
        else:
            batches = [list(reader.rows(wanted, now))]
        neighbours = isinstance(wanted, Filter) and sort.field is None
        return self.known.requeue.drafts(batches, order, now, neighbours=neighbours)

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:  # noqa: ARG002  the loop decides when
        return self.known.requeue.after(change, order)

    def afters(self, changes: Changes, order: Order, at: datetime, dues: Sequence[datetime]) -> Sequence[Image]:  # noqa: ARG002
        return self.known.requeue.afters(changes, order)

    def swap(self, changes: Sequence[Change], order: Order, authority: Authority) -> Sequence[Outcome]:  # noqa: ARG002
        return self.known.guard.swap(changes)

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        found = self.known.guard.images([change.keys[0] for change in changes])
        return [
            None if (image := found.get(change.keys[0])) is None else (*image, change.before[-1]) for change in changes
        ]

    # -- one item --------------------------------------------------------------------------------

    def item(self, key: ItemKey, now: datetime) -> Detail:
        rows = list(self._reader.rows([key], now))
        if not rows:
            raise NoSuchItem(str(key))
        item, seen = self.known.rows.read(rows[0], now), self.known.rows.native(rows[0])
        stored = self._native(key, now)
        error = dict(stored).get(f"{seen.pipeline}_error")
        history: tuple[Attempt, ...] = ()
        if item.attempts and item.executed_at is not None:
            history = (Attempt(item.attempts, item.executed_at, item.native_status, error),)
        others = [
            (pipeline, text(status))
            for pipeline, status in zip(self.pipelines, seen.statuses, strict=True)
            if pipeline != seen.pipeline
        ]
        schedule = tuple(schedule_ahead(self.known.rows.facts(seen), self.policy, item.verdict, now))
        return Detail(item, error or item.error, history, schedule, stored, tuple(others))

    def _native(self, key: ItemKey, now: datetime) -> tuple[tuple[str, str | None], ...]:
        """Every column as text, each cut to what a detail view shows."""
        binds, names = Binds(), list(self.database.columns(self.table))
        schema_name, _, table = self.table.rpartition(".")
        source = sa.table(table, *map(sa.column, names), schema=schema_name or None)
        limit: Any = sa.literal_column(str(DETAIL_LIMIT))
        cut = [
            sa.func.substr(sa.cast(source.c[name], sa.Text), sa.literal_column("1"), limit).label(f"n{n}")
            for n, name in enumerate(names)
        ]
        select = sa.select(*cut).where(source.c.id == binds.value(int(key.parts[0])))
        rows = self.database.read(Prepared(select, binds, self.database.dialect), now)
        values = rows[0] if rows else (None,) * len(names)
        return tuple((name, None if v is None else text(v)) for name, v in zip(names, values, strict=True))

    # -- the system's own loop -------------------------------------------------------------------

    def run(
        self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]
    ) -> int:
        from plugins.postgres_analyses.engine import RetryLoop

        handlers = dict.fromkeys(self.pipelines, handler)
        loop = RetryLoop(self.database, self.layout_place(), self.policy, self.known.time, clock, handlers, log)
        return loop.run(stop)
