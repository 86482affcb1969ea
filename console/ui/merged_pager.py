"""One list over several backends, read in chunks as they are looked at.

For each chunk only the cursors where it begins are kept, so any chunk can be dropped and read again.
A pager reads from the start of the list, or backwards from its end.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import merge
from time import monotonic

from console.core.backend import PageRequest
from console.core.faults import BackendFault, Fault, ReadTooLong
from console.core.item import Item, ItemKey
from console.core.listing import merge_key, page_of
from console.core.ports import Stop
from console.core.query import Cursor, Field, Filter, Page, Sort
from console.ui.backend_calls import BackendCaller, BackendCallers
from console.ui.rows import Departed, Gap, Row, key_of

CHUNK = 100
KEPT_CHUNKS = 12
PATIENCE = 0.8
"""Seconds to wait for a backend before the others are shown without it."""
_SCAN_DEADLINE = 120.0
"""Seconds for a filter by cause, which reads every row until it has found enough."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where to continue in one backend: after this cursor, skipping rows that are already listed."""

    cursor: Cursor | None = None
    skip: int = 0


Positions = tuple[Position | None, ...]
"""Where to continue in every backend, in config order; None where there is nothing more."""


@dataclass(frozen=True, slots=True)
class Chunk:
    rows: tuple[Row, ...]
    next: Positions
    scanned: int = 0

    @property
    def last(self) -> bool:
        return all(at is None for at in self.next)


@dataclass(slots=True)
class PendingPage:
    """A page that was requested and has not arrived; a second request for it shares the task."""

    task: asyncio.Task[Page]
    late: bool = False


@dataclass(slots=True)
class KeptPage:
    """A page as it was read, with the rows that were read again by key since then."""

    page: Page
    at: float


PageAt = tuple[str, Cursor | None]
"""The backend of a page, and the cursor after which it begins."""


