"""Reads figures over time: minutes, spans of 10 minutes and spans of hours as one sequence of values."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from console.history.packing import two_of_each, unpack, unpack_one
from console.history.storage import Storage, Transaction
from console.history.thinning import HOURS, TENS, Level, packed_until
from console.sql.database import Row

T = TypeVar("T")
FigureTwice = tuple[int, int, str, int, int]
"""System, kind and name of a figure, and its values at two times."""
_IDS_IN_ONE_STATEMENT = 500
_MOST_IDS = 2_000
"""Above this many figures, all are read: that is faster than naming each of them."""

_MOST_TURNS = 3

_SERIES = "SELECT s.id, s.system, s.kind, s.name FROM @series AS s"
_NAMED_SPAN = """SELECT s.system, s.kind, s.name, p.body FROM @packed AS p JOIN @series AS s ON s.id = p.series
    WHERE p.step = ? AND p.start = ?"""
_NAMED_POINTS = """SELECT s.system, s.kind, s.name,
    (SELECT p.value FROM @point AS p WHERE p.series = s.id AND p.minute <= ? ORDER BY p.minute DESC LIMIT 1),
    (SELECT p.value FROM @point AS p WHERE p.series = s.id AND p.minute <= ? ORDER BY p.minute DESC LIMIT 1)
    FROM @series AS s"""

_VALUES_AT = """SELECT s.id, (SELECT p.value FROM @point AS p WHERE p.series = s.id AND p.minute <= ?
    ORDER BY p.minute DESC LIMIT 1) FROM @series AS s"""
_POINTS = "SELECT p.series, p.minute, p.value FROM @point AS p WHERE p.minute <= ?"
_SPAN = "SELECT s.series, s.body FROM @packed AS s WHERE s.step = ? AND s.start = ?"
_SPANS = "SELECT s.start, s.series, s.body FROM @packed AS s WHERE s.step = ? AND s.start IN ({})"


class Figures:
    """Reads the values of figures. A value is the last one that was read, whether or not there is a gap after it."""

    def __init__(self, storage: Storage | Transaction) -> None:
        self._storage = storage
        self.hours_until, self.tens_until = packed_until(storage)

    def values_at(self, minute: int) -> dict[int, int]:
        """The values of all figures at a minute. Figures that were zero may be missing."""
        if minute >= self.tens_until - 1:
            rows = self._storage.all(_VALUES_AT, (minute,))
            return {series: value for series, value in rows if value}
        level, start, slot = self._place(minute)
        rows = self._storage.all(_SPAN, (level.step, start))
        return {series: value for series, body in rows if (value := unpack_one(body, slot))}

    def at_two_times(self, minute: int, earlier: int) -> list[FigureTwice]:
        """All figures that are not zero at a minute, with their values then and at an earlier one."""
        if earlier >= self.tens_until - 1:
            rows = self._storage.all(_NAMED_POINTS, (minute, earlier))
            return [(system, kind, name, value, before or 0) for system, kind, name, value, before in rows if value]
        if minute < self.tens_until - 1:
            level, start, slot = self._place(minute)
            if (level, start) == self._place(earlier)[:2]:
                rows = self._storage.all(_NAMED_SPAN, (level.step, start))
                values = two_of_each([body for _, _, _, body in rows], slot, self._place(earlier)[2])
                return [
                    (system, kind, name, value, before)
                    for (system, kind, name, _), (value, before) in zip(rows, values, strict=True) if value
                ]
        now, then = self.values_at(minute), self.values_at(earlier)
        return [
            (system, kind, name, now[number], then.get(number, 0))
            for number, system, kind, name in self._storage.all(_SERIES) if number in now
        ]

    @property
    def is_current(self) -> bool:
        """Whether nothing was packed since this began to read."""
        return (self.hours_until, self.tens_until) == packed_until(self._storage)

    def step_at(self, minute: int) -> int:
        """How many minutes apart the values are that are kept of this time."""
        return HOURS.step if minute < self.hours_until else TENS.step if minute < self.tens_until else 1

    def values_over(self, minutes: Sequence[int], ids: Collection[int]) -> dict[int, list[int]]:
        """The values of these figures at each of these minutes, which are in order.

        Figures that were always zero may be missing.
        """
        found: dict[int, list[int]] = {}
        packed = bisect_left(minutes, self.tens_until - 1)
        self._add_spans(found, minutes, packed, ids)
        if packed < len(minutes):
            rows = self._select(_POINTS, "p.series", ids, (minutes[-1],))
            for series, points in groupby(sorted(rows), itemgetter(0)):
                values = found.setdefault(series, [0] * len(minutes))
                _fill(values, packed, minutes, [(minute, value) for _, minute, value in points])
        return found

    def _add_spans(
        self, found: dict[int, list[int]], minutes: Sequence[int], packed: int, ids: Collection[int]
    ) -> None:
        """Add the values of the first minutes, which are packed. A figure without a row for a span was zero in it."""
        places = [self._place(minute) for minute in minutes[:packed]]
        for level, of_level in groupby(enumerate(places), lambda place: place[1][0]):
            spans: dict[int, list[tuple[int, int]]] = {}
            for position, (_, start, slot) in of_level:
                spans.setdefault(start, []).append((position, slot))
            pickers = {start: _Picker(level, some) for start, some in spans.items()}
            # Each start is named, so that the key finds the rows of a few figures without reading those of all others.
            sql = _SPANS.format(", ".join("?" * len(spans)))
            for start, series, body in self._select(sql, "s.series", ids, (level.step, *spans)):
                values = found.get(series)
                if values is None:
                    values = found[series] = [0] * len(minutes)
                pickers[start].copy(unpack(body), values)

    def _place(self, minute: int) -> tuple[Level, int, int]:
        """Where the value at a minute is packed: the level, the start of the span, and the slot in it."""
        level = HOURS if minute < self.hours_until else TENS
        if level is TENS and minute < self.hours_until + TENS.step - 1:
            level = HOURS  # the last value per hour is still the latest
        ended = (minute + 1) // level.step - 1
        start = ended * level.step // level.span * level.span
        return level, start, (ended * level.step - start) // level.step

    def _select(self, sql: str, column: str, ids: Collection[int], parameters: Sequence[int]) -> Iterator[Row]:
        """The rows of these figures."""
        if len(ids) > _MOST_IDS:
            wanted = frozenset(ids)
            at = 1 if sql.startswith("SELECT s.start") else 0
            yield from (row for row in self._storage.all(sql, parameters) if row[at] in wanted)
        else:
            some = list(ids)
            for start in range(0, len(some), _IDS_IN_ONE_STATEMENT):
                part = some[start : start + _IDS_IN_ONE_STATEMENT]
                named = f"{sql} AND {column} IN ({', '.join('?' * len(part))})"
                yield from self._storage.all(named, (*parameters, *part))


def read_whole(storage: Storage, read: Callable[[Figures], T]) -> T:
    """What `read` finds in several statements. It is read again if another process has packed figures meanwhile."""
    turns = _MOST_TURNS
    while True:
        found = read(figures := Figures(storage))
        turns -= 1
        if figures.is_current or not turns:
            return found


class _Picker:
    """Copies the values of some slots of a span to their positions, which follow one another."""

    def __init__(self, level: Level, places: Sequence[tuple[int, int]]) -> None:
        self._first, self._end = places[0][0], places[-1][0] + 1
        self._slots = level.slots
        slots = [slot for _, slot in places]
        whole = slots == [*range(slots[0], slots[-1] + 1)]
        self._part = slice(slots[0], slots[-1] + 1) if whole else None
        self._some = slots

    def copy(self, packed: Sequence[int], values: list[int]) -> None:
        if len(packed) < self._slots:
            packed = [*packed, *[0] * self._slots]
        picked = packed[self._part] if self._part is not None else [packed[slot] for slot in self._some]
        values[self._first : self._end] = picked


def _fill(values: list[int], first: int, minutes: Sequence[int], points: Sequence[tuple[int, int]]) -> None:
    """Set the values from position `first` on. Each point counts until the next one."""
    begun, value = first, 0
    for minute, changed in points:
        position = bisect_left(minutes, minute, begun)
        values[begun:position] = [value] * (position - begun)
        begun, value = position, changed
    values[begun:] = [value] * (len(minutes) - begun)


class Coverage:
    """When the figures of one system and kind were read."""

    def __init__(self, intervals: Iterable[tuple[int, int, int]]) -> None:
        self._intervals = sorted(intervals)
        self._firsts = [first for first, _, _ in self._intervals]

    def last_before(self, minute: int) -> int | None:
        """The latest minute up to this one at which they were read."""
        position = bisect_right(self._firsts, minute)
        return min(self._intervals[position - 1][1], minute) if position else None

    def in_span(self, first: int, last: int) -> bool:
        """Whether they were read at any minute of this span."""
        found = self.last_before(last)
        return found is not None and found >= first

    def gaps(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """The numbers of the spans in which they were not read at any minute. The spans follow one another."""
        missing: list[int] = []
        known = 0
        for first, last, _ in self._intervals:
            begin = bisect_left(spans, first, known, key=itemgetter(1))
            end = bisect_right(spans, last, begin, key=itemgetter(0))
            missing += range(known, begin)
            known = max(known, end)
        return [*missing, *range(known, len(spans))]

    def sampled(self, first: int, last: int) -> bool:
        """Whether they were estimated at some minute of this span."""
        return any(one[0] <= last and one[1] >= first and one[2] for one in self._intervals)
