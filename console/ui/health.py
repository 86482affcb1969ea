"""How every backend is doing: asked all the time, in its own lane, so that a dead one is seen and holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from console.core.desk import Desk
from console.core.faults import Fault
from console.core.query import Filter, Sort, SortField
from console.ui.lanes import Lane, Lanes

if TYPE_CHECKING:
    from console.core.backend import Backend, Count, Finding, Histogram
    from console.core.item import Condition
    from console.core.policy import RetryPolicy

    Foretold = Mapping[str, Mapping[Condition, Count]]
    """Backends by name with what somebody else has counted of them."""

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BUCKETS = 60
SPARKS = 24
_BEAT = 1.5
_PATIENCE = 2.5
"""Beat and patience together stay under the five seconds in which a dead backend must be seen."""
_FIRST_BEAT = 0.5
"""A first count that comes sooner says that it lives; it is not held up by a question about that."""
_SLOW_THINGS = 30.0
_SHORT_REST, _REST = 4, 20
"""What took long is asked for that much more rarely, so that a large backend is not read all the time."""
_LONG_REST = 200
_CHECKS = 300.0
_FAILURES = Filter.parse("condition:failed,terminal,stuck,unknown")


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of one backend."""

    name: str
    plugin: str
    place: str
    policy: RetryPolicy | None = None
    fault: Fault | None = None
    since: datetime | None = None
    """Since when it answers, or does not."""
    answered: bool = False
    counts: Mapping[Condition, Count] = field(default_factory=dict)
    oldest: datetime | None = None
    recent: Histogram | None = None
    """Failures per hour of the last day."""
    soon: Histogram | None = None
    """Retries of the next hour."""
    later: Histogram | None = None
    """Retries of the next day."""
    findings: Sequence[Finding] = ()

    @property
    def warnings(self) -> list[str]:
        if self.policy is None:
            return []
        from console.core.backend import Severity  # as all that reads: behind the first frame, which knows no policy
        from console.core.policy_lint import lint

        found = [f"{f.subject}: {f.message}" for f in self.findings if f.severity is not Severity.OK]
        return found + [warning.message for warning in lint(self.policy)]


def unopened(desk: Desk, foretold: Foretold) -> dict[str, Health]:
    """What is known of backends before any is open here."""
    return {
        entry.name: Health(entry.name, entry.plugin, "", counts=foretold.get(entry.name, {})) for entry in desk.entries
    }


