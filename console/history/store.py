"""The history in a database: implements `console.core.history.History`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from console.core.backend import Count, Histogram
from console.core.cause_count import Cause
from console.core.faults import UsageFault
from console.core.history import (
    UPCOMING_STEP,
    UPCOMING_STEPS,
    History,
    Mark,
    Snapshot,
    SystemThen,
    Trend,
)
from console.core.item import NEEDS_ATTENTION, Condition
from console.core.text import is_blank, neutralise
from console.history.figures import Coverage, Figures, read_whole
from console.history.minutes import minute_of, time_of
from console.history.schema import CAUSE, CONDITION, NO_TEXT, RARE, UPCOMING
from console.history.storage import Storage, open_storage

_SHOWN_FOR = 15
"""Minutes for which a figure is shown as that of its time when nothing newer was recorded."""
_LONGEST_MARK = 200
_NAMES_IN_ONE_STATEMENT = 200
_RECENT = 60

_COVERAGE = """SELECT y.name, c.kind, c.first, c.last, c.sampled FROM @coverage AS c
    JOIN @system AS y ON y.id = c.system WHERE c.last >= ? AND c.first <= ?"""
_SERIES = """SELECT s.id, y.name, s.kind, s.name FROM @series AS s JOIN @system AS y ON y.id = s.system"""


def _sums(
    parts: Sequence[tuple[str, Sequence[int]]], gaps: Mapping[str, AbstractSet[int]], steps: int
) -> tuple[int | None, ...]:
    """The sums of figures, each of one system. None if a system that contributes to a step was not read in it."""
    totals: list[int | None] = [*map(sum, zip(*(values for _, values in parts), strict=True))] or [0] * steps
    for step in set().union(*(gaps[system] for system, _ in parts)):
        read = [values[step] for system, values in parts if step not in gaps[system]]
        unknown = any(values[step] for system, values in parts if step in gaps[system])
        totals[step] = None if unknown or not read else sum(read)
    return tuple(totals)


class HistoryStore:
    """Reads the history, and writes deploy marks."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.place = storage.place

    # -- what there is ---------------------------------------------------------------------------

    def recorded(self) -> tuple[datetime, datetime] | None:
        for first, last in self.storage.all("SELECT min(first), max(last) FROM @coverage"):
            if first is not None:
                return time_of(first), time_of(last)
        return None

    def first_seen(self) -> Mapping[str, datetime]:
        return {name: time_of(at) for name, at in self.storage.all("SELECT signature, first_seen FROM @cause")}

    def step(self, at: datetime, by: timedelta) -> datetime | None:
        known = self.recorded()
        if known is None:
            return None
        reached = min(max(at + by, known[0]), known[1])
        forward = by > timedelta(0)
        return reached if reached != at and (reached > at) is forward else None

    # -- marks -----------------------------------------------------------------------------------

    def marks(self, start: datetime, end: datetime) -> Sequence[Mark]:
        rows = self.storage.all("SELECT at, text, by_whom FROM @mark ORDER BY at, id")
        found = [Mark(datetime.fromisoformat(at), text, by) for at, text, by in rows]
        return [mark for mark in found if start <= mark.at <= end]

    def add_mark(self, text: str, by: str, at: datetime) -> None:
        if is_blank(text):
            raise UsageFault("The mark has no text", fix='Say what happened, such as "api v1.2.3".')
        row = at.astimezone(UTC).isoformat(), neutralise(text, _LONGEST_MARK), neutralise(by)
        with self.storage.writing() as transaction:
            transaction.run("INSERT INTO @mark (at, text, by_whom) VALUES (?, ?, ?)", row)

    # -- alerts ----------------------------------------------------------------------------------

    def alert_states(self) -> Mapping[str, Mapping[str, Any]]:
        found = {}
        for key, body in self.storage.all("SELECT id, body FROM @alert"):
            with suppress(ValueError):
                state = json.loads(body)
                found[key] = state if isinstance(state, dict) else {}
        return found

    def keep_alert_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        with self.storage.writing() as transaction:
            transaction.run("DELETE FROM @alert")
            rows = [(key, json.dumps(dict(state))) for key, state in states.items()]
            transaction.many("INSERT INTO @alert (id, body) VALUES (?, ?)", rows)

    # -- figures over time -----------------------------------------------------------------------

    def cause_trends(
        self, start: datetime, end: datetime, steps: int, signatures: Iterable[str] | None = None,
        backend: str | None = None,
    ) -> Mapping[str, Trend]:
        wanted = None if signatures is None else frozenset(signatures)
        sums: dict[str, dict[int, str]] = defaultdict(dict)
        for number, system, name in self._series(CAUSE, backend, wanted):
            if name not in (RARE, NO_TEXT) and (wanted is None or name in wanted):
                sums[name][number] = system
        return self._trends(CAUSE, sums, start, end, steps)

    def system_trends(
        self, start: datetime, end: datetime, steps: int, conditions: Iterable[Condition] | None = None
    ) -> Mapping[str, Trend]:
        wanted = frozenset(NEEDS_ATTENTION if conditions is None else conditions)
        sums: dict[str, dict[int, str]] = defaultdict(dict)
        for number, system, name in self._series(CONDITION):
            parts = sums[system]
            if name in wanted:
                parts[number] = system
        return self._trends(CONDITION, sums, start, end, steps)

    def _series(
        self, kind: int, backend: str | None = None, names: Collection[str] | None = None
    ) -> list[tuple[int, str, str]]:
        """The figures of one kind: all of them, or those with these names where they are few enough to ask for."""
        sql, parameters = f"{_SERIES} WHERE s.kind = ?", [kind, *([] if names is None else names)]
        if names is not None and len(names) <= _NAMES_IN_ONE_STATEMENT:
            rows = self.storage.all(f"{sql} AND s.name IN ({', '.join('?' * len(names)) or 'NULL'})", parameters)
        else:
            rows = self.storage.all(sql, [kind])
        return [(number, system, name) for number, system, _, name in rows if backend in (None, system)]

    def _trends(
        self, kind: int, sums: Mapping[str, Mapping[int, str]], start: datetime, end: datetime, steps: int
    ) -> dict[str, Trend]:
        width = (end - start) / steps
        edges = [minute_of(start + width * number) for number in range(steps + 1)]
        spans = [(low, max(high - 1, low)) for low, high in pairwise(edges)]
        ends = [last for _, last in spans]
        numbers = {number for parts in sums.values() for number in parts}
        values: Mapping[int, Sequence[int]] = {}
        if numbers:
            values = read_whole(self.storage, lambda figures: figures.values_over(ends, numbers))
        coverage = self._coverage(kind, edges[0], edges[-1])
        systems = {system for parts in sums.values() for system in parts.values()} | set(sums)
        gaps = {system: frozenset(coverage[system].gaps(spans)) for system in systems}
        zeros = [0] * steps
        found = {}
        for name, parts in sums.items():
            known = [(system, values.get(number, zeros)) for number, system in parts.items()] or [(name, zeros)]
            sampled = any(coverage[system].sampled(edges[0], edges[-1]) for system in set(parts.values()))
            found[name] = Trend(start, width, _sums(known, gaps, steps), sampled)
        return found

    def _coverage(self, kind: int, first: int, last: int) -> defaultdict[str, Coverage]:
        intervals: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for system, of_kind, begun, ended, sampled in self.storage.all(_COVERAGE, (first, last)):
            if of_kind == kind:
                intervals[system].append((begun, ended, sampled))
        found = {system: Coverage(some) for system, some in intervals.items()}
        return defaultdict(lambda: Coverage(()), found)

    # -- one time --------------------------------------------------------------------------------

    def snapshot(self, at: datetime) -> Snapshot:
        minute = minute_of(at)
        shown_for = max(_SHOWN_FOR, Figures(self.storage).step_at(minute))
        coverage = {kind: self._coverage(kind, minute - shown_for, minute) for kind in (CONDITION, CAUSE, UPCOMING)}
        found = read_whole(self.storage, lambda figures: figures.at_two_times(minute, minute - _RECENT))
        an_hour_ago = minute - _RECENT - shown_for, minute - _RECENT
        earlier = self._coverage(CAUSE, *an_hour_ago)
        known_systems = self.storage.all("SELECT id, name, fault, since FROM @system ORDER BY name")
        low = minute - shown_for
        was_read = {
            kind: {number: name for number, name, _, _ in known_systems if read[name].in_span(low, minute)}
            for kind, read in coverage.items()
        }
        was_read_before = {name for _, name, _, _ in known_systems if earlier[name].in_span(*an_hour_ago)}
        counts: dict[str, dict[Condition, Count]] = defaultdict(dict)
        steps: dict[str, dict[int, int]] = defaultdict(dict)
        causes: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        for number, kind, name, value, before in found:
            system = was_read[kind].get(number)
            if system is None:
                continue
            if kind == CAUSE:
                causes[name][system] = value, before if system in was_read_before else value
            elif kind == UPCOMING:
                steps[system][int(name)] = value
            else:
                estimated = coverage[kind][system].sampled(minute - shown_for, minute)
                counts[system][Condition(name)] = Count(value, exact=not estimated, estimated=estimated)
        systems, missing, faults = {}, [], {}
        for _, system, fault, since in known_systems:
            as_of = coverage[CONDITION][system].last_before(minute)
            if fault and since <= minute:
                faults[system] = fault
            if as_of is None or system in faults:
                missing.append(system)
            if as_of is None:
                continue
            upcoming = _histogram(steps[system], time_of(as_of)) if coverage[UPCOMING][system].in_span(
                minute - shown_for, minute) else None
            systems[system] = SystemThen(time_of(as_of), counts[system], upcoming)
        sampled = frozenset(
            system for system in systems if coverage[CAUSE][system].sampled(minute - shown_for, minute)
        )
        return Snapshot(at, systems, self._causes_then(causes, at, sampled), tuple(missing), sampled, faults)

    def _causes_then(
        self, causes: Mapping[str, Mapping[str, tuple[int, int]]], at: datetime, sampled: frozenset[str]
    ) -> list[Cause]:
        """The causes with what is kept about each. The last failure is known only if none has followed since `at`."""
        rows = self.storage.all("SELECT signature, first_seen, last_failure, head FROM @cause") if causes else []
        known = {
            signature: (time_of(first), _failure_time(last, at), head or "") for signature, first, last, head in rows
        }
        found = []
        for name, systems in causes.items():
            first, last, head = known.get(name, (None, None, ""))
            count = sum([now for now, _ in systems.values()])
            grown = max(count - sum([before for _, before in systems.values()]), 0)
            backends = tuple((system, now) for system, (now, _) in systems.items())
            found.append(Cause(
                None if name in (RARE, NO_TEXT) else name, head, count, grown, first, last, backends,
                overflow=name == RARE,
                estimated=not sampled.isdisjoint(systems),
            ))
        return sorted(found, key=lambda cause: (cause.overflow, -cause.count, cause.signature or ""))

    def close(self) -> None:
        self.storage.close()


def _failure_time(milliseconds: int | None, at: datetime) -> datetime | None:
    if milliseconds is None or milliseconds > at.timestamp() * 1000:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, at.tzinfo)


def _histogram(steps: Mapping[int, int], start: datetime) -> Histogram:
    counts = tuple(steps.get(number, 0) for number in range(1, UPCOMING_STEPS + 1))
    return Histogram(start, UPCOMING_STEP, counts, steps.get(0, 0), steps.get(UPCOMING_STEPS + 1, 0))


def open_history(url: str, *, read_only: bool) -> HistoryStore:
    """The history at this URL. Nothing is read or created before its first use."""
    return HistoryStore(open_storage(url, read_only=read_only))


def _implements_history(store: HistoryStore) -> History:
    """Lets the type checker prove that the protocol is implemented in full."""
    return store
