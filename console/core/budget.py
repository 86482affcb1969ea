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
from threading import RLock
from time import perf_counter

from console.core.faults import DeadlineExceeded, ReadTooLong

SHARE = 0.01
REFRESH = 5.0
HOLD_LIMIT = 0.05
"""Seconds for which a read that nobody asked for may keep writers waiting."""
_FORGOTTEN_AFTER = 4
"""A figure that was not wanted for so many times the usual pause is no longer on screen."""
_NEVER = float("-inf")
_ROUND_TRIPS = 20
FEWEST_ROUND_TRIPS = 3
"""One measurement says little: the first may include the start of the console, or a busy machine."""


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

    With `hold_limit`, a read that keeps the watched system's own writers waiting gives up after this many seconds.
    """
    meter, began = Meter(hold_limit=hold_limit), perf_counter()
    token = _meter.set(meter)
    try:
        yield meter
    finally:
        _meter.reset(token)
        if not meter.statements:
            meter.seconds = perf_counter() - began


@contextmanager
def charging_deadlines() -> Iterator[None]:
    """Charge all the time of a read that was given up at its deadline: its last statement reports nothing."""
    began = perf_counter()
    try:
        yield
    except ReadTooLong:
        raise
    except DeadlineExceeded:
        charge(perf_counter() - began)
        raise


@dataclass(slots=True)
class ReadCosts:
    """What reading each backend has cost in one round of reads."""

    hold_limit: float | None = None
    meters: dict[str, Meter] = field(default_factory=dict)

    @contextmanager
    def of(self, backend: str) -> Iterator[None]:
        """Add what this block reads from a backend."""
        total, meter = self.meters.setdefault(backend, Meter()), Meter()
        try:
            with metered(self.hold_limit) as meter, charging_deadlines():
                yield
        finally:
            total.seconds += meter.seconds
            total.statements += meter.statements


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
    """A figure that is read again and again: what that cost, and when it was read and wanted."""

    cost: float
    round_trips: int
    """How many round trips `cost` still contains, because their time was not known yet."""
    read_at: float
    wanted_at: float
    every: float
    """Seconds after which it is usually wanted again."""


@dataclass(slots=True)
class ReadingBudget:
    """Decides when each question may be asked again. Times are seconds of any steady clock. Threads may share it.

    The share is divided among the figures on screen. Cheap ones are read at every refresh; what they leave is divided
    evenly among the others. Several threads may use it: each step changes one figure.
    """

    share: float = SHARE
    refresh: float = REFRESH
    _figures: dict[Hashable, _Figure] = field(default_factory=dict)
    _trips: deque[float] = field(default_factory=lambda: deque(maxlen=_ROUND_TRIPS))
    _shortest_trip: float = 0.0
    _lock: RLock = field(default_factory=RLock, repr=False, compare=False)

    @property
    def round_trip(self) -> float:
        """The time to the backend and back, from questions that take the backend no time; 0 until it is known."""
        return self._shortest_trip

    def answered_in(self, seconds: float) -> None:
        """A question that takes the backend no time was answered."""
        with self._lock:
            self._trips.append(seconds)
            self._shortest_trip = min(self._trips) if len(self._trips) >= FEWEST_ROUND_TRIPS else 0.0

    def note(self, question: Hashable, meter: Meter, now: float) -> None:
        """A question was answered, or failed. It does not matter who asked it."""
        with self._lock:
            figure = self._figures.setdefault(question, _Figure(0.0, 0, now, now, self.refresh))
            figure.cost, figure.round_trips, figure.read_at = meter.seconds, meter.statements, now
            if self.round_trip:
                figure.cost, figure.round_trips = self._cost(figure), 0

    def wait(self, question: Hashable, now: float, every: float = 0.0) -> float:
        """Seconds until a figure on screen may be read again by itself; 0 if it may be read now.

        `every`: seconds after which it is usually wanted again, if that is longer than the refresh.
        """
        with self._lock:
            figure = self._figures.setdefault(question, _Figure(0.0, 0, _NEVER, now, self.refresh))
            figure.wanted_at, figure.every = now, max(every, self.refresh)
            self._drop_unwanted(now)
            return 0.0 if figure.read_at == _NEVER else max(figure.read_at + self._interval(figure) - now, 0.0)

    def rest_after(self, question: Hashable, meter: Meter, now: float, every: float) -> float:
        """Note a read that is repeated more often than the refresh: after this many seconds, and not before `every`."""
        self.note(question, meter, now)
        with self._lock:
            figure = self._figures[question]
            figure.wanted_at, figure.every = now, every
            part = self._part(figure) if self.share > 0 else 0.0
            return max(self._cost(figure) / part if part else float("inf"), every)

    def _cost(self, figure: _Figure) -> float:
        return max(figure.cost - figure.round_trips * self.round_trip, 0.0)

    def cost(self, question: Hashable) -> float:
        """What the last read of a figure cost, in seconds; 0 if it is not known."""
        known = self._figures.get(question)
        return 0.0 if known is None else self._cost(known)

    def per_minute(self) -> float:
        """Seconds of the backend's time that these figures take in a minute, read as often as they may be."""
        with self._lock:
            return sum(60.0 * self._cost(figure) / self._interval(figure) for figure in self._figures.values())

    def slowest(self) -> float:
        """Seconds between two reads of the most expensive figure."""
        with self._lock:
            return max(map(self._interval, self._figures.values()), default=self.refresh)

    def forget(self) -> None:
        """Everything may be read at once: the backend was away and has come back."""
        with self._lock:
            self._figures.clear()

    def _drop_unwanted(self, now: float) -> None:
        """A figure that is not on screen takes no part of the share. It is kept until its own wait is over."""
        for question, figure in list(self._figures.items()):
            rest = max(self._cost(figure) / self.share if self.share else 0.0, _FORGOTTEN_AFTER * figure.every)
            if now - max(figure.wanted_at, figure.read_at) > rest:
                del self._figures[question]

    def _interval(self, figure: _Figure) -> float:
        if self.share <= 0:
            return float("inf")
        part = self._part(figure)
        return max(self.refresh, self._cost(figure) / part)

    def _part(self, figure: _Figure) -> float:
        """The part of the share that this figure may use: the fair part, and what cheaper ones leave of theirs."""
        left, others = self.share, sorted(self._figures.values(), key=lambda one: self._cost(one) / one.every)
        for index, other in enumerate(others):
            fair = left / (len(others) - index)
            if other is figure:
                return fair
            left -= min(fair, self._cost(other) / other.every)
        return left
