"""Watches every backend: whether it answers, its counts, its recent failures and its next retries.

Each backend is asked through its own caller, so one that hangs does not delay the others. Whether it answers is asked
all the time. The figures are read only while a screen shows them, as often as the reading budget allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from console.core.capabilities import KnowsCost, KnowsExpiry
from console.core.faults import BackendBusy, DeadlineExceeded, Fault
from console.core.query import Filter, Sort, SortField
from console.core.session import Session, Unavailable
from console.ui.backend_calls import Answer, BackendCaller, BackendCallers

if TYPE_CHECKING:
    from console.core.backend import Backend, Count, Finding, Histogram
    from console.core.item import Condition
    from console.core.policy import RetryPolicy
    from console.core.ports import Clock

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NEVER = datetime.min.replace(tzinfo=UTC)
BUCKETS = 60
SPARKS = 24
_BEAT = 1.5
"""Seconds between two questions whether a backend is alive."""
_BEAT_DEADLINE = 2.5
"""Together with `_BEAT` less than the five seconds in which a dead backend must be noticed."""
_FIRST_BEAT = 0.5
"""The first beat waits this long for the first counts, which also prove that the backend is alive."""
SLOW_REFRESH = timedelta(seconds=30)
"""How often the figures of a whole day are read: their buckets are hours."""
_CHECK_EVERY = 300.0
_FAILURES = Filter.parse("condition:failed,terminal,stuck,unknown")


@dataclass(frozen=True, slots=True, eq=False)
class Health:
    """What is known about one backend. Equal if it looks the same: when a figure was read does not matter."""

    name: str
    plugin: str = ""
    place: str = ""
    policy: RetryPolicy | None = None
    fault: Fault | None = None
    since: datetime | None = None
    """When it began to answer, or stopped."""
    answered: bool = False
    counts: Mapping[Condition, Count] = field(default_factory=dict)
    oldest: datetime | None = None
    recent: Histogram | None = None
    """Failures of the last day, per hour."""
    soon: Histogram | None = None
    """Retries of the next hour."""
    later: Histogram | None = None
    """Retries of the next day."""
    expiring: Count | None = None
    """How many items its system deletes within a day."""
    findings: Sequence[Finding] = ()
    on_request: bool = False
    """Histograms and the oldest failure would read a large table without an index: they wait until somebody asks."""
    read_at: Mapping[str, datetime] = field(default_factory=dict)
    """When each figure was read."""
    read_only: bool = False
    """The config says that it must not be changed."""

    def shown(self) -> tuple[object, ...]:
        """What a screen shows of it. When the figures were read is not part of it."""
        found = (self.recent, self.soon, self.later)
        histograms = (None if one is None else one._replace(start=NEVER) for one in found)
        known = (self.name, self.plugin, self.place, self.policy, self.fault, self.since, self.answered)
        return (*known, self.counts, self.oldest, self.expiring, self.findings, self.on_request, *histograms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Health) and self.shown() == other.shown()

    __hash__ = None  # type: ignore[assignment]

    @property
    def errors(self) -> list[str]:
        """What `check` found that is wrong, not only a risk."""
        if not self.findings:
            return []
        from console.core.backend import Severity  # late, to keep the first frame fast

        return [f"{f.subject}: {f.message}" for f in self.findings if f.severity is Severity.ERROR]

    @property
    def warnings(self) -> list[str]:
        if self.policy is None:
            return []
        from console.core.backend import Severity  # late, to keep the first frame fast
        from console.core.policy_lint import lint

        found = [f"{f.subject}: {f.message}" for f in self.findings if f.severity is not Severity.OK]
        return found + [warning.message for warning in lint(self.policy)]


class Monitor:
    """Keeps `healths` up to date, and calls `changed` with a backend's name when something new is known about it."""

    def __init__(self, session: Session, callers: BackendCallers, changed: Callable[[str], None]) -> None:
        self._clock = session.clock
        self._every = session.refresh.total_seconds()
        self._callers = callers
        self._changed = changed
        self._shown = asyncio.Event()
        self._heard = {caller.name: asyncio.Event() for caller in callers}
        self._begun: dict[tuple[str, str], float] = {}
        self._faults: dict[str, dict[str, Fault]] = {name: {} for name in session.names}
        now = session.clock.now()
        self.healths: dict[str, Health] = {}
        for entry in session.entries:
            if isinstance(entry, Unavailable):
                health = Health(entry.name, entry.plugin, fault=entry.fault, since=now)
            else:
                health = Health(
                    entry.name, entry.plugin, entry.place, entry.policy,
                    read_only=entry.name in session.read_only_backends,
                )
            self.healths[entry.name] = health

    def watches(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Endless coroutines, as functions that make them: two per backend."""
        beats = [partial(self._beats, caller) for caller in self._callers]
        return [*beats, *(partial(self._figures, caller) for caller in self._callers)]

    def show(self, shown: bool) -> None:
        """Whether a screen shows the figures. Nothing is read for a screen that is not there."""
        if shown:
            self._shown.set()
        else:
            self._shown.clear()

    async def read_again(self) -> None:
        """A person asks: read every figure now, whatever it costs."""
        if self._shown.is_set():
            await asyncio.gather(*(self._read(caller, asked=True, costly_too=True) for caller in self._callers))

    async def answered(self, within: float) -> None:
        """Wait until every backend has answered once or has failed."""
        waits = [asyncio.create_task(each.wait()) for each in self._heard.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=within)
            for wait in late:
                wait.cancel()

    # -- alive -------------------------------------------------------------------------------------

    async def _beats(self, caller: BackendCaller) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_BEAT):
                await self._heard[caller.name].wait()
        while True:
            if not caller.busy:
                await self._beat(caller)
            await asyncio.sleep(_BEAT)

    async def _beat(self, caller: BackendCaller) -> None:
        try:
            await caller.beat(_BEAT_DEADLINE)
        except Fault as fault:
            self._failed(caller.name, "beat", fault)
        else:
            before = self._faults[caller.name].get("beat")
            self._answered(caller.name, "beat")
            # One that was only slow gets no more questions than before: it is slow because it has too much to do.
            if before is not None and not isinstance(before, DeadlineExceeded | BackendBusy):
                caller.budget.forget()
                if self._shown.is_set():
                    await self._count(caller, asked=True)
        finally:
            self._heard[caller.name].set()

    # -- figures -----------------------------------------------------------------------------------

    async def _figures(self, caller: BackendCaller) -> None:
        """Read what the budget allows while the figures are shown. Showing them is a request for old ones."""
        while True:
            opened = not self._shown.is_set() or not self.healths[caller.name].answered
            await self._shown.wait()
            await self._read(caller, asked=opened and self._is_old(caller.name))
            await asyncio.sleep(self._every)

    def _is_old(self, name: str) -> bool:
        counted = self.healths[name].read_at.get("counts")
        return counted is None or (self._clock.now() - counted).total_seconds() > self._every

    async def _read(self, caller: BackendCaller, *, asked: bool, costly_too: bool = False) -> None:
        """The counts come first; everything else waits for them."""
        await self._count(caller, asked=asked)
        slow = SLOW_REFRESH.total_seconds()
        figures = [(_retries, self._every)]
        if asked or self._is_due(caller.name, "slow", slow):
            figures += [(_expiring, slow), (_failures, slow), (_oldest, slow)]
        for figure, every in figures:
            if self._shown.is_set():
                await self._look(caller, figure, every, asked=asked, costly_too=costly_too)
        if self._shown.is_set() and (asked or self._is_due(caller.name, "check", _CHECK_EVERY)):
            await self._check(caller, asked=asked)

    def _is_due(self, name: str, what: str, every: float) -> bool:
        now = monotonic()
        if now - self._begun.get((name, what), -every) < every:
            return False
        self._begun[name, what] = now
        return True

    async def _count(self, caller: BackendCaller, *, asked: bool) -> None:
        try:
            counts, at = await counts_of(caller, Filter(), self._clock, asked=asked)
        except Fault as fault:
            self._failed(caller.name, "counts", fault)
        else:
            self._answered(caller.name, "counts", counts=counts, read_at=self._dated(caller.name, "counts", at))
        finally:
            self._heard[caller.name].set()

    async def _look(
        self, caller: BackendCaller, figure: Callable[[Backend, datetime], Mapping[str, Any]], every: float, *,
        asked: bool, costly_too: bool,
    ) -> None:
        """A figure of which the counts tell whether the backend answers."""
        now = self._clock.now()

        def read(backend: Backend) -> Mapping[str, Any] | None:
            if not costly_too and figure is not _expiring and isinstance(backend, KnowsCost) and backend.is_costly(now):
                return None
            return figure(backend, now)

        try:
            answer = await caller.read(figure.__name__, read, asked=asked, every=every)
        except Fault:
            return
        if answer.value is None:
            self._set(replace(self.healths[caller.name], on_request=True))
        else:
            dated = self._dated(caller.name, figure.__name__.strip("_"), _when(answer, self._clock))
            self._set(replace(self.healths[caller.name], on_request=False, read_at=dated, **answer.value))

    async def _check(self, caller: BackendCaller, *, asked: bool) -> None:
        try:
            findings = await caller.read(
                "check", lambda backend: backend.check(self._clock), asked=asked, every=_CHECK_EVERY
            )
        except Fault:
            return
        self._set(replace(self.healths[caller.name], findings=tuple(findings.value)))

    def _dated(self, name: str, figure: str, at: datetime) -> Mapping[str, datetime]:
        return {**self.healths[name].read_at, figure: at}

    # -- what is known -----------------------------------------------------------------------------

    def _failed(self, name: str, asked: str, fault: Fault) -> None:
        self._faults[name][asked] = fault
        known = self.healths[name]
        since = known.since if known.fault is not None else self._clock.now()
        self._set(replace(known, fault=fault, since=since, answered=True))

    def _answered(self, name: str, asked: str, **news: Any) -> None:
        """Each question has its own fault: a backend may tell the time while its table is missing."""
        self._faults[name].pop(asked, None)
        known = self.healths[name]
        fault = next(iter(self._faults[name].values()), None)
        turned = not known.answered or (known.fault is None) != (fault is None)
        since = self._clock.now() if turned else known.since
        self._set(replace(known, fault=fault, since=since, answered=True, **news))

    def _set(self, health: Health) -> None:
        before = self.healths[health.name]
        self.healths[health.name] = health
        if health != before:
            self._changed(health.name)


async def counts_of(
    caller: BackendCaller, filter: Filter, clock: Clock, *, asked: bool
) -> tuple[Mapping[Condition, Count], datetime]:
    """The counts of one backend and when they were read. All screens with the same filter share them."""
    answer = await caller.read(("counts", filter), lambda backend: backend.counts(filter, clock.now()), asked=asked)
    return answer.value, _when(answer, clock)


def _when(answer: Answer[Any], clock: Clock) -> datetime:
    return clock.now() - timedelta(seconds=monotonic() - answer.at)


def _retries(backend: Backend, now: datetime) -> Mapping[str, Any]:
    """The retries of the next day, and those of the next hour among them, from one read."""
    from console.core.backend import Buckets, Histogram, Timeline

    minutes = DAY // HOUR * BUCKETS
    day = backend.histogram(Timeline.NEXT_RETRY, Filter(), now, Buckets(now, DAY / minutes, minutes))
    per_bucket = minutes // BUCKETS
    later = tuple(sum(day.counts[first : first + per_bucket]) for first in range(0, minutes, per_bucket))
    after_the_hour = sum(day.counts[BUCKETS:]) + day.after
    return {
        "soon": Histogram(now, HOUR / BUCKETS, day.counts[:BUCKETS], day.before, after_the_hour),
        "later": Histogram(now, DAY / BUCKETS, later, day.before, day.after),
    }


def _failures(backend: Backend, now: datetime) -> Mapping[str, Any]:
    from console.core.backend import Buckets, Timeline

    return {"recent": backend.histogram(Timeline.UPDATED, _FAILURES, now, Buckets(now - DAY, DAY / SPARKS, SPARKS))}


def _expiring(backend: Backend, now: datetime) -> Mapping[str, Any]:
    """A backend itself knows whether this is costly."""
    return {"expiring": backend.expiring(now, DAY) if isinstance(backend, KnowsExpiry) else None}


def _oldest(backend: Backend, now: datetime) -> Mapping[str, Any]:
    from console.core.backend import PageRequest
    from console.core.listing import page_of

    if SortField.UPDATED not in backend.sorts:
        return {}
    first = page_of(backend, PageRequest(_FAILURES, now, Sort(SortField.UPDATED, descending=False), limit=1))
    return {"oldest": first.items[0].updated_at if first.items else None}
