"""The actions on a partition: when each is allowed, and what it writes.

Nothing here changes `current_run_id`, `record_count`, `schema_version`, `attempt_count` or raw data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from console.core.action_rules import NOT_REQUEUEABLE, NOT_STORABLE, decide_discard
from console.core.advice import Advice, Notice, Step
from console.core.backend import Abilities, Attempts, Change, DiscardAbility, Draft, Flag, Image, Operation, UndoKind
from console.core.capabilities import ActionSpec, SwitchSpec
from console.core.faults import Unreachable
from console.core.item import Condition, ItemKey, Verdict
from console.core.policy import RetryPolicy
from console.core.signature import signature_of
from console.sql.times import IsoText
from console.sql.values import whole_number
from plugins.partition_store.rows import MARKED, Native, PartitionImage, PartitionRows, stored, stored_mark
from plugins.partition_store.sink import OutsideSink, Partition, RawSink, run_ids


class PartitionAction(StrEnum):
    """Every action on a partition: those of core, and this plugin's own."""

    REQUEUE = "requeue"
    DISCARD = "discard"
    REPROCESS = "reprocess"
    MARK_TERMINAL = "mark_terminal"
    CLEAR_TERMINAL = "clear_terminal"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    BACKFILL = "backfill"
    UNDO = "undo"


INCLUDE_TERMINAL, FORCE_PENDING = "include_terminal_partitions", "force_pending"
OFFERED_ACTIONS = (
    ActionSpec(PartitionAction.REPROCESS, "reprocess", "to be reprocessed"),
    ActionSpec(PartitionAction.MARK_TERMINAL, "mark as terminal", "marked terminal"),
    ActionSpec(PartitionAction.CLEAR_TERMINAL, "clear the terminal mark of", "terminal mark removed"),
    ActionSpec(PartitionAction.PAUSE, "pause", "paused"),
    ActionSpec(PartitionAction.UNPAUSE, "unpause", "unpaused"),
    ActionSpec(PartitionAction.BACKFILL, "backfill", "backfilled"),
)
OFFERED_SWITCHES = (
    SwitchSpec(INCLUDE_TERMINAL, "include terminal partitions", "Include partitions that are terminal."),
    SwitchSpec(
        FORCE_PENDING, "force pending",
        "Set partitions to pending although the raw sink has no run of them or they have a row already.",
    ),
)
_AT_ONCE = 16
_MARKING = (
    PartitionAction.DISCARD, PartitionAction.MARK_TERMINAL, PartitionAction.CLEAR_TERMINAL, PartitionAction.PAUSE,
    PartitionAction.UNPAUSE,
)
_FORCE = Advice(Step.TURN_ON, FORCE_PENDING)
_NO_RUN = Notice("The raw sink has no run of it, so it would fail again.", _FORCE)
_FORCED = Notice("The raw sink may have no run of it: it fails again unless it is extracted first.")
_HIDDEN = Notice("It has succeeded: consumers cannot read it until it succeeds again.")
_BACKFILL_IT = Notice("Has no row; backfill it.")
_HAS_ROW = Notice("Already has a row, which keeps its status.", _FORCE)
_NOT_FAILED = Notice("Not failed now, so it cannot be terminal. Pause it, or undo its requeue.")
_ONLY_HERE = Notice("Another program validates it and ignores this mark; only Retriage obeys it.")
_NOT_OURS = Notice("Its own system marked it terminal, and only that can clear the mark.")
_KEEP = Notice("Its attempt_count is never reset.", Advice(Step.SET_ATTEMPTS, Attempts.KEEP.value))
_REQUESTED = Notice("Already requeued and not picked up yet.")
_PAUSED = Notice("Paused; unpause it first.")
_TERMINAL = Notice("Terminal.", Advice(Step.TURN_ON, INCLUDE_TERMINAL))
_EARLY = Notice("Retried before its recommended backoff is over.", Advice(Step.TURN_ON, Flag.RESPECT_BACKOFF.value))
_STARVING = Notice("Another program validates it. Spread backfills over time, or they delay new data.")