@dataclass(slots=True)
class PageSource:
    """Reads chunks for one filter and sort. Calls `woken` when a late backend has answered.

    Pages are kept. A refresh that nobody asked for uses the kept page where the reading budget does not allow to read
    it again; then `read_by_key` reads the rows on screen by their keys, which costs next to nothing.
    """

    callers: BackendCallers
    filter: Filter
    sort: Sort
    backward: bool
    clock: Callable[[], datetime]
    stop: Stop
    woken: Callable[[], None]
    _pending: dict[PageAt, PendingPage] = field(default_factory=dict)
    _kept: OrderedDict[PageAt, KeptPage | BackendFault] = field(default_factory=OrderedDict)
    _by_itself: bool = False
    """This refresh was not asked for by a person."""
    _reused: set[PageAt] = field(default_factory=set)
    """The kept pages that this refresh has used."""

    def start(self) -> Positions:
        meant = (self.filter.for_backend(caller.name) is not None for caller in self.callers)
        return tuple(Position() if each else None for each in meant)

    async def chunk(self, positions: Positions) -> Chunk:
        """The next rows from here. When reading backwards they come in reverse order."""
        callers = list(self.callers)
        open_ones = [index for index, at in enumerate(positions) if at is not None]
        answers = await asyncio.gather(*(self._answer(callers[i], positions[i] or Position()) for i in open_ones))
        after, gaps, scanned = list(positions), [], 0
        streams: list[list[tuple[int, Item]]] = []
        pages: dict[int, Page] = {}
        for index, answer in zip(open_ones, answers, strict=True):
            if isinstance(answer, Gap):
                gaps.append(answer)
                after[index] = None
            else:
                pages[index] = answer
                scanned += answer.scanned or 0
                skip = (positions[index] or Position()).skip
                streams.append([(index, item) for item in self._outward(answer)[skip:]])
        taken = self._take(streams, pages)
        for index, page in pages.items():
            at = positions[index] or Position()
            past = at.skip + sum(1 for i, _ in taken if i == index)
            if past < len(page.items):
                after[index] = Position(at.cursor, past)
            else:
                following = self._following(page)
                after[index] = None if following is None else Position(following)
        return Chunk((*(item for _, item in taken), *gaps), tuple(after), scanned)

    def _take(self, streams: list[list[tuple[int, Item]]], pages: dict[int, Page]) -> list[tuple[int, Item]]:
        """Merge the pages until one that has more behind it is used up: what follows is not known yet."""
        left = {stream[0][0]: len(stream) for stream in streams if stream}
        taken: list[tuple[int, Item]] = []
        key = merge_key(self.sort, self.clock(), backward=self.backward)
        ordered = streams[::-1] if self.backward else streams  # equal items come in config order
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

    def begin(self, *, asked: bool) -> None:
        """A refresh begins. What a person asks for is read, whatever it costs."""
        self._by_itself = not asked
        self._reused.clear()

    def read_at(self, backend: str) -> float | None:
        """When the oldest kept page of a backend was read, of the steady clock."""
        found = [kept.at for (name, _), kept in self._kept.items() if name == backend and isinstance(kept, KeptPage)]
        return min(found, default=None)

    async def read_by_key(self, rows: Sequence[Row]) -> dict[ItemKey, Row]:
        """Read these rows again by their keys, as far as their pages were not read again; the rows that differ."""
        changed: dict[ItemKey, Row] = {}
        for caller in self.callers:
            if not any(name == caller.name for name, _ in self._reused):
                continue
            shown = {row.key: row for row in rows if isinstance(row, Item) and row.key.backend == caller.name}
            if not shown or caller.budget.wait("rows", monotonic()) > 0:
                continue
            try:
                found = await self._items(caller, tuple(shown))
            except BackendFault:
                continue  # the page reports it
            changed |= {key: found.get(key, Departed(row, False)) for key, row in shown.items()}
            self._replace_items(caller.name, found)
        return changed

    async def _items(self, caller: BackendCaller, keys: Sequence[ItemKey]) -> Mapping[ItemKey, Item]:
        return await caller.call(lambda backend: backend.items(keys, self.clock()), question="rows", asked=False)

    def _replace_items(self, backend: str, found: Mapping[ItemKey, Item]) -> None:
        for at, kept in self._kept.items():
            if at[0] == backend and isinstance(kept, KeptPage):
                kept.page = kept.page._replace(items=tuple(found.get(item.key, item) for item in kept.page.items))

    def _kept_page(self, caller: BackendCaller, at: PageAt) -> Page | Gap | None:
        """The kept page, if this refresh must not read it again."""
        kept = self._kept.get(at)
        if not self._by_itself or kept is None or at in self._pending:
            return None
        if caller.budget.wait(self._question(at), monotonic()) <= 0:
            return None
        if isinstance(kept, BackendFault):
            return Gap(caller.name, kept)
        self._reused.add(at)
        return kept.page

    def _question(self, at: PageAt) -> tuple[object, ...]:
        return ("page", self.filter, self.sort, self.backward, at[1])

    def _keep(self, at: PageAt, kept: KeptPage | BackendFault) -> None:
        self._kept[at] = kept
        self._kept.move_to_end(at)
        while len(self._kept) > KEPT_CHUNKS * max(len(self.callers), 1):
            self._kept.popitem(last=False)

    async def _answer(self, caller: BackendCaller, at: Position) -> Page | Gap:
        key = (caller.name, at.cursor)
        if (kept := self._kept_page(caller, key)) is not None:
            return kept
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = PendingPage(asyncio.create_task(self._page(caller, at.cursor)))
            pending.task.add_done_callback(_ignore_error)
        try:
            async with asyncio.timeout(PATIENCE):  # wait_for would lose a cancel that arrives with the page
                page = await asyncio.shield(pending.task)
        except TimeoutError:
            if not pending.late:
                pending.late = True
                pending.task.add_done_callback(lambda _: self.woken())
            return Gap(caller.name)
        except BackendFault as fault:
            del self._pending[key]
            known = self._kept.get(key)
            if isinstance(fault, ReadTooLong) and isinstance(known, KeptPage):
                self._reused.add(key)
                return known.page
            self._keep(key, fault)
            return Gap(caller.name, fault)
        except Fault:
            del self._pending[key]
            raise
        del self._pending[key]
        self._keep(key, KeptPage(page, monotonic()))
        return page

    async def _page(self, caller: BackendCaller, cursor: Cursor | None) -> Page:
        request = PageRequest(self.filter, self.clock(), self.sort, cursor, CHUNK, self.backward)
        scans = bool(self.filter.terms_for(Field.CAUSE))
        if self.sort.within.field is not None and self.sort.field not in caller.backend.sorts:
            raise BackendFault(f"cannot be sorted by {self.sort.field}", where=caller.name)
        deadline = _SCAN_DEADLINE if scans else None
        question = self._question((caller.name, cursor))
        # A page of which nothing is known is read to its end: there is nothing else to show.
        asked = not self._by_itself or (caller.name, cursor) not in self._kept
        return await caller.call(lambda backend: page_of(backend, request, self.stop), deadline, question, asked=asked)


