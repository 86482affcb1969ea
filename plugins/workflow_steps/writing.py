"""Guarded writes of steps and their tasks: one transaction per chunk, each unit as planned or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from console.core.backend import APPLIED, Authority, Change, Image, Operation, Outcome, OutcomeKind
from console.sql.database import Row, RowRefused, TransactionRefused, Writer
from console.sql.guarded import LOCKED, conflict, halved, write_by_halves
from console.sql.sqlite import SqliteDatabase
from console.sql.values import is_unicode, plain, text
from plugins.workflow_steps.image import NOT_WOKEN, StepImage, TaskImage, UnitImage, changed_steps, step_ids
from plugins.workflow_steps.schema import StepTables, is_uuid

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

Run = Callable[[str, Any], Sequence[Row]]
_TWICE = Outcome(OutcomeKind.CHANGED_SINCE, "changed by an earlier part of the same plan")
_IDS_PER_READ = 500


class Transition(NamedTuple):
    """One transition of a step or task."""

    uuid: str
    was: Any
    then: str
    sort_key: int
    at: Any


class StepGuard:
    """Compares and sets steps with their transitions, and the transitions of their tasks."""

    def __init__(self, database: SqliteDatabase | PostgresDatabase, tables: StepTables) -> None:
        self._database = database
        self._sqlite = tables.sqlite
        self._tables = tables
        uuid = database.columns(tables.name("workflow_steps"))["workflow_step_uuid"]
        self._any = "IN ({marks})" if tables.sqlite else f"= ANY(%s::{uuid}[])"
        self._is_id = is_unicode if tables.sqlite or uuid != "uuid" else is_uuid
        quote = database.dialect.identifier_preparer.quote_identifier
        self._names = {
            table: ".".join(quote(part) for part in tables.name(table).split("."))
            for table in ("workflow_steps", "workflow_step_transitions", "task_transitions", "tasks_dlq")
        }

    # -- reading ---------------------------------------------------------------------------------

    def steps(self, ids: Iterable[str], run: Run | None = None) -> dict[str, StepImage]:
        """The current image of each step."""
        sql = (
            "SELECT s.workflow_step_uuid, coalesce(t.to_state, 'pending'),"
            " (SELECT max(x.sort_key) FROM {workflow_step_transitions} x"
            " WHERE x.workflow_step_uuid = s.workflow_step_uuid),"
            " s.attempts, s.in_process, s.processed, s.processed_at, s.backoff_request_seconds, s.updated_at"
            " FROM {workflow_steps} s LEFT JOIN {workflow_step_transitions} t"
            " ON t.workflow_step_uuid = s.workflow_step_uuid AND t.most_recent WHERE s.workflow_step_uuid {any}"
        )
        return {text(row[0]): StepImage(*map(plain, row)) for row in self._each(sql, ids, run)}

    def tasks(self, ids: Iterable[str], run: Run | None = None) -> dict[str, TaskImage]:
        """The current image of each task."""
        sql = (
            "SELECT t.task_uuid, t.to_state, (SELECT max(x.sort_key) FROM {task_transitions} x"
            " WHERE x.task_uuid = t.task_uuid) FROM {task_transitions} t WHERE t.most_recent AND t.task_uuid {any}"
        )
        return {text(id): TaskImage(state, sort_key) for id, state, sort_key in self._each(sql, ids, run)}

    def failed(self, tasks: Iterable[str]) -> dict[str, list[str]]:
        """The steps of each task that are in error."""
        sql = (
            "SELECT s.task_uuid, s.workflow_step_uuid FROM {workflow_steps} s JOIN {workflow_step_transitions} t"
            " ON t.workflow_step_uuid = s.workflow_step_uuid AND t.most_recent"
            " WHERE t.to_state = 'error' AND s.task_uuid {any} ORDER BY s.workflow_step_uuid"
        )
        found: dict[str, list[str]] = {}
        for task, step in self._each(sql, tasks, None):
            found.setdefault(text(task), []).append(text(step))
        return found

    def states(self, task: str) -> set[str]:
        """The states of all steps of a task."""
        sql = (
            "SELECT DISTINCT coalesce(t.to_state, 'pending') FROM {workflow_steps} s"
            " LEFT JOIN {workflow_step_transitions} t ON t.workflow_step_uuid = s.workflow_step_uuid AND t.most_recent"
            " WHERE s.task_uuid {any}"
        )
        return {text(state) for (state,) in self._each(sql, [task], None)}

    def _each(self, sql: str, ids: Iterable[str], run: Run | None) -> list[Row]:
        found: list[Row] = []
        read, wanted = run or self._database.fetch, list(filter(self._is_id, dict.fromkeys(ids)))
        for start in range(0, len(wanted), _IDS_PER_READ):
            some = wanted[start : start + _IDS_PER_READ]
            given = some if self._sqlite else [some]
            found += read(self._filled(sql, len(some)), given)
        return found

    def _filled(self, sql: str, count: int = 1) -> str:
        named = sql.format(any=self._any.format(marks=", ".join("?" * count)), **self._names)
        return named if self._sqlite else named.replace("?", "%s")

    def images(self, changes: Sequence[Change], run: Run | None = None) -> list[Image | None]:
        steps = self.steps((id for change in changes for id in step_ids(change)), run)
        tasks = self.tasks(_woken_tasks(changes), run)
        return [_image_now(change, steps, tasks) for change in changes]

    # -- writing ---------------------------------------------------------------------------------

    def compare_and_set(self, changes: Sequence[Change], operation: Operation, authority: Authority) -> list[Outcome]:
        metadata = json.dumps({
            "source": "retriage", "action": str(operation.action), "by": authority.who, "reason": authority.reason,
            "ticket": authority.ticket, "operation": authority.override_id,
        })
        return self._compare_and_set(changes, metadata)

    def _compare_and_set(self, changes: Sequence[Change], metadata: str) -> list[Outcome]:
        """Write all changes. If an error of one row aborts the whole transaction, write each half on its own."""
        try:
            return self._in_one_transaction(changes, metadata)
        except TransactionRefused as refused:
            return halved(changes, lambda some: self._compare_and_set(some, metadata), refused)

    def _in_one_transaction(self, changes: Sequence[Change], metadata: str) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        with self._database.writing() as writer:
            locked = self._lock(writer, changes)
            now = self.images(changes, writer.execute)
            unchanged: list[int] = []
            seen: set[str] = set()
            for n, (change, image) in enumerate(zip(changes, now, strict=True)):
                if image != change.before:
                    outcomes[n] = _difference(change, image)
                elif not locked.issuperset(rows := {*step_ids(change), *_woken_tasks([change])}):
                    outcomes[n] = LOCKED
                elif not seen.isdisjoint(rows):
                    outcomes[n] = _TWICE
                else:
                    seen |= rows
                    unchanged.append(n)
            outcomes |= write_by_halves(
                writer,
                unchanged,
                lambda some: dict(zip(some, self._write(writer, [changes[n] for n in some], metadata), strict=True)),
            )
        return [outcomes[n] for n in range(len(changes))]

    def _lock(self, writer: Writer, changes: Sequence[Change]) -> set[str]:
        """Lock the rows and return the steps and tasks that were free. In SQLite the transaction locks everything."""
        steps = [id for change in changes for id in step_ids(change)]
        tasks = _woken_tasks(changes)
        if self._sqlite:
            return {*steps, *tasks}

        def lock(table: str, column: str, ids: list[str], which: str = "") -> set[str]:
            sql = f"SELECT {column} FROM {{{table}}} WHERE {which}{column} {{any}} FOR UPDATE SKIP LOCKED"  # noqa: S608
            return {text(id) for (id,) in self._each(sql, ids, writer.execute)}

        recent = "most_recent AND "
        rows = lock("workflow_steps", "workflow_step_uuid", steps)
        states = lock("workflow_step_transitions", "workflow_step_uuid", steps, recent)
        without_transition = {
            step.uuid for change in changes for step in UnitImage.parse(change.before).steps if step.sort_key is None
        }
        return rows & (states | without_transition) | lock("task_transitions", "task_uuid", tasks, recent)

    def _write(self, writer: Writer, changes: Sequence[Change], metadata: str) -> list[Outcome]:
        moved = [pair for change in changes for pair in changed_steps(change)]
        self._many(
            writer, "UPDATE {workflow_steps} SET attempts = ?, in_process = ?, processed = ?, processed_at = ?,"
            " backoff_request_seconds = ?, updated_at = ? WHERE workflow_step_uuid = ?",
            [(*then.columns, then.uuid) for _, then in moved],
        )
        steps = [
            Transition(then.uuid, was.state, then.state, then.sort_key, then.updated_at)
            for was, then in moved
            if was.sort_key != then.sort_key
        ]
        self.transit(writer, "workflow_step", steps, metadata)
        tasks = [_task_transition(change) for change in changes if UnitImage.parse(change.before).wakes]
        self.transit(writer, "task", tasks, metadata)
        if any(map(_is_unwritten, changes, self.images(changes, writer.execute))):
            raise RowRefused("the database left it unchanged")
        return [APPLIED] * len(changes)

    def transit(self, writer: Writer, what: str, transitions: Sequence[Transition], metadata: str) -> None:
        """Add transitions, each as the most recent one of its step or task."""
        table = "{" + what + "_transitions}"
        recent, older = (1, 0) if self._sqlite else (True, False)
        self._many(
            writer, f"UPDATE {table} SET most_recent = ?, updated_at = ? WHERE {what}_uuid = ? AND most_recent",  # noqa: S608
            [(older, move.at, move.uuid) for move in transitions],
        )
        self._many(
            writer,
            f"INSERT INTO {table} ({what}_uuid, from_state, to_state, sort_key, metadata, most_recent, created_at,"  # noqa: S608
            " updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (move.uuid, move.was, move.then, move.sort_key, metadata, recent, move.at, move.at)
                for move in transitions
            ],
        )

    def assign(self, writer: Writer, id: str, values: dict[str, Any]) -> None:
        """Set columns of one step. The names are the plugin's own."""
        sets = ", ".join(f"{column} = ?" for column in values)
        self._many(
            writer, f"UPDATE {{workflow_steps}} SET {sets} WHERE workflow_step_uuid = ?",  # noqa: S608
            [(*values.values(), id)],
        )

    def add_dead_letter(self, writer: Writer, task: str, state: str | None, at: Any) -> None:
        """Add a task to the dead letter queue, as the staleness detector does."""
        self._many(
            writer,
            "INSERT INTO {tasks_dlq} (dlq_entry_uuid, task_uuid, original_state, dlq_reason, dlq_timestamp,"
            " resolution_status, task_snapshot) VALUES (?, ?, ?, 'staleness_timeout', ?, 'pending', '{{}}')",
            [(str(uuid4()), task, state, at)],
        )

    def _many(self, writer: Writer, sql: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            writer.executemany(self._filled(sql), rows)


def _woken_tasks(changes: Sequence[Change]) -> list[str]:
    return [change.unit for change in changes if UnitImage.parse(change.before).wakes]


def _task_transition(change: Change) -> Transition:
    was, after = UnitImage.parse(change.before).task, UnitImage.parse(change.after)
    planned = set(step_ids(change))
    at = next(step.updated_at for step in after.steps if step.uuid in planned)
    return Transition(change.unit, was.state, after.task.state, after.task.sort_key, at)


def _image_now(change: Change, steps: Mapping[str, StepImage], tasks: Mapping[str, TaskImage]) -> Image | None:
    """The current image of a change's unit; None if one of its steps is gone."""
    if any(id not in steps for id in step_ids(change)):
        return None
    before = UnitImage.parse(change.before)
    task = tasks.get(change.unit, NOT_WOKEN) if before.wakes else NOT_WOKEN
    return UnitImage(task, tuple(steps.get(step.uuid, step) for step in before.steps)).values


def _is_unwritten(change: Change, now: Image | None) -> bool:
    """Whether a trigger silently ignored the write of a step, of a transition or of the task."""
    if now is None:
        return False
    before, after, found = map(UnitImage.parse, (change.before, change.after, now))
    if before.wakes and found.task.sort_key in (None, before.task.sort_key):
        return True
    return any(
        was.sort_key == step.sort_key != then.sort_key or was.columns == step.columns != then.columns
        for was, then, step in zip(before.steps, after.steps, found.steps, strict=True)
    )


def _difference(change: Change, now: Image | None) -> Outcome:
    """Why a unit is not written."""
    if now is None:
        return Outcome(OutcomeKind.CHANGED_SINCE, "no longer there")
    before, found = UnitImage.parse(change.before), UnitImage.parse(now)
    if found.task != before.task:
        return Outcome(OutcomeKind.CHANGED_SINCE, f"its task is now {found.task.state}, was {before.task.state}")
    for was, step in zip(before.steps, found.steps, strict=True):
        if was != step:
            return conflict(was, step, StepImage._fields)
    return Outcome(OutcomeKind.CHANGED_SINCE, "changed during the write")
