"""Turns rows into facts and items, one for each pipeline. Every row becomes items, whatever it contains.

| `<pipeline>_status` | condition |
|---|---|
| pending, `retry_count` 0 or NULL | waiting; stuck when `processed_at` is over 10 min old |
| pending, `retry_count` > 0 | running, since `last_retry_at`; stuck when `processed_at` is over 10 min old |
| failed, without an answer where the loop needs one | terminal |
| failed, error not recoverable | terminal |
| failed, `retry_count` >= 3 | terminal |
| failed, `retry_count` NULL, or starved by ten older rows that the loop always skips | failed: it never runs |
| failed, `last_retry_at` and `processed_at` NULL | retrying, in the next cycle |
| failed otherwise | retrying, `[60, 300, 900, 1800][retry_count]` s after `COALESCE(last_retry_at, processed_at)` |
| success, skipped | done |
| anything else | unknown |

Whether the loop runs an item again is predicted by `prediction.predict`. Both pipelines share `retry_count` and
`last_retry_at`: a retry of one also changes the next retry of the other, and a canary may mistake an execution of the
other for its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from console.core.item import Condition, Item, ItemKey, Verdict
from console.core.policy import Facts, Phase, RetryPolicy, judge
from console.core.prediction import Prediction
from console.core.text import instant
from console.sql.database import Row
from console.sql.times import IsoText, Naive
from console.sql.values import text, whole_number
from plugins.postgres_analyses.prediction import (
    NO_ANSWER,
    AnalysisState,
    LoopPosition,
    PipelineState,
    Schedule,
    predict,
)

SKIPPED = "skipped"
"""The status of a pipeline that was given up on purpose. Its loop never takes it."""
PHASES = {"failed": Phase.FAILED, "pending": Phase.READY, "success": Phase.DONE, SKIPPED: Phase.DONE}
_RETRIED = (Phase.READY, Phase.RUNNING, Phase.FAILED)
EXECUTED = frozenset({"failed", "success"})
"""Statuses that only an execution sets."""


class PipelineRow(NamedTuple):
    """One pipeline of one row, as stored, with the columns that all pipelines of the row share."""

    id: Any
    pipeline: str
    error: Any
    retry_count: Any
    last_retry_at: Any
    processed_at: Any
    completed_at: Any
    address: Any
    """Where the database finds the row again."""
    has_answer: Any
    place: Any
    """The `LoopPosition` of a failed row."""
    is_first: Any
    """Among the first ten rows of its loop, where another pipeline of the row may be retried, too."""
    statuses: tuple[Any, ...]
    """The statuses of all pipelines of the row, in config order."""
    recoverable: tuple[Any, ...]
    """Which pipelines have failed with an error that the loop retries."""
    status: Any
    """The status of this pipeline."""


class Times(NamedTuple):
    """The times of one pipeline of one row; None where the column has no valid time."""

    last_retry: datetime | None
    processed: datetime | None
    completed: datetime | None
    base: datetime | None
    """The last attempt."""
    updated: datetime | None


_TIMES = ("last_retry_at", "processed_at", "completed_at")
_ALIKE = 1_000
Judged = tuple[str, str | None, Verdict]
"""PipelineRow status, error, verdict."""

_COLUMNS = PipelineRow._fields.index("statuses")
"""The number of selected columns before the statuses of all pipelines."""


class AnalysisRows:
    """Reads the rows of one table."""

    def __init__(self, backend: str, policy: RetryPolicy, time: Naive | IsoText, pipelines: tuple[str, ...]) -> None:
        self._backend = backend
        self._policy = policy
        self._schedule = Schedule.of(policy)
        self._decode = time.decode
        self._repeats = isinstance(time, Naive) and time.repeats
        self._ambiguous = time.ambiguous if isinstance(time, Naive) else lambda _: False
        self._terminal: dict[tuple[Any, ...], Judged] = {}
        self._number = {pipeline: n for n, pipeline in enumerate(pipelines)}
        self._end = _COLUMNS + len(pipelines)
        self._pipelines = pipelines
        others = "both pipelines" if len(pipelines) == 2 else "all pipelines"
        self._usual = (f"retry_count is shared by {others} of the row",)

    def pipeline_row(self, row: Row) -> PipelineRow:
        """Make a row from the selected columns. A page may select further columns after the statuses."""
        statuses, recoverable = row[_COLUMNS : self._end], row[self._end : self._end + len(self._pipelines)]
        return PipelineRow._make((*row[:_COLUMNS], statuses, recoverable, statuses[self._number[row[1]]]))

    def times(self, row: PipelineRow) -> Times:
        decode = self._decode
        last, processed, completed = decode(row.last_retry_at), decode(row.processed_at), decode(row.completed_at)
        base = processed if row.last_retry_at is None else last
        updated = completed if row.completed_at is not None and row.status == "success" else base
        return Times(last, processed, completed, base, updated)

    def facts(self, row: PipelineRow) -> Facts:
        return self._facts(row, self.times(row))

    def _facts(self, row: PipelineRow, times: Times) -> Facts:
        phase = PHASES.get(row.status, Phase.UNKNOWN)
        retries = whole_number(row.retry_count)
        limit = None
        if phase is Phase.READY:
            limit = self._policy.stuck_after
            phase = Phase.RUNNING if retries else phase
        return Facts(
            phase,
            text(row.status),
            0 if phase is Phase.READY else retries + 1,
            error=None if row.error is None else text(row.error),
            last_attempt_at=times.base,
            since=times.processed,
            time_limit=limit,
            marker=None if row.has_answer else NO_ANSWER,
            reclaimed=True,
        )

    def state(self, row: PipelineRow, times: Times) -> AnalysisState:
        """The state of an item that a prediction is made from."""
        return AnalysisState(
            self._number[row.pipeline],
            tuple(map(PipelineState, self._pipelines, map(text, row.statuses), map(bool, row.recoverable))),
            None if row.retry_count is None else whole_number(row.retry_count),
            times.last_retry,
            times.processed,
            bool(row.has_answer),
            times.base is not None or (row.last_retry_at is None and row.processed_at is None),
            LoopPosition(row.place or 0),
            row.is_first is None or bool(row.is_first),
        )

    def predict(self, state: AnalysisState, now: datetime) -> Prediction:
        return predict(state, self._schedule, now)

    def verdict(self, row: PipelineRow, times: Times, facts: Facts, now: datetime) -> Verdict:
        verdict = judge(facts, self._policy, now)
        if facts.phase not in _RETRIED or verdict.condition is Condition.TERMINAL:
            return verdict
        prediction = self.predict(self.state(row, times), now)
        if facts.phase is Phase.FAILED and times.base is None:
            verdict = verdict._replace(next_retry=None)
        if prediction.runs:
            if verdict.condition is Condition.RUNNING and times.last_retry is not None:
                return verdict._replace(why=f"retry {facts.attempts - 1} began at {instant(times.last_retry)}")
            return verdict._replace(will_run_again=True)
        if facts.phase is Phase.FAILED and prediction.runs is False:
            return Verdict(Condition.FAILED, prediction.why, None, False, verdict.recoverable)
        return verdict._replace(why=prediction.why, will_run_again=prediction.runs)

    def judged(self, row: PipelineRow, times: Times, now: datetime) -> Judged:
        """Judge a row. Terminal verdicts do not depend on the time and are remembered, because many rows fail alike."""
        kind = (row.status, row.retry_count, row.error, bool(row.has_answer))
        if known := self._terminal.get(kind):
            return known
        facts = self._facts(row, times)
        judged = facts.native_status, facts.error, self.verdict(row, times, facts, now)
        if judged[2].condition is Condition.TERMINAL:
            if len(self._terminal) >= _ALIKE:
                self._terminal.clear()
            self._terminal[kind] = judged
        return judged

    def read(self, row: Row, now: datetime) -> Item:
        stored = self.pipeline_row(row)
        times = self.times(stored)
        native_status, error, verdict = self.judged(stored, times, now)
        return Item(
            ItemKey(self._backend, (text(stored.id), stored.pipeline)),
            stored.pipeline,
            native_status,
            attempts(stored),
            self._policy.max_attempts,
            verdict,
            error,
            times.processed,
            times.updated,
            now,
            times.updated if stored.status in EXECUTED else None,
            self._notes(stored, times),
        )

    def _notes(self, row: PipelineRow, times: Times) -> tuple[str, ...]:
        retries = row.retry_count
        stored = (row.last_retry_at, row.processed_at, row.completed_at)
        read = stored.count(None) == times[:3].count(None)
        if read and type(retries) is int and retries >= 0 and not self._repeats:
            return self._usual
        notes = [*self._usual]
        if retries is None:
            notes.append("retry_count is NULL, so the loop never retries it; resetting attempts makes it 0")
        elif type(retries) is not int or retries < 0:
            notes.append(f"retry_count is {retries!r}, read as {whole_number(retries)}")
        for name, raw, at in zip(_TIMES, stored, times, strict=False):
            if raw is None:
                continue
            if at is None:
                notes.append(f"{name} is not a time: {text(raw)[:60]!r}")
            elif self._repeats and self._ambiguous(raw):
                notes.append(f"{name} is in the hour that the clock repeats; it may be one hour later than shown")
        return tuple(notes)


def attempts(row: PipelineRow) -> int:
    """The number of executions: the retries, and the first execution once it happened."""
    first = row.processed_at is not None or row.status in EXECUTED
    return whole_number(row.retry_count) + first
