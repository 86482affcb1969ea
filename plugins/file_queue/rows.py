"""Turns task files into facts and items. Every file becomes an item, and its notes name what is wrong with it.

| file | status inside | condition |
|---|---|---|
| `.task` | PENDING, attempts 0 | waiting, even with an old error (after its attempts were reset) |
| `.task` | PENDING, attempts > 0 | retrying at `schedule.eta` |
| `.task` | FAILED | stuck: workers stop at this file, so it blocks the queue |
| `.running` | RUNNING | running; stuck when `updated_at` is older than `timeout` plus `stuck_after` |
| `.running` | PENDING | as RUNNING, counted from the rename: just claimed, or its worker died during the claim |
| `.done` | FAILED | terminal when attempts are used up, the error is not recoverable or it is too old; else failed |
| `.done` | SUCCESS | done |
| `.done` | RUNNING or PENDING, and the result says SUCCESS | done: a success renames the file and nothing else |
| `.done` | CANCELLED | cancelled |
| any | a status that does not match the extension, or an unknown one | unknown |
| any | not readable, not JSON, not an object, or an id that differs from the name | unknown, with the reason |
| two of the three at once | – | unknown: the valid one cannot be determined |
| only `<name>.<token>.retriage` | – | that of the original file, with a note about the unfinished move |
| any other name | – | unknown: not a task file |
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from console.core.excerpt import excerpt
from console.core.item import Condition, Item, Verdict
from console.core.policy import Facts, Phase, RetryPolicy, judge
from console.core.text import neutralise
from console.sql.table import StoredRow, columns_of
from console.sql.table_rows import TableRows
from console.sql.times import LONGEST_TIME, IsoText
from console.sql.values import text
from plugins import _contract_queue as contract
from plugins.file_queue.folder import Stamp, State, UnreadableFile, why_not_plain
from plugins.file_queue.prediction import BLOCKING, Blocker, blocker_of, predict_task

_STATUSES = {
    State.TASK: frozenset({"PENDING", "FAILED"}),
    State.RUNNING: frozenset({"RUNNING", "PENDING"}),
    State.DONE: frozenset({"SUCCESS", "FAILED", "CANCELLED"}),
}
_FINISHED = {"SUCCESS": Condition.DONE, contract.CANCELLED: Condition.CANCELLED}
_RENAMED_ONLY = ("RUNNING", "PENDING")
"""What a file may still say after its task succeeded."""
_FIELDS = (
    "id", "func_path", "status", "schedule", "max_retries", "timeout", "attempts", "created_at", "updated_at",
    "last_attempt_at",
)
_LARGEST_IMAGE = 2_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TABLE = contract.task_table(
    table=columns_of(
        "tasks", "id", "func_path", "status", "attempts", "max_retries", "eta", "timeout", "error", "created_at",
        "updated_at", "since", "last_attempt_at", "recorded",
    ),
    error="error",
    since="since",
    recorded="recorded",
)
_BLOCKS = "blocks the queue: its file is named .task but its status is {}, and workers stop at it"


class TaskImage(NamedTuple):
    """What a plan stores of a task: the state in its file's name, and some fields of its content."""

    name: str
    status: Any
    attempts: Any
    schedule: Any
    updated_at: Any
    created_at: Any = None
    """Another task with the same id was created at another time. Never written."""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the file's content that a move writes."""
        return {name: value for name, value in self._asdict().items() if name not in ("name", "created_at")}


