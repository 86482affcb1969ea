"""Native rows → facts → items. The state of a step is the `to_state` of its most recent transition, else pending.

`retry_eligible`: `COALESCE(attempts, 0) = 0 OR (COALESCE(retryable, true) AND COALESCE(attempts, 0) <
COALESCE(max_attempts, 3))`. The first execution is always eligible, whatever the limit and the flag say.

| state | condition |
|---|---|
| pending, attempts 0 | waiting |
| pending, waiting_for_retry, attempts > 0, eligible | retrying |
| waiting_for_retry, attempts 0 | waiting |
| pending, waiting_for_retry, not eligible | terminal: its orchestrator never takes it |
| enqueued, in_progress, enqueued_for_orchestration, enqueued_as_error_for_orchestration | running; stuck only where the config sets `stuck_after` |
| error, eligible | failed |
| error, not eligible, or an error the config calls not recoverable | terminal |
| complete, resolved_manually | done |
| cancelled | cancelled |
| anything else | unknown, shown as it is |

A step that is ready but marked `processed` or `in_process` keeps its condition and says that it is not taken.
Next retry: `last_attempted_at + backoff_request_seconds` when both are set, else the last failure and
`min(2^attempts, 60)` s.
"""  # noqa: E501  a table

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from console.core.item import Item, ItemKey
from console.core.policy import Facts, Phase, RetryPolicy, judge, later
from console.sql.database import Row
from console.sql.times import IsoText, Naive
from console.sql.values import text, whole_number

READY = ("pending", "waiting_for_retry")
AT_WORK = ("enqueued", "in_progress", "enqueued_for_orchestration", "enqueued_as_error_for_orchestration")
FINISHED = ("complete", "resolved_manually")
PHASES = {
    **dict.fromkeys(READY, Phase.READY),
    **dict.fromkeys(AT_WORK, Phase.RUNNING),
    **dict.fromkeys(FINISHED, Phase.DONE),
    "error": Phase.FAILED,
    "cancelled": Phase.CANCELLED,
}
LONGEST_BACKOFF = 60
_LONGEST_WAIT = 10**12
"""More seconds than the calendar has."""


class Native(NamedTuple):
    """One step as stored, with its state and name."""

    uuid: Any
    name: Any
    state: Any
    entered_at: Any
    failed_at: Any
    error: Any
    attempts: Any
    max_attempts: Any
    retryable: Any
    in_process: Any
    processed: Any
    last_attempted_at: Any
    backoff: Any
    created_at: Any
    updated_at: Any


WIDTH = len(Native._fields)


def native(row: Row) -> Native:
    return Native._make(row[:WIDTH])


class StepRows:
    """Reads steps."""

    def __init__(self, backend: str, policy: RetryPolicy, time: Naive | IsoText) -> None:
        self._backend = backend
        self._policy = policy
        self._decode = time.decode

    def limit(self, step: Native) -> int:
        return (self._policy.max_attempts or 0) if step.max_attempts is None else whole_number(step.max_attempts)

    def eligible(self, step: Native) -> bool:
        attempts = whole_number(step.attempts)
        retryable = self._policy.retryable if step.retryable is None else is_true(step.retryable)
        return attempts == 0 or (retryable and attempts < self.limit(step))

    def facts(self, step: Native) -> Facts:
        attempts, phase = whole_number(step.attempts), PHASES.get(step.state, Phase.UNKNOWN)
        ready = phase is Phase.READY
        if ready and not self.eligible(step):
            phase = Phase.FAILED
        return Facts(
            phase,
            text(step.state),
            attempts,
            max_attempts=self.limit(step) if attempts else max(self.limit(step), 1),
            retryable=None if step.retryable is None else is_true(step.retryable),
            error=None if step.error is None else text(step.error),
            due_at=self.next_retry(step) if phase is Phase.READY and attempts else None,
            since=self._decode(step.entered_at),
            ignored=held(step) if ready else None,
        )

    def next_retry(self, step: Native) -> datetime | None:
        attempted = self._decode(step.last_attempted_at)
        if attempted is not None and step.backoff is not None:
            return later(attempted, wait_of(step.backoff))
        failed = self._decode(step.failed_at)
        return None if failed is None else later(failed, exponential(whole_number(step.attempts)))

    def read(self, row: Row, now: datetime) -> Item:
        step = native(row)
        facts = self.facts(step)
        return Item(
            ItemKey(self._backend, (text(step.uuid),)),
            text(step.name),
            facts.native_status,
            facts.attempts,
            self.limit(step),
            judge(facts, self._policy, now),
            facts.error,
            self._decode(step.created_at),
            self._decode(step.updated_at),
            now,
            None if facts.phase is Phase.RUNNING else self._decode(step.last_attempted_at),
            self._notes(step),
        )

    def _notes(self, step: Native) -> tuple[str, ...]:
        notes = []
        if why := held(step) if step.state in READY else None:
            notes.append(f"not taken: {why}")
        if step.attempts is None:
            notes.append("attempts is NULL, read as 0")
        if step.max_attempts is not None and self.limit(step) <= 0:
            notes.append(f"max_attempts is {text(step.max_attempts)[:60]}: only the first execution is allowed")
        return tuple(notes)


def held(step: Native) -> str | None:
    """Why a step that is ready is not taken."""
    if is_true(step.in_process):
        return "it is marked as in process"
    return "it is marked as processed" if is_true(step.processed) else None


def is_true(raw: Any) -> bool:
    """As SQL's IS TRUE has it here: in SQLite any other value than 1 is not."""
    return bool(raw == 1)


def wait_of(seconds: Any) -> timedelta:
    return timedelta(seconds=min(whole_number(seconds), _LONGEST_WAIT))


def exponential(attempts: int) -> timedelta:
    return timedelta(seconds=min(2 ** min(attempts, 10), LONGEST_BACKOFF))
