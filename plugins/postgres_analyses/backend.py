"""The plugin contract for a table of analyses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from console.core.backend import Abilities, Authority, Change, Draft, Finding, Image, Operation, Outcome
from console.core.capabilities import FoundQueue
from console.core.faults import NoSuchItem
from console.core.item import Attempt, Detail, ItemKey
from console.core.policy import FixedDelays, PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import COLUMN_SORTS, Filter, Sort, SortField
from console.sql.backend import InspectingBackend, found_if_it_fits
from console.sql.checks import require_columns
from console.sql.database import Binds, BoundStatement, ParameterizedDatabase, read_ahead
from console.sql.guarded import SqliteGuard
from console.sql.layout import Layout
from console.sql.open_database import open_database
from console.sql.sqlite import SqliteDatabase
from console.sql.times import IsoText, Naive, zone_named
from console.sql.values import native_columns, native_values, text
from console.sql.where import Where
from plugins.postgres_analyses import schema
from plugins.postgres_analyses.loop_order import PIPELINES, AnalysisTable, LoopOrder, Thresholds, columns
from plugins.postgres_analyses.requeue import AnalysisPlanner, abilities
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
"""The loop's own numbers. It makes one first attempt and three retries, so it never uses the fourth delay."""

_NAME = r"^[A-Za-z_][A-Za-z0-9_$]*$"
_TABLE = r"^([A-Za-z_][A-Za-z0-9_$]*\.)?[A-Za-z_][A-Za-z0-9_$]*$"


class Options(BaseModel):
    """The config keys of this plugin, in addition to `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str
    table: str = Field("selfology.answer_analysis", pattern=_TABLE)
    """`schema.table`. An SQLite file has no schema."""
    pipelines: tuple[str, ...] = Field(PIPELINES, min_length=1)
    """The names of the pipelines. Each has the columns `<name>_status`, `<name>_error` and `<name>_completed_at`."""
    answers: str = Field("user_answers_new", pattern=_NAME)
    """The table of answers in the same schema. Where it exists, the loop does not see analyses without an answer."""
    time_zone: str | None = None
    """The time zone of TIMESTAMP columns; by default the server's, in SQLite UTC."""
    handler: str | None = None
    """`package.module:function`. `retriage run` calls it with the pipeline and the analysis."""


@dataclass(frozen=True, slots=True)
class AttachedTable:
    """Everything that depends on the attached table."""

    time: Naive | IsoText
    rows: AnalysisRows
    planner: AnalysisPlanner
    guard: SqliteGuard | PostgresGuard
    thresholds: Thresholds