def parse_object(content: bytes) -> dict[str, Any]:
    """Parse a JSON object; raises UnreadableFile for any other content."""
    if not content.strip():
        raise UnreadableFile("is empty: its writer is still at work or died")
    if content[:1] == b"\x80" and content[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        raise UnreadableFile("is pickled: only the serializers JSON and msgspec can be read, not cloudpickle")
    try:
        parsed = json.loads(content)
    except UnicodeDecodeError:
        raise UnreadableFile("is not UTF-8 text") from None
    except RecursionError:
        raise UnreadableFile("is nested too deeply") from None
    except ValueError as error:
        raise UnreadableFile(f"is not valid JSON: {str(error)[:100]}") from None
    if not isinstance(parsed, dict):
        raise UnreadableFile("is not a JSON object")
    return parsed


def own_fields(content: bytes) -> dict[str, Any]:
    """The fields of a task file that say what becomes of the task; its arguments are not among them."""
    fields = parse_object(content)
    return {name: fields[name] for name in _FIELDS if name in fields}


def image_of(state: State, fields: dict[str, Any]) -> TaskImage | None:
    """The image of a task file; None if a field is missing or has a value that a plan cannot store exactly."""
    image = TaskImage(state.value, *(fields.get(name) for name in TaskImage._fields[1:]))
    whole = isinstance(image.status, str) and type(image.attempts) is int and isinstance(image.schedule, dict)
    has_time = "updated_at" in fields and (image.updated_at is None or isinstance(image.updated_at, str))
    if not whole or not has_time:
        return None
    try:
        kept = json.dumps(image[1:], allow_nan=False)
        kept.encode()
    except ValueError:
        return None
    return image if len(kept) <= _LARGEST_IMAGE and json.loads(kept) == list(image[1:]) else None


def instant_of(nanoseconds: int) -> datetime | None:
    """The time of a file's timestamp; None if it is outside the calendar."""
    try:
        return _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return None


class Finished(NamedTuple):
    """What lists need to know of a finished task until somebody asks for it."""

    condition: Condition
    updated_at: str | None
    """As it is stored. None also if it is certainly not a time."""


def needs_result(state: State, fields: dict[str, Any]) -> bool:
    """Whether the result file says if this task has finished, and not its own file."""
    return state is State.DONE and fields.get("status") in _RENAMED_ONLY


def finished_as(id: str, state: State, fields: dict[str, Any], result: Result) -> Finished | None:
    """How a task ended that never runs again and is certainly neither failed nor broken; None for any other."""
    if state is not State.DONE:
        return None
    meant = "SUCCESS" if needs_result(state, fields) and result.status == "SUCCESS" else fields.get("status")
    condition = _FINISHED.get(meant) if isinstance(meant, str) else None
    if condition is None or _problem(id, state, fields, meant) is not None:
        return None
    updated = fields.get("updated_at")
    return Finished(condition, updated if isinstance(updated, str) and len(updated) <= LONGEST_TIME else None)


@dataclass(frozen=True, slots=True)
class Task:
    """One task, read from its task file and its result file."""

    id: str
    state: State | None
    row: StoredRow
    facts: Facts
    updated_at: datetime | None
    problem: str | None = None
    """Why the state of this task cannot be determined. Its condition is then unknown."""
    blocker: Blocker | None = None
    """Its turn, if workers stop at it."""
    notes: tuple[str, ...] = ()
    image: TaskImage | None = None
    """The before-image of a requeue; None if the task cannot be requeued."""
    began: str | None = None
    """When the attempt began that its result belongs to."""
    uncertain: bool = False
    """Nobody can tell whether workers take it; the reason is in `facts.ignored`."""

    @property
    def due_at(self) -> datetime | None:
        return self.facts.due_at if self.facts.ignored is None and self.problem is None else None

    @property
    def is_stuck_in_line(self) -> bool:
        """Whether the file blocks the queue and a requeue would repair it."""
        return self.blocker is not None and self.problem is None


class TaskRows:
    """Builds tasks and items for one backend and policy."""

    def __init__(self, backend: str, policy: RetryPolicy) -> None:
        self.time = IsoText()
        self._policy = policy
        self._rows = TableRows(backend, _TABLE, policy, self.time)

    def task(
        self, id: str, state: State, fields: dict[str, Any], stamp: Stamp, result: Result, notes: tuple[str, ...] = ()
    ) -> Task:
        schedule, status = fields.get("schedule"), fields.get("status")
        eta = schedule.get("eta") if isinstance(schedule, dict) else None
        native = status if isinstance(status, str) else None if status is None else repr(status)[:60]
        meant, since = native, fields.get("updated_at")
        if state is State.RUNNING and native == "PENDING":
            claimed = instant_of(stamp.changed)
            meant, since = "RUNNING", None if claimed is None else self.time.encode(claimed)
            notes = (*notes, "its file is named .running but its status is PENDING: just claimed, or its worker died")
        if needs_result(state, fields) and result.status == "SUCCESS":
            meant = "SUCCESS"
        row = StoredRow(
            id, fields.get("func_path"), meant, fields.get("attempts"), fields.get("max_retries"), eta,
            fields.get("timeout"), result.error, fields.get("created_at"), fields.get("updated_at"), since,
            fields.get("last_attempt_at"), result.attempts,
        )
        facts = self._rows.facts(row)._replace(native_status=text(native))
        problem = _problem(id, state, fields, meant)
        blocker = blocker_of(id, state, native, eta, facts.born_at)
        image = None if problem or facts.phase in (Phase.DONE, Phase.CANCELLED) else image_of(state, fields)
        updated = self.time.decode(row.updated)
        task = Task(id, state, row, facts, updated, problem, blocker, (*notes, *result.notes), image, result.began)
        return self.behind(task, None)

    def behind(self, task: Task, blocker: Blocker | None) -> Task:
        """The task as workers see it while a file blocks the queue."""
        if task.facts.phase is not Phase.READY or task.problem is not None:
            return task
        predicted = predict_task(task.row.due, task.facts.born_at, blocker)
        due = predicted.at.earliest if predicted.at else None
        facts = task.facts._replace(due_at=due, ignored=predicted.why or None)
        return task if facts == task.facts else replace(task, facts=facts, uncertain=predicted.runs is None)

    def broken(
        self, id: str, state: State | None, stamp: Stamp, problem: str, result: Result, notes: tuple[str, ...] = ()
    ) -> Task:
        """A task whose file cannot be read; only the file's timestamp is known."""
        row = StoredRow(id, "", None, 0, error=result.error)
        facts = Facts(Phase.UNKNOWN, f".{state}" if state else "", error=result.error)
        return Task(id, state, row, facts, instant_of(stamp.modified), problem, None, (*notes, *result.notes))

    def verdict(self, task: Task, now: datetime) -> Verdict:
        verdict = judge(task.facts, self._policy, now)
        if task.problem is not None:
            recoverable = None if task.facts.error is None else verdict.recoverable
            return Verdict(Condition.UNKNOWN, task.problem, recoverable=recoverable)
        if task.is_stuck_in_line:
            return Verdict(Condition.STUCK, _BLOCKS.format(task.row.status), recoverable=verdict.recoverable)
        if task.uncertain:
            return verdict._replace(why=task.facts.ignored or "", will_run_again=None)
        return verdict

    def item(self, task: Task, now: datetime) -> Item:
        item = self._rows.item(task.row, task.facts, self.verdict(task, now), now)
        return item._replace(updated_at=task.updated_at, notes=(*task.notes, *item.notes))


def _problem(id: str, state: State, fields: dict[str, Any], status: Any) -> str | None:
    if why := why_not_plain(id):
        return f"{why}, so it is not touched"
    if "id" in fields and fields["id"] != id:
        return f"its file has another name than the id inside, {neutralise(text(fields['id']), 80)!r}"
    if status not in _STATUSES[state]:
        problem = f"its file is named .{state} but its status is {neutralise(text(status), 40)!r}"
        return f"{problem}, which blocks the queue" if state is State.TASK and status in BLOCKING else problem
    return None


class Result(NamedTuple):
    """What a result file says about its task."""

    error: str | None = None
    notes: tuple[str, ...] = ()
    status: str | None = None
    attempts: int | None = None
    """The attempt that it belongs to."""
    began: str | None = None
    """When that attempt began."""

    @classmethod
    def parse(cls, content: bytes) -> Result:
        try:
            found = parse_object(content)
        except UnreadableFile as why:
            return cls.unreadable(why)
        status, attempts, began = (found.get(name) for name in ("status", "attempts", "last_attempt_at"))
        return cls(
            excerpt(text(found.get("error"))) or None,
            status=status if isinstance(status, str) else None,
            attempts=attempts if type(attempts) is int else None,
            began=began if isinstance(began, str) else None,
        )

    @classmethod
    def unreadable(cls, why: UnreadableFile) -> Result:
        return cls(None, (f"its result file {why}",))


NO_RESULT = Result()


class Content(NamedTuple):
    """What a task is made from: the fields of its file, and its result."""

    fields: dict[str, Any]
    result: Result
