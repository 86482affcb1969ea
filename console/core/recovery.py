"""The results of requeued items: did they recover, fail again, or not run yet?

The rule for one look at some items. The canary, `OverrideWatch` and `overrides show` all use it. Nothing here writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, assert_never

from console.core.backend import Requeues
from console.core.item import Condition, Item, ItemKey
from console.core.text import telling_line

GONE_FOR = timedelta(seconds=60)
"""A row counts as gone when it was missing at two looks this far apart. A moved row is missing for a moment only."""
_HEADS = 50
"""The number of causes for which the beginning of an error is kept."""
_HEAD_LENGTH = 200


class Result(StrEnum):
    """What happened to a requeued item afterwards."""

    RECOVERED = "recovered"
    FAILED_AGAIN = "failed_again"
    RUNNING = "running"
    NOT_RUN_YET = "not_run_yet"
    CHANGED_BY_OTHERS = "changed_by_others"
    NOT_KNOWN = "not_known"

    @property
    def label(self) -> str:
        match self:
            case Result.CHANGED_BY_OTHERS:
                return "changed by somebody else"
            case Result.RECOVERED | Result.FAILED_AGAIN | Result.RUNNING | Result.NOT_RUN_YET | Result.NOT_KNOWN:
                return self.value.replace("_", " ")
            case _:
                assert_never(self)


class ItemResult(NamedTuple):
    """The result of one item, and its cause if it failed again."""

    ordinal: int
    key: str
    result: Result
    cause: str | None = None
    same_cause: bool = False
    """It failed again with a cause that the plan's items had."""
    detail: str = ""


class Observation(NamedTuple):
    """What one look found out about one item."""

    result: Result
    final: bool = False
    """Whether no later look can change the result."""
    cause: str | None = None
    """The cause of an item that failed again, and the line of its error that tells most."""
    error: str = ""
    detail: str = ""
    due: datetime | None = None
    """When an item that has not run yet is due."""
    missing: bool = False
    """Whether its row was not there."""


@dataclass(slots=True)
class ResultCounts:
    """How many items have each result."""

    counts: Counter[Result] = field(default_factory=Counter)
    same_cause: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    """Cause → how many failed again with it. Items that failed without an error are not in it."""
    heads: dict[str, str] = field(default_factory=dict)
    """Cause → the beginning of one of its errors, for the first causes that were seen."""

    def add(self, results: Iterable[ItemResult]) -> None:
        for one in results:
            self.count(one, 1)

    def count(self, one: ItemResult, times: int) -> None:
        """Count one result, or with `times` -1 no longer count it."""
        self.counts[one.result] += times
        self.same_cause += times * one.same_cause
        if one.cause is not None:
            self.causes[one.cause] += times

    def name_cause(self, cause: str, error: str) -> None:
        """Keep the beginning of an error, to show it next to its cause."""
        if cause not in self.heads and len(self.heads) < _HEADS:
            self.heads[cause] = error[:_HEAD_LENGTH]

    def copy(self) -> ResultCounts:
        return ResultCounts(Counter(self.counts), self.same_cause, Counter(self.causes), dict(self.heads))

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def failed_with(self) -> list[tuple[str, int]]:
        """The causes of the items that failed again, the most frequent first."""
        return [(cause, number) for cause, number in self.causes.most_common() if number]

    def summary(self) -> str:
        """One line: "162 of 165 recovered, 3 failed again (2 with the same cause)"."""
        parts = [f"{self.counts[Result.RECOVERED]} of {self.total} recovered"]
        if again := self.counts[Result.FAILED_AGAIN]:
            same = "" if not self.same_cause else f" ({_some(self.same_cause, again)} with the same cause)"
            parts.append(f"{again} failed again{same}")
        rest = (Result.RUNNING, Result.NOT_RUN_YET, Result.CHANGED_BY_OTHERS, Result.NOT_KNOWN)
        parts += [f"{self.counts[result]} {result.label}" for result in rest if self.counts[result]]
        return ", ".join(parts)

    def record(self) -> dict[str, int]:
        """The counts by their names in JSON, zeros included."""
        return {result.value: self.counts[result] for result in Result}

    @classmethod
    def of_record(cls, body: Mapping[str, object]) -> ResultCounts:
        """The counts in the body of a `result` record."""
        counts, causes, same = body["results"], body["causes"], body["same_cause"]
        if not isinstance(counts, dict) or not isinstance(causes, dict) or not isinstance(same, int):
            raise TypeError(body)
        return cls(Counter({Result(name): int(n) for name, n in counts.items()}), same, Counter(causes))


