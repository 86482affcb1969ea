"""Handing analyses back by their own loop's rules: what may be done, what it makes of a row, and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from console.core.backend import (
    Abilities,
    Action,
    Budget,
    Change,
    Draft,
    Flag,
    Image,
    Order,
    UndoKind,
    image_text,
)
from console.core.item import Condition, ItemKey, Verdict
from console.core.policy import RetryPolicy
from console.core.signature import signature_of
from console.core.text import duration, instant
from console.sql.database import Row
from console.sql.guarded import Target
from console.sql.times import IsoText, Naive
from console.sql.values import plain, storable, text, whole_number
from plugins.postgres_analyses.rows import AnalysisRows, Native
from plugins.postgres_analyses.schema import delays

PER_CYCLE, CYCLE = 10, timedelta(seconds=60)
"""The loop takes so many rows of each pipeline, every so often."""

_BLOCKED = {
    Condition.WAITING: "has not failed: it waits for its first run",
    Condition.RUNNING: "is running within its limit",
    Condition.DONE: "is done",
    Condition.UNKNOWN: "has a native status this plugin has no rule for",
}
_STRANGE = "holds a value that is not text, so a write could not be guarded"
_NO_START = "processed_at is not set: its own loop has no time to count from"
_UNCHANGED = "a requeue would change nothing: its own loop counts from processed_at"
_HOPELESS = "its error is not recoverable and its own loop skips it; allow it with --allow-unrecoverable"
_FORCED = "is set pending with a fresh budget, so that the loop's stuck rule takes it whatever its error says"
_FRESH_TOO = "the other pipeline of the same row gets the fresh budget too"
_FORWARD_TOO = "the other pipeline of the same row has failed as well and is pulled forward too"
_OLD_WORKER = "was still pending when its limit passed: the old worker may be alive"
_STEPS = tuple(timedelta(minutes=n) for n in (2, 5, 10, 30, 60, 120, 360, 1440))

Decision = tuple[str | None, tuple[str, ...]]
"""Why an item is blocked, if it is, and what to be warned of otherwise."""


def abilities(pipelines: Sequence[str]) -> Abilities:
    return Abilities(
        actions=frozenset({Action.REQUEUE, Action.UNDO}),
        budgets=frozenset(Budget),
        undo=UndoKind.EXACT,
        stores_due_time=False,
        guard=(*(f"{pipeline}_status" for pipeline in pipelines), "retry_count", "last_retry_at"),
        flags=frozenset({Flag.ALLOW_UNRECOVERABLE}),
    )


class Rules:
    """Whether the loop would take an item after a requeue, decided before anything is written."""

    def __init__(self, policy: RetryPolicy, time: Naive | IsoText) -> None:
        self._policy = policy
        self._decode = time.decode
        self._delays = delays(policy)
        self._limit = policy.stuck_after or timedelta(0)

    def decide(self, row: Native, verdict: Verdict, order: Order, now: datetime) -> Decision:
        if blocked := _BLOCKED.get(verdict.condition):
            return blocked, ()
        if verdict.condition is Condition.STUCK:
            return self._stuck(row, verdict, order, now)
        if verdict.recoverable is False:
            return self._hopeless(row, order, now)
        return self._failed(row, verdict, order, now)

    def _stuck(self, row: Native, verdict: Verdict, order: Order, now: datetime) -> Decision:
        if verdict.will_run_again:
            return "its own loop takes stuck items by itself", ()
        if order.budget is Budget.KEEP:
            return f"{self._spent(row)}; use budget fresh", ()
        began = self._decode(row.last_retry_at)
        if began is not None and now - began <= self._limit:
            return f"its last retry began less than {duration(self._limit)} ago and may still be running", ()
        return None, (_OLD_WORKER, _FRESH_TOO)

    def _hopeless(self, row: Native, order: Order, now: datetime) -> Decision:
        if Flag.ALLOW_UNRECOVERABLE not in order.flags:
            return _HOPELESS, ()
        processed = self._decode(row.processed_at)
        if processed is None:
            return _NO_START, ()
        if (due := processed + self._limit) >= now:
            return f"the loop's stuck rule takes it only from {instant(due)} on", ()
        return None, (_FORCED, _FRESH_TOO)

    def _failed(self, row: Native, verdict: Verdict, order: Order, now: datetime) -> Decision:
        keeps = order.budget is Budget.KEEP
        retries = whole_number(row.retry_count)
        if not self._policy.retryable:
            return "the policy says it is not retryable", ()
        if keeps and (verdict.condition is Condition.TERMINAL or row.retry_count is None):
            return f"{self._spent(row)}; use budget fresh", ()
        processed = self._decode(row.processed_at)
        if processed is None:
            return _NO_START, ()
        if keeps and verdict.next_retry_at is not None and verdict.next_retry_at <= now:
            return "is already due: its own loop takes it next", ()
        if row.last_retry_at is None and (keeps or row.retry_count == 0):
            return _UNCHANGED, ()
        wait = self._delays[min(retries if keeps else 0, len(self._delays) - 1)]
        late = (f"its own loop waits until {duration(wait)} after processed_at",) if processed + wait > now else ()
        return None, (*late, *(_also(row) if keeps else (_FRESH_TOO,)))

    def _spent(self, row: Native) -> str:
        if row.retry_count is None:
            return "retry_count is NULL, which its own loop never takes"
        return f"{row.retry_count} of {(self._policy.max_attempts or 1) - 1} retries used, shared by both pipelines"


def _also(row: Native) -> tuple[str, ...]:
    return (_FORWARD_TOO,) if sum(status == "failed" for status in row.statuses) > 1 else ()


class Requeue:
    """The drafts and after-images of one table."""

    def __init__(
        self, backend: str, table: str, pipelines: tuple[str, ...], policy: RetryPolicy,
        time: Naive | IsoText, rows: AnalysisRows, *, sqlite: bool,
    ) -> None:
        self._backend = backend
        self._pipelines = pipelines
        self._rows = rows
        self._rules = Rules(policy, time)
        self._sqlite = sqlite
        self._endings = {pipeline: f"/{ItemKey(backend, (pipeline,)).id}" for pipeline in pipelines}
        self.target = Target(table, "id", abilities(pipelines).guard, integer_key=True, key_parts=2)

    def drafts(
        self, batches: Iterable[Sequence[Row]], order: Order, now: datetime, *, neighbours: bool
    ) -> Iterator[Sequence[Draft]]:
        """Drafts with both pipelines of a row together; `neighbours` says that they come in that way."""
        taken: Counter[str] = Counter()
        for units in self._units(batches, neighbours):
            yield [draft for unit in units for draft in self._unit(unit, order, now, taken)]

    def _units(self, batches: Iterable[Sequence[Row]], neighbours: bool) -> Iterator[list[list[Native]]]:
        held: dict[object, list[Native]] = {}
        for batch in batches:
            for row in map(self._rows.native, batch):
                held.setdefault(row.id, []).append(row)
            if neighbours and len(held) > 1:
                id, last = held.popitem()
                yield list(held.values())
                held = {id: last}
        if held:
            yield list(held.values())

    def _unit(self, rows: list[Native], order: Order, now: datetime, taken: Counter[str]) -> Iterator[Draft]:
        judged = [(row, self._rows.judged(row, self._rows.times(row), now)[2]) for row in rows]
        decided = [self._rules.decide(row, verdict, order, now) for row, verdict in judged]
        forced = [
            row.pipeline
            for (row, verdict), (blocked, _) in zip(judged, decided, strict=True)
            if blocked is None and verdict.condition is Condition.TERMINAL and verdict.recoverable is False
        ]
        image = (*rows[0].statuses, rows[0].retry_count, plain(rows[0].last_retry_at), ",".join(forced))
        for (row, verdict), (blocked, warnings) in zip(judged, decided, strict=True):
            key = self._key(row)
            if not storable(image):
                yield Draft(key, "", "null", verdict.condition, None, _STRANGE)
                continue
            if blocked is None:
                taken[row.pipeline] += 1
                warnings = (*warnings, *_queued(taken[row.pipeline]))
            unit = str(row.place) if self._sqlite else f"{row.id}@{row.place}"
            signature = signature_of(row.error) if row.error else None
            warning = "; ".join(warnings) or None
            yield Draft(key, unit, image_text(image), verdict.condition, signature, blocked, warning)

    def _key(self, row: Native) -> str:
        if type(row.id) is int:
            return f"{self._backend}/{row.id}{self._endings[row.pipeline]}"
        return str(ItemKey(self._backend, (text(row.id), row.pipeline)))

    def after(self, change: Change, order: Order) -> Image:
        """The loop takes it at its next cycle: no last retry, and a counter that leaves room."""
        width = len(self._pipelines)
        *statuses, retries, _last, forced = change.before
        assert len(statuses) == width
        asked = {key.parts[1] for key in change.keys} & set(forced.split(","))
        after = ["pending" if p in asked else s for p, s in zip(self._pipelines, statuses, strict=True)]
        fresh = order.budget is Budget.FRESH or bool(asked)
        return (*after, 0 if fresh else retries, None, forced)


def _queued(position: int) -> tuple[str, ...]:
    """How long the loop needs to get to the n-th item of a pipeline, in coarse steps."""
    return _within(-(-position // PER_CYCLE))


@lru_cache(maxsize=1024)
def _within(cycles: int) -> tuple[str, ...]:
    if cycles <= 1:
        return ()
    pace = f"its own loop takes {PER_CYCLE} per pipeline every {duration(CYCLE)}"
    step = next((step for step in _STEPS if CYCLE * cycles <= step), None)
    return (f"{pace}: taken {f'within {duration(step)}' if step else f'after more than {duration(_STEPS[-1])}'}",)
