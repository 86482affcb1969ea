"""The guarded write of steps and tasks: one transaction for a chunk, every unit as planned or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from console.core.backend import CHANGED, Authority, Change, Image, Order, Outcome, OutcomeKind
from console.sql.database import Row, RowRefused, TransactionRefused, Writer
from console.sql.guarded import halved
from console.sql.sqlite import SqliteDatabase
from console.sql.statement import is_unicode
from console.sql.values import plain, text
from plugins.workflow_steps.schema import Place, is_uuid

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

Run = Callable[[str, Any], Sequence[Row]]
_LOCKED = Outcome(OutcomeKind.CONFLICTED, "locked by someone else's transaction")
_TWICE = Outcome(OutcomeKind.CONFLICTED, "changed by an earlier part of the same plan")
_NAMES = ("uuid", "state", "sort_key", "attempts", "in_process", "processed", "processed_at", "backoff", "updated_at")


class StepGuard:
    """Compares and sets steps with their transitions, and the transitions of their tasks."""

    def __init__(self, database: SqliteDatabase | PostgresDatabase, place: Place) -> None:
        self._database = database
        self._sqlite = place.sqlite
        self._place = place
        uuid = database.columns(place.name("workflow_steps"))["workflow_step_uuid"]
        self._any = "IN ({marks})" if place.sqlite else f"= ANY(%s::{uuid}[])"
        self._can_be = is_unicode if place.sqlite or uuid != "uuid" else is_uuid
        quote = database.dialect.identifier_preparer.quote_identifier
        self._names = {
            table: ".".join(quote(part) for part in place.name(table).split("."))
            for table in ("workflow_steps", "workflow_step_transitions", "task_transitions")
        }

    # -- reading ---------------------------------------------------------------------------------

    def steps(self, ids: Iterable[str], run: Run | None = None) -> dict[str, list[Any]]:
        """The image of each of these steps as it is now."""
        sql = (
            "SELECT s.workflow_step_uuid, coalesce(t.to_state, 'pending'),"
            " (SELECT max(x.sort_key) FROM {workflow_step_transitions} x"
            " WHERE x.workflow_step_uuid = s.workflow_step_uuid),"
            " s.attempts, s.in_process, s.processed, s.processed_at, s.backoff_request_seconds, s.updated_at"
            " FROM {workflow_steps} s LEFT JOIN {workflow_step_transitions} t"
            " ON t.workflow_step_uuid = s.workflow_step_uuid AND t.most_recent WHERE s.workflow_step_uuid {any}"
        )
        return {text(row[0]): list(map(plain, row)) for row in self._each(sql, ids, run)}

    def tasks(self, ids: Iterable[str], run: Run | None = None) -> dict[str, tuple[Any, Any]]:
        """State and highest sort key of each of these tasks."""
        sql = (
            "SELECT t.task_uuid, t.to_state, (SELECT max(x.sort_key) FROM {task_transitions} x"
            " WHERE x.task_uuid = t.task_uuid) FROM {task_transitions} t WHERE t.most_recent AND t.task_uuid {any}"
        )
        return {text(row[0]): (row[1], row[2]) for row in self._each(sql, ids, run)}

    def _each(self, sql: str, ids: Iterable[str], run: Run | None) -> list[Row]:
        found: list[Row] = []
        read, wanted = run or self._database.fetch, list(filter(self._can_be, dict.fromkeys(ids)))
        for start in range(0, len(wanted), 500):
            some = wanted[start : start + 500]
            given = some if self._sqlite else [some]
            found += read(self._filled(sql, len(some)), given)
        return found

    def _filled(self, sql: str, count: int = 1) -> str:
        named = sql.format(any=self._any.format(marks=", ".join("?" * count)), **self._names)
        return named if self._sqlite else named.replace("?", "%s")

    def images(self, changes: Sequence[Change], run: Run | None = None) -> list[Image | None]:
        steps = self.steps((id for change in changes for id in _meant(change)), run)
        woken = [change.unit for change in changes if change.before[0] is not None]
        tasks = self.tasks(woken, run)
        return [_image(change, steps, tasks) for change in changes]

    # -- writing ---------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change], order: Order, authority: Authority) -> list[Outcome]:
        told = json.dumps({
            "source": "retriage", "action": order.action.value, "by": authority.who, "reason": authority.reason,
            "ticket": authority.ticket, "operation": authority.op_id,
        })
        return self._swap(changes, told)

    def _swap(self, changes: Sequence[Change], told: str) -> list[Outcome]:
        """In one transaction, unless a row's refusal takes that back as a whole: then its halves in their own."""
        try:
            return self._together(changes, told)
        except TransactionRefused as refused:
            return halved(changes, lambda some: self._swap(some, told), refused)

    def _together(self, changes: Sequence[Change], told: str) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        with self._database.writing() as writer:
            locked = self._lock(writer, changes)
            now = self.images(changes, writer.execute)
            sound: list[int] = []
            met: set[str] = set()
            for n, (change, image) in enumerate(zip(changes, now, strict=True)):
                if image != change.before:
                    outcomes[n] = _conflict(change, image)
                elif not locked.issuperset(rows := _rows_of(change)):
                    outcomes[n] = _LOCKED
                elif not met.isdisjoint(rows):
                    outcomes[n] = _TWICE
                else:
                    met |= rows
                    sound.append(n)
            self._part(writer, changes, sound, told, outcomes)
        return [outcomes[n] for n in range(len(changes))]

    def _lock(self, writer: Writer, changes: Sequence[Change]) -> set[str]:
        """The steps and tasks nobody else holds. SQLite's transaction holds them all."""
        steps = [id for change in changes for id in _meant(change)]
        tasks = [change.unit for change in changes if change.before[0] is not None]
        if self._sqlite:
            return {*steps, *tasks}

        def held(table: str, column: str, ids: list[str], which: str = "") -> set[str]:
            sql = f"SELECT {column} FROM {{{table}}} WHERE {which}{column} {{any}} FOR UPDATE SKIP LOCKED"  # noqa: S608
            return {text(id) for (id,) in self._each(sql, ids, writer.execute)}

        recent = "most_recent AND "
        rows = held("workflow_steps", "workflow_step_uuid", steps)
        states = held("workflow_step_transitions", "workflow_step_uuid", steps, recent)
        return rows & states | held("task_transitions", "task_uuid", tasks, recent)

    def _part(
        self, writer: Writer, changes: Sequence[Change], numbers: list[int], told: str,
        outcomes: dict[int, Outcome],
    ) -> None:
        """Write some units; where one is refused, halve until it stands alone, and go on without it."""
        if not numbers:
            return
        try:
            with writer.savepoint():
                self._write(writer, [changes[n] for n in numbers], told)
        except RowRefused as refused:
            if len(numbers) == 1:
                outcomes[numbers[0]] = Outcome(OutcomeKind.FAILED, str(refused))
                return
            middle = len(numbers) // 2
            self._part(writer, changes, numbers[:middle], told, outcomes)
            self._part(writer, changes, numbers[middle:], told, outcomes)
        else:
            outcomes.update(dict.fromkeys(numbers, CHANGED))

    def _write(self, writer: Writer, changes: Sequence[Change], told: str) -> None:
        moved = [
            (was, then) for change in changes
            for was, then in zip(change.before[2:], change.after[2:], strict=True) if was != then
        ]
        self._many(
            writer, "UPDATE {workflow_steps} SET attempts = ?, in_process = ?, processed = ?, processed_at = ?,"
            " backoff_request_seconds = ?, updated_at = ? WHERE workflow_step_uuid = ?",
            [(*then[3:], then[0]) for _, then in moved],
        )
        self.transit(
            writer, "workflow_step", [(then[0], was[1], then[1], then[2], then[8]) for was, then in moved], told
        )
        woken = [
            (change.unit, change.before[0], change.after[0], change.after[1], _moment(change))
            for change in changes if change.before[0] is not None
        ]
        self.transit(writer, "task", woken, told)
        if any(map(_is_left, changes, self.images(changes, writer.execute))):
            raise RowRefused("left as it was by the database itself")

    def transit(self, writer: Writer, what: str, moves: list[tuple[Any, ...]], told: str) -> None:
        """The old most recent row gives way to a new one, numbered after all before it."""
        table = "{" + what + "_transitions}"
        recent, older = (1, 0) if self._sqlite else (True, False)
        self._many(
            writer, f"UPDATE {table} SET most_recent = ?, updated_at = ? WHERE {what}_uuid = ? AND most_recent",  # noqa: S608
            [(older, at, id) for id, _, _, _, at in moves],
        )
        self._many(
            writer,
            f"INSERT INTO {table} ({what}_uuid, from_state, to_state, sort_key, metadata, most_recent, created_at,"  # noqa: S608
            " updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(id, was, then, number, told, recent, at, at) for id, was, then, number, at in moves],
        )

    def assign(self, writer: Writer, id: str, values: dict[str, Any]) -> None:
        """Set columns of one step, which the plugin names itself."""
        sets = ", ".join(f"{column} = ?" for column in values)
        self._many(
            writer, f"UPDATE {{workflow_steps}} SET {sets} WHERE workflow_step_uuid = ?",  # noqa: S608
            [(*values.values(), id)],
        )

    def _many(self, writer: Writer, sql: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            writer.executemany(self._filled(sql), rows)


def _meant(change: Change) -> list[str]:
    """The steps that are planned. A plan that ends in the middle of a task has read the others too: whatever becomes
    of those, it is not the plan's."""
    return ["/".join(key.parts) for key in change.keys]


def _moment(change: Change) -> Any:
    """When it is changed, as the steps have it that are."""
    return next(then[8] for was, then in zip(change.before[2:], change.after[2:], strict=True) if was != then)


def _rows_of(change: Change) -> set[str]:
    task = [] if change.before[0] is None else [change.unit]
    return {*_meant(change), *task}


def _image(change: Change, steps: dict[str, list[Any]], tasks: dict[str, tuple[Any, Any]]) -> Image | None:
    if any(id not in steps for id in _meant(change)):
        return None
    task = (None, None) if change.before[0] is None else tasks.get(change.unit, (None, None))
    return (*task, *(steps.get(step[0], step) for step in change.before[2:]))


def _is_left(change: Change, now: Image | None) -> bool:
    """Whether a trigger passed over a row of it without a word: over a step, a transition or its task's."""
    if now is None:
        return False
    if change.before[0] is not None and now[1] in (None, change.before[1]):
        return True
    return any(
        was != then and (was[2] == found[2] or was[3:] == found[3:] != then[3:])
        for was, then, found in zip(change.before[2:], change.after[2:], now[2:], strict=True)
    )


def _conflict(change: Change, now: Image | None) -> Outcome:
    if now is None:
        return Outcome(OutcomeKind.CONFLICTED, "no longer there")
    if now[:2] != change.before[:2]:
        return Outcome(OutcomeKind.CONFLICTED, f"its task is now {now[0]}, was {change.before[0]}")
    for was, found in zip(change.before[2:], now[2:], strict=True):
        for name, old, new in zip(_NAMES, was, found, strict=True):
            if old != new:
                return Outcome(OutcomeKind.CONFLICTED, f"{name} is now {new}, was {old}")
    return Outcome(OutcomeKind.CONFLICTED, "changed while it was being written")

