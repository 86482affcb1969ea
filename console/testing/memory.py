"""The whole reading contract over a dict: the smallest backend there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from console.core.backend import (
    COUNT_CAP,
    Count,
    ErrorBatch,
    Finding,
    Histogram,
    PageRequest,
    Severity,
    Timeline,
)
from console.core.faults import NoSuchItem
from console.core.item import ERROR_HEAD, Attempt, Condition, Detail, Item, ItemKey
from console.core.listing import rank
from console.core.policy import Facts, Phase, RetryPolicy, judge, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import Cursor, Field, Filter, Page, Sort, SortField
from console.testing.clock import FrozenClock

_PHASES = {str(phase): phase for phase in Phase if phase is not Phase.UNKNOWN}


class MemoryBackend:
    """The whole reading contract over a dict of rows: id → status, attempts, due, error, type, created, updated,
    reference. The statuses are those of `Phase`; whatever else a row holds is shown, never a crash."""

    plugin = "memory"
    sorts = frozenset(SortField)

    def __init__(
        self, name: str = "memory", rows: Mapping[str, Mapping[str, Any]] | None = None,
        policy: RetryPolicy | None = None, clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.place = "memory"
        self.rows = dict(rows or {})
        self.policy = policy or RetryPolicy(max_attempts=3)
        self.clock = clock or FrozenClock()
        self.broken: Exception | None = None
        """What every read raises from now on."""

    def check(self, clock: Clock) -> Sequence[Finding]:
        self._require_whole()
        agrees = abs(self.now() - clock.now()) <= timedelta(seconds=5)
        return [
            Finding(Severity.OK, "schema", "rows are dicts"),
            Finding(Severity.OK, "guard", "none needed: nothing is written"),
            Finding(Severity.OK if agrees else Severity.WARNING, "clock", "agrees" if agrees else "differs"),
        ]

    def now(self) -> datetime:
        return self.clock.now()

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        found = Counter(item.condition for item in self._chosen(filter, now))
        return {
            wanted: Count(found[wanted]) if cap is None or found[wanted] <= cap else Count(cap, exact=False)
            for wanted in filter.conditions()
        }

    def page(self, request: PageRequest) -> Page:
        numbers = {id: number for number, id in enumerate(self.rows)}
        placed = [
            (_place(item, numbers[item.key.parts[0]], request.sort), item)
            for item in self._chosen(request.filter, request.now)
        ]
        placed.sort(key=lambda pair: _order(pair[0], request.sort), reverse=request.backward)
        past = [pair for pair in placed if request.after is None or _is_past(pair[0], request.after, request)]
        shown = past[: request.limit]
        if request.backward:
            shown.reverse()
        if not shown:
            return Page((), None, None)
        more, known = len(past) > request.limit, request.after is not None
        ahead, behind = (known, more) if request.backward else (more, known)
        return Page(
            tuple(item for _, item in shown), shown[-1][0] if ahead else None, shown[0][0] if behind else None
        )

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        found = [(item.error, item.updated_at) for item in self._chosen(filter, now)]
        for start in range(0, len(found), 10):
            if stop.requested:
                return
            yield ErrorBatch(found[start : start + 10], lambda at: at)

    def histogram(
        self, timeline: Timeline, filter: Filter, now: datetime, start: datetime, width: timedelta, buckets: int
    ) -> Histogram:
        counts = Counter(
            min(max((at - start) // width, -1), buckets) for item in self._chosen(filter, now)
            if (at := time_of(item, timeline)) is not None
        )
        return Histogram(start, width, tuple(counts[n] for n in range(buckets)), counts[-1], counts[buckets])

    def item(self, key: ItemKey, now: datetime) -> Detail:
        found = self.items([key], now).get(key)
        if found is None:
            raise NoSuchItem(str(key))
        row = self.rows[key.parts[0]]
        facts, _ = _facts(row)
        history = (Attempt(found.attempts, found.updated_at, "failed", found.error),) if found.attempts else ()
        native = tuple((name, None if value is None else str(value)) for name, value in row.items())
        error = row.get("error")
        return Detail(
            found, error if isinstance(error, str) else found.error, history,
            tuple(schedule_ahead(facts, self.policy, found.verdict, now)), native,
        )

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        self._require_whole()
        known = (k for k in keys if k.backend == self.name and len(k.parts) == 1 and k.parts[0] in self.rows)
        return {key: self._read(key.parts[0], now) for key in known}

    def cancel(self) -> None:
        """Nothing in memory takes long enough."""

    def close(self) -> None:
        """Nothing is held."""

    def _require_whole(self) -> None:
        if self.broken is not None:
            raise self.broken

    def _chosen(self, filter: Filter, now: datetime) -> list[Item]:
        self._require_whole()
        wanted, rest = filter.conditions(), filter.without(Field.CONDITION)
        return [
            item for id in list(self.rows)
            if (item := self._read(id, now)).condition in wanted and rest.matches(item, now, self.references(item))
        ]

    def references(self, item: Item) -> Sequence[str]:
        reference = self.rows[item.key.parts[0]].get("reference")
        return [reference] if isinstance(reference, str) else []

    def _read(self, id: str, now: datetime) -> Item:
        row = self.rows[id]
        facts, notes = _facts(row)
        limit = self.policy.max_attempts if facts.max_attempts is None else facts.max_attempts
        return Item(
            ItemKey(self.name, (id,)), str(row.get("type") or ""), facts.native_status, facts.attempts, limit,
            judge(facts, self.policy, now), facts.error, facts.born_at, _time(row.get("updated")), now, notes=notes,
        )


def _place(item: Item, number: int, sort: Sort) -> Cursor:
    if sort.field is None:
        return Cursor(None, False, (number,))
    ranked = rank(sort)(item)
    return Cursor(ranked, ranked[0] == 1, (number,))


def _order(place: Cursor, sort: Sort) -> tuple[Any, Any]:
    """Ties go the same way as the sort: what was added last comes first when it is descending."""
    number: Any = place.key[0]
    return (place.value if sort.field else 0, -number if sort.descending else number)


def _is_past(place: Cursor, after: Cursor, request: PageRequest) -> bool:
    here, edge = _order(place, request.sort), _order(after, request.sort)
    return here < edge if request.backward else edge < here


def _time(raw: Any) -> datetime | None:
    return raw if isinstance(raw, datetime) and raw.tzinfo is not None else None


def _facts(row: Mapping[str, Any]) -> tuple[Facts, tuple[str, ...]]:
    raw, status = row.get("attempts"), row.get("status")
    attempts = max(raw, 0) if isinstance(raw, int) else 0
    times = {name: _time(row.get(name)) for name in ("due", "created", "updated")}
    notes = [f"{name} is not a time" for name, at in times.items() if at is None and row.get(name) is not None]
    if attempts != raw:
        notes.append(f"attempts is {raw!r}, read as {attempts}")
    phase = _PHASES.get(status, Phase.UNKNOWN) if isinstance(status, str) else Phase.UNKNOWN
    error = row.get("error")
    return Facts(
        phase, "" if status is None else str(status), attempts, max_attempts=row.get("max_attempts"),
        error=error[:ERROR_HEAD] if isinstance(error, str) else None,
        due_at=times["due"] if phase is Phase.READY else None, since=times["updated"], born_at=times["created"],
    ), tuple(notes)


def time_of(item: Item, timeline: Timeline) -> datetime | None:
    return item.verdict.next_retry_at if timeline is Timeline.NEXT_RETRY else item.updated_at