def _some(part: int, whole: int) -> str:
    return "all" if part == whole else str(part)


def result_of(
    item: Item | None, at: datetime, written: int | None = None, before: int | None = None
) -> Result:
    """The result of an item that was requeued at `at`.

    `written` is the attempt counter after the requeue, if that proves executions, and `before` the one before it.
    """
    if item is None:
        return Result.NOT_KNOWN
    if item.condition is Condition.RUNNING:
        return Result.RUNNING
    if was_executed(item, at, written, before):
        return after_execution(item.condition)
    if item.condition in (Condition.WAITING, Condition.RETRYING, Condition.STUCK):
        return Result.NOT_RUN_YET
    known = written is not None or item.executed_at is not None or item.condition is Condition.CANCELLED
    return Result.CHANGED_BY_OTHERS if known else Result.NOT_KNOWN


def was_executed(item: Item, at: datetime, written: int | None, before: int | None = None) -> bool:
    """Whether the backend shows an execution since the requeue."""
    later = item.executed_at is not None and item.executed_at > at
    if written is None:
        return later
    if item.attempts == before and item.executed_at is not None:
        return item.attempts > written and later  # a counter that was reset is back: by executions, or by an undo
    return item.attempts > written


def after_execution(condition: Condition) -> Result:
    """What an item's condition means once it was executed again."""
    match condition:
        case Condition.DONE:
            return Result.RECOVERED
        case Condition.RETRYING | Condition.FAILED | Condition.TERMINAL | Condition.STUCK:
            return Result.FAILED_AGAIN
        case Condition.RUNNING:
            return Result.RUNNING
        case Condition.CANCELLED:
            return Result.CHANGED_BY_OTHERS
        case Condition.WAITING | Condition.UNKNOWN:
            return Result.NOT_KNOWN
        case _:
            assert_never(condition)


class Requeued(NamedTuple):
    """One requeued item that is followed."""

    ordinal: int
    """Its place in the plan."""
    key: ItemKey
    at: datetime
    """When it was requeued, by the backend's clock."""
    written: int | None = None
    """The attempt counter that the requeue has left, if it proves executions."""
    before: int | None = None
    """The attempt counter before the requeue."""
    gone_at: datetime | None = None
    """When its row was first missing, by the backend's clock; None if it was there at the last look."""


def look_at(backend: Requeues, requeued: Sequence[Requeued], now: datetime) -> list[Observation]:
    """Read these items once; the result of each. `now` is the backend's clock."""
    items = backend.items([one.key for one in requeued], now)
    return [
        _missing(backend, one, now) if (item := items.get(one.key)) is None else _observed(item, one)
        for one in requeued
    ]


def _observed(item: Item, one: Requeued) -> Observation:
    result = result_of(item, one.at, one.written, one.before)
    stuck = item.condition is Condition.STUCK
    final = result in (Result.RECOVERED, Result.CHANGED_BY_OTHERS) or (result is Result.FAILED_AGAIN and not stuck)
    due = item.verdict.next_retry_at if result is Result.NOT_RUN_YET else None
    if result is not Result.FAILED_AGAIN or stuck:  # the error of a stuck item belongs to an earlier attempt
        return Observation(result, final, detail=item.verdict.why, due=due)
    return Observation(result, final, item.signature, telling_line(item.error or "")[:_HEAD_LENGTH], item.verdict.why)


def _missing(backend: Requeues, one: Requeued, now: datetime) -> Observation:
    """A missing row is recovered only where finished rows are deleted, and failed ones would still be there."""
    deletion = backend.abilities.deletes_finished
    if one.gone_at is None or now - one.gone_at < GONE_FOR:
        return _gone(Result.NOT_KNOWN, "It will be looked for once more.", final=False)
    if deletion is None:
        return _gone(Result.NOT_KNOWN, "Its system does not delete finished items.")
    if deletion.keeps_failed is not None and one.gone_at - one.at >= deletion.keeps_failed:
        return _gone(Result.NOT_KNOWN, "By then its system deletes failed items, too.")
    return _gone(Result.RECOVERED, "Its system deletes finished items.")


def _gone(result: Result, why: str, *, final: bool = True) -> Observation:
    return Observation(result, final, detail=f"No longer there. {why}", missing=True)