def abilities(*, ours: bool) -> Abilities:
    """The abilities of a store. Only our own validator reads `next_run_at`; otherwise the override paces itself."""
    return Abilities(
        actions=frozenset(PartitionAction),
        attempts=frozenset({Attempts.KEEP}),
        undo=UndoKind.EXACT,
        stores_due_time=ours,
        guard=("status", "attempt_count", "updated_at", "current_run_id"),
        flags=frozenset({INCLUDE_TERMINAL, FORCE_PENDING, *([Flag.RESPECT_BACKOFF] if ours else [])}),
        execution_counter="attempt_count",
        discard=DiscardAbility(),
    )


class ActionRules:
    """Decides whether an action is allowed on a partition, and computes what it writes."""

    def __init__(self, backend: str, policy: RetryPolicy, rows: PartitionRows, sink: RawSink, *, ours: bool) -> None:
        self._backend = backend
        self._policy = policy
        self._rows = rows
        self._sink = sink
        self._ours = ours

    def drafts(self, rows: Sequence[Native], operation: Operation, now: datetime, sink: RunLookup) -> list[Draft]:
        """Drafts for rows. The raw sink is read last, only for partitions that nothing else rules out."""
        made = [self._draft(row, operation, now) for row in rows]
        forced = FORCE_PENDING in operation.flags and operation.action == PartitionAction.REQUEUE
        if operation.action in (PartitionAction.REQUEUE, PartitionAction.REPROCESS) and not forced:
            asked = [n for n, draft in enumerate(made) if draft.skipped is None]
            answers = sink.why_no_runs([rows[n].partition for n in asked])
            for n, why in zip(asked, answers, strict=True):
                if why is not None:
                    made[n] = made[n]._replace(skipped=why, warning=None)
        return made

    def _draft(self, row: Native, operation: Operation, now: datetime) -> Draft:
        facts = self._rows.facts(row)
        verdict = self._rows.verdict(row, facts, now)
        key = str(ItemKey(self._backend, row.partition))
        signature = signature_of(facts.error) if facts.error else None
        if row.image is None:
            return Draft(key, "", None, verdict.condition, signature, NOT_STORABLE)
        skipped = self._skipped(row, verdict, operation, now)
        warning = None if skipped else self._warning(row.image, operation, now)
        return Draft(key, "", row.image, verdict.condition, signature, skipped, warning)

    def _warning(self, image: PartitionImage, operation: Operation, now: datetime) -> Notice | None:
        if operation.action in _MARKING and not self._ours:
            return _ONLY_HERE
        if operation.action == PartitionAction.BACKFILL and image.status == "success":
            return _HIDDEN
        if operation.action == PartitionAction.BACKFILL and not self._ours:
            return _STARVING
        if FORCE_PENDING in operation.flags and operation.action == PartitionAction.REQUEUE:
            return _FORCED
        if operation.action != PartitionAction.REQUEUE or not self._ours or Flag.RESPECT_BACKOFF in operation.flags:
            return None
        recommended = self._recommended(image)
        return _EARLY if recommended is not None and now < recommended[0] else None

    def lookup(self) -> RunLookup:
        return RunLookup(self._sink)

    def _skipped(self, row: Native, verdict: Verdict, operation: Operation, now: datetime) -> Notice | None:
        if operation.attempts is Attempts.RESET:
            return _KEEP
        if invalid := row.partition.invalid:
            return Notice(f"Invalid: {invalid}.")
        action = PartitionAction(operation.action)
        match action:
            case PartitionAction.REQUEUE:
                return self._retry(row, verdict, operation)
            case PartitionAction.DISCARD:
                return _NOT_FAILED if verdict.condition is Condition.RETRYING else decide_discard(verdict.condition)[0]
            case PartitionAction.REPROCESS:
                return self._reprocess(row, verdict)
            case PartitionAction.MARK_TERMINAL:
                return _mark(row)
            case PartitionAction.CLEAR_TERMINAL:
                return self._clear(row, verdict)
            case PartitionAction.PAUSE:
                return _pause(row, verdict)
            case PartitionAction.UNPAUSE:
                return None if row.paused else Notice("Not paused.")
            case PartitionAction.BACKFILL:
                return self._backfill(row, verdict, operation, now)
            case PartitionAction.UNDO:
                raise ValueError(action)  # core drafts an undo from the rows it changed
            case _:
                assert_never(action)

    def _retry(self, row: Native, verdict: Verdict, operation: Operation) -> Notice | None:
        match verdict.condition:
            case Condition.WAITING if not row.explicit:
                return _BACKFILL_IT
            case Condition.RETRYING:
                return _REQUESTED
            case Condition.DONE:
                return Notice("Already done; reprocess it instead.")
            case Condition.WAITING | Condition.RUNNING | Condition.CANCELLED | Condition.UNKNOWN:
                return NOT_REQUEUEABLE[verdict.condition]
            case Condition.FAILED | Condition.STUCK | Condition.TERMINAL if row.paused:
                return _PAUSED
            case Condition.TERMINAL if INCLUDE_TERMINAL not in operation.flags:
                return _TERMINAL
            case Condition.FAILED | Condition.STUCK | Condition.TERMINAL:
                return None
            case _:
                assert_never(verdict.condition)

    def _reprocess(self, row: Native, verdict: Verdict) -> Notice | None:
        if verdict.condition is not Condition.DONE:
            return Notice("Has not succeeded; only a success is reprocessed.")
        if not self._ours:
            return Notice("Another program validates it and would not see the request.")
        if row.paused:
            return _PAUSED
        return Notice("Already requested.") if row.request == "reprocess" else None

    def _backfill(self, row: Native, verdict: Verdict, operation: Operation, now: datetime) -> Notice | None:
        if not row.explicit:
            future = row.partition.logical_date > now.date().isoformat()
            return Notice("Its logical_date is in the future.") if future else None
        if FORCE_PENDING not in operation.flags:
            return _HAS_ROW
        match verdict.condition:
            case Condition.FAILED | Condition.TERMINAL:
                return self._retry(row, verdict, operation)
            case Condition.DONE:
                return _PAUSED if row.paused else None
            case Condition.RETRYING | Condition.STUCK:
                return _REQUESTED
            case Condition.WAITING | Condition.RUNNING | Condition.CANCELLED | Condition.UNKNOWN:
                return NOT_REQUEUEABLE[verdict.condition]
            case _:
                assert_never(verdict.condition)

    def _clear(self, row: Native, verdict: Verdict) -> Notice | None:
        if row.status != "failed":
            return Notice("Has not failed, so it is not terminal.")
        if row.image is not None and row.image.marked_terminal:
            return None if self._ours or stored_mark(row.image.terminal) == MARKED else _NOT_OURS
        if verdict.condition is Condition.TERMINAL:
            return Notice(f"Terminal by policy, not by a mark ({verdict.why}). Requeue it instead.", _TERMINAL.advice)
        return Notice("Not terminal.")

    # -- images ----------------------------------------------------------------------------------

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        before, when = PartitionImage(*change.before), stored(at)
        action = PartitionAction(operation.action)
        match action:
            case PartitionAction.REQUEUE:
                mark = before.cleared(ours=self._ours) if before.marked_terminal else before.terminal
                later = self._later(change, operation, at, due)
                after = before._replace(status="pending", updated_at=when, terminal=mark, next_run_at=later)
            case PartitionAction.REPROCESS:
                after = before._replace(next_run_at=self._later(change, operation, at, due), request="reprocess")
            case PartitionAction.MARK_TERMINAL | PartitionAction.DISCARD:
                _, bar, digest = (before.terminal or "").partition("|")
                after = before._replace(terminal=f"{MARKED}{bar}{digest}")
            case PartitionAction.CLEAR_TERMINAL:
                after = before._replace(terminal=before.cleared(ours=self._ours))
            case PartitionAction.PAUSE:
                after = before._replace(paused="paused")
            case PartitionAction.UNPAUSE:
                after = before._replace(paused=None)
            case PartitionAction.BACKFILL:
                later = self._later(change, operation, at, due)
                after = before._replace(
                    status="pending", attempt_count=before.attempt_count if before.status else 0, updated_at=when,
                    next_run_at=later, request="backfill",
                )
            case PartitionAction.UNDO:
                return change.after
            case _:
                assert_never(action)
        return after.compared

    def _later(self, change: Change, operation: Operation, at: datetime, due: datetime) -> str | None:
        """The earliest time for our validator; None for at once."""
        waits = self._ours and Flag.RESPECT_BACKOFF in operation.flags
        if waits and (recommended := self._recommended(PartitionImage(*change.before))) is not None:
            earliest, latest = recommended
            due = max(due, earliest + (latest - earliest) * _jitter_position(change))
        return str(stored(due)) if due > at else None

    def _recommended(self, image: PartitionImage) -> tuple[datetime, datetime] | None:
        """The bounds of the time at which the policy would retry: the last attempt plus the backoff with its jitter."""
        last = _ATTEMPTED.decode(image.updated_at)
        delay = self._policy.delay_after(whole_number(image.attempt_count))
        try:
            return None if last is None or delay is None else (last + delay[0], last + delay[1])
        except OverflowError:
            return None


