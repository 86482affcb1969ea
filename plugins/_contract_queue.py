"""The contract queue's own rules, shared by its two storages: an SQLite file and a folder of files.

The loop that a worker runs is also the analysis queue's.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from console.core import action_rules
from console.core.action_rules import Decision
from console.core.advice import Advice, Notice, Step
from console.core.backend import Flag, Operation
from console.core.capabilities import SwitchSpec
from console.core.handlers import message_of
from console.core.item import Condition, Verdict
from console.core.policy import Exponential, Facts, Phase, RetryPolicy
from console.core.ports import Clock, Stop
from console.core.text import plural
from console.sql.table import QueueTable
from console.sql.values import whole_number

CANCELLED = "CANCELLED"
"""The status of a task that was given up on purpose. No worker takes it."""
PHASES = {
    "PENDING": Phase.READY,
    "RUNNING": Phase.RUNNING,
    "SUCCESS": Phase.DONE,
    "FAILED": Phase.FAILED,
    CANCELLED: Phase.CANCELLED,
}

POLICY = RetryPolicy(
    max_attempts=3,
    backoff=Exponential(timedelta(seconds=1), multiplier=2, cap=timedelta(seconds=60), jitter=0.25),
    stuck_after=timedelta(hours=1),
)
"""The queue's own numbers. `max_retries` of a task is its max attempts: three means three executions."""


INCLUDE_CLAIMED = SwitchSpec(
    "include_claimed", "include claimed", "Include stuck tasks. A worker may still hold them, and then they run twice."
)
_STILL_CLAIMED = Notice(
    "A worker may still hold it, and then it would run twice.", Advice(Step.TURN_ON, INCLUDE_CLAIMED.id)
)
FLAGS = frozenset({Flag.INCLUDE_UNRECOVERABLE, INCLUDE_CLAIMED.id})
"""The switches that `decide` looks at."""


def decide(facts: Facts, verdict: Verdict, operation: Operation, policy: RetryPolicy, now: datetime) -> Decision:
    """The usual rules, but a stuck task is requeued only if a person insists.

    A worker claims every due task at once and runs them one after another, without enforcing their timeouts. A task
    that is RUNNING for long may not have started yet.
    """
    if verdict.condition is Condition.STUCK and INCLUDE_CLAIMED.id not in operation.flags:
        return Decision(_STILL_CLAIMED)
    return action_rules.decide(facts, verdict, operation, policy, now)


def stuck_note(attempts: Any, max_retries: Any, recorded: Any) -> str:
    """What is known about a stuck task. A final failure is never recorded by the queue's own workers."""
    number, limit = whole_number(attempts), POLICY.max_attempts if max_retries is None else whole_number(max_retries)
    done = "its result is recorded" if whole_number(recorded) >= number > 0 else "nothing recorded since"
    return f"attempt {number} of {limit}, {done}; a worker may still hold it"


def interval_of(schedule: Any) -> timedelta | None:
    """How long after a success a recurring task runs again; None if the task does not recur."""
    interval = schedule.get("interval") if isinstance(schedule, dict) else None
    if isinstance(interval, dict):
        interval = interval.get("total_seconds")
    if isinstance(interval, str):
        interval = _iso_seconds(interval)
    if isinstance(interval, bool) or not isinstance(interval, int | float):
        return None
    try:
        return timedelta(seconds=interval)
    except (OverflowError, ValueError):
        return None


def stored_interval(interval: timedelta | None) -> dict[str, Any] | None:
    """An interval as the queue stores it in JSON."""
    return None if interval is None else {"type": "timedelta", "total_seconds": interval.total_seconds()}


def parsed_schedule(schedule: Any) -> dict[str, Any]:
    """A stored schedule as JSON; empty for anything else."""
    try:
        parsed = json.loads(schedule) if isinstance(schedule, str) else {}
    except (ValueError, RecursionError):
        parsed = {}
    return parsed if isinstance(parsed, dict) else {}


def with_eta(schedule: Any, eta: str | None) -> str:
    """The schedule JSON with its eta changed; a worker reads it from there."""
    return json.dumps({**parsed_schedule(schedule), "eta": eta})


_ISO_DURATION = re.compile(r"P(?:([0-9.]+)D)?(?:T(?:([0-9.]+)H)?(?:([0-9.]+)M)?(?:([0-9.]+)S)?)?")


def _iso_seconds(text: str) -> float | None:
    """The seconds of a duration such as PT90S, as msgspec writes it."""
    found = _ISO_DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    try:
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    except ValueError:
        return None
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def delay_after_failure(
    policy: RetryPolicy, attempts: int, max_retries: Any, chance: random.Random
) -> timedelta | None:
    """How long a task waits after a failure; None if it is final. The queue decides this, not the worker.

    `attempts` already counts the execution that failed: with max_retries 3 the third failure is final.
    """
    limit = policy.max_attempts if max_retries is None else whole_number(max_retries)
    if limit is not None and attempts >= limit:
        return None
    bounds = policy.delay_after(attempts)
    if bounds is None:
        return timedelta(0)
    low, high = bounds
    return low + (high - low) * chance.random()


# --- rows ---------------------------------------------------------------------------------------------


def task_table(**own: Any) -> QueueTable:
    """The declaration of a task. The storages add where its due time and its error are."""
    return QueueTable(
        key="id",
        type="func_path",
        status="status",
        statuses=PHASES,
        attempts="attempts",
        max_attempts="max_retries",
        due="eta",
        time_limit="timeout",
        has_grace=True,
        stuck_note=lambda row: stuck_note(row.attempts, row.max_attempts, row.recorded),
        created="created_at",
        updated="updated_at",
        executed="last_attempt_at",
        counts_executions=True,
        **own,
    )


# --- working ------------------------------------------------------------------------------------------

ERROR_CODE = "ERR_HANDLER"


class Claimed(NamedTuple):
    """A task that this worker has claimed; `attempts` counts the execution that begins now."""

    id: str
    type: str
    payload: Mapping[str, Any]
    attempts: int


class Queue(Protocol):
    """What the worker loop needs of a queue."""

    def claim(self) -> Claimed | None: ...

    def complete(self, task: Claimed, result: object = None) -> bool: ...

    def fail(self, task: Claimed, error: str) -> bool: ...

    def reclaim(self) -> int: ...


Handler = Callable[[str, Mapping[str, Any]], object]


def work(
    queue: Queue, handler: Handler, clock: Clock, stop: Stop, log: Callable[[str], None], *, idle: float = 0.5
) -> int:
    """Claim and handle tasks until stopped; returns the number of executions. A handler that raises fails the task."""
    executions = 0
    while not stop.requested:
        if reclaimed := queue.reclaim():
            log(f"reclaimed {reclaimed} abandoned {plural(reclaimed, 'task')}")
        task = queue.claim()
        if task is None:
            clock.sleep(idle)
            continue
        executions += 1
        _execute(queue, handler, task, log)
    return executions


def _execute(queue: Queue, handler: Handler, task: Claimed, log: Callable[[str], None]) -> None:
    try:
        result = handler(task.type, task.payload)
    except Exception as error:  # noqa: BLE001  whatever a handler raises is the task's failure, recorded as such
        message = message_of(error)
        code = getattr(error, "code", None)
        queue.fail(task, f"{code if isinstance(code, str) else ERROR_CODE}: {message}")
        log(f"task {task.id} attempt {task.attempts} failed: {message}")
    else:
        queue.complete(task, result)
        log(f"task {task.id} attempt {task.attempts} done")
