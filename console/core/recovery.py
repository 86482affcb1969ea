"""What became of the items that an override requeued: did they recover, fail again, or not run yet?

The canary and `overrides show` use the same rule. Nothing here writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, assert_never

from console.core.backend import OutcomeKind, Requeues
from console.core.faults import BackendFault, PlanStale, Refused
from console.core.item import Condition, Item, ItemKey
from console.core.override import Intent, Override
from console.core.plan import BackendPart, Plan, PlanRow
from console.core.ports import Trail
from console.core.reconcile import rows_of

_BATCH = 1_000


class Result(StrEnum):
    """What became of one requeued item."""

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
    """What became of one item, and its cause if it failed again."""

    ordinal: int
    key: str
    result: Result
    cause: str | None = None
    same_cause: bool = False
    """It failed again with a cause that the plan's items had."""
    detail: str = ""


@dataclass(slots=True)
class ResultCounts:
    """How many items have each result."""

    counts: Counter[Result] = field(default_factory=Counter)
    same_cause: int = 0
    other_causes: Counter[str] = field(default_factory=Counter)
    """Cause → how many failed again with it, for causes that the plan's items did not have."""

    def add(self, results: Iterable[ItemResult]) -> None:
        for one in results:
            self.counts[one.result] += 1
            if one.result is Result.FAILED_AGAIN and not one.same_cause:
                self.other_causes[one.cause or ""] += 1
            self.same_cause += one.same_cause

    @property
    def total(self) -> int:
        return self.counts.total()

    def summary(self) -> str:
        """One line: "162 of 165 recovered, 3 failed again (2 with the same cause)"."""
        parts = [f"{self.counts[Result.RECOVERED]} of {self.total} recovered"]
        if again := self.counts[Result.FAILED_AGAIN]:
            same = "" if not self.same_cause else f" ({_some(self.same_cause, again)} with the same cause)"
            parts.append(f"{again} failed again{same}")
        rest = (Result.RUNNING, Result.NOT_RUN_YET, Result.CHANGED_BY_OTHERS, Result.NOT_KNOWN)
        parts += [f"{self.counts[result]} {result.label}" for result in rest if self.counts[result]]
        return ", ".join(parts)


def _some(part: int, whole: int) -> str:
    return "all" if part == whole else str(part)


def result_of(item: Item | None, at: datetime) -> Result:
    """What became of an item that was requeued at `at`."""
    if item is None:
        return Result.NOT_KNOWN
    if item.condition is Condition.RUNNING:
        return Result.RUNNING
    if item.executed_at is not None and item.executed_at > at:
        return after_execution(item.condition)
    if item.condition in (Condition.WAITING, Condition.RETRYING, Condition.STUCK):
        return Result.NOT_RUN_YET
    return Result.NOT_KNOWN if item.executed_at is None else Result.CHANGED_BY_OTHERS


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


def results(
    trail: Trail, override: Override, plan: Plan, backend_of: Callable[[BackendPart], Requeues]
) -> Iterator[Sequence[ItemResult]]:
    """The results of all items that the override changed, as they are now, in batches."""
    applied = bytearray(plan.changes)
    for batch in trail.outcomes(override.override_id):
        for outcome in batch:
            applied[outcome.ordinal] |= outcome.outcome == OutcomeKind.APPLIED
    parts = {part.backend: part for part in plan.parts}
    # From the last intent back: if an item has several, the last one changed it.
    for intent in reversed(trail.intents(override.override_id)):
        rows = [row for row in rows_of(trail, intent) if applied[row.ordinal]]
        for row in rows:
            applied[row.ordinal] = 0
        part = parts[intent.backend]
        for first in range(0, len(rows), _BATCH):
            yield _results_of(plan, part, rows[first : first + _BATCH], intent, backend_of)


def _results_of(
    plan: Plan,
    part: BackendPart,
    rows: Sequence[PlanRow],
    intent: Intent,
    backend_of: Callable[[BackendPart], Requeues],
) -> list[ItemResult]:
    """Results of some items that were written together; not known where their system cannot be read."""
    try:
        backend = backend_of(part)
        keys = [ItemKey.known(part.backend, row.key) for row in rows]
        items = backend.items(keys, backend.now())
    except (BackendFault, PlanStale, Refused) as fault:
        return [ItemResult(row.ordinal, row.key, Result.NOT_KNOWN, detail=str(fault)) for row in rows]
    found = []
    for row, key in zip(rows, keys, strict=True):
        item = items.get(key)
        result = result_of(item, intent.at)
        cause = item.signature if item is not None and result is Result.FAILED_AGAIN else None
        found.append(ItemResult(row.ordinal, row.key, result, cause, cause in plan.by_cause, _detail(item)))
    return found


def _detail(item: Item | None) -> str:
    return "No longer there." if item is None else item.verdict.why
