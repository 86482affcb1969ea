"""The contract over attached workflow steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from console.core.backend import Authority, Change, Draft, Finding, Image, Order, Outcome
from console.core.faults import NoSuchItem, WrongSchema
from console.core.item import Attempt, Detail, ItemKey
from console.core.policy import Exponential, PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import Filter, Sort
from console.core.text import DETAIL_LIMIT
from console.sql.backend import SqlBackend, require_columns
from console.sql.layout import Layout
from console.sql.opening import open_database
from console.sql.sqlite import SqliteDatabase
from console.sql.statement import Binds, Prepared
from console.sql.times import IsoText, Naive, zone_named
from console.sql.values import text
from console.sql.where import Where
from plugins.workflow_steps import schema
from plugins.workflow_steps.requeue import ABILITIES, Requeue
from plugins.workflow_steps.rows import StepRows, native
from plugins.workflow_steps.writing import StepGuard

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

POLICY = RetryPolicy(
    max_attempts=3, backoff=Exponential(timedelta(seconds=2), multiplier=2, cap=timedelta(seconds=60))
)
"""What a step without numbers of its own gets. Nothing retries a step in error by itself."""

class Options(BaseModel):
    """The config keys of this plugin, beside `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str
    schema_: str = Field("tasker", alias="schema", pattern=r"^[A-Za-z_][A-Za-z0-9_$]*$")
    """Where the tables are; left out in an SQLite file."""
    time_zone: str = "UTC"
    """What TIMESTAMP columns are written in."""
    handler: str | None = None
    """`package.module:function`, called with the step's name and its inputs by `retriage run`."""


@dataclass(frozen=True, slots=True)
class Known:
    """What only the attached tables can tell, and what follows from it."""

    steps: schema.Steps
    rows: StepRows
    requeue: Requeue
    guard: StepGuard


class WorkflowSteps(SqlBackend):
    """Steps of workflows that belong to someone else."""

    options = Options
    abilities = ABILITIES

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> WorkflowSteps:
        text_time = IsoText(zone_named(options.time_zone))
        functions: dict[str, Callable[..., Any]] = {**text_time.functions, schema.LATER: schema.later_of(text_time)}
        database = open_database(options.url, read_only=read_only, deadline=deadline, functions=functions)
        time = text_time if isinstance(database, SqliteDatabase) else Naive(zone_named(options.time_zone))
        return cls(name, options, policy.over(POLICY), database, time)

    def __init__(
        self, name: str, options: Options, policy: RetryPolicy, database: SqliteDatabase | PostgresDatabase,
        time: Naive | IsoText,
    ) -> None:
        self.layout_place = schema.Place(options.schema_, isinstance(database, SqliteDatabase))
        place = f"{database.place} ({self.layout_place.name('workflow_steps')})"
        super().__init__(name, "workflow_steps", place, database, replace(policy, max_age=None))
        self.has_max_age = policy.max_age is not None
        self.database = database
        self.handler = options.handler
        self.time = time
        self._known: Known | None = None

    # -- attaching -------------------------------------------------------------------------------

    def _require_tables(self) -> None:
        for table, columns in schema.TABLES.items():
            require_columns(self.database, self.layout_place.name(table), columns)
            self._require_plain_times(self.layout_place.name(table))

    def _layout(self) -> Layout:
        self._require_tables()
        place = self.layout_place
        where = Where(self.name, self.database.dialect, self.time, self.policy)
        steps = schema.Steps(place, self.policy, self.time, where)
        rows = StepRows(self.name, self.policy, self.time)
        requeue = Requeue(self.name, self.policy, self.time, rows)
        self._known = Known(steps, rows, requeue, StepGuard(self.database, place))
        return schema.layout(steps, rows, self.time)

    def _require_plain_times(self, table: str) -> None:
        """A time written without a zone into a column with one would be read in the session's: an hour or two off."""
        for column, kind in self.database.columns(table).items():
            if kind == "timestamp with time zone":
                raise WrongSchema(
                    f"column {column} of {table!r} is a {kind}", where=self.database.place,
                    fix="These tables have TIMESTAMP columns; attach them as their own system creates them.",
                )

    @property
    def known(self) -> Known:
        """What is known of the tables, which are looked at first if they were not yet."""
        if self._known is None:
            self._reader  # noqa: B018  attaches
        assert self._known is not None
        return self._known

    def check(self, clock: Clock) -> Sequence[Finding]:
        from plugins.workflow_steps.checks import findings

        self._require_tables()
        return findings(self, clock)

    # -- requeue ---------------------------------------------------------------------------------

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        known = self.known
        columns = (*self._reader.layout.segments[0].roles.row, *known.steps.outlook())
        if isinstance(wanted, Filter):
            batches: Any = self._reader.walk(wanted, sort, columns, now, stop)
        else:
            batches = [list(self._reader.rows(wanted, now, columns))]
        for units in known.requeue.units(batches, order):
            images = known.guard.steps(text(one.step.uuid) for unit in units for one in unit)
            tasks = known.guard.tasks(one.task for unit in units for one in unit)
            yield [draft for unit in units for draft in known.requeue.drafts(unit, images, tasks, order, now)]

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:  # noqa: ARG002  the orchestrator decides when
        return self.known.requeue.after(change, order, at)

    def swap(self, changes: Sequence[Change], order: Order, authority: Authority) -> Sequence[Outcome]:
        return self.known.guard.swap(changes, order, authority)

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        return self.known.guard.images(changes)

    # -- one item --------------------------------------------------------------------------------

    def item(self, key: ItemKey, now: datetime) -> Detail:
        known = self.known
        rows = list(self._reader.rows([key], now, (*self._roles_row(), *known.steps.outlook())))
        if not rows:
            raise NoSuchItem(str(key))
        item = known.rows.read(rows[0], now)
        one = known.requeue.planned(rows[0])
        stored = self._native(key, now)
        extra = [("task", one.task), ("task state", one.task_state)]
        if one.waits_for:
            extra.append(("would wait for", text(one.waits_for)))
        schedule = tuple(schedule_ahead(known.rows.facts(native(rows[0])), self.policy, item.verdict, now))
        full = self._full_error(key, now)
        return Detail(item, full or item.error, self._history(key, now), schedule, stored, tuple(extra))

    def _roles_row(self) -> tuple[Any, ...]:
        return self._reader.layout.segments[0].roles.row

    def _one(self, key: ItemKey, now: datetime, *columns: Any) -> tuple[Any, ...]:
        rows = list(self._reader.rows([key], now, columns))
        return rows[0] if rows else (None,) * len(columns)

    def _full_error(self, key: ItemKey, now: datetime) -> str | None:
        limit: Any = sa.literal_column(str(DETAIL_LIMIT))
        error = sa.func.substr(self.known.steps.error, sa.literal_column("1"), limit)
        (found,) = self._one(key, now, error)
        return None if found is None else text(found)

    def _native(self, key: ItemKey, now: datetime) -> tuple[tuple[str, str | None], ...]:
        """Every column of the step as text, each cut to what a detail view shows."""
        limit: Any = sa.literal_column(str(DETAIL_LIMIT))
        step = self.known.steps.step.c
        cut = [
            sa.func.substr(sa.cast(step[name], sa.Text), sa.literal_column("1"), limit).label(f"n{n}")
            for n, name in enumerate(schema.STEPS)
        ]
        values = self._one(key, now, *cut)
        return tuple((name, None if v is None else text(v)) for name, v in zip(schema.STEPS, values, strict=True))

    def _history(self, key: ItemKey, now: datetime) -> tuple[Attempt, ...]:
        """Every transition the system keeps, the latest last; a number is given to what began an execution."""
        binds, moves = Binds(), self.layout_place.table("workflow_step_transitions", "h")
        select = (
            sa.select(moves.c.from_state, moves.c.to_state, moves.c.created_at, sa.cast(moves.c.metadata, sa.Text))
            .where(moves.c.workflow_step_uuid == binds.value(key.parts[0]))
            .order_by(moves.c.sort_key)
            .limit(sa.literal_column("200"))
        )
        history, number = [], 0
        for was, then, at, told in self.database.read(Prepared(select, binds, self.database.dialect), now):
            number += then == "in_progress"
            error = text(told) if then == "error" and told else None
            outcome = f"{text(was)} → {text(then)}" if was else text(then)
            history.append(Attempt(number or None, self.time.decode(at), outcome, error))
        return tuple(history)

    # -- the system's own loop -------------------------------------------------------------------

    def run(
        self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]
    ) -> int:
        from plugins.workflow_steps.engine import Orchestrator

        return Orchestrator(self, handler, clock, log).run(stop)
