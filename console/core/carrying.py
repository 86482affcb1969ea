"""Carry out: a confirmed plan, chunk by chunk — durable intent, guarded write, durable outcome.

One thread writes and records. Between two chunks it looks whether somebody wants it to pause or stop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from console.core.backend import CHANGED, Authority, Backend, Outcome, OutcomeKind, Requeues
from console.core.canary import Watch, wait_for
from console.core.faults import BackendFault
from console.core.item import ItemKey
from console.core.limits import Limits
from console.core.override import NOT_APPLIED, ItemOutcome, ItemOutcomes, OverrideState, Progress, Request, ranges
from console.core.packing import PlanRows
from console.core.plan import Plan, Share
from console.core.ports import Book, Clock, Stop
from console.core.release import CANARY_GROWTH, Canary, Now
from console.core.settling import handed_back, settle, units_of

SMALLEST_CHUNK, FIRST_CHUNK, LARGEST_CHUNK = 20, 500, 10_000
BEAT = 1.0
"""Seconds between two looks at the lease and at what is asked of us."""
_PATIENCE = 6
"""How often a chunk that did not get through is tried before the override stops."""
_NAP = 0.5
_AIMED = 0.9
"""Of the time a chunk may take: as many take longer than was aimed at as take less."""
_TRUSTED = timedelta(seconds=10)
"""After a longer silence (a suspended process) somebody else may have settled what was announced."""


class Ended(Exception):
    """The override ends here: `state` and `note` say how."""

    def __init__(self, state: OverrideState, note: str) -> None:
        super().__init__(note)
        self.state = state
        self.note = note


class Carrier:
    """Carries one override, from the first row nobody has an outcome for to the end."""

    def __init__(
        self,
        book: Book,
        clock: Clock,
        stop: Stop,
        limits: Limits,
        plan: Plan,
        op_id: str,
        owner: str,
        authority: Authority,
        *,
        done: bytearray,
        progress: Progress,
        watch: Callable[[Progress], None],
        reach: Callable[[str], None],
    ) -> None:
        self._book = book
        self._clock = clock
        self._stop = stop
        self._limits = limits
        self._plan = plan
        self._op_id = op_id
        self._owner = owner
        self._authority = authority
        self._done = done
        self._progress = progress
        self._watch = watch
        self._reach = reach
        self._chunk = FIRST_CHUNK
        self._last_beat = 0.0
        self._held = timedelta(0)
        """How long it has been paused."""

    def carry(self, share: Share, backend: Requeues) -> None:
        """One backend's part, in the steps the release asks for; raises Ended to stop the whole override."""
        release = self._plan.release
        canary = release if isinstance(release, Canary) else None
        first, end = share.first, share.first + share.changes - 1
        size = share.changes if canary is None else canary.size
        number = 1
        while first <= end:
            last = self._end_of_unit(min(first + size - 1, end), end)
            seen = None if canary is None or last == end else Watch(known_causes=frozenset(self._plan.by_signature))
            of = number - 1 + (1 if canary is None else len(canary.steps(end - first + 1, size)))
            self._progress.stage = f"{share.backend} · step {number} of {of}" if of > 1 else share.backend
            if seen is not None and any(self._done[first : last + 1]):
                self._recall(share, seen, first, last)
            self._step(share, backend, first, last, seen)
            if seen is not None:
                self._judge(backend, seen)
                if seen.total:  # as long as nothing could be handed back, the next few are the canary
                    size *= CANARY_GROWTH
            first, number = last + 1, number + 1

    def _end_of_unit(self, last: int, end: int) -> int:
        """The last row of the unit that this one belongs to: a unit is written at once, so no step ends within one."""
        found: str | None = None
        for rows in self._book.rows(self._plan.id, last, end) if last < end else ():
            for ordinal, unit, key in zip(rows.ordinals, rows.units, rows.keys, strict=True):
                if found is not None and (unit or key) != found:
                    return last
                found, last = unit or key, ordinal
        return last

    def _recall(self, share: Share, seen: Watch, first: int, last: int) -> None:
        """What an earlier process handed back in this step is judged too, before the override goes on."""
        for key, at in handed_back(self._book, self._op_id, first, last):
            seen.add(ItemKey.known(share.backend, key), at)

    def _judge(self, backend: Backend, seen: Watch) -> None:
        until, held = self._clock.now() + self._limits.canary_deadline, self._held

        def pause() -> datetime:
            self._progress.judged_by = until + (self._held - held)
            self._progress.note = seen.summary()
            if seen.unread is not None:
                self._progress.note += f"; looks again, as this look failed: {seen.unread}"
            self._watch(self._progress)
            self._wait(_NAP)
            return self._clock.now() - (self._held - held)  # nobody is late while it is paused

        reason = wait_for(seen, backend, self._limits.canary_failure_limit, until, pause)
        self._progress.judged_by = None
        self._progress.note = seen.summary()
        if reason is not None:
            raise Ended(OverrideState.STOPPED, reason)

    # -- one step --------------------------------------------------------------------------------

    def _step(self, share: Share, backend: Requeues, first: int, last: int, seen: Watch | None) -> None:
        pace = self._pace_of(share, backend)
        for rows in self._chunks(first, last, pace):
            self._look()
            if pace is not None:
                turn = pace.turn(rows.ordinals[0], self._clock.now())
                self._wait_until(turn)
                pace.began(turn, self._clock.now())
            self._until_through(share, backend, rows, seen)

    def _pace_of(self, share: Share, backend: Requeues) -> _Pace | None:
        """Where a backend stores no due time, the override itself waits for each item's turn."""
        if backend.abilities.stores_due_time or isinstance(self._plan.release, Now | Canary):
            return None
        return _Pace(self._plan, share)

    def _chunks(self, first: int, last: int, pace: _Pace | None) -> Iterator[PlanRows]:
        """What is still to do, in chunks of the present size that never split a unit."""
        pending, most = PlanRows(), LARGEST_CHUNK if pace is None else pace.chunk
        for batch in self._book.rows(self._plan.id, first, last):
            pending += self._undone(batch)
            start = 0
            while end := _end_of_chunk(pending, start + min(self._chunk, most)):
                yield pending[start:end]
                start = end
            pending = pending[start:]
        if pending:
            yield pending

    def _undone(self, rows: PlanRows) -> PlanRows:
        done = self._done[rows.ordinals[0] : rows.ordinals[-1] + 1]
        return rows.only([not over for over in done]) if any(done) else rows

    def _wait_until(self, moment: datetime) -> None:
        left = (moment - self._clock.now()).total_seconds()
        while left > 0:
            self._progress.note = f"paced by this process, next in {left:.1f} s"
            self._watch(self._progress)
            self._wait(min(left, _NAP))
            left = min(left - _NAP, (moment - self._clock.now()).total_seconds())  # the clock may be set back meanwhile
        self._progress.note = ""

    # -- one chunk -------------------------------------------------------------------------------

    def _until_through(self, share: Share, backend: Requeues, rows: PlanRows, seen: Watch | None) -> None:
        """Write a chunk; what turns out not to have been applied is tried again, a few times."""
        for attempt in range(_PATIENCE):
            left = self._write(share, backend, rows, seen)
            if not left:
                return
            rows = left
            self._wait(_NAP * 2**attempt)
        raise Ended(OverrideState.STOPPED, f"{share.backend} does not take the write; resume when it does")

    def _write(self, share: Share, backend: Requeues, rows: PlanRows, seen: Watch | None) -> PlanRows:
        """Intent, guarded write, outcome. The rows that were not applied and may be tried again."""
        at = backend.now()
        units = units_of(self._plan, share, backend, rows, at)
        announced = self._clock.now()
        intent = self._book.intend(self._op_id, self._owner, self._announced(share, rows, at), announced)
        self._reach("before_write")
        if self._clock.now() - announced > _TRUSTED:
            self._beat()
        began = time.perf_counter()
        try:
            told = backend.swap(units.changes, self._plan.order, self._authority)
            outcomes = _per_item(rows, units.per_row(told))
        except BackendFault as fault:
            outcomes = self._after_fault(share, backend, rows, at, fault)
        self._reach("after_write")
        self._adapt(len(rows), time.perf_counter() - began)
        self._conclude(intent, share, outcomes)
        if seen is not None:
            self._watch_step(seen, outcomes, at)
        if NOT_APPLIED not in outcomes.outcomes:
            return PlanRows()
        return rows.only([what == NOT_APPLIED for what in outcomes.outcomes])

    def _announced(self, share: Share, rows: PlanRows, at: datetime) -> dict[str, Any]:
        return {
            "backend": share.backend,
            "plan": self._plan.id,
            "plan_hash": self._plan.hash,
            "action": self._plan.order.action.value,
            "at": at.isoformat(),
            "ranges": ranges(rows.ordinals),
            "items": len(rows),
        }

    def _after_fault(
        self, share: Share, backend: Requeues, rows: PlanRows, at: datetime, fault: BackendFault
    ) -> ItemOutcomes:
        """The write may or may not have happened: look. If even that fails, the intent stays unresolved."""
        try:
            return ItemOutcomes.of(settle(self._plan, share, backend, rows, at))
        except BackendFault:
            raise Ended(
                OverrideState.STOPPED, f"{fault}; what became of the last {len(rows)} items is not known yet"
            ) from fault

    def _conclude(self, intent: int, share: Share, outcomes: ItemOutcomes) -> None:
        counts = dict(Counter(outcomes.outcomes))
        body = {"backend": share.backend, "plan_hash": self._plan.hash, "counts": counts}
        self._book.conclude(self._op_id, self._owner, intent, outcomes, body, self._clock.now())
        over = outcomes
        if NOT_APPLIED in counts:
            over = outcomes.only([what != NOT_APPLIED for what in outcomes.outcomes])
        for first, last in ranges(over.ordinals):
            self._done[first : last + 1] = b"\1" * (last - first + 1)
        for kind, count in counts.items():
            if kind != NOT_APPLIED:
                self._progress.counts[OutcomeKind(kind)] += count
        self._watch(self._progress)

    def _watch_step(self, seen: Watch, outcomes: Sequence[ItemOutcome], at: datetime) -> None:
        for outcome in outcomes:
            if outcome.outcome == OutcomeKind.CHANGED:
                seen.add(ItemKey.parse(outcome.key), at)

    def _adapt(self, items: int, seconds: float) -> None:
        """Hold the writer's lock a little shorter than the config allows, growing by at most two at a time."""
        wanted = items * _AIMED * self._limits.chunk_target.total_seconds() / max(seconds, 1e-4)
        self._chunk = int(min(max(wanted, SMALLEST_CHUNK, self._chunk / 4), self._chunk * 2, LARGEST_CHUNK))

    # -- between chunks --------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        """In short naps, so that whoever wants an end is heard soon."""
        while seconds > 0:
            self._clock.sleep(min(seconds, _NAP))
            self._look()
            seconds -= _NAP

    def _look(self) -> None:
        """Keep the lease, and do what is asked: go on, wait, or end."""
        if self._stop.requested:
            raise Ended(OverrideState.STOPPED, "stopped by a signal")
        if time.monotonic() - self._last_beat < BEAT:
            return
        request = self._beat()
        if request is Request.PAUSE:
            self._paused()
        elif request is Request.STOP:
            raise Ended(OverrideState.STOPPED, "stopped on request")

    def _beat(self) -> Request | None:
        self._last_beat = time.monotonic()
        return self._book.beat(self._op_id, self._owner, self._clock.now())

    def _paused(self) -> None:
        began = self._clock.now()
        self._book.mark(self._op_id, OverrideState.PAUSED, "", began, owner=self._owner)
        self._progress.note = "paused"
        self._watch(self._progress)
        while (request := self._beat()) is Request.PAUSE:
            if self._stop.requested:
                raise Ended(OverrideState.STOPPED, "stopped by a signal while paused")
            self._clock.sleep(_NAP)
        if request is Request.STOP:
            raise Ended(OverrideState.STOPPED, "stopped on request")
        self._held += self._clock.now() - began
        self._progress.note = ""
        self._book.mark(self._op_id, OverrideState.RUNNING, "", self._clock.now(), owner=self._owner)


