"""A table of entries that are all in memory. Its cursor stays on its entry when they are read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from textual.reactive import reactive

from console.ui.widgets.line_table import LineTable

T = TypeVar("T")


class EntryTable(LineTable, Generic[T]):
    """The parent sets `entries`."""

    entries: reactive[Sequence[T]] = reactive(tuple, init=False, repaint=False)
    _at_cursor: object = None
    """The identity of the entry under the cursor."""

    @property
    def entry(self) -> T | None:
        """The entry under the cursor."""
        return self.entries[self.cursor] if self.cursor < len(self.entries) else None

    def identity(self, entry: T) -> object:
        """What stays the same about an entry when it is read again."""
        raise NotImplementedError

    def total(self) -> int:
        return len(self.entries)

    def watch_entries(self) -> None:
        self.rows_changed(self.row_to_keep())

    def row_to_keep(self) -> int | None:
        """Where the cursor goes when `entries` were set: to the entry that it was on; None if that is gone."""
        same = (row for row, entry in enumerate(self.entries) if self.identity(entry) == self._at_cursor)
        return next(same, None)

    def moved(self) -> None:
        self._at_cursor = None if self.entry is None else self.identity(self.entry)
