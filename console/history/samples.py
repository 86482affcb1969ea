"""Writes samples: what every system showed at a minute. Each is one transaction: a kill leaves all of it or nothing.

Only one process records at a time. It has a lease, which it renews with every sample. The lease of a process that has
ended is taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from console.core.backend import Count, Histogram
from console.core.cause_count import Cause
from console.core.history import RecordResult
from console.core.item import Condition
from console.core.text import neutralise
from console.history.minutes import last_minute, minute_of
from console.history.schema import CAUSE, CONDITION, NO_TEXT, RARE, UPCOMING
from console.history.storage import Storage, Transaction
from console.history.wrong_clock import forget_after

LEASE = timedelta(seconds=150)
"""How long a lease lasts without a new sample."""
CONTIGUOUS = 2
"""Two samples that are at most this many minutes apart have no gap between them."""
_FAR_AHEAD = 24 * 60
"""Samples this many minutes in the future were made by a wrong clock, and are removed."""
_MOST_CAUSES = 20_000
"""The largest number of causes that are stored by name. Further ones are counted together."""
_HEAD = 1_000
_RECORDER = "recorder"

_LATEST_COVERAGE = """SELECT c.system, c.kind, c.first, c.last, c.sampled FROM @coverage AS c JOIN
    (SELECT system, kind, max(first) AS first FROM @coverage GROUP BY system, kind) AS l
    ON l.system = c.system AND l.kind = c.kind AND l.first = c.first"""
_NOTE_FAULT = """UPDATE @system SET since = CASE WHEN fault = '' THEN ? ELSE since END, fault = ?
    WHERE name = ? AND fault <> ?"""
_SEE_CAUSE = """INSERT INTO @cause (signature, first_seen, last_seen, last_failure, head) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (signature) DO UPDATE SET last_seen = excluded.last_seen,
    first_seen = CASE WHEN excluded.first_seen < cause.first_seen THEN excluded.first_seen ELSE cause.first_seen END,
    last_failure = coalesce(excluded.last_failure, cause.last_failure), head = coalesce(cause.head, excluded.head)"""

SeriesKey = tuple[int, int, str]
"""System, kind and name of a figure."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one system showed. A figure that is None was not read: it is a gap, not a zero."""

    backend: str
    counts: Mapping[Condition, Count] | None = None
    causes: Sequence[Cause] | None = None
    upcoming: Histogram | None = None
    sampled: bool = False
    """The causes were counted in a part of the failures."""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Figures:
    """The figures of one sample by their place in the store."""

    values: dict[SeriesKey, int] = field(default_factory=dict)
    covered: dict[tuple[int, int], bool] = field(default_factory=dict)
    """System and kind → whether it is sampled. What is missing here was not read."""


class SampleWriter:
    """Writes the samples of one process. `is_dead` says whether the owner of a lease certainly no longer runs."""

    def __init__(
        self, storage: Storage, owner: str, *, keep_errors: bool = True,
        is_dead: Callable[[str], bool] = lambda _owner: False,
    ) -> None:
        self._storage = storage
        self._owner = owner
        self._keep_errors = keep_errors
        self._is_dead = is_dead

    def may_record(self, now: datetime) -> RecordResult:
        """Take the lease before anything is read. RECORDED means that a sample of this minute may be written."""
        with self._storage.writing() as transaction:
            if not self._take_lease(transaction, now):
                return RecordResult.ANOTHER_RECORDS
            return self._due(transaction, minute_of(now))

    def write(self, readings: Sequence[Reading], now: datetime) -> RecordResult:
        """Write one sample, if this process still records and the minute is not recorded yet."""
        minute = minute_of(now)
        with self._storage.writing() as transaction:
            if not self._take_lease(transaction, now):
                return RecordResult.ANOTHER_RECORDS
            result = self._due(transaction, minute)
            if result is RecordResult.RECORDED:
                self._write(transaction, readings, minute)
            return result

    def write_all(self, samples: Sequence[tuple[datetime, Sequence[Reading]]]) -> None:
        """Write several samples, the oldest first, in one transaction."""
        with self._storage.writing() as transaction:
            for at, readings in samples:
                self._write(transaction, readings, minute_of(at))

    def release(self) -> None:
        """Give up the lease, so that another process can record at once."""
        with self._storage.writing() as transaction:
            transaction.run("DELETE FROM @lease WHERE name = ? AND owner = ?", (_RECORDER, self._owner))

    def _take_lease(self, transaction: Transaction, now: datetime) -> bool:
        now = transaction.now(now)
        for owner, until in transaction.all("SELECT owner, until FROM @lease WHERE name = ?", (_RECORDER,)):
            rest = datetime.fromisoformat(until) - now
            # A lease that would last longer than any lease was given by a clock that was ahead.
            if owner != self._owner and timedelta(0) < rest <= LEASE and not self._is_dead(owner):
                return False
        transaction.run("DELETE FROM @lease WHERE name = ?", (_RECORDER,))
        until = (now + LEASE).isoformat()
        transaction.run("INSERT INTO @lease (name, owner, until) VALUES (?, ?, ?)", (_RECORDER, self._owner, until))
        return True

    def _due(self, transaction: Transaction, minute: int) -> RecordResult:
        last = last_minute(transaction.all("SELECT max(last) FROM @coverage"))
        if last is not None and last - minute > _FAR_AHEAD:
            forget_after(transaction, minute)
            last = last_minute(transaction.all("SELECT max(last) FROM @coverage"))
        if last is None or minute > last:
            return RecordResult.RECORDED
        return RecordResult.ALREADY_RECORDED if minute == last else RecordResult.CLOCK_SET_BACK

    # -- one sample --------------------------------------------------------------------------------

    def _write(self, transaction: Transaction, readings: Sequence[Reading], minute: int) -> None:
        known = {name: bool(has) for name, has in transaction.all("SELECT signature, head IS NOT NULL FROM @cause")}
        figures = _Figures()
        seen: dict[str, tuple[Any, ...]] = {}
        systems = _system_ids(transaction, [reading.backend for reading in readings])
        for reading in readings:
            self._collect(reading, systems[reading.backend], minute, known, figures, seen)
        transaction.many(_SEE_CAUSE, list(seen.values()))
        _note_faults(transaction, readings, minute)
        _write_changes(transaction, figures, minute)
        _cover(transaction, figures.covered, minute)

    def _collect(
        self, reading: Reading, system: int, minute: int, known: dict[str, bool], figures: _Figures,
        seen: dict[str, tuple[Any, ...]],
    ) -> None:
        if reading.counts is not None:
            figures.covered[system, CONDITION] = any(count.estimated for count in reading.counts.values())
            for condition, count in reading.counts.items():
                figures.values[system, CONDITION, condition.value] = count.value
        if reading.upcoming is not None:
            figures.covered[system, UPCOMING] = False
            steps = (reading.upcoming.before, *reading.upcoming.counts, reading.upcoming.after)
            for number, due in enumerate(steps):
                figures.values[system, UPCOMING, str(number)] = due
        if reading.causes is None:
            return
        figures.covered[system, CAUSE] = reading.sampled
        for cause in reading.causes:
            name = cause.signature or (RARE if cause.overflow else NO_TEXT)
            if cause.signature and name not in known:
                name = name if len(known) < _MOST_CAUSES else RARE
                known.setdefault(name, False)
            key = system, CAUSE, name
            figures.values[key] = figures.values.get(key, 0) + cause.count
            if name not in (RARE, NO_TEXT):
                signature = name
                wants_head = self._keep_errors and not known[signature]
                seen[signature] = _seen(cause, signature, minute, seen.get(signature), wants_head)


