"""Which analyses can be requeued: those that the retry loop would run afterwards. And which can be discarded."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from console.core.action_rules import ALREADY_DUE, NOT_REQUEUEABLE, decide_discard
from console.core.advice import Advice, Notice, Step
from console.core.backend import Attempts, Flag, Operation
from console.core.item import Condition, Verdict
from console.core.policy import RetryPolicy
from console.core.prediction import Prediction
from console.core.text import duration, instant
from plugins.postgres_analyses.prediction import PER_CYCLE, AnalysisState, LoopPosition, Schedule
from plugins.postgres_analyses.rows import AnalysisRows, PipelineRow

_UNCHANGED = Notice("A requeue would change nothing: its loop counts from processed_at.")
_RUNS_STUCK = Notice("Its loop runs stuck items again by itself.")
_NOT_RETRYABLE = Notice("The policy says it is not retryable.")
_FORCED = "It is set pending with its attempts reset: the loop's stuck rule takes it whatever its error is."
_RESET_TOO = "The other pipeline of the same row has its attempts reset too."
_TAKES_PLACE = f"Its error is not recoverable, so it takes one of the {PER_CYCLE} places that the loop looks at."
_EARLIER_TOO = "The other pipeline of the same row has failed as well and runs earlier too."
_OLD_WORKER = "Still pending when its limit passed; the old worker may still be alive."


class Decision(NamedTuple):
    """Why an item is skipped, or else what to warn of."""

    skipped: Notice | None
    warnings: tuple[str, ...] = ()
    forced: bool = False
    """It is set pending, so that the loop's stuck rule takes it."""


def skip(prediction: Prediction) -> Decision:
    return Decision(Notice(prediction.why, prediction.advice))


class Rules:
    """Decides whether the loop would run an item after a requeue."""

    def __init__(self, policy: RetryPolicy, rows: AnalysisRows) -> None:
        self._policy = policy
        self._rows = rows
        self._schedule = Schedule.of(policy)
        self._limit = self._schedule.stuck_after

    def decide(self, row: PipelineRow, verdict: Verdict, operation: Operation, now: datetime) -> Decision:
        if operation.discards:
            return _discard(verdict)
        times = self._rows.times(row)
        state = self._rows.state(row, times)
        if verdict.condition in NOT_REQUEUEABLE:
            return Decision(NOT_REQUEUEABLE[verdict.condition])
        if verdict.condition is Condition.STUCK:
            return self._stuck(state, verdict, operation, now)
        state = state._replace(is_readable=row.processed_at is None or times.processed is not None)
        is_forced = Flag.INCLUDE_UNRECOVERABLE in operation.flags
        if is_forced and (verdict.recoverable is False or state.place is LoopPosition.STARVED):
            return self._forced(state, now)
        return self._failed(state, verdict, operation, now)

    def _stuck(self, state: AnalysisState, verdict: Verdict, operation: Operation, now: datetime) -> Decision:
        if verdict.will_run_again:
            return Decision(_RUNS_STUCK)
        after = self._predicted(state, operation, now)
        if after.runs is False:
            return skip(after)
        if operation.attempts is Attempts.KEEP:
            return Decision(Notice(verdict.why, Advice(Step.SET_ATTEMPTS, Attempts.RESET.value)))
        if state.last_retry_at is not None and now - state.last_retry_at <= self._limit:
            return Decision(Notice(f"Its last retry began less than {duration(self._limit)} ago; it may still run."))
        return Decision(None, (_OLD_WORKER, _RESET_TOO, *_doubt(after)))

    def _forced(self, state: AnalysisState, now: datetime) -> Decision:
        own = state.pipelines[state.own]._replace(status="pending")
        pipelines = tuple(own if n == state.own else other for n, other in enumerate(state.pipelines))
        pending = state._replace(pipelines=pipelines, retry_count=0, last_retry_at=None, is_first=False)
        after = self._rows.predict(pending, now)
        if after.runs is False:
            return skip(after)
        if after.at is not None and after.at.earliest >= now:
            return Decision(Notice(f"Its loop's stuck rule takes it only from {instant(after.at.earliest)} on."))
        return Decision(None, (_FORCED, _RESET_TOO, *_doubt(after)), forced=True)

    def _failed(self, state: AnalysisState, verdict: Verdict, operation: Operation, now: datetime) -> Decision:
        if not self._policy.retryable:
            return Decision(_NOT_RETRYABLE)
        keeps = operation.attempts is Attempts.KEEP
        after = self._predicted(state, operation, now)
        if after.runs is False:
            return skip(after)
        if keeps and verdict.condition is Condition.RETRYING and (verdict.next_retry_at or now) <= now:
            return Decision(ALREADY_DUE) if verdict.will_run_again else skip(after)
        if state.last_retry_at is None and (keeps or state.retry_count == 0):
            return Decision(_UNCHANGED)
        wait = self._schedule.delay(state.retry_count or 0 if keeps else 0)
        waits = after.at is not None and after.at.earliest > now
        late = (f"Its loop waits until {duration(wait)} after processed_at.",) if waits else ()
        return Decision(None, (*late, *(_also(state) if keeps else self._reset_too(state)), *_doubt(after)))

    def _reset_too(self, state: AnalysisState) -> tuple[str, ...]:
        """What a reset means for the other pipelines of the row."""
        had_room = state.retry_count is not None and state.retry_count < self._schedule.retries
        others = (pipeline for number, pipeline in enumerate(state.pipelines) if number != state.own)
        skipped = any(pipeline.status == "failed" and not pipeline.recoverable for pipeline in others)
        return (_RESET_TOO,) if had_room or not skipped else (_RESET_TOO, _TAKES_PLACE)

    def _predicted(self, state: AnalysisState, operation: Operation, now: datetime) -> Prediction:
        """What the loop does with an item that was requeued."""
        retry_count = state.retry_count if operation.attempts is Attempts.KEEP else 0
        return self._rows.predict(state._replace(retry_count=retry_count, last_retry_at=None), now)


def _discard(verdict: Verdict) -> Decision:
    """The usual rule. A terminal one is closed, too: its system itself uses `skipped` for that."""
    usual = decide_discard(verdict.condition, takes_terminal=True)
    return Decision(usual.skipped, () if usual.warning is None else (usual.warning.text,))


def _doubt(after: Prediction) -> tuple[str, ...]:
    return (after.why,) if after.runs is None else ()


def _also(state: AnalysisState) -> tuple[str, ...]:
    return (_EARLIER_TOO,) if sum(pipeline.status == "failed" for pipeline in state.pipelines) > 1 else ()
