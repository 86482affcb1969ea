"""The plugin contract for workflow steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from console.core.backend import Abilities, Action, Authority, Change, Draft, Finding, Image, Operation, Outcome
from console.core.capabilities import FoundQueue
from console.core.faults import NoSuchItem, WrongSchema
from console.core.item import Attempt, Detail, ItemKey
from console.core.policy import Exponential, PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import Filter, Sort
from console.sql.backend import InspectingBackend, found_if_it_fits
from console.sql.checks import require_columns
from console.sql.database import Binds, BoundStatement
from console.sql.layout import Layout
from console.sql.open_database import open_database
from console.sql.sqlite import SqliteDatabase
from console.sql.times import IsoText, Naive, zone_named
from console.sql.values import first_characters, native_columns, native_values, text
from console.sql.where import Where
from plugins.workflow_steps import expressions, schema
from plugins.workflow_steps.image import UnitImage
from plugins.workflow_steps.prediction import INCLUDE_FAILED
from plugins.workflow_steps.requeue import ABILITIES, SWITCHES, StepPlanner, Unit
from plugins.workflow_steps.rows import StepRow, StepRows, step_row
from plugins.workflow_steps.tasks import PREFILTER, Tasks
from plugins.workflow_steps.writing import StepGuard

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

POLICY = RetryPolicy(
    max_attempts=3, backoff=Exponential(timedelta(seconds=2), multiplier=2, cap=timedelta(seconds=60))
)
"""The policy of steps without own limits. The system does not retry a step in error by itself."""

_TASKS_AT_ONCE = 200


class Options(BaseModel):
    """The config keys of this plugin, in addition to `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str
    schema_: str = Field("tasker", alias="schema", pattern=r"^[A-Za-z_][A-Za-z0-9_$]*$")
    """The schema of the tables. An SQLite file has none."""
    time_zone: str = "UTC"
    """The time zone of TIMESTAMP columns."""
    batch_size: int = Field(5, ge=1)
    """How many tasks the orchestrator takes at once."""
    handler: str | None = None
    """`package.module:function`. `retriage run` calls it with the step's name and its inputs."""


@dataclass(frozen=True, slots=True)
class AttachedTables:
    """Everything that depends on the attached tables."""

    steps: expressions.StepExpressions
    rows: StepRows
    planner: StepPlanner
    guard: StepGuard
    tasks: Tasks


class WorkflowSteps(InspectingBackend[AttachedTables]):
    """The steps of workflows."""

    options = Options
    schemes = ("postgresql", "postgres")
    abilities = ABILITIES
    offered_switches = SWITCHES

    @classmethod
    def discover(cls, url: str, *, deadline: timedelta) -> Sequence[FoundQueue]:
        queue = FoundQueue("steps", "workflow steps, schema tasker", {"url": url})
        return found_if_it_fits(cls, queue, deadline)

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> WorkflowSteps:
        text_time = IsoText(zone_named(options.time_zone))
        functions: dict[str, Callable[..., Any]] = {
            **text_time.functions, expressions.ADD_SECONDS: expressions.add_seconds_function(text_time)
        }
        database = open_database(options.url, read_only=read_only, deadline=deadline, functions=functions)
        time = text_time if isinstance(database, SqliteDatabase) else Naive(zone_named(options.time_zone))
        return cls(name, options, policy.over(POLICY), database, time)

    @classmethod
    def systems(cls) -> dict[str, Abilities]:
        return {"workflow steps in PostgreSQL or SQLite": ABILITIES}

    def __init__(
        self, name: str, options: Options, policy: RetryPolicy, database: SqliteDatabase | PostgresDatabase,
        time: Naive | IsoText,
    ) -> None:
        self.tables = schema.StepTables(options.schema_, isinstance(database, SqliteDatabase))
        place = f"{database.place} ({self.tables.name('workflow_steps')})"
        super().__init__(name, "workflow_steps", place, database, replace(policy, max_age=None))
        self.has_max_age = policy.max_age is not None
        self.database = database
        self.handler = options.handler
        self.batch_size = options.batch_size
        self.time = time

    # -- attaching -------------------------------------------------------------------------------

    def _require_tables(self) -> None:
        for table, columns in schema.TABLES.items():
            require_columns(self.database, self.tables.name(table), columns)
            self._require_plain_times(self.tables.name(table))

    def _inspect(self) -> tuple[Layout, AttachedTables]:
        self._require_tables()
        tables = self.tables = replace(self.tables, has_dead_letters=self.has_dead_letters)
        where = Where(self.name, self.database.dialect, self.time, self.policy)
        steps = expressions.StepExpressions(tables, self.policy, self.time, where)
        rows = StepRows(self.name, self.policy, self.time, has_detector=tables.has_dead_letters)
        planner = StepPlanner(self.name, self.time, rows)
        guard, waiting = StepGuard(self.database, tables), Tasks(self.database, tables, self.time)
        return expressions.layout(steps, rows, self.time), AttachedTables(steps, rows, planner, guard, waiting)

    @property
    def has_dead_letters(self) -> bool:
        return bool(self.database.columns(self.tables.name(schema.DEAD_LETTERS)))

    def _require_plain_times(self, table: str) -> None:
        """Refuse TIMESTAMP WITH TIME ZONE: times written without a zone would be read in the session's zone."""
        for column, kind in self.database.columns(table).items():
            if kind == "timestamp with time zone":
                raise WrongSchema(
                    f"column {column} of {table!r} is a {kind}", where=self.database.place,
                    fix="The system itself creates TIMESTAMP columns. Attach tables with these columns.",
                )

    def check(self, clock: Clock) -> Sequence[Finding]:
        from plugins.workflow_steps.checks import findings

        self._require_tables()
        return findings(self, clock)

    # -- requeue ---------------------------------------------------------------------------------

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        least = self.attached.tasks.least_priority(now, self.batch_size * PREFILTER)
        selected: dict[str, list[StepRow]] = {}
        for batch in self._batches(wanted, sort, self._reader.layout.segments[0].roles.row, now, stop):
            for step in map(step_row, batch):
                selected.setdefault(text(step.task), []).append(step)
        tasks = list(selected)
        for start in range(0, len(tasks), _TASKS_AT_ONCE):
            some = {task: selected[task] for task in tasks[start : start + _TASKS_AT_ONCE]}
            yield list(self._drafts(some, least, operation, now))

    def _drafts(
        self, selected: Mapping[str, list[StepRow]], least: float | None, operation: Operation, now: datetime
    ) -> Iterator[Draft]:
        planner, guard = self.attached.planner, self.attached.guard
        units = self._units(selected, operation, now)
        decided = [planner.decide(unit, operation, now, least) for unit in units]
        images = guard.steps(text(step.uuid) for unit in units for step in unit.steps)
        tasks = guard.tasks(selected)
        for unit, decisions in zip(units, decided, strict=True):
            yield from planner.drafts(unit, decisions, images, tasks, now)

    def _units(self, selected: Mapping[str, list[StepRow]], operation: Operation, now: datetime) -> list[Unit]:
        """The selected steps by their task, with the other failed steps of the task if the operation includes them."""
        failed = self.attached.guard.failed(selected)
        added: dict[str, list[StepRow]] = {}
        if INCLUDE_FAILED in operation.flags and operation.action == Action.REQUEUE:
            known = {text(step.uuid) for steps in selected.values() for step in steps}
            keys = [ItemKey(self.name, (id,)) for ids in failed.values() for id in ids if id not in known]
            for step in map(step_row, self._reader.rows(keys, now)):
                added.setdefault(text(step.task), []).append(step)
        ids = {text(step.uuid) for steps in added.values() for step in steps}
        return [
            Unit((*steps, *added.get(task, ())), ids, failed.get(task, ())) for task, steps in selected.items()
        ]

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:  # noqa: ARG002  its orchestrator decides when it runs
        return self.attached.planner.after(change, operation, at)

    def compare_and_set(
        self, changes: Sequence[Change], operation: Operation, authority: Authority
    ) -> Sequence[Outcome]:
        return self.attached.guard.compare_and_set(changes, operation, authority)

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        return self.attached.guard.images(changes)

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:
        return UnitImage.parse(image).columns_of("/".join(key.parts))

    # -- one item --------------------------------------------------------------------------------

    def item(self, key: ItemKey, now: datetime) -> Detail:
        rows = self.attached.rows
        found = list(self._reader.rows([key], now))
        if not found:
            raise NoSuchItem(str(key))
        item, step = rows.read(found[0], now), step_row(found[0])
        extra = [("task", text(step.task)), ("task state", text(step.task_state) or "none")]
        if step.waits_for:
            extra.append(("waits for", text(step.waits_for)))
        if step.dead_letter is not None:
            extra.append(("dead letter queue", text(step.dead_letter)))
        schedule = tuple(schedule_ahead(rows.facts(step), self.policy, item.verdict, now))
        full = self._full_error(key, now)
        return Detail(item, full or item.error, self._history(key, now), schedule, self._native(key, now), tuple(extra))

    def _one(self, key: ItemKey, now: datetime, *columns: Any) -> tuple[Any, ...]:
        rows = list(self._reader.rows([key], now, columns))
        return rows[0] if rows else (None,) * len(columns)

    def _full_error(self, key: ItemKey, now: datetime) -> str | None:
        (found,) = self._one(key, now, first_characters(self.attached.steps.error))
        return None if found is None else text(found)

    def _native(self, key: ItemKey, now: datetime) -> tuple[tuple[str, str | None], ...]:
        """Every column of the step as text, cut to the length that the detail view shows."""
        step = self.attached.steps.step.c
        values = self._one(key, now, *native_columns(step[name] for name in schema.STEPS))
        return native_values(schema.STEPS, values)

    def _history(self, key: ItemKey, now: datetime) -> tuple[Attempt, ...]:
        """All transitions of the step, the latest last. Each start of an execution increases the attempt number."""
        binds, moves = Binds(), self.tables.alias("workflow_step_transitions", "h")
        select = (
            sa.select(moves.c.from_state, moves.c.to_state, moves.c.created_at, sa.cast(moves.c.metadata, sa.Text))
            .where(moves.c.workflow_step_uuid == binds.value(key.parts[0]))
            .order_by(moves.c.sort_key)
            .limit(sa.literal_column("200"))
        )
        history, number = [], 0
        for was, then, at, metadata in self.database.read(BoundStatement(select, binds), now):
            number += then == "in_progress"
            error = text(metadata) if then == "error" and metadata else None
            outcome = f"{text(was)} → {text(then)}" if was else text(then)
            history.append(Attempt(number or None, self.time.decode(at), outcome, error))
        return tuple(history)

    # -- the orchestrator ------------------------------------------------------------------------

    def run(
        self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]
    ) -> int:
        from plugins.workflow_steps.engine import Orchestrator

        return Orchestrator(self, handler, clock, log).run(stop)
