"""Rows on demand: one list over several backends as chunks that are read when they are looked at.

A chunk is found again by where it begins, never by counting, so any chunk can be forgotten and read anew;
only its beginning is kept. A feed runs from the start of the list, or from its end towards the start.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import merge
from typing import Any

from console.core.backend import PageRequest
from console.core.faults import BackendFault, Fault
from console.core.item import Item
from console.core.listing import page_of, rank
from console.core.ports import Stop
from console.core.query import Cursor, Field, Filter, Page, Sort
from console.ui.foretold import Unheard
from console.ui.lanes import Lane, Lanes
from console.ui.rows import Departed, Gap, Row, key_of

CHUNK = 100
KEPT_CHUNKS = 12
PATIENCE = 0.8
"""So long a backend is waited for before the others are shown without it."""
_SCAN_DEADLINE = 120.0
"""A filter by signature reads every row until it has found enough; it says so meanwhile, and can be left."""


@dataclass(frozen=True, slots=True)
class At:
    """Where one backend is read on: after this cursor, and past so many rows that are already listed."""

    cursor: Cursor | None = None
    skip: int = 0


Place = tuple[At | None, ...]
"""Where every backend is read on, in their order; None: read to the end."""


@dataclass(frozen=True, slots=True)
class Chunk:
    rows: tuple[Row, ...]
    next: Place
    scanned: int = 0

    @property
    def last(self) -> bool:
        return all(at is None for at in self.next)


@dataclass(slots=True)
class Asked:
    """One question to one backend, shared by whoever asks it again while it is on its way."""

    task: asyncio.Task[Page]
    late: bool = False


@dataclass(slots=True)
class Source:
    """Reads chunks of one filter and order. `woken` is called when a backend that was late has answered."""

    lanes: Lanes
    filter: Filter
    sort: Sort
    backward: bool
    clock: Callable[[], datetime]
    stop: Stop
    woken: Callable[[], None]
    _asked: dict[tuple[str, Cursor | None], Asked] = field(default_factory=dict)

    def start(self) -> Place:
        return tuple(At() if self.filter.for_backend(lane.name) is not None else None for lane in self.lanes)

    async def chunk(self, place: Place) -> Chunk:
        """The rows from here on, towards the end; outward order, so from a list's end they come reversed."""
        if self.sort.field is None:
            return await self._in_turn(place)
        return await self._merged(place)

    async def _in_turn(self, place: Place) -> Chunk:
        rows: list[Row] = []
        scanned, after = 0, list(place)
        lanes = list(self.lanes)
        for index in sorted(range(len(place)), reverse=self.backward):
            at = after[index]
            if at is None:
                continue
            page = await self._answer(lanes[index], at)
            if isinstance(page, Gap):
                rows.append(page)
                after[index] = None
                continue
            scanned += page.scanned or 0
            rows += self._outward(page)[at.skip :]
            following = self._following(page)
            after[index] = None if following is None else At(following)
            if following is not None or len(rows) >= CHUNK:
                break
        return Chunk(tuple(rows), tuple(after), scanned)

    async def _merged(self, place: Place) -> Chunk:
        lanes = list(self.lanes)
        open_ones = [index for index, at in enumerate(place) if at is not None]
        answers = await asyncio.gather(*(self._answer(lanes[i], place[i] or At()) for i in open_ones))
        after, gaps, scanned = list(place), [], 0
        streams: list[list[tuple[int, Item]]] = []
        pages: dict[int, Page] = {}
        for index, answer in zip(open_ones, answers, strict=True):
            if isinstance(answer, Gap):
                gaps.append(answer)
                after[index] = None
            else:
                pages[index] = answer
                scanned += answer.scanned or 0
                skip = (place[index] or At()).skip
                streams.append([(index, item) for item in self._outward(answer)[skip:]])
        taken = self._take(streams, pages)
        for index, page in pages.items():
            at = place[index] or At()
            past = at.skip + sum(1 for i, _ in taken if i == index)
            if past < len(page.items):
                after[index] = At(at.cursor, past)
            else:
                following = self._following(page)
                after[index] = None if following is None else At(following)
        return Chunk((*gaps, *(item for _, item in taken)), tuple(after), scanned)

    def _take(self, streams: list[list[tuple[int, Item]]], pages: dict[int, Page]) -> list[tuple[int, Item]]:
        """In order, as far as it is certain: until a backend that has more is read to the end of its page."""
        left = {stream[0][0]: len(stream) for stream in streams if stream}
        taken: list[tuple[int, Item]] = []
        ranked = rank(replace(self.sort, descending=self.sort.descending != self.backward))
        key = _nulls_first(ranked) if self.backward else ranked
        ordered = streams[::-1] if self.backward else streams  # equal ones come in the backends' order
        for index, item in merge(*ordered, key=lambda pair: key(pair[1])):
            taken.append((index, item))
            left[index] -= 1
            if (not left[index] and self._following(pages[index]) is not None) or len(taken) >= CHUNK:
                break
        return taken

    def _outward(self, page: Page) -> tuple[Item, ...]:
        return page.items[::-1] if self.backward else page.items

    def _following(self, page: Page) -> Cursor | None:
        return page.previous if self.backward else page.next

    async def _answer(self, lane: Lane, at: At) -> Page | Gap:
        key = (lane.name, at.cursor)
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = Asked(asyncio.create_task(self._page(lane, at.cursor)))
            asked.task.add_done_callback(_seen)
        try:
            async with asyncio.timeout(PATIENCE):  # wait_for would lose a cancel that comes with the page
                page = await asyncio.shield(asked.task)
        except TimeoutError:
            if not asked.late:
                asked.late = True
                asked.task.add_done_callback(lambda _: self.woken())
            return Gap(lane.name)
        except BackendFault as fault:
            del self._asked[key]
            return Gap(lane.name, None if isinstance(fault, Unheard) else fault)
        except Fault:
            del self._asked[key]
            raise
        del self._asked[key]
        return page

    async def _page(self, lane: Lane, cursor: Cursor | None) -> Page:
        request = PageRequest(self.filter, self.clock(), self.sort, cursor, CHUNK, self.backward)
        scans = bool(self.filter.terms_for(Field.SIGNATURE))
        if self.sort.field is not None and self.sort.field not in lane.backend.sorts:
            raise BackendFault(f"it cannot be sorted by {self.sort.field}", where=lane.name)
        return await lane.ask(lambda backend: page_of(backend, request, self.stop), _SCAN_DEADLINE if scans else None)


