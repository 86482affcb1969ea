"""Follows an override after its items were requeued, until each of them was executed or the watch time ends.

Only items whose result can still change are read again, as many at a time as the reading budget of their backend
allows. What is kept of an item in memory is a few bytes: its key stays in the trail.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from queue import SimpleQueue
from time import monotonic

from console.core.backend import Action, Requeues, Throughput
from console.core.budget import HOLD_LIMIT, Meter, ReadingBudget, metered
from console.core.faults import (
    BackendBusy,
    BackendFault,
    DeadlineExceeded,
    PlanStale,
    ReadTooLong,
    Unreachable,
)
from console.core.override import Intent, Override, OverrideState
from console.core.pace import Over, Rate
from console.core.plan import BackendPart, Plan, PlanRow, unpack
from console.core.ports import Clock, Trail
from console.core.reconcile import changed_by, requeued_item
from console.core.recovery import ItemResult, Observation, Requeued, Result, ResultCounts, look_at

WATCH_FOR = timedelta(hours=1)
BATCH = 1_000
_SMALLEST_BATCH = 50
_MOST_CAUSES = 60_000
_RESULTS = tuple(Result)
_SETTLED = (Result.RECOVERED, Result.FAILED_AGAIN, Result.CHANGED_BY_OTHERS)
_FINAL = 0x80
_TEMPORARY = (Unreachable, BackendBusy, DeadlineExceeded)
"""Faults that may be over at the next look."""
_ENDED = (OverrideState.FINISHED, OverrideState.STOPPED)
_NOT_READABLE = (BackendFault, PlanStale)
"""Why a backend cannot be read: it does not answer, is another one now, or cannot be changed at all."""


@dataclass(frozen=True, slots=True)
class WatchProgress:
    """What is known about the items of an override at one moment, for a screen or a command."""

    override_id: str
    counts: ResultCounts
    """The items that were read at least once, or are not due yet."""
    unread: int
    """How many were not read yet."""
    open: int
    """How many may still change."""
    last_due_at: datetime | None = None
    """When the last item is due, as far as is known."""
    ends_at: datetime | None = None
    """When the watch ends, whatever is still open then. None while the override is being carried out."""
    over: bool = False
    """The watch has ended: every result is final, or its time is over."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Backend → why its items could not be read at the last look."""

    @property
    def total(self) -> int:
        return self.counts.total + self.unread

    @property
    def complete(self) -> bool:
        """Whether every item was executed or changed by somebody else, or is gone."""
        return not self.open

    def summary(self) -> str:
        """One line: "162 of 165 recovered, 3 failed again (2 with the same cause)"."""
        text = self.counts.summary() if self.counts.total else "no item was read yet"
        return f"{text}, {self.unread} not read yet" if self.unread and self.counts.total else text


