"""Counts failures by signature while they are read, in bounded memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Protocol, TypeVar

from console.core.signature import signature_of

_CHUNK = 20_000
_CAUSES = 20_000
_SAMPLE = 1000


class Ordered(Protocol):
    """A time as a backend stores it. It can be compared with other times of that backend."""

    def __lt__(self, other: Any, /) -> bool: ...
    def __gt__(self, other: Any, /) -> bool: ...
    def __ge__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Ordered)
_Instant = Callable[[Any], datetime | None]


@dataclass(frozen=True, slots=True)
class Cause:
    """The failures with one cause. `signature` is None for rows without error text, and for the overflow."""

    signature: str | None
    sample: str
    count: int
    recent: int
    """How many of them are at or after the cutoff."""
    first: datetime | None
    last: datetime | None
    backends: tuple[tuple[str, int], ...]
    maybe_more: int = 0
    """At most this many more were counted in the overflow."""
    overflow: bool = False
    """All causes that are too rare to be listed, as one."""
    estimated: bool = False
    """Counted in a sample of the failures."""

    @property
    def exact(self) -> bool:
        """False if more may be counted elsewhere, or if its failures were counted in a sample."""
        return not (self.estimated or self.maybe_more)

    @property
    def sign(self) -> str:
        """What is written before the count."""
        return "" if self.exact else "~"


@dataclass(slots=True)
class _Cutoff:
    """A time limit among raw times: those up to `old` are before it, those from `recent` on are not."""

    at: datetime
    old: Any = None
    recent: Any = None

    def count(self, times: list[Any], low: Any, high: Any, instant: _Instant) -> int:
        """How many are at or after the cutoff, when the lowest is before it and the highest is not."""
        old = low if self.old is None else max(self.old, low)
        recent = high if self.recent is None else min(self.recent, high)
        found = 0
        for at in times:
            if at >= recent:
                found += 1
            elif at > old and (moment := instant(at)) is not None:
                if moment >= self.at:
                    recent = at
                    found += 1
                else:
                    old = at
        self.old, self.recent = old, recent
        return found


@dataclass(slots=True)
class _Tally:
    """The count of one signature in one backend."""

    count: int = 0
    recent: int = 0
    first: datetime | None = None
    last: datetime | None = None

    def take(self, times: list[Any], instant: _Instant, cutoff: _Cutoff | None) -> None:
        self.count += len(times)
        try:
            low, high = min(times), max(times)
        except TypeError:  # one of them is None: rare, so catching the error is cheaper than checking
            low = high = None
        first = None if low is None else instant(low)
        last = None if high is None else instant(high)
        if first is None or last is None:
            readable = [at for at in times if at is not None and instant(at) is not None]
            if readable:
                self.count -= len(readable)
                self.take(readable, instant, cutoff)
            return
        self._see(first, last)
        if cutoff is not None and last >= cutoff.at:
            self.recent += len(times) if first >= cutoff.at else cutoff.count(times, low, high, instant)


    def merge(self, other: _Tally) -> None:
        self.count += other.count
        self.recent += other.recent
        if other.first is not None and other.last is not None:
            self._see(other.first, other.last)

    def _see(self, first: datetime, last: datetime) -> None:
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)


@dataclass(slots=True)
class _Entry:
    sample: str
    maybe_more: int = 0
    tallies: dict[str, _Tally] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """How many failures there are at most."""
        return self.maybe_more + sum(tally.count for tally in self.tallies.values())


class CauseCounter:
    """Counts rows (error text, time) of several backends by signature.

    Memory is bounded by one chunk of texts and by a maximum number of causes. When there are more, the rarer half
    moves to the overflow, which is one row. A cause that comes later could have been among them, at most as often as
    the most frequent cause there; with that it competes for its place (space-saving). So a cause with more than two
    of `_CAUSES` of all rows is always listed, and the counts always add up to the rows.

    Times are compared raw, within a backend, and only a few of them are converted.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._overflow = _Entry("")
        self._most_in_overflow = 0
        self._causes: dict[str | None, _Entry] = {}
        self._cutoffs: dict[str, _Cutoff] = {}

    def add(
        self,
        rows: Iterable[tuple[str | None, T | None]],
        backend: str,
        cutoff: datetime | None = None,
        *,
        instant: Callable[[T], datetime | None],
    ) -> None:
        """Count more rows of a backend. `instant` converts its times, in the same order as the raw ones."""
        bound = self._cutoff(backend, cutoff)
        stream = iter(rows)
        while chunk := _times_by_text(islice(stream, _CHUNK)):
            samples: dict[str | None, str | None] = {}
            by_cause: defaultdict[str | None, list[T | None]] = defaultdict(list)
            for text, times in chunk.items():
                signature = signature_of(text) if text else None
                by_cause[signature] += times
                samples.setdefault(signature, text)
            for signature, times in by_cause.items():
                self._tally(signature, samples[signature], backend, len(times)).take(times, instant, bound)

    def _cutoff(self, backend: str, at: datetime | None) -> _Cutoff | None:
        if at is None:
            return None
        known = self._cutoffs.get(backend)
        if known is None or known.at != at:
            known = self._cutoffs[backend] = _Cutoff(at)
        return known

    def _tally(self, signature: str | None, text: str | None, backend: str, rows: int) -> _Tally:
        self.rows += rows
        entry = self._causes.get(signature)
        if entry is None:
            if len(self._causes) >= _CAUSES:
                self._move_to_overflow()
            entry = self._causes[signature] = _Entry((text or "")[:_SAMPLE], self._most_in_overflow)
        return entry.tallies.setdefault(backend, _Tally())

    def _move_to_overflow(self) -> None:
        """Move the rarer half of the causes. Rows without error text stay: they are one known cause."""
        rare = sorted((entry.most, signature) for signature, entry in self._causes.items() if signature is not None)
        for most, signature in rare[: max(_CAUSES // 2, 1)]:
            self._most_in_overflow = max(self._most_in_overflow, most)
            for backend, tally in self._causes.pop(signature).tallies.items():
                self._overflow.tallies.setdefault(backend, _Tally()).merge(tally)

    def causes(self) -> list[Cause]:
        """The causes so far, the largest first, and the overflow after them."""
        return causes_of([self])


def causes_of(counters: Iterable[CauseCounter]) -> list[Cause]:
    """The causes of several counters together, the largest first, and their overflow after them."""
    counters = list(counters)
    entries: dict[str | None, list[_Entry]] = {}
    for counter in counters:
        for signature, entry in counter._causes.items():
            entries.setdefault(signature, []).append(entry)
    found = [_cause_of(signature, same) for signature, same in entries.items()]
    found.sort(key=lambda cause: (-cause.count, cause.signature or ""))
    overflows = [counter for counter in counters if counter._overflow.tallies]
    if not overflows:
        return found
    found = [_with_what_others_missed(cause, overflows) for cause in found]
    rest = _cause_of(None, [counter._overflow for counter in overflows])
    return [*found, replace(rest, overflow=True)]


def _with_what_others_missed(cause: Cause, overflows: list[CauseCounter]) -> Cause:
    """The same cause, with the failures that may be in the overflow of counters that do not list it."""
    missed = sum(one._most_in_overflow for one in overflows if cause.signature not in one._causes)
    return replace(cause, maybe_more=cause.maybe_more + missed) if missed and cause.signature is not None else cause


def _times_by_text(rows: Iterable[tuple[str | None, T | None]]) -> dict[str | None, list[T | None]]:
    """The innermost loop, for every failure: one lookup and one append for each row."""
    times: defaultdict[str | None, list[T | None]] = defaultdict(list)
    for text, at in rows:
        times[text].append(at)
    return times


def _cause_of(signature: str | None, entries: list[_Entry]) -> Cause:
    tallies = [tally for entry in entries for tally in entry.tallies.values()]
    backends: dict[str, int] = {}
    for entry in entries:
        for name, tally in entry.tallies.items():
            backends[name] = backends.get(name, 0) + tally.count
    return Cause(
        signature,
        entries[0].sample,
        count=sum(tally.count for tally in tallies),
        recent=sum(tally.recent for tally in tallies),
        first=min((tally.first for tally in tallies if tally.first), default=None),
        last=max((tally.last for tally in tallies if tally.last), default=None),
        backends=tuple(backends.items()),
        maybe_more=sum(entry.maybe_more for entry in entries) if signature is not None else 0,
    )
