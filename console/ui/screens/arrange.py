"""A dialog to choose the order and the columns of a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive

from console.core.query import Sort, SortField
from console.ui import safe
from console.ui.cells import Cell, Column
from console.ui.screens.dialog import Dialog
from console.ui.widgets.line_table import LineTable


class Arrangement(NamedTuple):
    """The order of a list, and the titles of the columns that were hidden or shown by hand."""

    sort: Sort
    hidden: frozenset[str]


class Row(NamedTuple):
    """A column of the list, or an order without a column."""

    title: str
    sort: SortField | None
    """The order it stands for; None for the default order."""
    sortable: bool = True
    can_hide: bool = True
    cost: str = ""
    """What sorting by it costs."""


class ArrangeList(LineTable):
    """One line per column: whether it is shown, whether the list is sorted by it, what that costs."""

    rows: reactive[Sequence[Row]] = reactive(tuple, init=False, repaint=False)
    arrangement: reactive[Arrangement] = reactive(Arrangement(Sort(), frozenset()), init=False)

    class Chosen(Message):
        """A row was double-clicked."""

    def __init__(self) -> None:
        columns = (Column("shown", 5, 9), Column("column", 10, 9), Column("order", 20, 8, grows=1))
        super().__init__(columns, margin=1)

    def total(self) -> int:
        return len(self.rows)

    def stamp(self, row: int) -> object:
        return self.rows[row], self.arrangement

    def cells_at(self, row: int) -> Sequence[Cell]:
        one, arranged = self.rows[row], self.arrangement
        shown = "" if not one.can_hide else "[x]" if one.title not in arranged.hidden else "[ ]"
        order = Cell(safe.line(one.cost), "muted")
        if one.sortable and one.sort == arranged.sort.field:
            direction = "↓ descending" if arranged.sort.descending else "↑ ascending"
            words = "worst first" if one.sort is None else direction
            order = Cell(safe.line(f"{words}   {one.cost}".rstrip()), "accent")
        return Cell(shown, "accent"), Cell(one.title), order

    def entered(self) -> None:
        self.post_message(self.Chosen())


class ArrangeScreen(Dialog[Arrangement]):
    """Enter sorts by the column under the cursor and closes; a second time it reverses. Space shows or hides it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,s", "dismiss_with_columns", "Close", show=False),
        Binding("enter", "sort", "Sort", show=False),
        Binding("space", "show_or_hide", "Show", show=False),
    ]

    def __init__(self, rows: Sequence[Row], arrangement: Arrangement) -> None:
        super().__init__()
        self._rows = rows
        self._arrangement = arrangement

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = safe.phrase("[b]Order and columns[/]")
            dialog.border_subtitle = safe.phrase(
                "[$accent]enter[/] sort; again: reverse  [$accent]space[/] show or hide  [$accent]esc[/] close"
            )
            yield ArrangeList()

    def on_mount(self) -> None:
        listed = self.query_one(ArrangeList)
        listed.rows, listed.arrangement = self._rows, self._arrangement
        listed.styles.height = len(self._rows) + 1
        at = (n for n, row in enumerate(self._rows) if row.sortable and row.sort == self._arrangement.sort.field)
        listed.rows_changed(next(at, 0))
        listed.focus()

    def on_arrange_list_chosen(self) -> None:
        self.action_sort()

    def action_show_or_hide(self) -> None:
        listed = self.query_one(ArrangeList)
        row, arranged = self._rows[listed.cursor], listed.arrangement
        if row.can_hide:
            listed.arrangement = arranged._replace(hidden=arranged.hidden ^ {row.title})

    def action_sort(self) -> None:
        listed = self.query_one(ArrangeList)
        row, arranged = self._rows[listed.cursor], listed.arrangement
        if not row.sortable:
            self.hint(f"This list cannot be sorted by {row.title}.")
            return
        if row.sort is None:
            sort = Sort()
        elif row.sort == arranged.sort.field:
            sort = Sort(row.sort, not arranged.sort.descending)
        else:
            sort = Sort.parse(row.sort)
        self.dismiss(arranged._replace(sort=sort))

    def action_dismiss_with_columns(self) -> None:
        self.dismiss(self.query_one(ArrangeList).arrangement)
