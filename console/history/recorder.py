"""Samples all systems once a minute, within the reading budget, and writes the samples.

A system that does not answer leaves a gap. A figure that the budget does not allow to be read yet leaves a gap too,
until it is read again. Nothing is ever written to a watched system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from time import monotonic
from typing import TypeVar

from console.core.backend import Backend, Buckets, Count, Timeline
from console.core.budget import HOLD_LIMIT, SHARE, ReadingBudget, charging_deadlines, metered
from console.core.capabilities import KnowsCost
from console.core.cause_count import Cause, CauseCounter
from console.core.causes import RECENT
from console.core.faults import Fault, ReadTooLong
from console.core.history import UPCOMING_STEP, UPCOMING_STEPS, Recorder, RecordResult, Snapshot, SystemThen
from console.core.item import NEEDS_ATTENTION, Condition
from console.core.listing import broken_promise
from console.core.ports import Clock, Never, Stop
from console.core.query import Filter
from console.core.session import Unavailable
from console.history.samples import Reading, SampleWriter
from console.history.storage import Storage
from console.history.thinning import thin

T = TypeVar("T")
EVERY = 60.0
MOST_ERRORS = 50_000
"""The largest number of errors that one sample reads, over all systems."""
MOST_CAUSES = 200
"""How many causes of one system a sample keeps. The others are counted together."""
_COUNT_CAP = 1_000_000
_AT_A_TIME = 8
_THIN_EVERY = 600.0
_EARLY = 5.0
"""Seconds by which a figure may be read before its time: a sample takes a while, and the next is due on the minute."""


class Sampler:
    """Reads the figures of all systems."""

    def __init__(
        self, entries: Sequence[Backend | Unavailable], budgets: Mapping[str, ReadingBudget] | None = None,
        share: float = SHARE, stop: Stop | None = None, hold_limit: float | None = HOLD_LIMIT,
    ) -> None:
        self._entries = entries
        self._budgets = budgets or {entry.name: ReadingBudget(share) for entry in entries}
        self._stop = stop or Never()
        self._hold_limit = hold_limit

    def read(self, now: datetime) -> list[Reading]:
        """One reading per system. Systems are read at the same time, so that a slow one does not delay the others."""
        backends = [entry for entry in self._entries if not isinstance(entry, Unavailable)]
        unavailable = [entry for entry in self._entries if isinstance(entry, Unavailable)]
        broken = [Reading(entry.name, fault=str(entry.fault)) for entry in unavailable]
        if not backends:
            return broken
        most = MOST_ERRORS // len(backends)
        with ThreadPoolExecutor(min(_AT_A_TIME, len(backends)), "history") as pool:
            return [*pool.map(lambda backend: self._read(backend, now, most), backends), *broken]

    def _read(self, backend: Backend, now: datetime, most: int) -> Reading:
        """Each figure by itself: one that takes too long leaves a gap, and the others are still read."""
        reading = Reading(backend.name)
        for question, figure in (("counts", self._counts), ("causes", self._causes), ("upcoming", self._upcoming)):
            if self._stop.requested or not self._may_ask(backend, question):
                continue
            try:
                reading = self._ask(backend, question, partial(figure, backend, now, most, reading))
            except ReadTooLong:
                continue
            except Fault as fault:
                return replace(reading, fault=str(fault))
            except Exception as error:  # noqa: BLE001  a plugin may raise anything; its system is a gap then
                return replace(reading, fault=str(broken_promise(backend, error)))
        return reading

    def _may_ask(self, backend: Backend, question: str) -> bool:
        return self._budgets[backend.name].wait(("history", question), monotonic(), EVERY) < _EARLY

    def _ask(self, backend: Backend, question: str, work: Callable[[], T]) -> T:
        meter = None
        try:
            with metered(self._hold_limit) as meter, charging_deadlines():
                return work()
        finally:
            if meter is not None:
                self._budgets[backend.name].note(("history", question), meter, monotonic())

    def _counts(self, backend: Backend, now: datetime, _most: int, reading: Reading) -> Reading:
        return replace(reading, counts=backend.counts(Filter(), now, _COUNT_CAP))

    def _causes(self, backend: Backend, now: datetime, most: int, reading: Reading) -> Reading:
        """The causes of the first failures. If there are more failures, the counts are estimates."""
        counter = CauseCounter()
        for batch in backend.errors(Filter(), now, self._stop):
            rows = batch.rows[: most - counter.rows]
            counter.add(rows, backend.name, now - RECENT, instant=batch.instant)
            if counter.rows >= most:
                scaled = _scaled(counter.causes(), reading.counts)
                estimates = [replace(cause, estimated=True) for cause in scaled]
                return replace(reading, causes=_largest(estimates), sampled=True)
        return replace(reading, causes=_largest(counter.causes()))

    def _upcoming(self, backend: Backend, now: datetime, _most: int, reading: Reading) -> Reading:
        if isinstance(backend, KnowsCost) and backend.is_costly(now):
            return reading
        due = backend.histogram(Timeline.NEXT_RETRY, Filter(), now, Buckets(now, UPCOMING_STEP, UPCOMING_STEPS))
        return replace(reading, upcoming=due)


class RepeatedSample:
    """What all systems show, read again and again without a history. What was not read again stays as it was."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._known: dict[str, Reading] = {}

    def read(self, now: datetime) -> Snapshot:
        for one in self._sampler.read(now):
            self._known[one.backend] = _with_earlier(one, self._known.get(one.backend))
        return snapshot_of(list(self._known.values()), now)


