"""The history as front ends see it: figures of the past, deploy marks, and what was recorded when.

`console.history` implements it. Nothing here reads or writes a watched system.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from console.core.backend import Count, Histogram
from console.core.cause_count import Cause
from console.core.faults import UsageFault
from console.core.item import Condition
from console.core.query import Field, Filter

MINUTE = timedelta(minutes=1)
UPCOMING_STEPS = 12
UPCOMING_STEP = timedelta(minutes=5)
"""The retries of the next hour are kept in steps of five minutes."""
NEAR_A_MARK = timedelta(minutes=15)
"""A cause that began within this time after a mark is shown beside it."""


_LEVELS = "▁▂▃▄▅▆▇█"


class Mark(NamedTuple):
    """Something that happened elsewhere, such as a deploy."""

    at: datetime
    text: str
    by: str


class Trend(NamedTuple):
    """A figure over time, in steps of `width` from `start`. None where nothing was recorded."""

    start: datetime
    width: timedelta
    values: tuple[int | None, ...]
    sampled: bool = False
    """Some values are estimates from a sample."""

    @property
    def known(self) -> list[int]:
        return [value for value in self.values if value is not None]

    @property
    def change(self) -> int | None:
        """The last value less the first; None without two values."""
        known = self.known
        return known[-1] - known[0] if len(known) > 1 else None

    def coarser(self, steps: int) -> Trend:
        """The same in at most this many steps, each with the last known value of those it replaces."""
        size = -(-len(self.values) // steps)
        parts = (self.values[first : first + size] for first in range(0, len(self.values), size))
        values = tuple(next((value for value in reversed(part) if value is not None), None) for part in parts)
        return self._replace(width=self.width * size, values=values) if size > 1 else self

    @property
    def end(self) -> datetime:
        return self.start + self.width * len(self.values)


class SystemThen(NamedTuple):
    """What is known about one system at a time in the past."""

    as_of: datetime
    """When the figures were read."""
    counts: Mapping[Condition, Count]
    upcoming: Histogram | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All systems as they were at a time."""

    at: datetime
    systems: Mapping[str, SystemThen] = field(default_factory=dict)
    causes: Sequence[Cause] = ()
    """The largest first. Their samples are the error heads that were kept, or empty."""
    missing: tuple[str, ...] = ()
    """Systems that did not answer, or of which nothing was recorded around that time. Figures of a few minutes before
    may still be in `systems` and `causes`."""
    sampled: frozenset[str] = frozenset()
    """Systems whose causes were counted in a sample of their failures."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Why systems could not be read, where that is known."""


class RecordResult(StrEnum):
    """How one attempt to record a sample ended."""

    RECORDED = "recorded"
    ANOTHER_RECORDS = "another process is recording"
    ALREADY_RECORDED = "this minute is recorded already"
    CLOCK_SET_BACK = "the clock is behind the last sample"


class History(Protocol):
    """The recorded past. Every method reads only the history's own store."""

    place: str
    """Where it is, safe to show."""

    def recorded(self) -> tuple[datetime, datetime] | None:
        """The first and the last recorded time; None if there is no history yet."""

    def snapshot(self, at: datetime) -> Snapshot:
        """All systems as they were then, from the last sample before it."""

    def step(self, at: datetime, by: timedelta) -> datetime | None:
        """The recorded time next to `at + by`, for going back and forth; None beyond the first or the last."""

    def cause_trends(
        self, start: datetime, end: datetime, steps: int, signatures: Iterable[str] | None = None,
        backend: str | None = None,
    ) -> Mapping[str, Trend]:
        """Failures per cause over time: of all causes, or of these; in all systems, or in one."""

    def system_trends(
        self, start: datetime, end: datetime, steps: int, conditions: Iterable[Condition] | None = None
    ) -> Mapping[str, Trend]:
        """Items that need attention per system over time; or those with these conditions."""

    def first_seen(self) -> Mapping[str, datetime]:
        """When each known cause was seen for the first time."""

    def marks(self, start: datetime, end: datetime) -> Sequence[Mark]:
        """The marks of this time, in order."""

    def add_mark(self, text: str, by: str, at: datetime) -> None:
        """Add a mark. `ReadOnlyRefused` in read-only mode."""

    def alert_states(self) -> Mapping[str, Mapping[str, Any]]:
        """What is remembered about alerts from one evaluation to the next, by their key."""

    def keep_alert_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Remember these states, and no others."""

    def close(self) -> None: ...


class Recorder(Protocol):
    """Samples all systems into the history, one process at a time."""

    @property
    def faults(self) -> Mapping[str, str]:
        """Why systems could not be read for the last sample, by name."""

    @property
    def answered(self) -> frozenset[str]:
        """The systems that could be read."""

    def record(self) -> RecordResult:
        """Take one sample, unless another process records or this minute is recorded already."""

    def release(self) -> None:
        """Let another process record."""


def mark_before(began: datetime | None, marks: Iterable[Mark]) -> Mark | None:
    """The last mark shortly before a cause began; None if there is none."""
    if began is None:
        return None
    near = [mark for mark in marks if timedelta(0) <= began - mark.at <= NEAR_A_MARK]
    return max(near, key=lambda mark: mark.at, default=None)


def causes_then(then: Snapshot, names: Collection[str], filter: Filter) -> list[Cause]:
    """The causes of these systems at a time in the past that match a filter. Only backend: and cause: can be used."""
    if any(term.field not in (Field.BACKEND, Field.CAUSE) for term in filter.terms):
        what = "Only backend: and cause: can be used for the past"
        raise UsageFault(what, fix="Single items of the past are not recorded.")
    wanted = {name for name in names if filter.for_backend(name) is not None}
    found = []
    for cause in then.causes:
        backends = tuple((name, count) for name, count in cause.backends if name in wanted)
        if backends and all(term.matches_signature(cause.signature) for term in filter.terms_for(Field.CAUSE)):
            found.append(replace(cause, backends=backends, count=sum(count for _, count in backends)))
    return found


def sparkline(values: Sequence[int | None]) -> str:
    """Values as one line of text, one character each; a dot where nothing was recorded."""
    most = max((value for value in values if value is not None), default=0)
    levels = ("·" if value is None else _LEVELS[min(value * len(_LEVELS) // (most + 1), 7)] for value in values)
    return "".join(levels)
