"""Applies a confirmed plan, chunk by chunk: durable intent, guarded write, durable outcome.

One thread writes and records. Between two chunks it checks whether it should pause or stop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from console.core.backend import Authority, Outcome, OutcomeKind, Requeues
from console.core.budget import ReadingBudget
from console.core.canary import CanaryProgress, CanaryStep, wait_for
from console.core.confirm import Limits
from console.core.faults import BackendBusy, BackendFault, Unreachable
from console.core.override import NOT_APPLIED, TERMINAL_GONE, ItemOutcome, OverrideState, Request, ranges
from console.core.pace import CANARY_GROWTH, Canary, Now, Over, Rate
from console.core.plan import BackendPart, Plan, PlanRow
from console.core.ports import Clock, HangsUp, Stop, Trail
from console.core.reconcile import requeued_at, requeued_item, settle, units_of
from console.core.recovery import Observation
from console.core.text import countdown, plural

SMALLEST_CHUNK, FIRST_CHUNK, LARGEST_CHUNK = 20, 500, 10_000
BEAT = 1.0
"""Seconds between two heartbeats, which also read what other processes ask for."""
_PATIENCE = 6
"""How often a chunk is tried before the override stops."""
_NAP = 0.5
_LONGEST_NAP = 60.0
_AIMED = 0.9
"""Chunks are sized for this fraction of the allowed time, because some take longer than the estimate."""
_TRUSTED = timedelta(seconds=10)
"""If this process was suspended for longer than this, another one may have settled its intent."""


@dataclass(slots=True)
class Progress:
    """The counts of a running override, for display."""

    override_id: str
    total: int
    counts: dict[OutcomeKind, int] = field(default_factory=lambda: dict.fromkeys(OutcomeKind, 0))
    stage: str = ""
    note: str = ""
    paused: bool = False
    judged_by: datetime | None = None
    """While the override waits for its canary: when it gives up."""
    canary: CanaryProgress | None = None
    """The results of the present canary step."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """Why items of the canary failed again: cause → the beginning of one of its errors. It is not recorded."""
    observed: Sequence[tuple[int, Observation]] = ()
    """What the canary has just found out about its items, by their places in the plan."""

    @property
    def done(self) -> int:
        return sum(self.counts.values())


class Ended(Exception):
    """Ends the override with this state and note."""

    def __init__(self, state: OverrideState, note: str) -> None:
        super().__init__(note)
        self.state = state
        self.note = note


class StoppedBySignal(Ended):
    """Ends the override because this process was asked to stop."""

    def __init__(self, stop: Stop) -> None:
        gone = isinstance(stop, HangsUp) and stop.terminal_gone
        super().__init__(OverrideState.STOPPED, TERMINAL_GONE if gone else "Stopped by a signal.")


class Executor:
    """Applies one override, starting with the first row that has no outcome."""

    def __init__(
        self,
        trail: Trail,
        clock: Clock,
        stop: Stop,
        limits: Limits,
        plan: Plan,
        override_id: str,
        owner: str,
        authority: Authority,
        *,
        done: bytearray,
        progress: Progress,
        watch: Callable[[Progress], None],
        reach: Callable[[str], None],
        budget_of: Callable[[str], ReadingBudget],
        new_canary: bool = False,
    ) -> None:
        self._trail = trail
        self._clock = clock
        self._stop = stop
        self._limits = limits
        self._plan = plan
        self._override_id = override_id
        self._owner = owner
        self._authority = authority
        self._done = done
        self._progress = progress
        self._watch = watch
        self._reach = reach
        self._budget_of = budget_of
        self._new_canary = new_canary
        """Begin with a new canary among the items that are left, even if an earlier one succeeded."""
        self._chunk = FIRST_CHUNK
        self._last_beat = 0.0
        self._refused_by: BackendFault | None = None
        self.unrecorded = 0
        """How many items have an intent but no outcome on record."""
        self.last_due: datetime | None = None
        """When the last item that was written so far is due, if the pace is in the rows."""
        self._held = timedelta(0)
        """How long it was paused in total."""

    def carry(self, part: BackendPart, backend: Requeues) -> None:
        """Apply one backend's part, in canary steps if the pace asks for them. Raises Ended to stop the override."""
        pace = self._plan.pace
        canary = pace if isinstance(pace, Canary) else None
        first, end = part.first, part.first + part.changes - 1
        if canary is not None and self._new_canary:
            first = self._done.find(0, first, end + 1) if 0 in self._done[first : end + 1] else end + 1
        size = part.changes if canary is None else canary.size
        number, sizes = 1, list[int]()
        while first <= end:
            last = self._end_of_unit(min(first + size - 1, end), end)
            seen = None if canary is None or last == end else CanaryStep(frozenset(self._plan.by_cause))
            sizes += [last - first + 1] if canary is None else canary.steps(end - first + 1, size)
            of = len(sizes)
            self._progress.stage = f"{part.backend} · step {number} of {of}" if of > 1 else part.backend
            if seen is not None and not self._new_canary and any(self._done[first : last + 1]):
                self._recall(part, backend, seen, first, last)
            self._step(part, backend, first, last, seen)
            if seen is not None:
                self._judge(part, backend, seen, number, tuple(sizes))
                if seen.total:  # as long as nothing could be requeued, the next few are the canary
                    size *= CANARY_GROWTH
            del sizes[number:]
            first, number = last + 1, number + 1

    def _end_of_unit(self, last: int, end: int) -> int:
        """The last row of the unit that contains row `last`. A unit is written at once, so no step ends inside one."""
        found: str | None = None
        for rows in self._trail.rows(self._plan.id, last, end) if last < end else ():
            for row in rows:
                if found is not None and (row.unit or row.key) != found:
                    return last
                found, last = row.unit or row.key, row.ordinal
        return last

    def _recall(self, part: BackendPart, backend: Requeues, seen: CanaryStep, first: int, last: int) -> None:
        """Add the items of this step that an earlier process requeued, so that they are judged too."""
        written = requeued_at(self._trail, self._override_id, first, last)
        for rows in self._trail.rows(self._plan.id, first, last):
            for row in rows:
                if row.ordinal in written:
                    seen.add(requeued_item(self._plan, part, backend, row, written[row.ordinal]))

    def _judge(
        self, part: BackendPart, backend: Requeues, seen: CanaryStep, step: int, steps: tuple[int, ...]
    ) -> None:
        until, held = self._clock.now() + self._patience(backend, seen.total), self._held
        budget, question = self._budget_of(part.backend), ("canary", self._override_id)

        def show() -> None:
            self._progress.note, self._progress.heads = seen.summary(), dict(seen.heads)
            self._progress.canary, self._progress.observed = seen.progress(step, steps), seen.observed

        def pause() -> datetime:
            self._progress.judged_by = ends = until + (self._held - held)
            show()
            if seen.unread is not None:
                self._progress.note += f". Reading failed and is tried again: {seen.unread}"
            self._watch(self._progress)
            rest = budget.rest_after(question, seen.cost, time.monotonic(), _NAP)
            if isinstance(seen.unread, Unreachable | BackendBusy):  # to wait for it costs it nothing
                rest = min(rest, _LONGEST_NAP)
            left = (ends - self._clock.now()).total_seconds()
            self._wait(min(rest, max(left, _NAP)))  # the last look is at the end, whatever it costs
            return self._clock.now() - (self._held - held)  # nobody is late while it is paused

        reason = wait_for(seen, backend, self._limits.canary_failure_limit, until, pause)
        self._progress.judged_by = None
        show()
        self._watch(self._progress)
        self._progress.observed = ()
        if reason is not None:
            raise Ended(OverrideState.STOPPED, f"{reason.why}. {self._untouched()} {reason.advice}")

    def _untouched(self) -> str:
        left = self._plan.changes - self._progress.done
        return f"{left} {plural(left, 'item was', 'items were')} not touched."

    def _patience(self, backend: Requeues, items: int) -> timedelta:
        """How long a canary waits: the configured time, or what the system itself needs for this many items."""
        throughput = backend.abilities.throughput
        forecast = timedelta(0) if throughput is None else throughput.time_for(items)
        return max(self._limits.canary_deadline, forecast)

    # -- one step --------------------------------------------------------------------------------

    def _step(self, part: BackendPart, backend: Requeues, first: int, last: int, seen: CanaryStep | None) -> None:
        pacing = self._pace_of(part, backend)
        for rows in self._chunks(backend, first, last, pacing):
            self._look()
            if pacing is not None:
                turn = pacing.turn(rows[0].ordinal, self._clock.now())
                self._wait_until(turn)
                pacing.began(turn, self._clock.now())
            self._write_with_retries(part, backend, rows, seen)

    def _pace_of(self, part: BackendPart, backend: Requeues) -> _Pacing | None:
        """The pacing that this process must do, where the backend does not store a due time."""
        if backend.abilities.stores_due_time or isinstance(self._plan.pace, Now | Canary):
            return None
        return _Pacing(self._plan, part)

    def _chunks(
        self, backend: Requeues, first: int, last: int, pacing: _Pacing | None
    ) -> Iterator[list[PlanRow]]:
        """The rows without an outcome, in chunks of the current size that never split a unit."""
        pending: list[PlanRow] = []
        most = min(LARGEST_CHUNK, backend.abilities.largest_write or LARGEST_CHUNK)
        if pacing is not None:
            most = min(most, pacing.chunk)
        for batch in self._trail.rows(self._plan.id, first, last):
            pending += [row for row in batch if not self._done[row.ordinal]]
            start = 0
            while end := _end_of_chunk(pending, start + min(self._chunk, most)):
                yield pending[start:end]
                start = end
            pending = pending[start:]
        if pending:
            yield pending

    def _wait_until(self, moment: datetime) -> None:
        left = (moment - self._clock.now()).total_seconds()
        while left > 0:
            self._progress.note = f"Paced by this process. Next in {countdown(timedelta(seconds=ceil(left)))}."
            self._watch(self._progress)
            self._wait(min(left, _NAP))
            left = min(left - _NAP, (moment - self._clock.now()).total_seconds())  # the clock may be set back meanwhile
        self._progress.note = ""

    # -- one chunk -------------------------------------------------------------------------------

    def _write_with_retries(
        self, part: BackendPart, backend: Requeues, rows: list[PlanRow], seen: CanaryStep | None
    ) -> None:
        """Write a chunk. Rows that were not applied are tried again a few times."""
        for attempt in range(_PATIENCE):
            if attempt:
                self._wait(_NAP * 2 ** (attempt - 1))
            rows = self._write(part, backend, rows, seen)
            if not rows:
                return
        why = f": {self._refused_by.detail}" if self._refused_by is not None and self._refused_by.detail else ""
        raise Ended(OverrideState.STOPPED, f"{part.backend} did not accept the write{why}. Resume when it does.")

    def _write(
        self, part: BackendPart, backend: Requeues, rows: list[PlanRow], seen: CanaryStep | None
    ) -> list[PlanRow]:
        """Record the intent, write, record the outcome. Returns the rows that were not applied."""
        at = backend.now()
        units = units_of(self._plan, part, backend, rows, at)
        announced = self._clock.now()
        intent = self._trail.intend(self._override_id, self._owner, self._announced(part, rows, at), announced)
        self.unrecorded = len(rows)
        self._reach("before_write")
        if self._clock.now() - announced > _TRUSTED:
            self._beat()
        began = time.perf_counter()
        try:
            written = backend.compare_and_set(units.changes, self._plan.operation, self._authority._replace(at=at))
            outcomes = _per_item(rows, units.per_row(written))
        except BackendFault as fault:
            outcomes = self._after_fault(part, backend, rows, at, fault)
        self._reach("after_write")
        if isinstance(self._plan.pace, Over | Rate) and backend.abilities.stores_due_time:
            offset = self._plan.pace.offset(rows[-1].ordinal - part.first, part.changes, self._plan.hash)
            self.last_due = max(self.last_due or at, at + offset)
        self._adapt(len(rows), time.perf_counter() - began)
        self._conclude(intent, part, outcomes)
        if seen is not None:
            for row, outcome in zip(rows, outcomes, strict=True):
                if outcome.outcome == OutcomeKind.APPLIED:
                    seen.add(requeued_item(self._plan, part, backend, row, at))
        return [row for row, one in zip(rows, outcomes, strict=True) if one.outcome == NOT_APPLIED]

    def _announced(self, part: BackendPart, rows: Sequence[PlanRow], at: datetime) -> dict[str, Any]:
        return {
            "backend": part.backend,
            "plan_hash": self._plan.hash,
            "action": str(self._plan.operation.action),
            "at": at.isoformat(),
            "ranges": ranges([row.ordinal for row in rows]),
            "items": len(rows),
        }

    def _after_fault(
        self, part: BackendPart, backend: Requeues, rows: Sequence[PlanRow], at: datetime, fault: BackendFault
    ) -> list[ItemOutcome]:
        """The outcome after a fault: the write may or may not have happened, so read the rows again. If that fails too,
        the intent stays unresolved."""
        self._refused_by = fault
        try:
            return settle(self._plan, part, backend, rows, at, self._override_id)
        except BackendFault:
            raise Ended(
                OverrideState.STOPPED, f"{fault}. The outcome of the last {len(rows)} items is not known yet."
            ) from fault

    def _conclude(self, intent: int, part: BackendPart, outcomes: Sequence[ItemOutcome]) -> None:
        counts = Counter(one.outcome for one in outcomes)
        action = str(self._plan.operation.action)
        body = {"backend": part.backend, "action": action, "plan_hash": self._plan.hash, "counts": dict(counts)}
        self._trail.conclude(self._override_id, self._owner, intent, outcomes, body, self._clock.now())
        self.unrecorded = 0
        for one in outcomes:
            if one.outcome != NOT_APPLIED:
                self._done[one.ordinal] = 1
        for kind, count in counts.items():
            if kind != NOT_APPLIED:
                self._progress.counts[OutcomeKind(kind)] += count
        self._watch(self._progress)

    def _adapt(self, items: int, seconds: float) -> None:
        """Size the next chunk so that a write takes a little less than the config allows. It grows at most twofold."""
        wanted = items * _AIMED * self._limits.chunk_target.total_seconds() / max(seconds, 1e-4)
        self._chunk = int(min(max(wanted, SMALLEST_CHUNK, self._chunk / 4), self._chunk * 2, LARGEST_CHUNK))

    # -- between chunks --------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        """Wait in short steps, to react to a stop soon."""
        while seconds > 0:
            self._clock.sleep(min(seconds, _NAP))
            self._look()
            seconds -= _NAP

    def _look(self) -> None:
        """Renew the lease, and do what was asked meanwhile: continue, pause or stop."""
        if self._stop.requested:
            raise StoppedBySignal(self._stop)
        if time.monotonic() - self._last_beat < BEAT:
            return
        request = self._beat()
        if request is Request.PAUSE:
            self._paused()
        elif request is Request.STOP:
            raise Ended(OverrideState.STOPPED, f"Stopped on request. {self._untouched()} Resume it to continue.")

    def _beat(self) -> Request | None:
        self._last_beat = time.monotonic()
        return self._trail.beat(self._override_id, self._owner, self._clock.now())

    def _paused(self) -> None:
        began = self._clock.now()
        self._trail.mark(self._override_id, OverrideState.PAUSED, "", began, owner=self._owner)
        self._progress.paused, self._progress.note = True, "Paused."
        self._watch(self._progress)
        while (request := self._beat()) is Request.PAUSE:
            if self._stop.requested:
                raise Ended(OverrideState.STOPPED, "Stopped by a signal while paused.")
            self._clock.sleep(_NAP)
        if request is Request.STOP:
            raise Ended(OverrideState.STOPPED, f"Stopped on request. {self._untouched()} Resume it to continue.")
        self._held += self._clock.now() - began
        self._progress.paused, self._progress.note = False, ""
        self._trail.mark(self._override_id, OverrideState.RUNNING, "", self._clock.now(), owner=self._owner)