def _ignore_error(task: asyncio.Task[Page]) -> None:
    """Retrieve the error, so that asyncio does not report it when nobody waits for the page any more."""
    if not task.cancelled():
        task.exception()


def with_rows(chunks: Sequence[Chunk], changed: Mapping[ItemKey, Row]) -> list[Chunk]:
    """The same chunks with these rows in the places of their items."""

    def now(row: Row) -> Row:
        return changed.get(row.key, row) if isinstance(row, Item) else row

    return [replace(chunk, rows=tuple(map(now, chunk.rows))) for chunk in chunks] if changed else list(chunks)


class MergedPager:
    """The chunks of a source: where each begins, and the rows of the dozen last used."""

    beyond = CHUNK // 2
    """How many rows to read ahead on either side of those on screen."""

    def __init__(self, source: PageSource) -> None:
        self.source = source
        self._positions: list[Positions] = [source.start()]
        self._starts = [0]
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self.scanned = 0

    @property
    def known(self) -> int:
        """How many rows have been seen so far."""
        return self._starts[-1]

    @property
    def complete(self) -> bool:
        return all(at is None for at in self._positions[-1])

    def row(self, number: int) -> Row | None:
        """Row `number`, counted from where the pager begins; None if it has to be read first."""
        index = bisect_right(self._starts, number) - 1
        chunk = self._chunks.get(index)
        return None if chunk is None or number < 0 else chunk.rows[number - self._starts[index]]

    def wanted(self, first: int, last: int) -> int | None:
        """The next chunk to read to have these rows; None if they are all there."""
        for index in range(self._index(first), self._index(last) + 1):
            if index not in self._chunks and (index < len(self._positions) - 1 or not self.complete):
                return index
        return None

    def _index(self, number: int) -> int:
        return min(bisect_right(self._starts, max(number, 0)) - 1, len(self._positions) - 1)

    async def read(self, index: int) -> Chunk:
        return await self.source.chunk(self._positions[index])

    def accept(self, index: int, chunk: Chunk) -> None:
        """Keep a chunk that was read. If it ends elsewhere than before, forget what came after it."""
        chunk = self._without_repeats(index, chunk)
        end = self._starts[index] + len(chunk.rows)
        last = index == len(self._positions) - 1
        if last or self._positions[index + 1] != chunk.next or self._starts[index + 1] != end:
            del self._positions[index + 1 :], self._starts[index + 1 :]
            self._positions.append(chunk.next)
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
        """Read the chunks with these rows again."""
        begin, end = self._index(first), self._index(last)
        positions = self._positions[begin]
        chunks: list[Chunk] = []
        for _ in range(begin, end + 1):
            chunks.append(await self.source.chunk(positions))
            positions = chunks[-1].next
            if chunks[-1].last:
                break
        return begin, chunks

    def replace(self, begin: int, chunks: Sequence[Chunk]) -> None:
        """Use these chunks instead of all that is kept."""
        self._chunks.clear()
        for offset, chunk in enumerate(chunks):
            self.accept(begin + offset, chunk)

    def keep_in_place(self, number: int, departed: Departed) -> None:
        """Insert a row that is gone at its old number, or as near to it as possible."""
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
        """The rows that are kept, with their numbers."""
        for index in sorted(self._chunks):
            yield from enumerate(self._chunks[index].rows, self._starts[index])