class OverrideWatch:
    """Follows one override. One thread calls `look`; any thread may call `learn` and read `progress` and `items`."""

    def __init__(
        self,
        trail: Trail,
        clock: Clock,
        override_id: str,
        backend_of: Callable[[BackendPart], Requeues],
        budget_of: Callable[[str], ReadingBudget],
        watch_for: timedelta = WATCH_FOR,
        steady: Callable[[], float] = monotonic,
    ) -> None:
        self._trail = trail
        self._clock = clock
        self._backend_of = backend_of
        self._budget_of = budget_of
        self._watch_for = watch_for
        self._steady = steady
        self.override: Override = trail.override(override_id)
        self.plan: Plan = trail.plan(self.override.plan_id)
        self._question = ("watch", self.override.override_id)
        self._intents: Sequence[Intent] = ()
        self._known = frozenset(self.plan.by_cause)
        size = self.plan.changes
        self._intent = array("I", bytes(4 * size))
        """The number of the intent that requeued each item, from 1; 0 if it was not requeued."""
        self._state = bytearray(size)
        """The number of the result of each item, from 1, with a bit for final ones; 0 if it was not read yet."""
        self._cause = array("H", bytes(2 * size))
        self._causes, self._cause_names = {"": 0}, [""]
        self._gone: array[float] | None = None
        """When the row of each item was first missing, as a timestamp; 0 if it was there. None: no row ever was."""
        self._recorded: tuple[bytearray, array[int]] | None = None
        """The numbers of the result on record of each item, from 1, and of its cause. None: not read."""
        self._counts = ResultCounts()
        self._requeued = self._open = 0
        self._follows = self.plan.operation.action == Action.REQUEUE
        """Whether there is something to follow: what was discarded or restored is not executed."""
        self._parts = [_Part.of(part) for part in self.plan.parts if part.changes and self._follows]
        self._rows = PlanReader(trail, self.plan.id)
        self._seen_due: datetime | None = None
        self._closing = False
        self.reads = True
        """False while the canary of this process reads all open items anyway: its `learn` is enough."""
        self._learned: SimpleQueue[Sequence[tuple[int, Observation]]] = SimpleQueue()
        self._loaded: object = None
        self._load()
        self.progress = self._progress()
        """What is known now. A look replaces it."""

    # -- which items -------------------------------------------------------------------------------

    def _load(self) -> None:
        """Read from the trail which items were requeued so far. An item that was requeued again is followed anew."""
        loaded = (self.override.counts, self.override.state)
        if loaded == self._loaded or not self._follows:
            return
        self._loaded, self._closing = loaded, False
        self._intents = self._trail.intents(self.override.override_id)
        latest = array("I", bytes(4 * self.plan.changes))
        for number, intent in enumerate(self._intents, 1):
            for ordinal in changed_by(self._trail, intent):
                latest[ordinal] = number
        for ordinal, number in enumerate(latest):
            if number != self._intent[ordinal]:
                self._forget(ordinal)
                self._requeued += bool(number) - bool(self._intent[ordinal])
                self._intent[ordinal] = number
        self._open = self._requeued - sum(state >= _FINAL for state in self._state)

    def _forget(self, ordinal: int) -> None:
        if self._state[ordinal]:
            self._counts.count(self._result(ordinal, ""), -1)
            self._state[ordinal], self._cause[ordinal] = 0, 0

    def _result(self, ordinal: int, key: str) -> ItemResult:
        """The result of an item that was read."""
        cause = self._cause_names[self._cause[ordinal]] or None
        result = _RESULTS[(self._state[ordinal] & ~_FINAL) - 1]
        return ItemResult(ordinal, key, result, cause, cause in self._known)

    # -- looking -----------------------------------------------------------------------------------

    def look(self, *, asked: bool = False) -> WatchProgress:
        """Read open items as far as the budget allows, or all of them if a person `asked`."""
        self.override = self._trail.override(self.override.override_id)
        self._load()
        self._count_learned()
        for part in self._parts:
            budget = self._budget_of(part.name)
            if asked or (self.reads and budget.wait(self._question, self._steady()) <= 0):
                for _ in self._read(part, None if asked else budget.share * budget.refresh):
                    pass
        self._close()
        self.progress = self._progress()
        return self.progress

    def learn(self, observed: Sequence[tuple[int, Observation]]) -> None:
        """Take over what the canary has read, with the places of the items in the plan. The next look counts it."""
        if observed:
            self._learned.put(observed)

    @property
    def has_news(self) -> bool:
        """Whether a look would count something without reading."""
        return not self._learned.empty()

    def _count_learned(self) -> None:
        while not self._learned.empty():
            for ordinal, one in self._learned.get():
                if self._intent[ordinal] and self._state[ordinal] < _FINAL:
                    self._note(ordinal, "", one)

    def read_all(self) -> Iterator[Sequence[ItemResult]]:
        """Read every open item once, because a person asked; the results with their details, in batches."""
        for part in self._parts:
            yield from self._read(part, None)
        self.progress = self._progress()

    def wait(self) -> float:
        """Seconds until `look` may read again."""
        now = self._steady()
        return min((self._budget_of(part.name).wait(self._question, now) for part in self._parts), default=0.0)

    def _read(self, part: _Part, allowance: float | None) -> Iterator[list[ItemResult]]:
        """Read open items of one backend until the round is complete or the allowed seconds of its time are used."""
        cost = Meter()
        if allowance is None:
            part.next = part.first
        while allowance is None or cost.seconds < allowance or not cost.statements:
            ordinals = list(islice(self._open_from(part), part.batch))
            if not ordinals:
                part.next, part.rounds = part.first, part.rounds + 1
                break
            rows = [self._rows.row(ordinal) for ordinal in ordinals]
            read = self._read_some(part, rows, cost, asked=allowance is None)
            if read is None:
                if self._closing and not part.retries:
                    self._give_up(part)
                break
            part.next = ordinals[-1] + 1
            yield read
        self._budget_of(part.name).note(self._question, cost, self._steady())

    def _open_from(self, part: _Part) -> Iterator[int]:
        """The items from the present place on whose result can change. One that is not due is taken only once."""
        not_due = self._first_not_due(part)
        for ordinal in range(part.next, part.end):
            state = self._state[ordinal]
            if self._intent[ordinal] and state < _FINAL and not (state and ordinal >= not_due):
                yield ordinal

    def _first_not_due(self, part: _Part) -> int:
        """The first item that its system does not take yet, because of the pace. They are due one after another."""
        if not self._is_paced(part):
            return part.end
        requeued = [n for n in range(part.first, part.end) if self._intent[n]]  # the others are never due
        due = bisect_right(requeued, self._clock.now(), key=lambda n: self._due(part, n))
        return requeued[due] if due < len(requeued) else part.end

    def _is_paced(self, part: _Part) -> bool:
        """Whether the due times are in the rows."""
        if not isinstance(self.plan.pace, Over | Rate):
            return False
        with suppress(*_NOT_READABLE):
            return self._backend_of(part.part).abilities.stores_due_time
        return False

    def _due(self, part: _Part, ordinal: int) -> datetime:
        """When a requeued item of a paced override is due."""
        offset = self.plan.pace.offset(ordinal - part.first, part.part.changes, self.plan.hash)
        return self._intents[self._intent[ordinal] - 1].at + offset

    def _read_some(
        self, part: _Part, rows: Sequence[PlanRow], cost: Meter, *, asked: bool
    ) -> list[ItemResult] | None:
        """Read these items; None if the backend cannot be read now."""
        meter = Meter()
        part.retries = False
        try:
            with metered(None if asked else HOLD_LIMIT) as meter:
                observed = self._look_at(part, rows)
        except ReadTooLong as fault:  # the writers of the watched system would have to wait: fewer at a time
            part.retries = part.batch > _SMALLEST_BATCH
            part.batch, part.fault = max(part.batch // 2, _SMALLEST_BATCH), str(fault)
            return None
        except _TEMPORARY as fault:
            part.fault = f"does not answer ({fault})"
            return [_unanswered(row, part.fault) for row in rows] if asked and not self._closing else None
        except _NOT_READABLE as fault:
            part.fault = str(fault)
            unreadable = Observation(Result.NOT_KNOWN, detail=part.fault)
            return [self._note(row.ordinal, row.key, unreadable) for row in rows]
        finally:
            cost.seconds += meter.seconds
            cost.statements += meter.statements or 1
        part.fault = ""
        return [self._note(row.ordinal, row.key, one) for row, one in zip(rows, observed, strict=True)]

    def _give_up(self, part: _Part) -> None:
        """The time is over and the backend cannot be read: nobody knows what became of what is still open."""
        for ordinal in self._open_from(part):
            self._note(ordinal, "", Observation(Result.NOT_KNOWN, detail=part.fault))
        part.next, part.rounds = part.first, part.rounds + 1

    def _look_at(self, part: _Part, rows: Sequence[PlanRow]) -> list[Observation]:
        backend = self._backend_of(part.part)
        now = backend.now()
        found = look_at(backend, [self._requeued_item(part, backend, row) for row in rows], now)
        if self.override.result is not None:
            found = [self._on_record(row, one) if one.missing else one for row, one in zip(rows, found, strict=True)]
        for row, one in zip(rows, found, strict=True):
            if one.missing and self._gone is None:
                self._gone = array("d", bytes(8 * self.plan.changes))
            if self._gone is not None:
                self._gone[row.ordinal] = (self._gone[row.ordinal] or now.timestamp()) if one.missing else 0.0
        return found

    def _on_record(self, row: PlanRow, one: Observation) -> Observation:
        """What was found out before its row vanished."""
        if self._recorded is None:
            self._recorded = bytearray(self.plan.changes), array("H", bytes(2 * self.plan.changes))
            for batch in self._trail.item_results(self.override.override_id):
                for known in batch:
                    self._recorded[0][known.ordinal] = _RESULTS.index(known.result) + 1
                    self._recorded[1][known.ordinal] = self._cause_number(known.cause)
        number = self._recorded[0][row.ordinal]
        if not number or _RESULTS[number - 1] not in _SETTLED:
            return one
        cause = self._cause_names[self._recorded[1][row.ordinal]] or None
        detail = "No longer there. This is its result on record."
        return Observation(_RESULTS[number - 1], True, cause, detail=detail, missing=True)

    def _gone_at(self, ordinal: int) -> datetime | None:
        """When the row of an item was first missing, by the backend's clock."""
        gone = 0.0 if self._gone is None else self._gone[ordinal]
        return datetime.fromtimestamp(gone, UTC) if gone else None

    def _requeued_item(self, part: _Part, backend: Requeues, row: PlanRow) -> Requeued:
        intent = self._intents[self._intent[row.ordinal] - 1]
        return requeued_item(self.plan, part.part, backend, row, intent.at, self._gone_at(row.ordinal))

    def _note(self, ordinal: int, key: str, one: Observation) -> ItemResult:
        """Keep the result of one item, and count it."""
        self._forget(ordinal)
        self._state[ordinal] = _RESULTS.index(one.result) + 1 | (_FINAL if one.final else 0)
        self._cause[ordinal] = self._cause_number(one.cause, one.error)
        found = self._result(ordinal, key)
        self._counts.count(found, 1)
        self._open -= one.final
        if one.due is not None and (self._seen_due is None or one.due > self._seen_due):
            self._seen_due = one.due
        return found._replace(detail=one.detail)

    def _cause_number(self, cause: str | None, error: str = "") -> int:
        if cause is None:
            return 0
        if error:
            self._counts.name_cause(cause, error)
        number = self._causes.get(cause)
        if number is None and len(self._causes) < _MOST_CAUSES:
            number = self._causes[cause] = len(self._causes)
            self._cause_names.append(cause)
        return number or 0

    # -- the end -----------------------------------------------------------------------------------

    def _close(self) -> None:
        """When the time is over, everything that is open is read once more, if its backend answers then."""
        ends_at = self._ends_at()
        if self._closing or ends_at is None or self._clock.now() < ends_at:
            return
        self._closing = True
        for part in self._parts:
            part.next, part.rounds = part.first, 0

    def _is_ended(self) -> bool:
        """Whether nobody requeues further items: it has ended, or its process is gone."""
        return self.override.state in _ENDED or not self.override.alive

    def _ends_at(self) -> datetime | None:
        due = self._last_due() if self._is_ended() else None
        return None if due is None else due + self._watch_for

    def _last_due(self) -> datetime | None:
        """When the last item is due: by the pace, by the throughput of its system, and by what its row shows."""
        times = [self._seen_due] if self._seen_due is not None else []
        for part in self._parts:
            intents = [intent for intent in self._intents if intent.backend == part.name]
            if not intents:
                continue
            last = next((n for n in range(part.end - 1, part.first - 1, -1) if self._intent[n]), None)
            paced = self._due(part, last) if last is not None and self._is_paced(part) else None
            times += [paced or max(intent.at for intent in intents), *self._taken_at(part, intents)]
        return max(times, default=None)

    def _taken_at(self, part: _Part, intents: Sequence[Intent]) -> Iterator[datetime]:
        """When the system has taken the items, if its loop limits that: the later ones wait for the earlier ones."""
        throughput: Throughput | None = None
        with suppress(*_NOT_READABLE):
            throughput = self._backend_of(part.part).abilities.throughput
        if throughput is None:
            return
        waiting = 0
        for intent in reversed(intents):
            waiting += sum(last + 1 - first for first, last in intent.ranges)
            yield intent.at + throughput.time_for(waiting)

    def _progress(self) -> WatchProgress:
        closed = self._closing and all(part.rounds for part in self._parts)
        return WatchProgress(
            override_id=self.override.override_id,
            counts=self._counts.copy(),
            unread=self._requeued - self._counts.total,
            open=self._open,
            last_due_at=self._last_due(),
            ends_at=self._ends_at(),
            over=self._is_ended() and (not self._open or closed),
            faults={part.name: part.fault for part in self._parts if part.fault},
        )

    # -- the items behind the numbers --------------------------------------------------------------

    def items(
        self, result: Result | None = None, *, cause: str | None = None, same_cause: bool | None = None
    ) -> Iterator[Sequence[ItemResult]]:
        """The items that have this result now, in the plan's order, in batches. Reads only the trail."""
        found = (self._result(ordinal, "") for ordinal, state in enumerate(self._state) if state)
        wanted = (
            one for one in found
            if (result is None or one.result is result)
            and (cause is None or one.cause == cause)
            and (same_cause is None or one.same_cause == same_cause)
        )
        rows = PlanReader(self._trail, self.plan.id)
        while some := list(islice(wanted, BATCH)):
            yield [one._replace(key=rows.row(one.ordinal).key) for one in some]


@dataclass(slots=True)
class _Part:
    """The items of one backend, and how far they were read."""

    part: BackendPart
    name: str
    first: int
    end: int
    next: int
    """The item that is read next."""
    rounds: int = 0
    """How often all open items were read."""
    batch: int = BATCH
    retries: bool = False
    """Whether the last read failed, and fewer items at a time may be read."""
    fault: str = ""
    """Why the last read failed; empty if it did not."""

    @classmethod
    def of(cls, part: BackendPart) -> _Part:
        return cls(part, part.backend, part.first, part.first + part.changes, part.first)


class PlanReader:
    """Reads single rows of a plan. Rows that are read in order come from one stored block after another."""

    def __init__(self, trail: Trail, plan_id: str) -> None:
        self._trail = trail
        self._plan_id = plan_id
        self._block: list[PlanRow] = []

    def row(self, ordinal: int) -> PlanRow:
        held = self._block
        if not held or not held[0].ordinal <= ordinal <= held[-1].ordinal:
            held = self._block = unpack(next(iter(self._trail.blocks(self._plan_id, ordinal, ordinal))))
        return held[ordinal - held[0].ordinal]


def _unanswered(row: PlanRow, why: str) -> ItemResult:
    return ItemResult(row.ordinal, row.key, Result.NOT_KNOWN, detail=why)
