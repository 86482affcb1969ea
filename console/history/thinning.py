"""Keeps the history small: every minute for 6 hours, every 10 minutes for 2 days, every hour for 30 days.

Of each step of time the last value is kept. Minutes are in `point`; the others are packed, one row for each figure and
span. What is packed counts from the transaction on that says so in `packed_until` and removes the points. After a kill
before that, the next run packs the span again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple

from console.history.minutes import last_minute, minute_of, time_of
from console.history.packing import pack, unpack
from console.history.storage import Storage, Transaction


class Level(NamedTuple):
    """A resolution: one value for each `step` minutes, packed in spans, for figures older than `after` minutes."""

    step: int
    span: int
    after: int

    @property
    def slots(self) -> int:
        return self.span // self.step


TENS = Level(10, 6 * 60, 6 * 60)
HOURS = Level(60, 24 * 60, 2 * 24 * 60)
KEPT = 30 * 24 * 60
"""Minutes after which a figure is forgotten."""
_AT_ONCE = 500
_MOST_SPANS = 40
"""A run packs at most ten days, and forgets no more: one sample by a clock that is far ahead does little harm."""

_POINTS = """SELECT series, minute, value FROM @point WHERE series >= ? AND series < ? AND minute < ?
    ORDER BY series, minute"""
_KEEP = "INSERT INTO @packed (step, start, series, body) VALUES (?, ?, ?, ?)"
_REMOVE = "DELETE FROM @packed WHERE step = ? AND start = ? AND series >= ? AND series < ?"
_SET_UNTIL = """INSERT INTO @packed_until (step, minute) VALUES (?, ?)
    ON CONFLICT (step) DO UPDATE SET minute = excluded.minute"""


def packed_until(storage: Storage | Transaction) -> tuple[int, int]:
    """The minutes up to which figures are kept per hour, and per 10 minutes; 0 if none are."""
    found = {int(step): int(minute) for step, minute in storage.all("SELECT step, minute FROM @packed_until")}
    hours = found.get(HOURS.step, 0)
    return hours, max(found.get(TENS.step, 0), hours)


def set_packed_until(transaction: Transaction, level: Level, minute: int) -> None:
    transaction.run(_SET_UNTIL, (level.step, minute))


def thin(storage: Storage, now: datetime) -> None:
    """Pack and forget what is old enough. Cheap when there is nothing to do."""
    minute = minute_of(now)
    for start in islice(_due(storage, TENS, minute, "SELECT min(minute) FROM @point"), _MOST_SPANS):
        _pack_points(storage, start)
    ready = packed_until(storage)[1]
    for start in _due(storage, HOURS, minute, "SELECT min(start) FROM @packed WHERE step = 10"):
        if start + HOURS.span <= ready:
            _pack_tens(storage, start)
            _forget(storage, min(minute, ready + TENS.after + TENS.span) - KEPT)


def _due(storage: Storage, level: Level, minute: int, first: str) -> Iterator[int]:
    """The starts of the spans that are old enough."""
    start = packed_until(storage)[level is TENS]
    if not start:
        oldest = last_minute(storage.all(first))
        if oldest is None:
            return
        start = oldest // level.span * level.span
    while start + level.span <= minute - level.after:
        yield start
        start += level.span


def _pack_points(storage: Storage, start: int) -> None:
    """Pack the minutes of one span. The value at its end stays as a point: later changes are relative to it."""
    end = start + TENS.span
    last = last_minute(storage.all("SELECT max(id) FROM @series")) or 0
    ends = []
    for first in range(0, last + 1, _AT_ONCE):
        some = first, first + _AT_ONCE
        with storage.writing() as transaction:
            kept = []
            for series, points in groupby(transaction.all(_POINTS, (*some, end)), itemgetter(0)):
                values = _slot_values([(minute, value) for _, minute, value in points], start)
                if any(values):
                    kept.append((TENS.step, start, series, pack(values)))
                if values[-1]:
                    ends.append((series, end - 1, values[-1]))
            # A run that was killed may have packed them before.
            transaction.run(_REMOVE, (TENS.step, start, *some))
            transaction.many(_KEEP, kept)
    with storage.writing() as transaction:
        transaction.run("DELETE FROM @point WHERE minute < ?", (end,))
        transaction.many("INSERT INTO @point (series, minute, value) VALUES (?, ?, ?)", ends)
        set_packed_until(transaction, TENS, end)


def _slot_values(points: Sequence[tuple[int, int]], start: int) -> list[int]:
    """The value at the end of each slot of a span. The first point may be from before it."""
    values, value, position = [], 0, 0
    for slot in range(TENS.slots):
        end = start + (slot + 1) * TENS.step
        while position < len(points) and points[position][0] < end:
            value = points[position][1]
            position += 1
        values.append(value)
    return values


def _pack_tens(storage: Storage, start: int) -> None:
    """Pack one day to hours, in one transaction: its spans of 10 minutes are few and small."""
    end = start + HOURS.span
    with storage.writing() as transaction:
        days: dict[int, list[int]] = {}
        for span, series, values in _spans(transaction, start, end):
            hours = days.setdefault(series, [0] * HOURS.slots)
            first, per_hour = (span - start) // HOURS.step, HOURS.step // TENS.step
            kept = values[per_hour - 1 :: per_hour]
            hours[first : first + len(kept)] = kept
        rows = [(HOURS.step, start, series, pack(values)) for series, values in days.items() if any(values)]
        transaction.many(_KEEP, rows)
        transaction.run(
            "DELETE FROM @packed WHERE step = ? AND start >= ? AND start < ?", (TENS.step, start, end)
        )
        set_packed_until(transaction, HOURS, end)


def _spans(transaction: Transaction, start: int, end: int) -> Iterator[tuple[int, int, Sequence[int]]]:
    sql = "SELECT start, series, body FROM @packed WHERE step = ? AND start >= ? AND start < ?"
    for span, series, body in transaction.all(sql, (TENS.step, start, end)):
        yield span, series, unpack(body)


def _forget(storage: Storage, before: int) -> None:
    with storage.writing() as transaction:
        transaction.run("DELETE FROM @packed WHERE step = ? AND start < ?", (HOURS.step, before))
        transaction.run("DELETE FROM @coverage WHERE last < ?", (before,))
        transaction.run("DELETE FROM @cause WHERE last_seen < ?", (before,))
        transaction.run("DELETE FROM @mark WHERE at < ?", (time_of(before).isoformat(),))
        transaction.run("""DELETE FROM @series WHERE value = 0 AND id NOT IN (SELECT series FROM @point)
            AND id NOT IN (SELECT series FROM @packed)""")
