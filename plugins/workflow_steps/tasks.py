"""The tasks that an orchestrator looks at: in which order it takes them, and which ones its detector gives up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from console.core.policy import later
from console.sql.database import Binds, BoundStatement
from console.sql.times import IsoText, Naive
from console.sql.values import text
from plugins.workflow_steps.prediction import POLLED_STATES, TASK_LIFETIME, TaskState
from plugins.workflow_steps.schema import DEAD_LETTERS, StepTables, texts

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase
    from console.sql.sqlite import SqliteDatabase

PREFILTER = 10
"""The orchestrator looks for ready steps in this many times its batch size of tasks."""
STEPS_LIMIT = timedelta(minutes=30)
"""How long the detector lets a task be in steps_in_process."""
_HOUR = timedelta(hours=1)
_DECAYS_AFTER = _HOUR
_HALF_LIFE = 12.0
_LOWEST = 0.1


class WaitingTask(NamedTuple):
    """A task in a state that the orchestrator polls or the detector watches."""

    uuid: str
    state: TaskState
    priority: float

    def computed_priority(self, now: datetime) -> float:
        """The priority as the system computes it: it grows with a task's age, and decays when nothing happens."""
        waiting = now - (self.state.since or now)
        if waiting < _DECAYS_AFTER:
            return self.priority + (now - (self.state.created_at or now)) / _HOUR * 0.1
        if waiting < TASK_LIFETIME:
            return self.priority * math.exp(-(waiting / _HOUR) / _HALF_LIFE)
        return _LOWEST


class Tasks:
    """Reads the tasks of one database, for the engine and for plans that wake tasks."""

    def __init__(
        self, database: SqliteDatabase | PostgresDatabase, tables: StepTables, time: Naive | IsoText
    ) -> None:
        self._database = database
        self._tables = tables
        self._time = time

    def waiting(self, now: datetime, *states: str) -> Iterator[WaitingTask]:
        """The tasks in these states."""
        binds = Binds()
        moves, tasks = self._tables.alias("task_transitions", "tt"), self._tables.alias("tasks", "k")
        columns: list[Any] = [
            moves.c.task_uuid, moves.c.to_state, moves.c.created_at, tasks.c.created_at, tasks.c.priority
        ]
        source = moves.outerjoin(tasks, tasks.c.task_uuid == moves.c.task_uuid)
        if self._tables.has_dead_letters:
            letters = self._tables.alias(DEAD_LETTERS, "q")
            pending = sa.cast(letters.c.resolution_status, sa.Text) == sa.literal_column("'pending'")
            source = source.outerjoin(letters, sa.and_(letters.c.task_uuid == moves.c.task_uuid, pending))
            columns.append(sa.cast(letters.c.dlq_reason, sa.Text))
        select = sa.select(*columns).select_from(source).where(
            moves.c.most_recent.is_(sa.true()), moves.c.to_state.in_(texts(*states))
        )
        for id, state, since, created_at, priority, *letter in self._database.read(BoundStatement(select, binds), now):
            found = TaskState(
                text(state), self._time.decode(since), self._time.decode(created_at),
                dead_letter=text(letter[0]) if letter and letter[0] is not None else None,
                has_detector=self._tables.has_dead_letters,
            )
            yield WaitingTask(text(id), found, priority_of(priority))

    def polled(self, now: datetime) -> list[WaitingTask]:
        """The tasks that the orchestrator finds, in its order."""
        fresh = [
            task for task in self.waiting(now, *POLLED_STATES)
            if task.state.stale_at is None or task.state.stale_at >= now
        ]
        return sorted(fresh, key=lambda task: (-task.computed_priority(now), task.state.created_at or now, task.uuid))

    def least_priority(self, now: datetime, looked_at: int) -> float | None:
        """The lowest priority with which a task is looked at. None if the orchestrator looks at all tasks."""
        found = self.polled(now)
        return found[looked_at - 1].computed_priority(now) if len(found) >= looked_at else None

    def stale(self, now: datetime) -> list[WaitingTask]:
        """The tasks that the staleness detector gives up."""
        return [
            task
            for task in self.waiting(now, *(state for state in POLLED_STATES if state != "pending"), "steps_in_process")
            if task.state.dead_letter is None and _is_stale(task.state, now)
        ]


def priority_of(raw: Any) -> float:
    return float(raw) if isinstance(raw, int | float) else 0.0


def _is_stale(task: TaskState, now: datetime) -> bool:
    if task.ends_at is not None and task.ends_at <= now:
        return True
    if task.state == "steps_in_process":
        return task.since is not None and later(task.since, STEPS_LIMIT) <= now
    return task.stale_at is not None and task.stale_at <= now
