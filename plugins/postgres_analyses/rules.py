"""Whether its own loop would take an analysis after a requeue: decided before anything is written."""

from __future__ import annotations

from datetime import datetime, timedelta

from console.core.backend import Budget, Flag, Order
from console.core.item import Condition, Verdict
from console.core.policy import RetryPolicy, later
from console.core.text import duration, instant
from console.sql.times import IsoText, Naive
from console.sql.values import whole_number
from plugins.postgres_analyses.rows import Native
from plugins.postgres_analyses.schema import delays

_BLOCKED = {
    Condition.WAITING: "has not failed: it waits for its first run",
    Condition.RUNNING: "is running within its limit",
    Condition.DONE: "is done",
    Condition.UNKNOWN: "has a native status this plugin has no rule for",
}
_NO_START = "processed_at is not set: its own loop has no time to count from"
_UNCHANGED = "a requeue would change nothing: its own loop counts from processed_at"
_HOPELESS = "its error is not recoverable and its own loop skips it; allow it with --allow-unrecoverable"
_FORCED = "is set pending with a fresh budget, so that the loop's stuck rule takes it whatever its error says"
_FRESH_TOO = "the other pipeline of the same row gets the fresh budget too"
_FORWARD_TOO = "the other pipeline of the same row has failed as well and is pulled forward too"
_OLD_WORKER = "was still pending when its limit passed: the old worker may be alive"

Decision = tuple[str | None, tuple[str, ...]]
"""Why an item is blocked, if it is, and what to be warned of otherwise."""


class Rules:
    """Whether the loop would take an item after a requeue, decided before anything is written."""

    def __init__(self, policy: RetryPolicy, time: Naive | IsoText) -> None:
        self._policy = policy
        self._time = time
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
        if (due := later(processed, self._limit)) >= now:
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
        waits = later(processed, wait) > now
        late = (f"its own loop waits until {duration(wait)} after processed_at",) if waits else ()
        return None, (*late, *(_also(row) if keeps else (_FRESH_TOO,)))

    def turning_point(self, now: datetime) -> datetime | None:
        """Of rows that were given up alike, the decision turns on whether `processed_at` is later than this, as it
        is stored; None where stored times do not compare as instants do, or the calendar has no such time."""
        if not isinstance(self._time, Naive) or self._time.repeats:
            return None
        try:
            return self._time.encode(now - self._delays[0])
        except OverflowError:
            return None

    def _spent(self, row: Native) -> str:
        if row.retry_count is None:
            return "retry_count is NULL, which its own loop never takes"
        return f"{row.retry_count} of {(self._policy.max_attempts or 1) - 1} retries used, shared by both pipelines"


def _also(row: Native) -> tuple[str, ...]:
    return (_FORWARD_TOO,) if sum(status == "failed" for status in row.statuses) > 1 else ()
