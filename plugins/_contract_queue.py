"""The rules of the contract queue, shared by its two storages: an SQLite file and a folder of files.

What may be handed back, and the loop a worker runs, are the same for the analysis queue.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from console.core.backend import Budget, Flag, Order
from console.core.handlers import message_of
from console.core.item import Condition, Item, ItemKey, Verdict
from console.core.policy import Exponential, Facts, Phase, RetryPolicy, judge, limit_of
from console.core.ports import Clock, Stop
from console.sql.values import text, whole_number

PHASES = {
    "PENDING": Phase.READY,
    "RUNNING": Phase.RUNNING,
    "SUCCESS": Phase.DONE,
    "FAILED": Phase.FAILED,
    "CANCELLED": Phase.CANCELLED,
}

POLICY = RetryPolicy(
    max_attempts=3,
    backoff=Exponential(timedelta(seconds=1), multiplier=2, cap=timedelta(seconds=60), jitter=0.25),
    stuck_after=timedelta(hours=1),
)
"""The queue's own numbers. `max_retries` of a task is its max attempts: three means three executions."""

LONGEST_TIMEOUT = 10**10


def may_retry(attempts: int, max_retries: int) -> bool:
    """The retry predicate, on the counter as it is after the claim."""
    return attempts < max_retries


def retry_delay(policy: RetryPolicy, attempts: int, chance: random.Random) -> timedelta:
    """The queue, not the worker, decides how long a failed task waits."""
    bounds = policy.delay_after(attempts)
    if bounds is None:
        return timedelta(0)
    low, high = bounds
    return low + (high - low) * chance.random()


# --- rows ---------------------------------------------------------------------------------------------


def evidence(result_error: Any, task_error: Any) -> str | None:
    """The message a person needs: the result's error, else the task's own unless that is JSON's null."""
    if isinstance(result_error, str) and result_error:
        return result_error
    if isinstance(task_error, str) and task_error.strip(" \t\n\v\f\r") not in ("", "null"):
        return task_error
    return None


def odd(attempts: Any, *times: tuple[str, Any, datetime | None]) -> tuple[str, ...]:
    """What is strange about a row's times and counter, in words."""
    notes = [f"{name} is not a time: {text(raw)[:60]!r}" for name, raw, at in times if at is None and raw is not None]
    if type(attempts) is not int or attempts < 0:
        shown = "NULL" if attempts is None else repr(attempts)[:60]
        notes.append(f"attempts is {shown}, read as {whole_number(attempts)}")
    return tuple(notes)


class ContractTask(NamedTuple):
    """One task of either storage as stored, with the error of its result beside it."""

    id: Any
    func_path: Any
    status: Any
    attempts: Any
    max_retries: Any
    eta: Any
    timeout: Any
    error: Any
    own_error: Any
    created_at: Any
    updated_at: Any
    last_attempt_at: Any


class ContractTaskRows:
    """Tasks of the contract queue → facts → items. Whatever a task holds, an item comes out."""

    width = len(ContractTask._fields)

    def __init__(self, backend: str, policy: RetryPolicy, decode: Callable[[Any], datetime | None]) -> None:
        self._backend = backend
        self._policy = policy
        self._decode = decode

    def facts(self, row: tuple[Any, ...]) -> Facts:
        (
            _id,
            _func,
            status,
            attempts,
            max_retries,
            eta,
            timeout,
            error,
            own_error,
            created_at,
            updated_at,
            _last,
        ) = row
        phase = PHASES.get(status, Phase.UNKNOWN)
        due = self._decode(eta) if phase is Phase.READY else None
        lost = phase is Phase.READY and eta is not None and due is None
        return Facts(
            phase,
            text(status),
            whole_number(attempts),
            max_attempts=None if max_retries is None else whole_number(max_retries),
            error=evidence(None if error is None else text(error), None if own_error is None else text(own_error)),
            due_at=due,
            since=self._decode(updated_at) if phase is Phase.RUNNING else None,
            time_limit=timedelta(seconds=min(whole_number(timeout), LONGEST_TIMEOUT))
            if phase is Phase.RUNNING and timeout is not None
            else None,
            born_at=self._decode(created_at),
            ignored="eta is not a time" if lost else None,
        )

    def read(self, row: tuple[Any, ...], now: datetime) -> Item:
        return self.item(row, self.facts(row), now)

    def item(self, row: tuple[Any, ...], facts: Facts, now: datetime) -> Item:
        id, func, _status, attempts, _limit, eta, _time, _error, _own, created_at, updated_at, last = row
        updated, executed = self._decode(updated_at), self._decode(last)
        limit = self._policy.max_attempts if facts.max_attempts is None else facts.max_attempts
        return Item(
            ItemKey(self._backend, (text(id),)),
            text(func),
            facts.native_status,
            facts.attempts,
            limit,
            judge(facts, self._policy, now),
            facts.error,
            facts.born_at,
            updated,
            now,
            executed,
            odd(
                attempts,
                ("eta", eta, facts.due_at or self._decode(eta)),
                ("created_at", created_at, facts.born_at),
                ("updated_at", updated_at, updated),
                ("last_attempt_at", last, executed),
            ),
        )


# --- handing back -------------------------------------------------------------------------------------

_BLOCKED = {
    Condition.WAITING: "has not failed: it waits for its first run",
    Condition.RUNNING: "is running within its limit",
    Condition.DONE: "is done",
    Condition.CANCELLED: "was cancelled",
    Condition.UNKNOWN: "has a native status this plugin has no rule for",
}
STRANGE = "holds a value that is not text, so a write could not be guarded"
_ONE_MORE = "budget keep: exactly one more execution, a further failure is terminal at once"
_OLD_WORKER = "was still running when its limit passed: the old worker may be alive"


def decide(
    facts: Facts, verdict: Verdict, order: Order, policy: RetryPolicy, now: datetime
) -> tuple[str | None, str | None]:
    """Why an item is blocked, if it is, and what to be warned of otherwise."""
    if blocked := _BLOCKED.get(verdict.condition):
        return blocked, None
    limit = limit_of(facts, policy)
    used_up = limit is not None and facts.attempts >= limit
    keeps = order.budget is Budget.KEEP
    match verdict.condition:
        case Condition.RETRYING:
            return _pull_forward(facts, keeps, now), None
        case Condition.STUCK if used_up and keeps:
            return f"{facts.attempts} of {limit} attempts used; use budget fresh", None
        case Condition.STUCK:
            return None, _OLD_WORKER
    if verdict.recoverable is False and Flag.ALLOW_UNRECOVERABLE not in order.flags:
        return "its error is not recoverable; allow it with --allow-unrecoverable", None
    return None, _ONE_MORE if used_up and keeps else None


def _pull_forward(facts: Facts, keeps: bool, now: datetime) -> str | None:
    if not keeps:
        return "is being retried: it can only be pulled forward, with budget keep"
    if facts.ignored is None and (facts.due_at is None or facts.due_at <= now):
        return "is already due: its own queue takes it next"
    return None


# --- working ------------------------------------------------------------------------------------------

ERROR_CODE = "ERR_HANDLER"


class Claimed(NamedTuple):
    """A task this worker holds, with the authoritative counter as the claim left it."""

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
    """Claim and handle tasks until stopped. A handler that raises is a failed attempt, never the loop's end."""
    executions = 0
    while not stop.requested:
        if reclaimed := queue.reclaim():
            log(f"reclaimed {reclaimed} abandoned tasks")
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
