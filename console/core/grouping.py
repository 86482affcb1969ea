"""Failures counted by signature while they stream by, in bounded memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Protocol, TypeVar

from console.core.signature import signature_of

_CHUNK = 20_000
_GROUPS = 20_000
_SAMPLE = 1000


class Ordered(Protocol):
    """A time as a backend stores it: comparable with its own kind."""

    def __lt__(self, other: Any, /) -> bool: ...
    def __gt__(self, other: Any, /) -> bool: ...
    def __ge__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Ordered)
_Instant = Callable[[Any], datetime | None]


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of one cause. `signature` is None for rows without error text."""

    signature: str | None
    sample: str
    count: int
    recent: int
    """How many of them at or after the cutoff."""
    first: datetime | None
    last: datetime | None
    backends: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class _Cutoff:
    """An instant among raw times: those up to `old` are before it, those from `recent` on are not."""

    at: datetime
    old: Any = None
    recent: Any = None

    def count(self, times: list[Any], low: Any, high: Any, instant: _Instant) -> int:
        """How many are at or after the cutoff, when `low` of them is before it and `high` is not."""
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
    """One signature in one backend."""

    count: int = 0
    recent: int = 0
    first: datetime | None = None
    last: datetime | None = None

    def take(self, times: list[Any], instant: _Instant, cutoff: _Cutoff | None) -> None:
        self.count += len(times)
        try:
            low, high = min(times), max(times)
        except TypeError:  # there is a None among them: rare, and cheaper found out than looked for
            low = high = None
        first = None if low is None else instant(low)
        last = None if high is None else instant(high)
        if first is None or last is None:
            readable = [at for at in times if at is not None and instant(at) is not None]
            if readable:
                self.count -= len(readable)
                self.take(readable, instant, cutoff)
            return
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)
        if cutoff is not None and last >= cutoff.at:
            self.recent += len(times) if first >= cutoff.at else cutoff.count(times, low, high, instant)


@dataclass(slots=True)
class _Cause:
    sample: str
    tallies: dict[str, _Tally] = field(default_factory=dict)


class Grouping:
    """Rows (error text, time) of several backends, counted by signature while they stream by.

    Memory is bounded by one chunk of texts and by the number of groups: rows of further causes are only
    counted, in `beyond`. Times are compared raw, within a backend, and only a few of them are read.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.beyond = 0
        self._causes: dict[str | None, _Cause] = {}
        self._cutoffs: dict[str, _Cutoff] = {}

    def add(
        self,
        rows: Iterable[tuple[str | None, T | None]],
        backend: str,
        cutoff: datetime | None = None,
        *,
        instant: Callable[[T], datetime | None],
    ) -> None:
        """Count more rows of a backend. `instant` reads its times, and must agree with their raw order."""
        bound = self._cutoff(backend, cutoff)
        stream = iter(rows)
        while chunk := _times_by_text(islice(stream, _CHUNK)):
            samples: dict[str | None, str | None] = {}
            by_signature: defaultdict[str | None, list[T | None]] = defaultdict(list)
            for text, times in chunk.items():
                signature = signature_of(text) if text else None
                by_signature[signature] += times
                samples.setdefault(signature, text)
            for signature, times in by_signature.items():
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
        cause = self._causes.get(signature)
        if cause is None:
            if len(self._causes) >= _GROUPS:
                self.beyond += rows
                return _Tally()
            cause = self._causes[signature] = _Cause((text or "")[:_SAMPLE])
        return cause.tallies.setdefault(backend, _Tally())

    def groups(self) -> list[Group]:
        """The groups so far, the largest first."""
        found = [_group(signature, cause) for signature, cause in self._causes.items()]
        return sorted(found, key=lambda group: (-group.count, group.signature or ""))


def _times_by_text(rows: Iterable[tuple[str | None, T | None]]) -> dict[str | None, list[T | None]]:
    """The inner loop over every failure there is: one lookup and one append a row."""
    times: defaultdict[str | None, list[T | None]] = defaultdict(list)
    for text, at in rows:
        times[text].append(at)
    return times


def _group(signature: str | None, cause: _Cause) -> Group:
    tallies = cause.tallies.values()
    return Group(
        signature,
        cause.sample,
        count=sum(tally.count for tally in tallies),
        recent=sum(tally.recent for tally in tallies),
        first=min((tally.first for tally in tallies if tally.first), default=None),
        last=max((tally.last for tally in tallies if tally.last), default=None),
        backends=tuple((name, tally.count) for name, tally in cause.tallies.items()),
    )
