"""The past of the demo: a week of history, two deploys, an acknowledged cause with notes, and a regression.

The figures of now are read from the demo's own systems. Those of the past are made up so that they lead to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from console.core.backend import Count
from console.core.cause_count import Cause
from console.core.cause_life import CauseStates
from console.core.confirm import Origin, Who
from console.core.session import Unavailable
from console.core.signature import signature_of
from console.demo import incidents, warehouse
from console.history.recorder import Sampler
from console.history.samples import Reading, SampleWriter
from console.history.store import open_history
from console.history.thinning import thin
from console.registry import open_all
from console.settings import load
from console.trail.store import open_trail

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
_POOL_DEPLOY = timedelta(days=2, hours=3), "reports v8.1.0: larger connection pool", "cy"
_RENAME_DEPLOY = "billing v2.7.1: renames invoices.customer_ref", "deploy-bot"
_BEFORE_THE_FIRST_ERROR = timedelta(minutes=4)
_RESOLVED_AT, _CAME_BACK_AT = timedelta(days=2, hours=2), timedelta(hours=5)
_KEY_EXPIRED_AT, _ACKNOWLEDGED_AT = timedelta(hours=9), timedelta(hours=8)
_NOISY = 20
"""Smaller figures have no noise: they would flicker."""
_ORIGIN = Origin("demo", "", "", 0, "demo")

Shape = Callable[[timedelta], float]
"""How large a figure was at an age in the past: 0 is nothing, 1 is as much as now."""


@dataclass(slots=True)
class _SetClock:
    """A clock that shows the time at which something was recorded."""

    moment: datetime

    def now(self) -> datetime:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


def build_past(config: Path, base: datetime, seed: int) -> None:
    """Fill the history and the trail of a built demo."""
    settings = load(config)
    entries = open_all(settings)
    try:
        readings = Sampler(entries, hold_limit=None).read(base)
    finally:
        for entry in entries:
            if not isinstance(entry, Unavailable):
                entry.close()
    _record_history(settings.history.store_url(), readings, base, seed)
    _record_decisions(settings.console.trail_url(), [one for reading in readings for one in reading.causes or ()], base)


def _record_history(url: str, readings: Sequence[Reading], base: datetime, seed: int) -> None:
    history = open_history(url, read_only=False)
    renamed = {_signature(incidents.column_renamed), _signature(_column_rejected)}
    renamed_at = min(
        (cause.first for one in readings for cause in one.causes or ()
         if cause.first is not None and cause.signature in renamed),
        default=base - HOUR,
    )
    shapes: dict[str | None, Shape] = {_signature(error): shape for error, shape in _SHAPES}
    shapes |= dict.fromkeys(renamed, _grows(base - renamed_at, timedelta(minutes=45)))
    chance = Random(seed)
    past = ((base - age, [_before(one, age, shapes, chance) for one in readings]) for age in _ages())
    writer = SampleWriter(history.storage, "demo")
    writer.write_all([*past, (base, list(readings))])
    writer.release()
    age, text, by = _POOL_DEPLOY
    history.add_mark(text, by, base - age)
    history.add_mark(*_RENAME_DEPLOY, renamed_at - _BEFORE_THE_FIRST_ERROR)
    thin(history.storage, base)
    history.close()


def _ages() -> Iterator[timedelta]:
    """When samples are made, the oldest first: as often as they would be kept."""
    for hours in range(7 * 24, 48, -1):
        yield hours * HOUR
    for tens in range(48 * 6, 6 * 6, -1):
        yield tens * timedelta(minutes=10)
    for minutes in range(6 * 60, 0, -2):
        yield minutes * timedelta(minutes=1)


def _before(reading: Reading, age: timedelta, shapes: dict[str | None, Shape], chance: Random) -> Reading:
    """What a system showed at an age in the past."""
    causes, then, now = [], 0, 0
    for cause in reading.causes or ():
        share = shapes.get(cause.signature, _background)(age)
        count = round(cause.count * share * (chance.uniform(0.9, 1.1) if cause.count > _NOISY else 1.0))
        then, now = then + count, now + cause.count
        if count:
            causes.append(Cause(cause.signature, cause.sample, count, 0, None, None, ((reading.backend, count),)))
    share = then / now if now else 0.0
    counts = {condition: Count(round(count.value * share)) for condition, count in (reading.counts or {}).items()}
    due = reading.upcoming
    if due is not None:
        steps = tuple(round(count * share) for count in due.counts)
        due = due._replace(counts=steps, before=round(due.before * share), after=round(due.after * share))
    return replace(reading, counts=counts, causes=causes, upcoming=due)


def _grows(since: timedelta, full_after: timedelta) -> Shape:
    """Zero before `since`, then growing, and the present value after `full_after`."""
    return lambda age: min(max((since - age) / full_after, 0.0), 1.0)


def _wave(age: timedelta) -> float:
    """More by day than by night."""
    return 0.5 + 0.5 * math.sin(age / DAY * 2 * math.pi)


def _background(age: timedelta) -> float:
    return (0.4 + 0.2 * _wave(age)) * (1 - age / (10 * DAY)) + 0.4 * max(1 - age / (6 * HOUR), 0.0)


def _timeouts(age: timedelta) -> float:
    """Daily waves until they were resolved, then nothing; since a few hours they are back."""
    if age > _RESOLVED_AT:
        return 0.3 + 0.5 * _wave(age)
    return _grows(_CAME_BACK_AT, _CAME_BACK_AT)(age)


_SHAPES: tuple[tuple[incidents.Error, Shape], ...] = (
    (incidents.rate_limited, _grows(timedelta(minutes=42), timedelta(minutes=30))),
    (incidents.api_key_expired, _grows(_KEY_EXPIRED_AT, timedelta(hours=6))),
    (incidents.timed_out, _timeouts),
)


def _column_rejected(chance: Random) -> str:
    """The same error as the warehouse has it."""
    return warehouse.rejected(incidents.column_renamed(chance))


def _signature(error: incidents.Error) -> str:
    return signature_of(error(Random(1)))


def _record_decisions(url: str, causes: Sequence[Cause], base: datetime) -> None:
    """What people wrote about the causes, in the order of time."""
    key, timeouts = (
        next((one for one in causes if one.signature == _signature(error)), None)
        for error in (incidents.api_key_expired, incidents.timed_out)
    )
    clock = _SetClock(base)
    trail = open_trail(url, read_only=False, anchor=None, clock=clock)

    def states(by: str, age: timedelta) -> CauseStates:
        clock.moment = base - age
        return CauseStates(trail, clock, Who(1000, by), _ORIGIN)

    if timeouts is not None:
        states("cy", _RESOLVED_AT).resolve(timeouts, "The connection pool is larger since reports v8.1.0.")
    if key is not None:
        states("bo", _ACKNOWLEDGED_AT).acknowledge(key, "The key has expired. A new one is requested, see OPS-1412.")
        states("bo", _ACKNOWLEDGED_AT - timedelta(minutes=1)).assign(key, "bo")
        states("cy", 3 * HOUR).note(key, "The provider sends the new key today. Do not requeue before that.")
    trail.close()
