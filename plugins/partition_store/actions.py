"""What an operator may do to a partition: the rails, and what each action makes of the images.

Nothing here changes `current_run_id`, `record_count`, `schema_version`, `attempt_count` or raw data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from console.core.backend import Abilities, Action, Budget, Change, Draft, Flag, Image, Order, UndoKind, image_text
from console.core.faults import Unreachable
from console.core.item import Condition, ItemKey, Verdict
from console.core.policy import RetryPolicy, judge
from console.core.signature import signature_of
from console.sql.times import IsoText
from console.sql.values import whole_number
from plugins.partition_store.rows import BY_TEXT, MARKED, OVERRULED, Native, PartitionRows, stored
from plugins.partition_store.sink import OutsideSink, Partition, RawSink, run_ids

_AT_ONCE = 16
_NO_RUN = "the raw sink shows no run of it; backfill it instead"
_FRESH = "attempt_count never goes back: budget fresh is refused here, use keep"
_OUTSTANDING = "a requeue is outstanding: it was handed back and not picked up yet"
_EARLY = "is retried before its recommended backoff is over; --back-off waits for it"
_STARVING = "its validator is not this console's: release backfills over time, so that fresh data is not starved"


def abilities(*, ours: bool) -> Abilities:
    """Only our own validator reads `next_run_at`; for any other the override paces itself."""
    return Abilities(
        actions=frozenset(Action),
        budgets=frozenset({Budget.KEEP}),
        undo=UndoKind.EXACT,
        stores_due_time=ours,
        guard=("status", "attempt_count", "updated_at", "current_run_id"),
        flags=frozenset({Flag.CLEAR_TERMINAL, *([Flag.BACK_OFF] if ours else [])}),
    )


class Rails:
    """Why an action is blocked, and what it makes of an image otherwise."""

    def __init__(self, backend: str, policy: RetryPolicy, rows: PartitionRows, sink: RawSink, *, ours: bool) -> None:
        self._backend = backend
        self._policy = policy
        self._rows = rows
        self._sink = sink
        self._ours = ours

    def drafts(self, rows: Sequence[Native], order: Order, now: datetime, sink: SinkLook) -> list[Draft]:
        """The sink is asked last, and only about what nothing else blocks."""
        made = [self._draft(row, order, now) for row in rows]
        if order.action in (Action.REQUEUE, Action.REPROCESS):
            asked = [n for n, draft in enumerate(made) if draft.blocked is None]
            answers = sink.why_no_runs([rows[n].partition for n in asked])
            for n, why in zip(asked, answers, strict=True):
                if why is not None:
                    made[n] = made[n]._replace(blocked=why, warning=None)
        return made

    def _draft(self, row: Native, order: Order, now: datetime) -> Draft:
        facts = self._rows.facts(row)
        verdict = judge(facts, self._policy, now)
        key = str(ItemKey(self._backend, row.partition))
        signature = signature_of(facts.error) if facts.error else None
        if row.image is None:
            reason = "holds a value by which a write could not be guarded"
            return Draft(key, "", "null", verdict.condition, signature, reason)
        blocked = self._blocked(row, verdict, order, now)
        warning = None if blocked else self._warning(row.image, order, now)
        return Draft(key, "", image_text(row.image), verdict.condition, signature, blocked, warning)

    def _warning(self, image: Image, order: Order, now: datetime) -> str | None:
        if order.action is Action.BACKFILL and not self._ours:
            return _STARVING
        if order.action is not Action.REQUEUE or not self._ours or Flag.BACK_OFF in order.flags:
            return None
        recommended = self._recommended(image)
        return _EARLY if recommended is not None and now < recommended[0] else None

    def look(self) -> SinkLook:
        return SinkLook(self._sink)

    def _blocked(self, row: Native, verdict: Verdict, order: Order, now: datetime) -> str | None:
        if order.budget is Budget.FRESH:
            return _FRESH
        if invalid := row.partition.invalid:
            return f"is invalid: {invalid}"
        rails: dict[Action, Callable[[], str | None]] = {
            Action.REQUEUE: lambda: self._retry(row, verdict, order),
            Action.REPROCESS: lambda: self._reprocess(row, verdict),
            Action.MARK_TERMINAL: lambda: _mark(row),
            Action.CLEAR_TERMINAL: lambda: _clear(row, verdict),
            Action.PAUSE: lambda: _pause(row, verdict),
            Action.UNPAUSE: lambda: None if row.paused else "is not paused",
            Action.BACKFILL: lambda: _backfill(row, now),
        }
        return rails[order.action]()

    def _retry(self, row: Native, verdict: Verdict, order: Order) -> str | None:
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

    # -- images ----------------------------------------------------------------------------------

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        if order.action is Action.UNDO:
            return change.after
        return self._assigned(change, order, at, due)

    def _assigned(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        status, attempts, updated, run, terminal, paused, next_run, request, *_ = change.before
        when = stored(at)
        match order.action:
            case Action.REQUEUE:
                cleared = OVERRULED if terminal in (MARKED, BY_TEXT) else terminal
                later = self._later(change, order, at, due)
                return ("pending", attempts, when, run, cleared, paused, later, request)
            case Action.REPROCESS:
                later = self._later(change, order, at, due)
                return (status, attempts, updated, run, terminal, paused, later, "reprocess")
            case Action.MARK_TERMINAL:
                return (status, attempts, updated, run, MARKED, paused, next_run, request)
            case Action.CLEAR_TERMINAL:
                return (status, attempts, updated, run, OVERRULED, paused, next_run, request)
            case Action.PAUSE:
                return (status, attempts, updated, run, terminal, "paused", next_run, request)
            case Action.UNPAUSE:
                return (status, attempts, updated, run, terminal, None, next_run, request)
            case _:
                return ("pending", 0, when, None, terminal, paused, self._later(change, order, at, due), "backfill")

    def _later(self, change: Change, order: Order, at: datetime, due: datetime) -> str | None:
        """When our validator may take it; nothing where that is at once."""
        waits = self._ours and Flag.BACK_OFF in order.flags
        if waits and (recommended := self._recommended(change.before)) is not None:
            earliest, latest = recommended
            due = max(due, earliest + (latest - earliest) * _share(change))
        return str(stored(due)) if due > at else None

    def _recommended(self, image: Image) -> tuple[datetime, datetime] | None:
        """Between when and when the policy would retry a failure: the last attempt and the backoff with its jitter."""
        last = _ATTEMPTED.decode(image[2])
        delay = self._policy.delay_after(whole_number(image[1]))
        try:
            return None if last is None or delay is None else (last + delay[0], last + delay[1])
        except OverflowError:
            return None


_ATTEMPTED = IsoText()


def _share(change: Change) -> float:
    """Where in the jitter's bounds this attempt falls: always the same, so that it can be computed again."""
    seed = f"{change.keys[0]}:{change.before[1]}:{change.before[2]}"
    return int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=6).digest()) / (1 << 48)