def _with_earlier(one: Reading, earlier: Reading | None) -> Reading:
    if earlier is None or one.fault:
        return one
    return replace(
        one,
        counts=earlier.counts if one.counts is None else one.counts,
        causes=earlier.causes if one.causes is None else one.causes,
        sampled=earlier.sampled if one.causes is None else one.sampled,
        upcoming=earlier.upcoming if one.upcoming is None else one.upcoming,
        fault=earlier.fault if one.counts is None else "",
    )


def snapshot_of(readings: Sequence[Reading], at: datetime) -> Snapshot:
    """What systems show now, in the form in which the history shows the past."""
    systems = {
        one.backend: SystemThen(at, one.counts, one.upcoming) for one in readings if one.counts is not None
    }
    merged: dict[tuple[str | None, bool], Cause] = {}
    for cause in (cause for one in readings for cause in one.causes or ()):
        known = merged.get((cause.signature, cause.overflow))
        merged[cause.signature, cause.overflow] = cause if known is None else _merged(known, cause)
    causes = sorted(merged.values(), key=lambda cause: (cause.overflow, -cause.count, cause.signature or ""))
    return Snapshot(
        at, systems, causes, tuple(one.backend for one in readings if one.backend not in systems),
        frozenset(one.backend for one in readings if one.sampled),
        {one.backend: one.fault for one in readings if one.fault},
    )


def _merged(one: Cause, other: Cause) -> Cause:
    """The same cause in two systems, as one."""
    firsts, lasts = ([at for at in pair if at] for pair in ((one.first, other.first), (one.last, other.last)))
    return replace(
        one, count=one.count + other.count, recent=one.recent + other.recent, first=min(firsts, default=None),
        last=max(lasts, default=None), backends=(*one.backends, *other.backends),
        estimated=one.estimated or other.estimated,
    )


def _scaled(causes: Sequence[Cause], counts: Mapping[Condition, Count] | None) -> list[Cause]:
    """The causes of a sample as an estimate for all failures."""
    total = sum(count.value for condition, count in (counts or {}).items() if condition in NEEDS_ATTENTION)
    read = sum(cause.count for cause in causes)
    if not read or total <= read:
        return list(causes)
    return [
        replace(
            cause, count=round(cause.count * total / read),
            backends=tuple((name, round(count * total / read)) for name, count in cause.backends),
        )
        for cause in causes
    ]


def _largest(causes: Sequence[Cause]) -> list[Cause]:
    """The largest causes of one system, the failures without error text, and the others as one without a name."""
    named = sorted((cause for cause in causes if cause.signature), key=lambda cause: -cause.count)
    no_text = [cause for cause in causes if not cause.signature and not cause.overflow]
    rest = sum(cause.count for cause in [*named[MOST_CAUSES:], *(cause for cause in causes if cause.overflow)])
    others = [Cause(None, "", rest, 0, None, None, (), overflow=True)] if rest else []
    return [*named[:MOST_CAUSES], *no_text, *others]


class HistoryRecorder:
    """Records samples, for as long as this process has the lease."""

    def __init__(self, storage: Storage, writer: SampleWriter, sampler: Sampler, clock: Clock) -> None:
        self._storage = storage
        self._writer = writer
        self._sampler = sampler
        self._clock = clock
        self._thinned = float("-inf")
        self.readings: Sequence[Reading] = ()
        """The last readings, recorded or not."""

    @property
    def faults(self) -> Mapping[str, str]:
        return {reading.backend: reading.fault for reading in self.readings if reading.fault}

    @property
    def answered(self) -> frozenset[str]:
        return frozenset(reading.backend for reading in self.readings if not reading.fault)

    def record(self) -> RecordResult:
        result = self._writer.may_record(self._clock.now())
        if result is not RecordResult.RECORDED:
            return result
        now = self._clock.now()
        self.readings = self._sampler.read(now)
        result = self._writer.write(self.readings, now)
        if result is RecordResult.RECORDED and monotonic() - self._thinned > _THIN_EVERY:
            thin(self._storage, now)
            self._thinned = monotonic()
        return result

    def release(self) -> None:
        self._writer.release()


def _implements_recorder(recorder: HistoryRecorder) -> Recorder:
    """Lets the type checker prove that the protocol is implemented in full."""
    return recorder