class _Pacing:
    """When each item of one backend's part is due, if this process does the pacing."""

    def __init__(self, plan: Plan, part: BackendPart) -> None:
        self._plan = plan
        self._part = part
        whole = plan.pace.offset(part.changes, part.changes, plan.hash).total_seconds()
        self.chunk = max(1, int(part.changes * _NAP / whole)) if whole > 0 else 1

        self._last: tuple[timedelta, datetime] | None = None

    def turn(self, ordinal: int, now: datetime) -> datetime:
        """When this item is due: after the last one, by the distance that the pace has between them."""
        offset = self._plan.pace.offset(ordinal - self._part.first, self._part.changes, self._plan.hash)
        before, at = self._last or (offset, now)
        self._last = offset, at + (offset - before)
        return self._last[1]

    def began(self, turn: datetime, now: datetime) -> None:
        """Continue from now if time was lost (paused, suspended, a slow backend, a changed clock), instead of catching
        up all at once."""
        if self._last is not None and abs(now - turn) > timedelta(seconds=_NAP):
            self._last = self._last[0], now


def _end_of_chunk(rows: Sequence[PlanRow], end: int) -> int:
    """The end of the unit that contains row `end - 1`; 0 if it is not among these rows."""
    while end < len(rows):
        if (rows[end].unit or rows[end].key) != (rows[end - 1].unit or rows[end - 1].key):
            return end
        end += 1
    return 0


def _per_item(rows: Sequence[PlanRow], outcomes: Sequence[Outcome]) -> list[ItemOutcome]:
    return [
        ItemOutcome(row.ordinal, row.key, outcome.kind.value, outcome.detail)
        for row, outcome in zip(rows, outcomes, strict=True)
    ]
