"""Turns rows into facts and items. The state of a step is the `to_state` of its most recent transition, else pending.

`retry_eligible`: `COALESCE(attempts, 0) = 0 OR (COALESCE(retryable, true) AND COALESCE(attempts, 0) <
COALESCE(max_attempts, 3))`. The first execution is always eligible, regardless of the limit and the flag.

| state | condition |
|---|---|
| pending, waiting_for_retry, not eligible | terminal: its orchestrator never runs it |
| pending, waiting_for_retry, otherwise will not run (see `prediction`) | stuck |
| pending, waiting_for_retry, attempts 0 | waiting |
| pending, waiting_for_retry, attempts > 0 | retrying |
| enqueued, in_progress, enqueued_for_orchestration, enqueued_as_error_for_orchestration | running; stuck only where the config sets `stuck_after` |
| error, eligible | failed |
| error, not eligible or not recoverable by the config | terminal |
| complete, resolved_manually | done |
| cancelled | cancelled |
| anything else | unknown |

Next retry: `last_attempted_at + backoff_request_seconds` if both are set, otherwise the last failure plus
`min(2^attempts, 60)` s.
"""  # noqa: E501  a table

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from console.core.item import Condition, Item, ItemKey, Verdict
from console.core.policy import Facts, Phase, RetryPolicy, judge, later
from console.core.prediction import Prediction
from console.sql.database import Row
from console.sql.times import IsoText, Naive
from console.sql.values import text, whole_number
from plugins.workflow_steps.prediction import READY, StepState, TaskState, predict

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
"""In seconds, longer than the calendar."""


class StepRow(NamedTuple):
    """One step as stored, with its state and name, its task, and what it waits for."""

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
    task: Any
    task_state: Any
    task_since: Any
    task_created_at: Any
    priority: Any
    dead_letter: Any
    failed_siblings: Any
    waits_for: Any
    never_completes: Any
    may_fail: Any


def step_row(row: Row) -> StepRow:
    return StepRow._make(row[: len(StepRow._fields)])


class StepRows:
    """Makes items from steps."""

    def __init__(self, backend: str, policy: RetryPolicy, time: Naive | IsoText, *, has_detector: bool) -> None:
        self._backend = backend
        self._policy = policy
        self._decode = time.decode
        self._has_detector = has_detector

    def limit(self, step: StepRow) -> int:
        return (self._policy.max_attempts or 0) if step.max_attempts is None else whole_number(step.max_attempts)

    def eligible(self, step: StepRow) -> bool:
        attempts = whole_number(step.attempts)
        retryable = self._policy.retryable if step.retryable is None else is_true(step.retryable)
        return attempts == 0 or (retryable and attempts < self.limit(step))

    def facts(self, step: StepRow) -> Facts:
        attempts, phase = whole_number(step.attempts), PHASES.get(step.state, Phase.UNKNOWN)
        if phase is Phase.READY and not self.eligible(step):
            phase = Phase.FAILED
        return Facts(
            phase,
            text(step.state),
            attempts,
            max_attempts=self.limit(step) if attempts else max(self.limit(step), 1),
            retryable=None if step.retryable is None else is_true(step.retryable),
            error=None if step.error is None else text(step.error),
            due_at=self.next_retry(step) if phase is Phase.READY else None,
            since=self._decode(step.entered_at),
        )

    def next_retry(self, step: StepRow) -> datetime | None:
        attempted = self._decode(step.last_attempted_at)
        if attempted is not None and step.backoff is not None:
            return later(attempted, wait_of(step.backoff))
        failed = self._decode(step.failed_at)
        return None if failed is None else later(failed, exponential(step.attempts))

    # -- what its system will do -----------------------------------------------------------------

    def step_state(self, step: StepRow) -> StepState:
        names = (None if name is None else text(name) for name in (step.waits_for, step.never_completes, step.may_fail))
        return StepState(text(step.state), self.eligible(step), _mark(step), self.next_retry(step), *names)

    def task_state(self, step: StepRow) -> TaskState:
        return TaskState(
            None if step.task_state is None else text(step.task_state),
            self._decode(step.task_since),
            self._decode(step.task_created_at),
            whole_number(step.failed_siblings),
            None if step.dead_letter is None else text(step.dead_letter),
            self._has_detector,
        )

    def prediction(self, step: StepRow, now: datetime) -> Prediction:
        return predict(self.step_state(step), self.task_state(step), now)

    def verdict(self, step: StepRow, now: datetime) -> Verdict:
        facts = self.facts(step)
        verdict = judge(facts, self._policy, now)
        if facts.phase is not Phase.READY:
            return verdict
        prediction = self.prediction(step, now)
        verdict = prediction.apply(verdict)
        return verdict._replace(condition=Condition.STUCK) if prediction.runs is False else verdict

    # -- items -----------------------------------------------------------------------------------

    def read(self, row: Row, now: datetime) -> Item:
        step = step_row(row)
        return Item(
            ItemKey(self._backend, (text(step.uuid),)),
            text(step.name),
            text(step.state),
            whole_number(step.attempts),
            self.limit(step),
            self.verdict(step, now),
            None if step.error is None else text(step.error),
            self._decode(step.created_at),
            self._decode(step.updated_at),
            now,
            None if step.state in AT_WORK else self._decode(step.last_attempted_at),
            self._notes(step),
        )

    def _notes(self, step: StepRow) -> tuple[str, ...]:
        notes = []
        if step.attempts is None:
            notes.append("attempts is NULL, read as 0")
        if step.max_attempts is not None and self.limit(step) <= 0:
            notes.append(f"max_attempts is {text(step.max_attempts)[:60]}, which allows only the first execution")
        return tuple(notes)


def _mark(step: StepRow) -> str | None:
    if is_true(step.in_process):
        return "in process"
    return "processed" if is_true(step.processed) else None


def is_true(raw: Any) -> bool:
    """Whether SQL's IS TRUE holds; in SQLite only for 1."""
    return bool(raw == 1)


def wait_of(seconds: Any) -> timedelta:
    return timedelta(seconds=min(whole_number(seconds), _LONGEST_WAIT))


def exponential(attempts: Any) -> timedelta:
    """The system's own backoff. It reads a missing number of attempts as 1 here."""
    number = 1 if attempts is None else whole_number(attempts)
    return timedelta(seconds=min(2 ** min(number, 10), LONGEST_BACKOFF))
