"""Task files → facts → items. Whatever a file holds, an item comes out and says what is odd.

| file | says inside | condition |
|---|---|---|
| `.task` | PENDING, attempts 0 | waiting, even with an old error (after a fresh requeue) |
| `.task` | PENDING, attempts > 0 | retrying at `schedule.eta` |
| `.running` | RUNNING | running; stuck when `updated_at` is older than `timeout` (else `stuck_after`) |
| `.running` | PENDING | as RUNNING, since its rename: claimed a moment ago, or its worker died just then |
| `.done` | FAILED | terminal when attempts are used up, the error is not recoverable or it is too old; else failed |
| `.done` | SUCCESS | done |
| `.done` | CANCELLED | cancelled |
| any | a status that does not belong to the name, or none we know | unknown |
| any | not readable, not JSON, not an object, another id than the name | unknown, with the reason |
| two of the three at once | – | unknown: which one holds cannot be told |
| `<name>.<token>.retriage` alone | – | as the file it was, with a note: a move is under way or was interrupted |
| any other name | – | unknown: no task file |
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from console.core.backend import Image
from console.core.item import ERROR_HEAD, Condition, Item, ItemKey, Verdict
from console.core.policy import Facts, Phase, RetryPolicy
from console.core.text import neutralise
from console.sql.times import IsoText
from console.sql.values import text
from plugins._contract_queue import ContractTask, ContractTaskRows
from plugins.file_queue.folder import Stamp, State, Unusable, why_not_plain

_BELONGS = {
    State.TASK: frozenset({"PENDING"}),
    State.RUNNING: frozenset({"RUNNING", "PENDING"}),
    State.DONE: frozenset({"SUCCESS", "FAILED", "CANCELLED"}),
}
IMAGE = ("name", "status", "attempts", "schedule", "updated_at")
"""The image of a task: what its file's name says, and these of its keys."""
_LARGEST_SCHEDULE = 2_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_object(content: bytes) -> dict[str, Any]:
    """A JSON object; Unusable says what it is instead."""
    if not content.strip():
        raise Unusable("is empty: half-written, or its writer died")
    try:
        parsed = json.loads(content)
    except UnicodeDecodeError:
        raise Unusable("is not UTF-8 text") from None
    except RecursionError:
        raise Unusable("is nested too deeply to be read") from None
    except ValueError as error:
        raise Unusable(f"is not valid JSON: {str(error)[:100]}") from None
    if not isinstance(parsed, dict):
        raise Unusable("holds no JSON object")
    return parsed


def image_of(state: State, fields: dict[str, Any]) -> Image | None:
    """The image of a task's file; None when it lacks a key or holds what a plan could not keep exactly."""
    values = [fields.get(key) for key in IMAGE[1:]]
    status, attempts, schedule, updated_at = values
    whole = isinstance(status, str) and type(attempts) is int and isinstance(schedule, dict)
    if not whole or not (updated_at is None or isinstance(updated_at, str)) or "updated_at" not in fields:
        return None
    try:
        kept = json.dumps(values, allow_nan=False)
        kept.encode()
    except ValueError:
        return None
    return (str(state), *values) if len(kept) <= _LARGEST_SCHEDULE and json.loads(kept) == values else None


def instant_of(nanoseconds: int) -> datetime | None:
    """A file's own time."""
    try:
        return _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class Task:
    """One task as its file and its result file tell it, ready to be judged at any time."""

    id: str
    state: State | None
    row: ContractTask
    facts: Facts
    updated_at: datetime | None
    problem: str | None = None
    """Why it cannot be told what this task is; its condition is then unknown."""
    notes: tuple[str, ...] = ()
    image: Image | None = None
    """What guards a write, where the task can be handed back at all."""

    @property
    def due_at(self) -> datetime | None:
        return self.facts.due_at if self.facts.ignored is None and self.problem is None else None


class TaskRows:
    """Builds tasks and judges them, for one backend and policy."""

    def __init__(self, backend: str, policy: RetryPolicy) -> None:
        self.time = IsoText()
        self._backend = backend
        self._policy = policy
        self._rows = ContractTaskRows(backend, policy, self.time.decode)

    def task(
        self, id: str, state: State, fields: dict[str, Any], stamp: Stamp, result: Result, notes: tuple[str, ...] = ()
    ) -> Task:
        schedule = fields.get("schedule")
        status = fields.get("status")
        row = ContractTask(
            id,
            fields.get("func_path"),
            status if isinstance(status, str) else None if status is None else repr(status)[:60],
            fields.get("attempts"),
            fields.get("max_retries"),
            schedule.get("eta") if isinstance(schedule, dict) else None,
            fields.get("timeout"),
            result.error,
            None,
            fields.get("created_at"),
            fields.get("updated_at"),
            fields.get("last_attempt_at"),
        )
        facts = self._rows.facts(row)
        if state is State.RUNNING and facts.phase is Phase.READY:
            facts = self._just_claimed(row, facts, stamp)
            notes = (*notes, "its file is named .running but says PENDING: claimed a moment ago, or its worker died")
        updated = self.time.decode(row.updated_at)
        problem = _problem(id, state, fields, row.status)
        image = None if problem or facts.phase in (Phase.DONE, Phase.CANCELLED) else image_of(state, fields)
        return Task(id, state, row, facts, updated, problem, (*notes, *result.notes), image)

    def _just_claimed(self, row: ContractTask, facts: Facts, stamp: Stamp) -> Facts:
        running = self._rows.facts(row._replace(status="RUNNING"))
        return running._replace(native_status=facts.native_status, since=instant_of(stamp.changed))

    def broken(
        self, id: str, state: State | None, stamp: Stamp, problem: str, result: Result, notes: tuple[str, ...] = ()
    ) -> Task:
        """A file that cannot be read as a task; its own time is all that is known."""
        row = ContractTask(id, "", None, 0, None, None, None, result.error, None, None, None, None)
        native = f".{state}" if state else ""
        facts = Facts(Phase.UNKNOWN, native, error=result.error)
        return Task(id, state, row, facts, instant_of(stamp.modified), problem, (*notes, *result.notes))

    def item(self, task: Task, now: datetime) -> Item:
        item = self._rows.item(task.row, task.facts, now)
        if task.problem is None and not task.notes:
            return item
        verdict = item.verdict
        if task.problem is not None:
            recoverable = None if task.facts.error is None else verdict.recoverable
            verdict = Verdict(Condition.UNKNOWN, task.problem, recoverable=recoverable)
        return Item(
            ItemKey(self._backend, (task.id,)),
            item.type,
            item.native_status,
            item.attempts,
            item.max_attempts,
            verdict,
            item.error,
            item.created_at,
            task.updated_at,
            now,
            item.executed_at,
            (*task.notes, *item.notes),
        )


def _problem(id: str, state: State, fields: dict[str, Any], status: Any) -> str | None:
    if why := why_not_plain(id):
        return f"{why}: not touched"
    if "id" in fields and fields["id"] != id:
        return f"its file is named otherwise than the id inside, {neutralise(text(fields['id']), 80)!r}"
    if status not in _BELONGS[state]:
        return f"its file is named .{state} but its status is {neutralise(text(status), 40)!r}"
    return None


@dataclass(frozen=True, slots=True)
class Result:
    """What a result file adds to its task."""

    error: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, content: bytes) -> Result:
        try:
            error = parse_object(content).get("error")
        except Unusable as why:
            return cls.unusable(why)
        return cls(text(error)[:ERROR_HEAD] or None)

    @classmethod
    def unusable(cls, why: Unusable) -> Result:
        return cls(None, (f"its result file {why}",))


NO_RESULT = Result()
