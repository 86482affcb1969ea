"""Native rows → facts → items: one item per pipeline of each row. Whatever a row holds, an item comes out.

| `<pipeline>_status` | condition |
|---|---|
| pending, `retry_count` 0 or NULL | waiting; stuck when `processed_at` is over 10 min old |
| pending, `retry_count` > 0 | running, since `last_retry_at`; stuck when `processed_at` is over 10 min old |
| failed, error not recoverable | terminal |
| failed, `retry_count` >= 3 | terminal |
| failed, `retry_count` NULL, or no `last_retry_at` and no `processed_at` | failed: the loop never takes it |
| failed otherwise | retrying, `[60, 300, 900, 1800][retry_count]` s after `COALESCE(last_retry_at, processed_at)` |
| success, skipped | done |
| anything else | unknown, shown as it is |

A stuck item runs again by itself while `retry_count < 3`, and never from there on. Both pipelines share
`retry_count` and `last_retry_at`: a retry of one moves the other's next retry too, and a canary may take the
other pipeline's execution for this one's.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from console.core.item import Condition, Item, ItemKey, Verdict
from console.core.policy import Facts, Phase, RetryPolicy, judge
from console.core.text import instant
from console.sql.database import Row
from console.sql.times import IsoText, Naive
from console.sql.values import text, whole_number

PHASES = {"failed": Phase.FAILED, "pending": Phase.READY, "success": Phase.DONE, "skipped": Phase.DONE}
EXECUTED = frozenset({"failed", "success"})
"""Statuses only an execution can have led to."""


class Native(NamedTuple):
    """One pipeline of one row, as stored, and the whole row's write unit."""

    id: Any
    pipeline: str
    status: Any
    error: Any
    retry_count: Any
    last_retry_at: Any
    processed_at: Any
    completed_at: Any
    place: Any
    statuses: tuple[Any, ...]
    """The statuses of all pipelines of the row, in config order."""

    @property
    def base(self) -> Any:
        """The time of the last attempt."""
        return self.processed_at if self.last_retry_at is None else self.last_retry_at


OWN_COLUMNS = len(Native._fields) - 1


def native(row: Row, pipelines: int) -> Native:
    """What follows the statuses of the row's pipelines is the page's, not the row's."""
    return Native._make((*row[:OWN_COLUMNS], tuple(row[OWN_COLUMNS : OWN_COLUMNS + pipelines])))


class AnalysisRows:
    """Reads the rows of one table."""

    def __init__(self, backend: str, policy: RetryPolicy, time: Naive | IsoText, pipelines: tuple[str, ...]) -> None:
        self._backend = backend
        self._policy = policy
        self._left_alone = replace(policy, retries_failed=False)
        self._decode = time.decode
        self._ambiguous = time.ambiguous if isinstance(time, Naive) else lambda _: False
        self._pipelines = len(pipelines)
        others = "both pipelines" if len(pipelines) == 2 else "all pipelines"
        self._shared = f"retry_count is shared by {others} of the row"

    def native(self, row: Row) -> Native:
        return native(row, self._pipelines)

    def facts(self, row: Native) -> Facts:
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
            last_attempt_at=self._decode(row.base),
            since=self._decode(row.processed_at),
            time_limit=limit,
            ignored="retry_count is NULL" if phase is Phase.READY and row.retry_count is None else None,
            reclaimed=True,
        )

    def verdict(self, row: Native, facts: Facts, now: datetime) -> Verdict:
        if facts.phase is Phase.FAILED and (row.retry_count is None or facts.last_attempt_at is None):
            return judge(facts, self._left_alone, now)
        verdict = judge(facts, self._policy, now)
        if verdict.condition is Condition.RUNNING and (began := self._decode(row.last_retry_at)):
            return verdict._replace(why=f"retry {facts.attempts - 1} began at {instant(began)}")
        return verdict

    def read(self, row: Row, now: datetime) -> Item:
        seen = self.native(row)
        facts = self.facts(seen)
        return Item(
            ItemKey(self._backend, (text(seen.id), seen.pipeline)),
            seen.pipeline,
            facts.native_status,
            attempts(seen),
            self._policy.max_attempts,
            self.verdict(seen, facts, now),
            facts.error,
            facts.since,
            self._updated(seen),
            now,
            self._updated(seen) if seen.status in EXECUTED else None,
            self._notes(seen),
        )

    def _updated(self, row: Native) -> datetime | None:
        done = row.completed_at if row.status == "success" else None
        return self._decode(row.base if done is None else done)

    def _notes(self, row: Native) -> tuple[str, ...]:
        notes = [self._shared]
        if row.retry_count is None:
            notes.append("retry_count is NULL: its own loop never takes it; budget fresh makes it 0")
        elif type(row.retry_count) is not int or row.retry_count < 0:
            notes.append(f"retry_count is {row.retry_count!r}, read as {whole_number(row.retry_count)}")
        for name in ("last_retry_at", "processed_at", "completed_at"):
            raw = getattr(row, name)
            if raw is not None and self._decode(raw) is None:
                notes.append(f"{name} is not a time: {text(raw)[:60]!r}")
            elif self._ambiguous(raw):
                notes.append(f"{name} lies in the hour the clock repeats: it may be an hour later than shown")
        return tuple(notes)


def attempts(row: Native) -> int:
    """Executions started: the retries, and the first one once there was one."""
    first = row.processed_at is not None or row.status in EXECUTED
    return whole_number(row.retry_count) + first