_ATTEMPTED = IsoText()


def _jitter_position(change: Change) -> float:
    """The position between the jitter's bounds, from 0 to 1; always the same for this attempt."""
    before = PartitionImage(*change.before)
    seed = f"{change.keys[0]}:{before.attempt_count}:{before.updated_at}"
    return int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=6).digest()) / (1 << 48)


def _mark(row: Native) -> Notice | None:
    if row.status != "failed":
        return Notice("Has not failed; only a failed partition can be terminal.")
    return Notice("Already marked terminal.") if row.terminal == MARKED else None


def _pause(row: Native, verdict: Verdict) -> Notice | None:
    if not row.explicit:
        return Notice("Has no row, so there is nothing to pause.")
    if row.paused:
        return Notice("Already paused.")
    if verdict.condition is Condition.DONE and row.request != "reprocess":
        return Notice("Already done; there is nothing to pause.")
    return None


class RunLookup:
    """Asks the raw sink about partitions, several at once if it is remote. After a failure it is not asked again."""

    def __init__(self, sink: RawSink) -> None:
        self._sink = sink
        self._lost: Notice | None = None

    def why_no_runs(self, partitions: Sequence[Partition]) -> list[Notice | None]:
        if not self._sink.far or len(partitions) < 2:
            return list(map(self._why_no_run, partitions))
        with ThreadPoolExecutor(min(_AT_ONCE, len(partitions))) as pool:
            return list(pool.map(self._why_no_run, partitions))

    def without_run(self, named: Sequence[tuple[Partition, str]]) -> frozenset[tuple[Partition, str]]:
        """The partitions whose current run does not exist. Raises Unreachable."""
        valid = [pair for pair in named if pair[0].invalid is None]
        with ThreadPoolExecutor(_AT_ONCE if self._sink.far else 1) as pool:
            found = pool.map(lambda pair: pair[1] in self._sink.sizes(pair[0]), valid)
            return frozenset(pair for pair, exists in zip(valid, found, strict=True) if not exists)

    def _why_no_run(self, partition: Partition) -> Notice | None:
        if self._lost is None:
            try:
                return None if run_ids(self._sink, partition) else _NO_RUN
            except OutsideSink as outside:
                return Notice(f"Invalid: {outside.detail}.")
            except Unreachable as fault:
                detail = fault.detail.removeprefix("the raw sink: ")
                self._lost = Notice(f"The raw sink cannot be reached: {detail}.")
        return self._lost