class PostgresAnalyses(InspectingBackend[AttachedTable]):
    """Analyses, one item for each pipeline of a row."""

    options = Options
    schemes = ("postgresql", "postgres")
    sorts = COLUMN_SORTS - {SortField.ID}
    """Not by id: ids are numbers here and cannot be merged with the ids of other backends."""

    @classmethod
    def discover(cls, url: str, *, deadline: timedelta) -> Sequence[FoundQueue]:
        queue = FoundQueue("analyses", "analyses, table selfology.answer_analysis", {"url": url})
        return found_if_it_fits(cls, queue, deadline)

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> PostgresAnalyses:
        text_time = IsoText(zone_named(options.time_zone)) if options.time_zone else IsoText()
        functions: dict[str, Callable[..., Any]] = {
            **text_time.functions, schema.ADD_SECONDS: schema.add_seconds_function(text_time)
        }
        database = open_database(options.url, read_only=read_only, deadline=deadline, functions=functions)
        return cls(name, options, policy.over(POLICY), database, text_time)

    @classmethod
    def systems(cls) -> dict[str, Abilities]:
        return {"analyses in PostgreSQL or SQLite": abilities(Options.model_fields["pipelines"].default)}

    def __init__(
        self, name: str, options: Options, policy: RetryPolicy, database: SqliteDatabase | PostgresDatabase,
        text_time: IsoText,
    ) -> None:
        self.is_sqlite = isinstance(database, SqliteDatabase)
        self.table = options.table.rpartition(".")[2] if self.is_sqlite else options.table
        place = f"{database.place} ({self.table})"
        given = ParameterizedDatabase(database, lambda now: self.attached.thresholds.values(now))
        super().__init__(name, "postgres_analyses", place, given, replace(policy, max_age=None))
        self.has_max_age = policy.max_age is not None
        self.database = database
        self.handler = options.handler
        self.pipelines = options.pipelines
        self.abilities = abilities(options.pipelines)
        self._options = options
        self._text_time = text_time

    # -- attaching -------------------------------------------------------------------------------

    def _inspect(self) -> tuple[Layout, AttachedTable]:
        """Read columns, time zone and indexes from the server."""
        require_columns(self.database, self.table, columns(self.pipelines))
        time = self._time()
        rows = AnalysisRows(self.name, self.policy, time, self.pipelines)
        planner = AnalysisPlanner(self.name, self.table, self.pipelines, self.policy, rows, sqlite=self.is_sqlite)
        table, where = self.analysis_table(), Where(self.name, self.database.dialect, time, self.policy)
        layout = schema.layout(table, self.policy, time, rows, where)
        thresholds = Thresholds(self.database, LoopOrder(table, self.policy, time, where))
        return layout, AttachedTable(time, rows, planner, self.database.guard(planner.target), thresholds)

    def analysis_table(self) -> AnalysisTable:
        indexed = all(self.database.has_index(self.table, (f"{p}_status", "id")) for p in self.pipelines)
        joined = self.table.removesuffix(self.table.rpartition(".")[2]) + self._options.answers
        return AnalysisTable(
            self.table, self.is_sqlite, self.pipelines, indexed, bool(self.database.columns(joined))
        )

    def _time(self) -> Naive | IsoText:
        if isinstance(self.database, SqliteDatabase):
            return self._text_time
        return Naive(zone_named(self._options.time_zone) if self._options.time_zone else self.database.zone())

    # -- check -----------------------------------------------------------------------------------

    def check(self, clock: Clock) -> Sequence[Finding]:
        from plugins.postgres_analyses.checks import findings

        self._inspect()
        return findings(self, clock)

    # -- requeue ---------------------------------------------------------------------------------

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        self.attached.thresholds.forget()
        batches = self._batches(wanted, sort, None, now, stop)
        if isinstance(wanted, Filter) and not self.is_sqlite:
            batches = read_ahead(batches)
        neighbours = isinstance(wanted, Filter) and sort.field is None
        return self.attached.planner.drafts(batches, operation, now, neighbours=neighbours)

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:  # noqa: ARG002  its loop decides when it runs
        return self.attached.planner.after(change, operation)

    def compare_and_set(
        self, changes: Sequence[Change], operation: Operation, authority: Authority  # noqa: ARG002
    ) -> Sequence[Outcome]:
        self.attached.thresholds.forget()
        return self.attached.guard.compare_and_set(changes)

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        found = self.attached.guard.images([change.keys[0] for change in changes])
        return [
            None if (image := found.get(change.keys[0])) is None else (*image, change.before[-1]) for change in changes
        ]

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:
        """The status of the item's own pipeline, and what all pipelines of the row share."""
        *guarded, _forced = image
        own, named = f"{key.parts[1]}_status", zip(self.abilities.guard, guarded, strict=True)
        return {name: value for name, value in named if name == own or not name.endswith("_status")}

    # -- one item --------------------------------------------------------------------------------

    def item(self, key: ItemKey, now: datetime) -> Detail:
        rows = list(self._reader.rows([key], now))
        if not rows:
            raise NoSuchItem(str(key))
        item, row = self.attached.rows.read(rows[0], now), self.attached.rows.pipeline_row(rows[0])
        stored = self._native(key, now)
        error = dict(stored).get(f"{row.pipeline}_error")
        history: tuple[Attempt, ...] = ()
        if item.attempts and item.executed_at is not None:
            history = (Attempt(item.attempts, item.executed_at, item.native_status, error),)
        others = [
            (pipeline, text(status))
            for pipeline, status in zip(self.pipelines, row.statuses, strict=True)
            if pipeline != row.pipeline
        ]
        schedule = tuple(schedule_ahead(self.attached.rows.facts(row), self.policy, item.verdict, now))
        return Detail(item, error or item.error, history, schedule, stored, tuple(others))

    def _native(self, key: ItemKey, now: datetime) -> tuple[tuple[str, str | None], ...]:
        """Every column as text, cut to the length that the detail view shows."""
        binds, names = Binds(), list(self.database.columns(self.table))
        schema_name, _, table = self.table.rpartition(".")
        source = sa.table(table, *map(sa.column, names), schema=schema_name or None)
        select = sa.select(*native_columns(source.c)).where(source.c.id == binds.value(int(key.parts[0])))
        rows = self.database.read(BoundStatement(select, binds), now)
        return native_values(names, rows[0] if rows else (None,) * len(names))

    # -- the retry loop --------------------------------------------------------------------------

    def run(
        self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]
    ) -> int:
        from plugins.postgres_analyses.engine import RetryLoop

        handlers = dict.fromkeys(self.pipelines, handler)
        loop = RetryLoop(self.database, self.analysis_table(), self.policy, self.attached.time, clock, handlers, log)
        return loop.run(stop)
