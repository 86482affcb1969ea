"""Reads a store that can neither filter nor sort: its entries are walked through in order and matched in Python.

A plugin says how to walk through the entries (`walk`), how to find some by their keys (`lookup`) and what one entry
means (`to_item`). Pages, counts, the stream of errors, histograms and the selection of a plan follow from that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from console.core.backend import (
    COUNT_CAP,
    Buckets,
    Count,
    Draft,
    ErrorBatch,
    Histogram,
    Operation,
    PageRequest,
    Timeline,
)
from console.core.excerpt import LIMIT
from console.core.item import Condition, Item, ItemKey
from console.core.ports import Never, Stop
from console.core.query import NATURAL, Cursor, Field, Filter, Page, Sort

BATCH = 500
_STOP_INTERVAL = 1_000
"""How many entries are walked between two looks at `stop`."""

E = TypeVar("E")


class Walk(NamedTuple):
    """Which entries to walk through, from where and in which direction."""

    conditions: frozenset[Condition]
    """Entries that can have none of these may be left out."""
    sort: Sort = NATURAL
    after: Cursor | None = None
    backward: bool = False
    brief: bool = False
    """The entries are only judged: what only an item shows need not be read."""


class KeyedReader(ABC, Generic[E]):
    """The part of a backend that reads a store of entries."""

    name: str
    scan_limit: int | None = None
    """A page ends after this many entries, full or not. None: the entries are in memory, so all are looked at."""

    @abstractmethod
    def walk(self, walk: Walk) -> Iterator[tuple[E, Cursor]]:
        """Every entry in a stable order, each with the cursor after which the next one comes."""

    @abstractmethod
    def lookup(self, keys: Sequence[ItemKey]) -> Mapping[ItemKey, E]:
        """These entries as they are now. Entries that do not exist are missing from the result."""

    @abstractmethod
    def to_item(self, entry: E, now: datetime) -> Item:
        """What an entry means."""

    @abstractmethod
    def possible(self, entry: E) -> frozenset[Condition]:
        """The conditions that an entry can have, known without judging it."""

    def references(self, entry: E, item: Item) -> Sequence[str]:  # noqa: ARG002  what a plugin may look at
        """What a bare word in a filter also looks at."""
        return (item.type,)

    def whole_error(self, entry: E, item: Item) -> str | None:  # noqa: ARG002  what a plugin may look at
        """The error of an entry whose item has only an excerpt of it. Filters look at the whole text."""
        return item.error

    # -- the contract ------------------------------------------------------------------------------

    def page(self, request: PageRequest) -> Page:
        conditions, rest = request.filter.conditions(), request.filter.without(Field.CONDITION)
        found: list[tuple[Item, Cursor]] = []
        scanned, stopped_at = 0, None
        for entry, cursor in self.walk(Walk(conditions, request.sort, request.after, request.backward)):
            scanned += 1
            item = self._match(entry, conditions, rest, request.now)
            if item is not None:
                found.append((item, cursor))
            if len(found) > request.limit:
                break
            if scanned == self._most(request.limit):
                stopped_at = cursor
                break
        return self._page(request, found, stopped_at, scanned if rest.terms and self.scan_limit else None)

    def _most(self, limit: int) -> int | None:
        return None if self.scan_limit is None else max(self.scan_limit, 2 * limit)

    def _page(
        self, request: PageRequest, found: list[tuple[Item, Cursor]], stopped_at: Cursor | None, scanned: int | None
    ) -> Page:
        ahead = stopped_at
        if len(found) > request.limit:
            del found[request.limit :]
            ahead = found[-1][1]
        behind = None if request.after is None else found[0][1] if found else request.after
        items = tuple(item for item, _ in found)
        if request.backward:
            return Page(items[::-1], behind, ahead, scanned)
        return Page(items, ahead, behind, scanned)

    def _match(self, entry: E, conditions: frozenset[Condition], rest: Filter, now: datetime) -> Item | None:
        if conditions.isdisjoint(self.possible(entry)):
            return None
        item = self.to_item(entry, now)
        if item.condition not in conditions:
            return None
        seen = item
        if len(item.error or "") > LIMIT and (rest.terms_for(Field.ERROR) or rest.terms_for(Field.TEXT)):
            seen = item._replace(error=self.whole_error(entry, item))
        return item if rest.matches(seen, now, self.references(entry, item)) else None

    def matching(self, filter: Filter, now: datetime, sort: Sort = NATURAL, stop: Stop | None = None) -> Iterator[
        tuple[E, Item]
    ]:
        """The entries that match a filter, until `stop` is requested."""
        conditions, rest = filter.conditions(), filter.without(Field.CONDITION)
        stop = stop or Never()
        for number, (entry, _) in enumerate(self.walk(Walk(conditions, sort))):
            if number % _STOP_INTERVAL == 0 and stop.requested:
                return
            item = self._match(entry, conditions, rest, now)
            if item is not None:
                yield entry, item

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        conditions = filter.conditions()
        if filter.without(Field.CONDITION).terms:
            found = Counter(item.condition for _, item in self.matching(filter, now))
        else:
            found = Counter(self.condition(entry, now) for entry, _ in self.walk(Walk(conditions)))
        return {condition: capped(found[condition], cap) for condition in conditions}

    def condition(self, entry: E, now: datetime) -> Condition:
        possible = self.possible(entry)
        return next(iter(possible)) if len(possible) == 1 else self.to_item(entry, now).condition

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        matching = self.matching(filter, now, stop=stop)
        while not stop.requested and (batch := list(islice(matching, BATCH))):
            yield ErrorBatch([(item.error, item.updated_at) for _, item in batch], lambda at: at)

    def histogram(self, timeline: Timeline, filter: Filter, now: datetime, buckets: Buckets) -> Histogram:
        upcoming = timeline is Timeline.NEXT_RETRY
        times = (
            item.verdict.next_retry_at if upcoming else item.updated_at for _, item in self.matching(filter, now)
        )
        return buckets.histogram(at for at in times if at is not None)

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        return {key: self.to_item(entry, now) for key, entry in self.lookup(keys).items()}

    # -- plans -------------------------------------------------------------------------------------

    def drafter(
        self, wanted: Sequence[ItemKey] | Filter, operation: Operation, now: datetime
    ) -> Callable[[E, Item | None], Draft]:
        """How this backend drafts one entry of a plan. The item is None if it was not made yet."""
        raise NotImplementedError

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        draft = self.drafter(wanted, operation, now)
        if not isinstance(wanted, Filter):
            yield [draft(entry, None) for entry in self.lookup(wanted).values()]
            return
        drafted: set[str] = set()
        for batch in self.selected(wanted, now, sort, stop):
            drafts = [draft(entry, item) for entry, item in batch]
            # An entry that its system moves meanwhile may be met twice.
            new = {one.key: one for one in drafts if one.key not in drafted}
            drafted.update(new)
            yield list(new.values())

    def selected(
        self, wanted: Filter, now: datetime, sort: Sort, stop: Stop
    ) -> Iterator[Sequence[tuple[E, Item | None]]]:
        """The entries that a plan's filter selects, in batches. Without an item where none was made."""
        matching = self.matching(wanted, now, sort, stop)
        while not stop.requested and (batch := list(islice(matching, BATCH))):
            yield batch


def capped(found: int, cap: int | None) -> Count:
    """A count, or a lower bound above the cap."""
    return Count(found) if cap is None or found <= cap else Count(cap, exact=False)
