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

from collections.abc import Sequence
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


_new = tuple.__new__


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


class Times(NamedTuple):
    """The instants of one pipeline of one row, each None where there is none or it is not a time."""

    last_retry: datetime | None
    processed: datetime | None
    completed: datetime | None
    base: datetime | None
    """The last attempt."""
    updated: datetime | None


_TIMES = ("last_retry_at", "processed_at", "completed_at")
_ALIKE = 1_000
Judged = tuple[str, str | None, Verdict]
"""Native status, error, verdict."""

_OWN = len(Native._fields) - 2
"""Columns before the statuses of the row's pipelines; one of those is the item's own."""


class AnalysisRows:
    """Reads the rows of one table."""

    def __init__(self, backend: str, policy: RetryPolicy, time: Naive | IsoText, pipelines: tuple[str, ...]) -> None:
        self._backend = backend
        self._policy = policy
        self._left_alone = replace(policy, retries_failed=False)
        self._decode = time.decode
        self._repeats = isinstance(time, Naive) and time.repeats
        self._ambiguous = time.ambiguous if isinstance(time, Naive) else lambda _: False
        self._given_up: dict[tuple[Any, ...], Judged] = {}
        self._place_of = {pipeline: n for n, pipeline in enumerate(pipelines)}
        self._end = _OWN + len(pipelines)
        others = "both pipelines" if len(pipelines) == 2 else "all pipelines"
        self._usual = (f"retry_count is shared by {others} of the row",)

    def native(self, row: Row) -> Native:
        """What follows the statuses of the row's pipelines is the page's, not the row's."""
        return _new(Native, (*row[:2], row[_OWN + self._place_of[row[1]]], *row[2:_OWN], row[_OWN : self._end]))

    def own_statuses(self, pipelines: Row, statuses: Sequence[Row]) -> set[Any]:
        """Of many items, their pipelines and the statuses of their rows by column: the statuses the items have."""
        kinds = set(zip(pipelines, *statuses, strict=True))
        return {each[self._place_of[pipeline]] for pipeline, *each in kinds}

    def times(self, row: Native) -> Times:
        decode = self._decode
        last, processed, completed = decode(row.last_retry_at), decode(row.processed_at), decode(row.completed_at)
        base = processed if row.last_retry_at is None else last
        updated = completed if row.completed_at is not None and row.status == "success" else base
        return Times(last, processed, completed, base, updated)

    def facts(self, row: Native) -> Facts:
        return self._facts(row, self.times(row))

    def _facts(self, row: Native, times: Times) -> Facts:
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

    def judged(self, row: Native, times: Times, now: datetime) -> Judged:
        """What is terminal stays so at any time, and most of it has failed alike: that is judged once."""
        kind = (row.status, row.retry_count, row.error, times.base is None)
        if known := self._given_up.get(kind):
            return known
        facts = self._facts(row, times)
        judged = facts.native_status, facts.error, self.verdict(row, facts, now)
        if judged[2].condition is Condition.TERMINAL:
            if len(self._given_up) >= _ALIKE:
                self._given_up.clear()
            self._given_up[kind] = judged
        return judged

    def read(self, row: Row, now: datetime) -> Item:
        seen = self.native(row)
        times = self.times(seen)
        native_status, error, verdict = self.judged(seen, times, now)
        return Item(
            ItemKey(self._backend, (text(seen.id), seen.pipeline)),
            seen.pipeline,
            native_status,
            attempts(seen),
            self._policy.max_attempts,
            verdict,
            error,
            times.processed,
            times.updated,
            now,
            times.updated if seen.status in EXECUTED else None,
            self._notes(seen, times),
        )

    def _notes(self, row: Native, times: Times) -> tuple[str, ...]:
        retries = row.retry_count
        stored = (row.last_retry_at, row.processed_at, row.completed_at)
        read = stored.count(None) == times[:3].count(None)
        if read and type(retries) is int and retries >= 0 and not self._repeats:
            return self._usual
        notes = [*self._usual]
        if retries is None:
            notes.append("retry_count is NULL: its own loop never takes it; budget fresh makes it 0")
        elif type(retries) is not int or retries < 0:
            notes.append(f"retry_count is {retries!r}, read as {whole_number(retries)}")
        for name, raw, at in zip(_TIMES, stored, times, strict=False):
            if raw is None:
                continue
            if at is None:
                notes.append(f"{name} is not a time: {text(raw)[:60]!r}")
            elif self._repeats and self._ambiguous(raw):
                notes.append(f"{name} lies in the hour the clock repeats: it may be an hour later than shown")
        return tuple(notes)


def attempts(row: Native) -> int:
    """Executions started: the retries, and the first one once there was one."""
    first = row.processed_at is not None or row.status in EXECUTED
    return whole_number(row.retry_count) + first
