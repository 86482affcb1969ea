"""Predicts whether the retry loop will run an analysis.

The loop's order, once a minute:

1. For each pipeline, it reads the ten failed rows with the oldest `processed_at` (NULL last) that have an answer,
   retries left and no retry in the last minute. Of these ten it skips those that still wait and those whose error is
   not recoverable. Rows that it always skips keep their places: ten of them starve every row behind them.
2. It reads the ten oldest rows with a pending pipeline and a `processed_at` of over ten minutes ago, and retries each
   pending pipeline of them, whatever the error.

All pipelines of a row share one counter, and each retry also starts the wait of the others again. So a pipeline that
the loop takes first can use up the retries of the others.

A prediction assumes that the errors of other rows stay recoverable or not as they are. A pending row with an error that
is not recoverable counts as one that may be skipped: once it has failed again, it keeps a place.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import NamedTuple

from console.core.advice import Advice, Step
from console.core.backend import Attempts, Flag, Throughput
from console.core.item import Window
from console.core.policy import RetryPolicy, later
from console.core.prediction import Prediction

PER_CYCLE, CYCLE = 10, timedelta(seconds=60)
THROUGHPUT = Throughput(PER_CYCLE, CYCLE)
"""What the loop takes of each pipeline."""
NO_ANSWER = "Its loop does not see rows without an answer."

_LONGEST_SCHEDULE = 64
_RESET = Advice(Step.SET_ATTEMPTS, Attempts.RESET.value)
_FORCE = Advice(Step.TURN_ON, Flag.INCLUDE_UNRECOVERABLE.value)
_NO_COUNTER = Prediction(False, "retry_count is NULL, which its loop never takes.", _RESET)
_UNRECOVERABLE = Prediction(False, "Its error is not recoverable, so its loop skips it.", _FORCE)
_NO_TIME = Prediction(False, "The time of its last try cannot be read, so its loop skips it.", _RESET)
_STARVED = Prediction(
    False,
    f"Starved by {PER_CYCLE} older rows: its loop looks only at the {PER_CYCLE} oldest, and always skips them because"
    " their errors are not recoverable.",
    _FORCE,
)
_MAY_STARVE = Prediction(
    None, f"It may starve: {PER_CYCLE} older rows or more have errors that its loop skips.", _FORCE
)
_NO_START = Prediction(False, "It is pending and processed_at is not set, so its loop never takes it.")


class LoopPosition(IntEnum):
    """What the rows before an item mean for it, in the order of its loop."""

    FREE = 0
    MAY_STARVE = 1
    STARVED = 2


@dataclass(frozen=True, slots=True)
class Schedule:
    """The numbers of the loop."""

    retries: int
    delays: tuple[timedelta, ...]
    stuck_after: timedelta

    @classmethod
    def of(cls, policy: RetryPolicy) -> Schedule:
        retries = (policy.max_attempts or 1) - 1
        bounds = [policy.delay_after(n + 1) for n in range(min(max(retries, 1), _LONGEST_SCHEDULE))]
        delays = tuple(low for low, _ in filter(None, bounds)) or (timedelta(0),)
        return cls(retries, delays, policy.stuck_after or timedelta(0))

    def delay(self, retry_count: int) -> timedelta:
        """The wait before the next retry. The last one also applies to all later retries."""
        return self.delays[min(max(retry_count, 0), len(self.delays) - 1)]


class PipelineState(NamedTuple):
    """One pipeline of a row."""

    name: str
    status: str
    recoverable: bool = True


class AnalysisState(NamedTuple):
    """What the loop's decision about one pipeline of a row depends on."""

    own: int
    """The position of the pipeline among those of the row."""
    pipelines: tuple[PipelineState, ...]
    """All pipelines of the row, in the order in which the loop takes them."""
    retry_count: int | None
    last_retry_at: datetime | None
    processed_at: datetime | None
    has_answer: bool = True
    is_readable: bool = True
    """False if the last try has a time that cannot be read."""
    place: LoopPosition = LoopPosition.FREE
    is_first: bool = True
    """Among the ten rows that the loop looks at first in every cycle."""


def predict(state: AnalysisState, schedule: Schedule, now: datetime) -> Prediction:
    """Whether the loop will run a failed or pending pipeline, and when."""
    pipeline = state.pipelines[state.own]
    if not state.has_answer:
        return Prediction(False, NO_ANSWER)
    if state.retry_count is None:
        return _NO_COUNTER
    if state.retry_count >= schedule.retries:
        used = f"No attempts left: {state.retry_count} of {schedule.retries} retries used, shared by both pipelines."
        return Prediction(False, used, _RESET)
    if pipeline.status == "pending":
        return _predict_pending(state, state.retry_count, schedule, now)
    return _predict_failed(state, state.retry_count, schedule, now)


def _predict_failed(state: AnalysisState, retry_count: int, schedule: Schedule, now: datetime) -> Prediction:
    if not state.pipelines[state.own].recoverable:
        return _UNRECOVERABLE
    if not state.is_readable:
        return _NO_TIME
    if state.place is LoopPosition.STARVED:
        return _STARVED
    if state.place is LoopPosition.MAY_STARVE:
        return _MAY_STARVE
    base = state.last_retry_at or state.processed_at
    due = now if base is None else later(base, schedule.delay(retry_count))
    failed, pending = _rivals(state, "failed"), _rivals(state, "pending")
    before = [number for number in (*failed, *pending) if number < state.own]
    if before or retry_count + len(pending) >= schedule.retries or ((failed or pending) and not state.is_first):
        return _may_get_none(state, (*before, *failed, *pending)[0], schedule)
    return Prediction(True, at=Window.at(due))


def _predict_pending(state: AnalysisState, retry_count: int, schedule: Schedule, now: datetime) -> Prediction:
    if state.processed_at is None:
        return _NO_START
    due = later(state.processed_at, schedule.stuck_after)
    if failed := _rivals(state, "failed"):
        used, wait = retry_count, timedelta(0)
        while used < schedule.retries and wait <= max(due - now, timedelta(0)) + CYCLE:
            used += 1
            wait += max(schedule.delay(used), CYCLE)
        if used >= schedule.retries or not state.is_first:
            return _may_get_none(state, failed[0], schedule)
    return Prediction(True, at=Window.at(due))


def _rivals(state: AnalysisState, status: str) -> list[int]:
    """The other pipelines of the row that the loop may retry, too."""
    return [
        number
        for number, pipeline in enumerate(state.pipelines)
        if number != state.own
        and pipeline.status == status
        and (pipeline.recoverable if status == "failed" else state.processed_at is not None)
    ]


def _may_get_none(state: AnalysisState, rival: int, schedule: Schedule) -> Prediction:
    name, left = state.pipelines[rival].name, schedule.retries - (state.retry_count or 0)
    shared = "the last retry" if left == 1 else f"the {left} retries"
    return Prediction(None, f"It may get none: {name} of the same row may use {shared} that both share.", _RESET)
