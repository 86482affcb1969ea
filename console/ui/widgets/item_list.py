"""The failures list: items of all backends, read as they scroll into view. The cursor stays on its item by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive

from console.core.faults import Fault
from console.core.item import Item, ItemKey
from console.core.query import Filter, Sort
from console.ui.backend_calls import BackendCallers, CancelFlag
from console.ui.cells import ITEM_COLUMNS, Cell, Column
from console.ui.rows import Departed, Gap, Row, key_of, line_of, sign
from console.ui.widgets.line_table import KEPT_LINES, LineTable
from console.ui.widgets.marking import Marking
from console.ui.worker_errors import ReportsWorkerErrors

if TYPE_CHECKING:
    from console.ui.merged_pager import Chunk, MergedPager

_COLUMNS = tuple(column for column, _ in ITEM_COLUMNS)
_RENDER = tuple(render for _, render in ITEM_COLUMNS)
_NEVER = datetime.min.replace(tzinfo=UTC)
_TICKING = tuple(index for index, column in enumerate(_COLUMNS) if column.ticks)


class Question(NamedTuple):
    """The filter and sort of a list."""

    filter: Filter
    sort: Sort


class ItemList(ReportsWorkerErrors, Marking):
    """A virtual list. The parent sets `question` and `estimate`; the list reads its rows itself."""

    NARROW_GAP = 1

    question: reactive[Question | None] = reactive(None, init=False, repaint=False, always_update=True)
    estimate: reactive[int | None] = reactive(None, init=False, repaint=False)
    """The expected number of rows, once they were counted."""

    class Moved(Message):
        """The item under the cursor is another one, or has changed."""

        def __init__(self, item: Item | None, row: int) -> None:
            super().__init__()
            self.item = item
            self.row = row

    class Chosen(Message):
        """Enter was pressed on an item, or it was double-clicked."""

        def __init__(self, item: Item) -> None:
            super().__init__()
            self.item = item

    class Loaded(Message):
        """Rows have arrived."""

    class Refused(Message):
        """The filter or sort cannot be used."""

        def __init__(self, fault: Fault) -> None:
            super().__init__()
            self.fault = fault

    class SortAsked(Message):
        """The heading of a column was clicked."""

        def __init__(self, sort: Sort) -> None:
            super().__init__()
            self.sort = sort

    def __init__(self, callers: BackendCallers, clock: Callable[[], datetime]) -> None:
        longest = max((len(caller.name) for caller in callers), default=8)
        super().__init__([_no_wider_than(longest, c) if c.title == "system" else c for c in _COLUMNS])
        self.callers = callers
        self.clock = clock
        self.from_end = False
        self._pager: MergedPager | None = None
        self._stop = CancelFlag()
        self._generation = 0
        self._cursor_key: ItemKey | None = None
        self._is_moved = False
        """The cursor was moved: until then it stays on the first row, whichever item comes there."""
        self._ticked: dict[int, tuple[str, ...]] = {}
        """The texts of the time-dependent cells of each row, as they were last drawn."""
        self._reading = False
        self._again = False
        """Another read was requested during a read."""
        self._asked = False
        """A person wants the rows on screen to be read again, whatever it costs."""
        self._asked_ahead = True
        """Whether missing rows are read for a person, who has moved; not after a refresh that nobody asked for."""
        self._announced: tuple[Row | None, int] | None = None

    def on_mount(self) -> None:
        self.set_interval(1.0, self._tick)

    # -- what a row is ---------------------------------------------------------------------------

    def total(self) -> int:
        pager = self._pager
        if pager is None:
            return 0
        if pager.complete:
            return pager.known
        return max(pager.known + 1, self.estimate or 0)

    def _number(self, row: int) -> int:
        """A row of the list as a number of the pager, which counts from the end when it reads backwards."""
        return self.total() - 1 - row if self.from_end else row

    def row_at(self, row: int) -> Row | None:
        return None if self._pager is None else self._pager.row(self._number(row))

    def item_at(self, row: int) -> Item | None:
        match self.row_at(row):
            case Item() as item:
                return item
            case Departed(item=item):
                return item
            case _:
                return None

    def items_read(self) -> Iterator[Item]:
        """The items in memory."""
        rows = self._pager.loaded() if self._pager is not None else ()
        return (row for _, row in rows if isinstance(row, Item))

    @property
    def item(self) -> Item | None:
        """The item under the cursor."""
        return self.item_at(self.cursor)

    @property
    def empty(self) -> bool:
        """Everything was read, and there are no rows."""
        return self._pager is not None and self._pager.complete and not self._pager.known

    @property
    def complete(self) -> bool:
        return self._pager is not None and self._pager.complete

    @property
    def scanned(self) -> int:
        return 0 if self._pager is None else self._pager.scanned

    def age(self) -> float:
        """How many seconds ago the oldest page of a backend on screen was read."""
        if self._pager is None:
            return 0.0
        keys = (key_of(self.row_at(row)) for row in self.rows_on_screen())
        source = self._pager.source
        read = [at for name in {key.backend for key in keys if key is not None} if (at := source.read_at(name))]
        return monotonic() - min(read) if read else 0.0

    def rows_on_screen(self) -> range:
        return range(self.top, min(self.top + self.rows_shown, self.total()))

    def cells_at(self, row: int) -> Sequence[Cell] | Cell:
        found = self.row_at(row)
        if not isinstance(found, Item):
            return line_of(found)
        now = self.clock()
        cells = [render(found, now) for render in _RENDER]
        if len(self._ticked) >= KEPT_LINES:
            self._ticked.clear()
        self._ticked[row] = tuple(cells[index].text for index in _TICKING)
        return cells

    def stamp(self, row: int) -> object:
        found = self.row_at(row)
        marked = self.everything or key_of(found) in self.marks
        return found, marked, int(self.clock().timestamp())

    def mark_at(self, row: int) -> Cell:
        found = self.row_at(row)
        return sign(found, self.everything or key_of(found) in self.marks)

    # -- reading ---------------------------------------------------------------------------------

    def watch_question(self, question: Question | None) -> None:
        if question is None:
            return
        self._cursor_key = None
        self._is_moved = False
        self.sorted_by = next(
            (
                (i, question.sort.descending)
                for i, column in enumerate(_COLUMNS)
                if column.sort is not None and column.sort is question.sort.field
            ),
            None,
        )
        self._begin(question, from_end=False)
        self.set_reactive(LineTable.cursor, 0)
        self.scroll_to(y=0, animate=False)

    def _begin(self, question: Question, from_end: bool) -> None:
        from console.ui.merged_pager import MergedPager, PageSource  # late, to keep the first frame fast

        self._stop.requested = True
        self._stop = CancelFlag()
        self._generation += 1
        self.from_end = from_end
        woken = self._woken(self._generation)
        self._pager = MergedPager(
            PageSource(self.callers, question.filter, question.sort, from_end, self.clock, self._stop, woken)
        )
        self._ticked.clear()
        self._reading = self._again = False
        self.resized()
        self.refresh()
        self.read_wanted()

    def _woken(self, generation: int) -> Callable[[], None]:
        return lambda: self.reload(asked=False) if generation == self._generation and self.is_mounted else None

    def read_wanted(self) -> None:
        """Read the rows on screen that are missing, and some around them."""
        if self._pager is None or self._reading or self._wanted() is None:
            return
        self._reading = True
        self.start(partial(self._read, self._generation, asked=self._asked_ahead), "pager")

    def _wanted(self) -> int | None:
        assert self._pager is not None
        first, last = self._looked_at(self._pager.beyond)
        return self._pager.wanted(first, last)

    def _looked_at(self, around: int = 0) -> tuple[int, int]:
        ends = sorted((self._number(self.top), self._number(self.top + self.rows_shown)))
        return max(ends[0] - around, 0), max(ends[1] + around, 0)

    async def _read(self, generation: int, *, asked: bool) -> None:
        pager = self._pager
        if pager is not None:
            pager.source.begin(asked=asked)
        try:
            while pager is not None and generation == self._generation and (index := self._wanted()) is not None:
                chunk = await pager.read(index)
                if generation != self._generation:
                    return
                self._take(lambda index=index, chunk=chunk: pager.accept(index, chunk))  # type: ignore[misc]
        except Fault as fault:
            if generation == self._generation:
                self.post_message(self.Refused(fault))
        finally:
            if generation == self._generation:
                self._reading = False
                if self._again:
                    self._again = False
                    self.call_later(partial(self.reload, asked=False))

    def reload(self, *, asked: bool = True) -> None:
        """Read the rows on screen again. The cursor and the marks stay on their items."""
        self._asked = self._asked or asked
        if self._pager is None or self._reading:
            self._again = self._reading
            return
        self._reading = True
        self.start(partial(self._read_again, self._generation), "pager")

    async def _read_again(self, generation: int) -> None:
        pager = self._pager
        from console.ui.merged_pager import with_rows

        assert pager is not None
        asked, self._asked = self._asked, False
        pager.source.begin(asked=asked)
        try:
            begin, chunks = await pager.reread(*self._looked_at())
            shown = [row for row in map(self.row_at, self.rows_on_screen()) if row is not None]
            chunks = with_rows(chunks, await pager.source.read_by_key(shown))
            departed = await self._departed(chunks, asked=asked)
        except Fault as fault:
            if generation == self._generation:
                self._reading = False
                self.post_message(self.Refused(fault))
            return
        if generation != self._generation:
            return
        number = self._number(self.cursor)

        def take() -> None:
            pager.replace(begin, chunks)
            if departed is not None:
                pager.keep_in_place(number, departed)

        self._reading = False
        self._asked_ahead = asked
        self._take(take)
        self.read_wanted()
        self._asked_ahead = True

    async def _departed(self, chunks: Iterable[Chunk], *, asked: bool) -> Departed | None:
        """The item under the cursor as it is now, if the list no longer contains it."""
        key, item = self._cursor_key if self._is_moved else None, self.item
        if key is None or item is None or key.backend not in self.callers:
            return None
        rows = [row for chunk in chunks for row in chunk.rows]
        silent = {row.backend for row in rows if isinstance(row, Gap)}
        if key.backend in silent or any(key_of(row) == key for row in rows):
            return None
        with suppress(Fault):
            caller = self.callers[key.backend]
            answer = await caller.read(
                ("departed", key), lambda backend: backend.items([key], self.clock()), asked=asked
            )
            return Departed(answer.value.get(key, item), key in answer.value)
        return Departed(item, True)

    def _take(self, change: Callable[[], None]) -> None:
        """Change the pager, then put the cursor and the scroll position back on their item."""
        key, cursor, top, total = self._cursor_key, self.cursor, self.top, self.total()
        if not self._is_moved and not self.marks:
            key = None
        shown = self._shown()
        change()
        if self.from_end:
            cursor += self.total() - total
            top += self.total() - total
        if key is not None and key_of(self.row_at(cursor)) != key:
            number = next((n for n, row in self._pager.loaded() if key_of(row) == key), None) if self._pager else None
            if number is not None:
                at = self._number(number)
                top = 0 if top == 0 and at < self.rows_shown else top + at - cursor
                cursor = at
        self.resized()
        cursor = max(0, min(cursor, self.total() - 1))
        if cursor != self.cursor or top != self.top or shown != self._shown():
            self.set_reactive(LineTable.cursor, cursor)
            if top != self.top:
                self.scroll_to(y=max(top, 0), animate=False, force=True)
            self.refresh()
        self.moved()
        self.post_message(self.Loaded())

    def _shown(self) -> list[Row | None]:
        """What the rows on screen show. When they were read does not matter."""
        return [_undated(self.row_at(row)) for row in self.rows_on_screen()]

    def _tick(self) -> None:
        """Repaint only the countdowns that have changed."""
        if not self.is_on_screen or not self.screen.is_active:
            return
        now, x, places = self.clock(), self.margin_left, {}
        for index, width in self.widths():
            if index in _TICKING:
                places[index] = Region(x, 0, width, 1)
            x += width + self.gap
        for row in self.rows_on_screen():
            item, drawn = self.row_at(row), self._ticked.get(row)
            if not isinstance(item, Item):
                continue
            texts = self._ticked[row] = tuple(_RENDER[index](item, now).text for index in _TICKING)
            for number, index in enumerate(_TICKING):
                if index in places and (drawn is None or drawn[number] != texts[number]):
                    self.refresh(places[index].translate((0, row - self.top + self.heading_lines)))

    def watch_estimate(self) -> None:
        self._take(lambda: None)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.read_wanted()

    def on_resize(self) -> None:
        self.read_wanted()

    # -- cursor ----------------------------------------------------------------------------------

    def watch_cursor(self, old: int, new: int) -> None:
        self._is_moved = True
        super().watch_cursor(old, new)

    @property
    def is_moved(self) -> bool:
        """Whether a person has moved the cursor: until then, a refresh may put another item under it."""
        return self._is_moved

    def moved(self) -> None:
        item = self.item
        self._cursor_key = None if item is None else item.key
        announced = (_undated(item), self.cursor)
        if self._announced != announced:
            self._announced = announced
            self.post_message(self.Moved(item, self.cursor))
        self.read_wanted()

    def entered(self) -> None:
        if self.item is not None:
            self.post_message(self.Chosen(self.item))

    def action_first(self) -> None:
        if self.from_end and self.question is not None and not self.complete:
            self._cursor_key = None
            self._begin(self.question, from_end=False)
        self.cursor = 0

    def action_last(self) -> None:
        """Read the last rows backwards, without the rows in between."""
        if self._pager is not None and self.question is not None and not self.from_end and not self._pager.complete:
            self._cursor_key = None
            self._begin(self.question, from_end=True)
        self.cursor = self.total() - 1
        self.scroll_to(y=self.total(), animate=False, force=True)

    def heading_clicked(self, x: int) -> None:
        index = self.column_at(x)
        if index is None or (field := _COLUMNS[index].sort) is None:
            return
        sort = Sort.parse(field)
        if self.question is not None and self.question.sort.field is field:
            sort = Sort(field, not self.question.sort.descending)
        self.post_message(self.SortAsked(sort))


def _no_wider_than(longest: int, column: Column) -> Column:
    """The column, as wide as its longest text where that is shorter than usual."""
    return column._replace(width=max(min(column.width, longest), len(column.title)), most=longest)


def _undated(row: Row | None) -> Row | None:
    """A row without the time at which it was read."""
    return row._replace(read_at=_NEVER) if isinstance(row, Item) else row