def _seen(
    cause: Cause, signature: str, minute: int, before: tuple[Any, ...] | None, wants_head: bool
) -> tuple[Any, ...]:
    """The row of a cause in this sample; `before` is its row from another system."""
    first = minute if cause.first is None else min(minute_of(cause.first), minute)
    last = None if cause.last is None else int(cause.last.timestamp() * 1000)
    head = None if before is None else before[4]
    if head is None and wants_head and cause.sample:
        head = neutralise(cause.sample, _HEAD, multiline=True)
    if before is not None:
        first = min(first, before[1])
        last = max((at for at in (last, before[3]) if at is not None), default=None)
    return signature, first, minute, last, head


def _system_ids(transaction: Transaction, names: Sequence[str]) -> dict[str, int]:
    transaction.many("INSERT INTO @system (name) VALUES (?) ON CONFLICT (name) DO NOTHING", [(name,) for name in names])
    return {name: number for number, name in transaction.all("SELECT id, name FROM @system")}


def _note_faults(transaction: Transaction, readings: Sequence[Reading], minute: int) -> None:
    """Note which systems do not answer. One that was not asked stays as it was."""
    faults = [
        ("" if one.counts is not None else neutralise(one.fault, _HEAD), one.backend)
        for one in readings if one.fault or one.counts is not None
    ]
    transaction.many(_NOTE_FAULT, [(minute, fault, name, fault) for fault, name in faults])


def _write_changes(transaction: Transaction, figures: _Figures, minute: int) -> None:
    """Write the figures that changed. One that was read and is no longer there has become zero."""
    stored = _stored_series(transaction)
    new = [key for key, value in figures.values.items() if value and key not in stored]
    if new:
        transaction.many("INSERT INTO @series (system, kind, name, value) VALUES (?, ?, ?, 0)", new)
        stored = _stored_series(transaction)
    changes = []
    for key, (number, value) in stored.items():
        if (key[0], key[1]) in figures.covered and (now := figures.values.get(key, 0)) != value:
            changes.append((number, minute, now))
    transaction.many("INSERT INTO @point (series, minute, value) VALUES (?, ?, ?)", changes)
    transaction.many("UPDATE @series SET value = ? WHERE id = ?", [(value, number) for number, _, value in changes])


def _stored_series(transaction: Transaction) -> dict[SeriesKey, tuple[int, int]]:
    rows = transaction.all("SELECT system, kind, name, id, value FROM @series")
    return {(system, kind, name): (number, value) for system, kind, name, number, value in rows}


def _cover(transaction: Transaction, covered: Mapping[tuple[int, int], bool], minute: int) -> None:
    """Note that these figures were read at this minute."""
    latest = {(system, kind): rest for system, kind, *rest in transaction.all(_LATEST_COVERAGE)}
    longer, new = [], []
    for (system, kind), sampled in covered.items():
        first, last, before = latest.get((system, kind), (0, 0, 0))
        if minute - last <= CONTIGUOUS and bool(before) == sampled:
            longer.append((minute, system, kind, first))
        else:
            new.append((system, kind, minute, minute, int(sampled)))
    transaction.many("UPDATE @coverage SET last = ? WHERE system = ? AND kind = ? AND first = ?", longer)
    transaction.many("INSERT INTO @coverage (system, kind, first, last, sampled) VALUES (?, ?, ?, ?, ?)", new)
