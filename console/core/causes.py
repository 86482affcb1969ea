"""Failures counted by cause, across backends, while they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import ceil

from console.core.backend import Backend
from console.core.budget import Meter, charge, metered
from console.core.capabilities import KnowsCost
from console.core.cause_count import Cause, CauseCounter, causes_of
from console.core.faults import BackendFault, Fault, ReadTooLong
from console.core.listing import ambiguous_cause, broken_promise
from console.core.ports import Never, Stop
from console.core.query import Field, Filter

RECENT = timedelta(hours=1)
"""The time span of a cause's trend."""

_FIRST_PARTIAL, _BETWEEN_PARTIALS = 5_000, 20_000
"""Rows before the first and between the later calls of `partial`."""


@dataclass(slots=True)
class CausePass:
    """The failures of one backend by cause, as of one pass over all of them, and what is new since then."""

    counter: CauseCounter
    at: datetime
    cost: Meter
    new: CauseCounter | None = None
    """Failures since the pass. An item that had failed before and has failed again is counted twice until the next."""

    @property
    def counters(self) -> list[CauseCounter]:
        return [self.counter] if self.new is None else [self.counter, self.new]


@dataclass(slots=True)
class Causes:
    """Counts the failures of every backend by signature. `partial` is called with the counts so far."""

    backends: Sequence[Backend]
    filter: Filter
    now: datetime
    stop: Stop = field(default_factory=Never)
    partial: Callable[[list[Cause]], None] | None = None
    faults: dict[str, Fault] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    passes: dict[str, CausePass] = field(default_factory=dict)
    """The passes so far. A backend whose pass is given is not read, unless it is in `again` or `only_new`."""
    again: Set[str] = frozenset()
    """Backends of which all failures are read although there is a pass, which stays if that fails."""
    only_new: Mapping[str, datetime] = field(default_factory=dict)
    """Backends of which only the failures since a time are read, in addition to their pass."""
    hold_limit: float | None = None
    """Seconds for which reading may keep the writers of a watched system waiting; None for as long as it takes."""
    costs: dict[str, Meter] = field(default_factory=dict)
    """What reading each backend cost."""

    def finished_passes(self, before: Mapping[str, CausePass]) -> dict[str, CausePass]:
        """The passes that were read to their end, and for systems that failed now those of `before`."""
        return {name: one for name, one in self.passes.items() if name not in self.faults or name in before}

    @property
    def rows(self) -> int:
        return sum(counter.rows for one in self.passes.values() for counter in one.counters)

    def collect(self) -> list[Cause]:
        for backend in self.backends:
            asked = self.filter.for_backend(backend.name)
            if asked is None or (backend.name in self.passes and backend.name not in {*self.again, *self.only_new}):
                continue
            known = self.passes.get(backend.name)
            try:
                with metered(self.hold_limit) as self.costs[backend.name]:
                    self._read(backend, asked.without(Field.CAUSE))
                self.answered.add(backend.name)
            except ReadTooLong as fault:
                if known is None:
                    self.faults[backend.name] = fault
                else:  # it cost at least as much as the whole pass, or it would be tried all the time
                    self.costs[backend.name].seconds += known.cost.seconds
            except Fault as fault:
                if not isinstance(fault, BackendFault):
                    raise
                self.faults[backend.name] = fault
            except Exception as error:  # noqa: BLE001  as in Listing
                self.faults[backend.name] = broken_promise(backend, error)
        return self._causes()

    def _causes(self) -> list[Cause]:
        """In the order of the backends, whichever was read first: so a cause has the same sample each time."""
        names = dict.fromkeys((*(backend.name for backend in self.backends), *self.passes))
        passes = [self.passes[name] for name in names if name in self.passes]
        return self._wanted(causes_of(counter for one in passes for counter in one.counters))

    def _read(self, backend: Backend, filter: Filter) -> None:
        counter = CauseCounter()
        if (since := self.only_new.get(backend.name)) is not None:
            if isinstance(backend, KnowsCost) and backend.is_costly(self.now):
                charge(self.passes[backend.name].cost.seconds)  # without an index it would cost as much as all of them
                return
            seconds = max(ceil((self.now - since).total_seconds()), 1)
            self._add(counter, backend, filter.and_(Filter.parse(f"updated<{seconds}s")))
            self.passes[backend.name] = replace(self.passes[backend.name], new=counter)
            return
        found = CausePass(counter, self.now, self.costs[backend.name])
        self.passes.setdefault(backend.name, found)  # shown while it is read, unless there is an earlier one
        self._add(counter, backend, filter)
        self.passes[backend.name] = found

    def _add(self, counter: CauseCounter, backend: Backend, filter: Filter) -> None:
        next_partial = counter.rows + _FIRST_PARTIAL
        for batch in backend.errors(filter, self.now, self.stop):
            counter.add(batch.rows, backend.name, self.now - RECENT, instant=batch.instant)
            if self.partial is not None and counter.rows >= next_partial:
                next_partial = counter.rows + min(counter.rows, _BETWEEN_PARTIALS)
                self.partial(self._causes())

    def _wanted(self, causes: list[Cause]) -> list[Cause]:
        terms = self.filter.terms_for(Field.CAUSE)
        for term in terms:
            for value in term.values:
                if term.negated or not isinstance(value, str):
                    continue
                matching = [cause.signature for cause in causes if (cause.signature or "").startswith(value)]
                if len(matching) > 1:
                    raise ambiguous_cause(term, value, str(matching[0]), str(matching[1]))
        if not terms:
            return causes
        listed = (cause for cause in causes if not cause.overflow)
        return [cause for cause in listed if all(term.matches_signature(cause.signature) for term in terms)]
