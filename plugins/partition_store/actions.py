"""What an operator may do to a partition: the rails, and what each action makes of the images.

Nothing here changes `current_run_id`, `record_count`, `schema_version`, `attempt_count` or raw data.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from console.core.backend import Abilities, Action, Budget, Change, Draft, Flag, Image, Order, UndoKind, image_text
from console.core.faults import Unreachable
from console.core.item import Condition, ItemKey, Verdict
from console.core.policy import RetryPolicy, judge
from console.core.signature import signature_of
from console.sql.times import IsoText
from plugins.partition_store.rows import BY_TEXT, MARKED, OVERRULED, Native, PartitionRows
from plugins.partition_store.sink import Partition, RawSink, run_ids

ABILITIES = Abilities(
    actions=frozenset(Action),
    budgets=frozenset({Budget.KEEP}),
    undo=UndoKind.EXACT,
    stores_due_time=False,
    guard=("status", "attempt_count", "updated_at", "current_run_id"),
)

_NO_RUN = "the raw sink shows no run of it; backfill it instead"
_FRESH = "attempt_count never goes back: budget fresh is refused here, use keep"
_OUTSTANDING = "a requeue is outstanding: it was handed back and not picked up yet"


class Rails:
    """Why an action is blocked, and what it makes of an image otherwise."""

    def __init__(
        self, backend: str, policy: RetryPolicy, time: IsoText, rows: PartitionRows, sink: RawSink, *, ours: bool
    ) -> None:
        self._backend = backend
        self._policy = policy
        self._time = time
        self._rows = rows
        self._sink = sink
        self._ours = ours

    def draft(self, row: Native, order: Order, now: datetime, sink: SinkLook) -> Draft:
        facts = self._rows.facts(row)
        verdict = judge(facts, self._policy, now)
        key = str(ItemKey(self._backend, row.partition))
        signature = signature_of(facts.error) if facts.error else None
        if row.image is None:
            reason = "holds a value by which a write could not be guarded"
            return Draft(key, "", "null", verdict.condition, signature, reason)
        blocked = self._blocked(row, verdict, order, sink)
        return Draft(key, "", image_text(row.image), verdict.condition, signature, blocked)

    def look(self) -> SinkLook:
        return SinkLook(self._sink)

    def _blocked(self, row: Native, verdict: Verdict, order: Order, sink: SinkLook) -> str | None:
        if invalid := row.partition.invalid:
            return f"is invalid: {invalid}"
        rails: dict[Action, Callable[[], str | None]] = {
            Action.REQUEUE: lambda: self._retry(row, verdict, order) or sink.why_no_run(row.partition),
            Action.REPROCESS: lambda: self._reprocess(row, verdict) or sink.why_no_run(row.partition),
            Action.MARK_TERMINAL: lambda: _mark(row),
            Action.CLEAR_TERMINAL: lambda: _clear(row, verdict),
            Action.PAUSE: lambda: _pause(row, verdict),
            Action.UNPAUSE: lambda: None if row.paused else "is not paused",
            Action.BACKFILL: lambda: "already has a row, which keeps its status" if row.explicit else None,
        }
        return rails[order.action]()

    def _retry(self, row: Native, verdict: Verdict, order: Order) -> str | None:
        if order.budget is Budget.FRESH:
            return _FRESH
        match verdict.condition:
            case Condition.WAITING:
                return "has not failed: it waits for its first run" if row.explicit else "has no row; backfill it"
            case Condition.RETRYING:
                return _OUTSTANDING
            case Condition.DONE:
                return "is done; reprocess it instead"
            case Condition.UNKNOWN:
                return "has a native status this plugin has no rule for"
        if row.paused:
            return "is paused; unpause it first"
        if verdict.condition is Condition.TERMINAL and Flag.CLEAR_TERMINAL not in order.flags:
            return "is terminal; insist with --clear-terminal"
        return None

    def _reprocess(self, row: Native, verdict: Verdict) -> str | None:
        if verdict.condition is not Condition.DONE:
            return "has not succeeded; only a success is reprocessed"
        if not self._ours:
            return "its validator is not this console's, so the request could not be picked up"
        if row.paused:
            return "is paused; unpause it first"
        return "a reprocessing is outstanding already" if row.request == "reprocess" else None

    def after(self, change: Change, order: Order, at: datetime) -> Image:
        status, attempts, updated, run, terminal, paused, next_run, request = change.before
        when = self._time.encode(at)
        match order.action:
            case Action.REQUEUE:
                cleared = OVERRULED if terminal in (MARKED, BY_TEXT) else terminal
                return ("pending", attempts, when, run, cleared, paused, next_run, request)
            case Action.REPROCESS:
                return (status, attempts, updated, run, terminal, paused, next_run, "reprocess")
            case Action.MARK_TERMINAL:
                return (status, attempts, updated, run, MARKED, paused, next_run, request)
            case Action.CLEAR_TERMINAL:
                return (status, attempts, updated, run, OVERRULED, paused, next_run, request)
            case Action.PAUSE:
                return (status, attempts, updated, run, terminal, "paused", next_run, request)
            case Action.UNPAUSE:
                return (status, attempts, updated, run, terminal, None, next_run, request)
            case Action.BACKFILL:
                return ("pending", 0, when, None, terminal, paused, next_run, "backfill")
            case Action.UNDO:
                return change.after


def _mark(row: Native) -> str | None:
    if row.status != "failed":
        return "has not failed; only a failed partition can be terminal"
    return "is marked terminal already" if row.terminal == MARKED else None


def _clear(row: Native, verdict: Verdict) -> str | None:
    if row.status != "failed":
        return "has not failed, so it is not terminal"
    if row.image is not None and row.image[4] in (MARKED, BY_TEXT):
        return None
    if verdict.condition is Condition.TERMINAL:
        return f"is terminal by policy, not by a mark: {verdict.why}; requeue it with --clear-terminal"
    return "is not terminal"


def _pause(row: Native, verdict: Verdict) -> str | None:
    if row.paused:
        return "is paused already"
    if verdict.condition is Condition.DONE and row.request != "reprocess":
        return "is done: there is nothing to pause"
    return None


class SinkLook:
    """Asks the sink for one plan; once it is unreachable it is not asked again."""

    def __init__(self, sink: RawSink) -> None:
        self._sink = sink
        self._lost: str | None = None

    def why_no_run(self, partition: Partition) -> str | None:
        if self._lost is None:
            try:
                return None if run_ids(self._sink, partition) else _NO_RUN
            except Unreachable as fault:
                self._lost = f"the raw sink cannot be reached: {fault.detail.removeprefix('the raw sink: ')}"
        return self._lost