def _backfill(row: Native, now: datetime) -> str | None:
    if row.explicit:
        return "already has a row, which keeps its status"
    return "its logical_date has not come yet" if row.partition.logical_date > now.date().isoformat() else None


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
    if not row.explicit:
        return "has no row, so there is nothing to pause"
    if row.paused:
        return "is paused already"
    if verdict.condition is Condition.DONE and row.request != "reprocess":
        return "is done: there is nothing to pause"
    return None


class SinkLook:
    """Asks the sink for one plan, a far one about several partitions at once; when it is lost it is not asked again."""

    def __init__(self, sink: RawSink) -> None:
        self._sink = sink
        self._lost: str | None = None

    def why_no_runs(self, partitions: Sequence[Partition]) -> list[str | None]:
        if not self._sink.far or len(partitions) < 2:
            return list(map(self._why_no_run, partitions))
        with ThreadPoolExecutor(min(_AT_ONCE, len(partitions))) as pool:
            return list(pool.map(self._why_no_run, partitions))

    def _why_no_run(self, partition: Partition) -> str | None:
        if self._lost is None:
            try:
                return None if run_ids(self._sink, partition) else _NO_RUN
            except OutsideSink as outside:
                return f"is invalid: {outside.detail}"
            except Unreachable as fault:
                self._lost = f"the raw sink cannot be reached: {fault.detail.removeprefix('the raw sink: ')}"
        return self._lost
