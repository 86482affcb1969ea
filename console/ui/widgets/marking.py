"""Marks on a list of items, kept by key, so that they stay on their items when the list changes."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message
from textual.reactive import reactive

from console.core.item import Item, ItemKey
from console.ui.cells import Column
from console.ui.widgets.line_table import LineTable


class Marking(LineTable):
    """A list whose items can be marked: one, a range, those on screen, or all that match."""

    everything: reactive[bool] = reactive(False, init=False)
    """All items that match are marked, also those that were not read yet."""

    class MarksChanged(Message):
        """The marks have changed."""

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:
        super().__init__(columns, id=id)
        self.marks: dict[ItemKey, None] = {}
        self._range_from: int | None = None

    # To be implemented by a subclass.

    def item_at(self, row: int) -> Item | None:
        """The item in a row; None if the row is not an item or was not read yet."""
        raise NotImplementedError

    def rows_on_screen(self) -> range:
        raise NotImplementedError

    # Marking.

    def _marked(self) -> None:
        self.refresh()
        self.post_message(self.MarksChanged())

    def watch_everything(self) -> None:
        self._marked()

    def toggle_mark(self) -> None:
        """Mark or unmark the item under the cursor, and go to the next."""
        item = self.item_at(self.cursor)
        if item is None:
            return
        if self.everything:
            self.everything = False
        if item.key in self.marks:
            del self.marks[item.key]
        else:
            self.marks[item.key] = None
        self._range_from = self.cursor
        self._marked()
        self.cursor += 1

    def _mark(self, rows: range) -> int:
        """Mark these rows; returns how many could not be marked because they are not in memory."""
        found = [item.key for row in rows if (item := self.item_at(row)) is not None]
        self.marks |= dict.fromkeys(found)
        self._marked()
        return len(rows) - len(found)

    def mark_range(self) -> int:
        """Mark from the last mark to the cursor; returns how many of the rows are not in memory."""
        start = self.cursor if self._range_from is None else self._range_from
        return self._mark(range(min(start, self.cursor), max(start, self.cursor) + 1))

    def extend_mark(self, by: int) -> None:
        """Mark the item under the cursor and the one next to it, which gets the cursor."""
        first = self.cursor
        self.cursor += by
        self._range_from = first if self._range_from is None else self._range_from
        self._mark(range(min(first, self.cursor), max(first, self.cursor) + 1))

    def mark_visible(self) -> None:
        self._mark(self.rows_on_screen())

    def clear_marks(self) -> None:
        self.marks.clear()
        self._range_from = None
        if self.everything:
            self.everything = False
        else:
            self._marked()