class _Pace:
    """The turns of one backend's items, when this process has to keep them."""

    def __init__(self, plan: Plan, share: Share) -> None:
        self._plan = plan
        self._share = share
        whole = plan.release.offset(share.changes, share.changes, plan.hash).total_seconds()
        self.chunk = max(1, int(share.changes * _NAP / whole)) if whole > 0 else 1

        self._last: tuple[timedelta, datetime] | None = None

    def turn(self, ordinal: int, now: datetime) -> datetime:
        """When this item is due: as long after the last one as the release has it."""
        offset = self._plan.release.offset(ordinal - self._share.first, self._share.changes, self._plan.hash)
        before, at = self._last or (offset, now)
        self._last = offset, at + (offset - before)
        return self._last[1]

    def began(self, turn: datetime, now: datetime) -> None:
        """What was missed (paused, suspended, a slow backend, a clock that was set) is not made up for in one go."""
        if self._last is not None and abs(now - turn) > timedelta(seconds=_NAP):
            self._last = self._last[0], now


def _end_of_chunk(rows: PlanRows, end: int) -> int:
    """Where the first unit ends at or after `end`; 0 as long as that is not in sight."""
    while end < len(rows):
        if (rows.units[end] or rows.keys[end]) != (rows.units[end - 1] or rows.keys[end - 1]):
            return end
        end += 1
    return 0


def _per_item(rows: PlanRows, outcomes: Sequence[Outcome]) -> ItemOutcomes:
    count = len(outcomes)
    if outcomes.count(CHANGED) == count:
        return ItemOutcomes(rows.ordinals, rows.keys, [CHANGED.kind.value] * count, [CHANGED.detail] * count)
    kinds, details = [outcome.kind.value for outcome in outcomes], [outcome.detail for outcome in outcomes]
    return ItemOutcomes(rows.ordinals, rows.keys, kinds, details)