def _seen(task: asyncio.Task[Page]) -> None:
    """Nobody may be waiting any more; an error is then nobody's."""
    if not task.cancelled():
        task.exception()


def _nulls_first(ranked: Callable[[Item], Any]) -> Callable[[Item], Any]:
    def key(item: Item) -> Any:
        missing, value = ranked(item)
        return (-missing, value)

    return key


class Feed:
    """The chunks of a source: where each begins, and the rows of the last dozen looked at."""

    beyond = CHUNK // 2
    """So many rows around those that are looked at are read with them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._places: list[Place] = [source.start()]
        self._starts = [0]
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self.scanned = 0

    @property
    def known(self) -> int:
        """How many rows have been seen so far."""
        return self._starts[-1]

    @property
    def complete(self) -> bool:
        return all(at is None for at in self._places[-1])

    def row(self, number: int) -> Row | None:
        """The row so far from where the feed begins; None when it has to be read first."""
        index = bisect_right(self._starts, number) - 1
        chunk = self._chunks.get(index)
        return None if chunk is None or number < 0 else chunk.rows[number - self._starts[index]]

    def wanted(self, first: int, last: int) -> int | None:
        """The chunk to read next so that these rows are there."""
        for index in range(self._index(first), self._index(last) + 1):
            if index not in self._chunks and (index < len(self._places) - 1 or not self.complete):
                return index
        return None

    def _index(self, number: int) -> int:
        return min(bisect_right(self._starts, max(number, 0)) - 1, len(self._places) - 1)

    async def read(self, index: int) -> Chunk:
        return await self.source.chunk(self._places[index])

    def accept(self, index: int, chunk: Chunk) -> None:
        """Keep what was read. What lies beyond is read anew when this chunk no longer ends where it did."""
        chunk = self._without_repeats(index, chunk)
        end = self._starts[index] + len(chunk.rows)
        if index == len(self._places) - 1 or self._places[index + 1] != chunk.next or self._starts[index + 1] != end:
            del self._places[index + 1 :], self._starts[index + 1 :]
            self._places.append(chunk.next)
            self._starts.append(end)
            for beyond in [kept for kept in self._chunks if kept > index]:
                del self._chunks[beyond]
        self.scanned = max(self.scanned, chunk.scanned)
        self._chunks[index] = chunk
        self._chunks.move_to_end(index)
        while len(self._chunks) > KEPT_CHUNKS:
            self._chunks.popitem(last=False)

    def _without_repeats(self, index: int, chunk: Chunk) -> Chunk:
        before = self._chunks.get(index - 1)
        if before is None:
            return chunk
        seen = {key_of(row) for row in before.rows if isinstance(row, Item)}
        rows = tuple(row for row in chunk.rows if not isinstance(row, Item) or row.key not in seen)
        return chunk if len(rows) == len(chunk.rows) else replace(chunk, rows=rows)

    async def reread(self, first: int, last: int) -> tuple[int, list[Chunk]]:
        """The chunks these rows are in, read again, one from the end of the other."""
        begin, end = self._index(first), self._index(last)
        place = self._places[begin]
        chunks: list[Chunk] = []
        for _ in range(begin, end + 1):
            chunks.append(await self.source.chunk(place))
            place = chunks[-1].next
            if chunks[-1].last:
                break
        return begin, chunks

    def replace(self, begin: int, chunks: Sequence[Chunk]) -> None:
        """Take what was read again, and forget the rest."""
        self._chunks.clear()
        for offset, chunk in enumerate(chunks):
            self.accept(begin + offset, chunk)

    def keep_in_place(self, number: int, departed: Departed) -> None:
        """Put the row back where it was, or as near as there are rows."""
        number = min(number, self.known)
        index = next(
            (i for i in self._chunks if self._starts[i] <= number <= self._starts[i] + len(self._chunks[i].rows)), None
        )
        if index is None:
            return
        chunk = self._chunks[index]
        at = number - self._starts[index]
        self._chunks[index] = replace(chunk, rows=(*chunk.rows[:at], departed, *chunk.rows[at:]))
        for beyond in range(index + 1, len(self._starts)):
            self._starts[beyond] += 1

    def loaded(self) -> Iterator[tuple[int, Row]]:
        """The rows that are there, with their numbers."""
        for index in sorted(self._chunks):
            yield from enumerate(self._chunks[index].rows, self._starts[index])
