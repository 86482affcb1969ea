"""The reading budget of a backend: how often it is read when nobody has asked.

A console is left open for a whole shift. Reading by itself may take at most a small share of the time of each watched
system. What a read cost decides when it may be repeated: at a share of 1 %, a read of 2 s waits for 200 s. A person's
own request is never made to wait.

The cost of a read is the time of its statements less the round trips. A backend reports that time with `charge`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter

SHARE = 0.01
REFRESH = 5.0
HOLD_LIMIT = 0.05
"""Seconds for which a read that nobody asked for may keep writers waiting."""
_FORGOTTEN_AFTER = 4
"""A figure that was not wanted for this many refreshes is no longer on screen."""
_ROUND_TRIPS = 20


@dataclass(slots=True)
class Meter:
    """What one call has cost so far."""

    seconds: float = 0.0
    statements: int = 0
    hold_limit: float | None = None


_meter: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered(hold_limit: float | None = None) -> Iterator[Meter]:
    """Collect what is charged in this block, in this thread; all of its time if nothing is charged.

    With `hold_limit`, a read that keeps the watched system's own writers waiting gives up after so many seconds.
    """
    meter, began = Meter(hold_limit=hold_limit), perf_counter()
    token = _meter.set(meter)
    try:
        yield meter
    finally:
        _meter.reset(token)
        if not meter.statements:
            meter.seconds = perf_counter() - began


def hold_limit() -> float | None:
    """How many seconds the read in this thread may keep writers waiting; None for as long as it takes."""
    meter = _meter.get()
    return None if meter is None else meter.hold_limit


def charge(seconds: float, statements: int = 1) -> None:
    """Report the time that the watched system took to answer. A backend calls it for every statement, or never."""
    meter = _meter.get()
    if meter is not None:
        meter.seconds += seconds
        meter.statements += statements


@dataclass(slots=True)
class _Figure:
    """A question that is asked again and again."""

    cost: float
    read_at: float
    wanted_at: float


@dataclass(slots=True)
class ReadingBudget:
    """Decides when each question may be asked again. Times are seconds of any steady clock.

    The share is divided among the figures on screen. Cheap ones are read at every refresh; what they leave is divided
    evenly among the others.
    """

    share: float = SHARE
    refresh: float = REFRESH
    _figures: dict[Hashable, _Figure] = field(default_factory=dict)
    _trips: deque[float] = field(default_factory=lambda: deque(maxlen=_ROUND_TRIPS))

    @property
    def round_trip(self) -> float:
        """The time to the backend and back, from questions that take the backend no time."""
        return min(self._trips, default=0.0)

    def answered_in(self, seconds: float) -> None:
        """A question that takes the backend no time was answered."""
        self._trips.append(seconds)

    def note(self, question: Hashable, meter: Meter, now: float) -> None:
        """A question was answered, or failed, whoever asked it."""
        cost = max(meter.seconds - meter.statements * self.round_trip, 0.0)
        known = self._figures.get(question)
        self._figures[question] = _Figure(cost, now, now if known is None else known.wanted_at)

    def wait(self, question: Hashable, now: float) -> float:
        """Seconds until a figure on screen may be read again by itself; 0 if it may be read now."""
        known = self._figures.get(question)
        if known is None:
            return 0.0
        known.wanted_at = now
        self._drop_unwanted(now)
        return max(known.read_at + self._interval(known) - now, 0.0)

    def cost(self, question: Hashable) -> float:
        """What the last read of a figure cost, in seconds; 0 if it is not known."""
        known = self._figures.get(question)
        return 0.0 if known is None else known.cost

    def per_minute(self) -> float:
        """Seconds of the backend's time that these figures take in a minute, read as often as they may be."""
        return sum(60.0 * figure.cost / self._interval(figure) for figure in self._figures.values())

    def slowest(self) -> float:
        """Seconds between two reads of the most expensive figure."""
        return max(map(self._interval, self._figures.values()), default=self.refresh)

    def forget(self) -> None:
        """Everything may be read at once: the backend was away and has come back."""
        self._figures.clear()

    def _drop_unwanted(self, now: float) -> None:
        """A figure that is not on screen takes no part of the share. It is kept until its own wait is over."""
        for question, figure in list(self._figures.items()):
            rest = max(figure.cost / self.share if self.share else 0.0, _FORGOTTEN_AFTER * self.refresh)
            if now - max(figure.wanted_at, figure.read_at) > rest:
                del self._figures[question]

    def _interval(self, figure: _Figure) -> float:
        if self.share <= 0:
            return float("inf")
        part = self._part(figure)
        return max(self.refresh, figure.cost / part)

    def _part(self, figure: _Figure) -> float:
        """The part of the share that this figure may use: the fair part, and what cheaper ones leave of theirs."""
        left, others = self.share, sorted(self._figures.values(), key=lambda one: one.cost)
        for index, other in enumerate(others):
            fair = left / (len(others) - index)
            if other is figure:
                return fair
            left -= min(fair, other.cost / self.refresh)
        return left