class Monitor:
    """Asks; `changed` is called with the name of the backend something new is known of."""

    def __init__(
        self, desk: Desk, lanes: Lanes, changed: Callable[[str], None], foretold: Foretold = MappingProxyType({})
    ) -> None:
        self._clock = desk.clock
        self._every = desk.refresh.total_seconds()
        self._lanes = lanes
        self._changed = changed
        self._counted = {lane.name: asyncio.Event() for lane in lanes}
        self._faults: dict[str, dict[str, Fault]] = {name: {} for name in desk.names}
        now = desk.clock.now()
        self.healths: dict[str, Health] = {}
        for entry in desk.entries:
            if entry.name in lanes:
                backend = lanes[entry.name].backend
                counts = foretold.get(entry.name, {})
                self.healths[entry.name] = Health(
                    entry.name, entry.plugin, backend.place, backend.policy, counts=counts
                )
        for lost in desk.unavailable:
            self.healths[lost.name] = Health(lost.name, lost.plugin, "", fault=lost.fault, since=now)
        self.healths = {name: self.healths[name] for name in desk.names}

    def watches(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """What has to be asked all the time; none is begun before it is called."""
        return [
            watch
            for lane in self._lanes
            for watch in (
                partial(self._often, lane, self._count, self._every, _SHORT_REST),
                partial(self._beats, lane),
                partial(self._later, lane, self._look_back, _SLOW_THINGS, _REST),
                partial(self._later, lane, self._find_oldest, _SLOW_THINGS, _LONG_REST),
                partial(self._later, lane, self._check, _CHECKS),
            )
        ]

    async def read_again(self) -> None:
        asked = (self._count, self._look_back, self._find_oldest)
        await asyncio.gather(*(each(lane) for lane in self._lanes for each in asked))

    async def _often(
        self, lane: Lane, ask: Callable[[Lane], Coroutine[Any, Any, None]], every: float, rest: int = 1
    ) -> None:
        while True:
            began = monotonic()
            await ask(lane)
            await asyncio.sleep(max(every, rest * (monotonic() - began)))

    async def _later(
        self, lane: Lane, ask: Callable[[Lane], Coroutine[Any, Any, None]], every: float, rest: int = 1
    ) -> None:
        """The counts are what the first look is for: the rest is asked once they are there."""
        await self._counted[lane.name].wait()
        await self._often(lane, ask, every, rest)

    async def _beats(self, lane: Lane) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_BEAT):
                await self._counted[lane.name].wait()
        await self._often(lane, self._beat, _BEAT)

    async def counted(self, within: float) -> None:
        """Until every backend has been counted once, or has failed to be."""
        waits = [asyncio.create_task(each.wait()) for each in self._counted.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=within)
            for wait in late:
                wait.cancel()

    async def _beat(self, lane: Lane) -> None:
        try:
            await lane.ask(lambda backend: backend.now(), _PATIENCE)
        except Fault as fault:
            self._failed(lane.name, "beat", fault)
        else:
            recovered = "beat" in self._faults[lane.name]
            self._answered(lane.name, "beat")
            if recovered:
                await self._count(lane)

    async def _count(self, lane: Lane) -> None:
        now = self._clock.now()
        try:
            counts = await lane.ask(lambda backend: backend.counts(Filter(), now))
            self._answered(lane.name, "counts", counts=counts)
            soon = await lane.ask(lambda backend: _retries(backend, now, HOUR))
            later = await lane.ask(lambda backend: _retries(backend, now, DAY))
        except Fault as fault:
            self._failed(lane.name, "counts", fault)
        else:
            self._answered(lane.name, "counts", counts=counts, soon=soon, later=later)
        finally:
            self._counted[lane.name].set()

    async def _look_back(self, lane: Lane) -> None:
        now = self._clock.now()
        try:
            recent = await lane.ask(lambda backend: _failures(backend, now))
        except Fault:
            return  # the counts say whether it answers; without these the card is only plainer
        self._set(replace(self.healths[lane.name], recent=recent))

    async def _find_oldest(self, lane: Lane) -> None:
        """No index may serve this: it is asked apart, and most rarely where it takes long."""
        if SortField.UPDATED not in lane.backend.sorts:
            return
        now = self._clock.now()
        try:
            oldest = await lane.ask(lambda backend: _oldest(backend, now))
        except Fault:
            return
        self._set(replace(self.healths[lane.name], oldest=oldest))

    async def _check(self, lane: Lane) -> None:
        try:
            findings = await lane.ask(lambda backend: backend.check(self._clock))
        except Fault:
            return
        self._set(replace(self.healths[lane.name], findings=tuple(findings)))

    def _failed(self, name: str, asked: str, fault: Fault) -> None:
        self._faults[name][asked] = fault
        known = self.healths[name]
        since = known.since if known.fault is not None else self._clock.now()
        self._set(replace(known, fault=fault, since=since, answered=True))

    def _answered(self, name: str, asked: str, **news: Any) -> None:
        """An answer to one question says nothing of another that fails: a clock ticks beside a missing table."""
        self._faults[name].pop(asked, None)
        known = self.healths[name]
        fault = next(iter(self._faults[name].values()), None)
        turned = not known.answered or (known.fault is None) != (fault is None)
        since = self._clock.now() if turned else known.since
        self._set(replace(known, fault=fault, since=since, answered=True, **news))

    def _set(self, health: Health) -> None:
        if health != self.healths[health.name]:
            self.healths[health.name] = health
            self._changed(health.name)


def _retries(backend: Backend, now: datetime, span: timedelta) -> Histogram:
    from console.core.backend import Timeline

    return backend.histogram(Timeline.NEXT_RETRY, Filter(), now, now, span / BUCKETS, BUCKETS)


def _failures(backend: Backend, now: datetime) -> Histogram:
    from console.core.backend import Timeline

    return backend.histogram(Timeline.UPDATED, _FAILURES, now, now - DAY, DAY / SPARKS, SPARKS)


def _oldest(backend: Backend, now: datetime) -> datetime | None:
    from console.core.backend import PageRequest
    from console.core.listing import page_of

    request = PageRequest(_FAILURES, now, Sort(SortField.UPDATED, descending=False), limit=1)
    first = page_of(backend, request)
    return first.items[0].updated_at if first.items else None
