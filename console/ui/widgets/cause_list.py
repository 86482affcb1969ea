"""The list of causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, assert_never

from rich.cells import cell_len
from textual.message import Message
from textual.reactive import reactive

from console.core.cause_count import Cause
from console.core.cause_life import CauseState
from console.core.text import telling_line
from console.ui import safe
from console.ui.cause_past import CausePast, state_cell, trend
from console.ui.cells import Cell, Column, short_age, thousands, with_more
from console.ui.widgets.charts import bar
from console.ui.widgets.line_table import LineTable

_BAR = 8


class CauseColumn(StrEnum):
    """What a cause can be sorted by."""

    CAUSE = "cause"
    COUNT = "count"
    HOUR = "last hour"
    LAST = "last seen"
    FIRST = "first seen"
    SYSTEMS = "systems"
    STATE = "state"
    OWNER = "owner"
    RECOVERABLE = "recoverable"


_ALPHABETICAL = (CauseColumn.CAUSE, CauseColumn.SYSTEMS, CauseColumn.STATE, CauseColumn.OWNER)


class CauseSort(NamedTuple):
    """The column that the causes are sorted by."""

    column: CauseColumn = CauseColumn.COUNT
    descending: bool = True

    def chosen(self, column: CauseColumn) -> CauseSort:
        """The sort after this column was chosen. Choosing the sorted column again reverses it."""
        if column is self.column:
            return CauseSort(column, not self.descending)
        return CauseSort(column, column not in _ALPHABETICAL)

    def __str__(self) -> str:
        return f"{self.column} {'↓' if self.descending else '↑'}"


_COLUMNS: tuple[tuple[Column, CauseColumn], ...] = (
    (Column("cause", 16, 9, grows=6, share=0.38), CauseColumn.CAUSE),
    (Column("count", 6, 8, right=True), CauseColumn.COUNT),
    (Column("", _BAR, 4), CauseColumn.COUNT),
    (Column("1 h", 7, 6, right=True), CauseColumn.HOUR),
    (Column("systems", 11, 5, grows=2, most=40), CauseColumn.SYSTEMS),
    (Column("state", 9, 6), CauseColumn.STATE),
    (Column("owner", 8, 3), CauseColumn.OWNER),
    (Column("last", 4, 7, right=True), CauseColumn.LAST),
    (Column("first", 5, 3, right=True), CauseColumn.FIRST),
    (Column("recoverable", 11, 2), CauseColumn.RECOVERABLE),
    (Column("runbook", 7, 1), CauseColumn.CAUSE),
)

RECOVERABLE = {None: Cell("~ unclear", "muted"), True: Cell("✓ yes", "good"), False: Cell("✗ no", "error")}
"""Whether a retry can succeed."""


def systems_in(cause: Cause, width: int) -> str:
    """The systems with their counts, where they fit; else the first of them and how many more there are."""
    if len(cause.backends) == 1:
        return cause.backends[0][0]
    named = ", ".join(f"{name} {thousands(count)}" for name, count in cause.backends)
    return named if cell_len(named) <= width else with_more([name for name, _ in cause.backends], width)


def unnamed(cause: Cause) -> str:
    """What is shown for failures without a signature."""
    return "other causes, too many to list" if cause.overflow else "no error text"


class CauseList(LineTable):
    """The parent sets `causes`; the cursor stays on its cause."""

    sort: reactive[CauseSort] = reactive(CauseSort, init=False)
    causes: reactive[Sequence[Cause]] = reactive(tuple, init=False, repaint=False)

    class Moved(Message):
        """Another cause is under the cursor."""

    class Chosen(Message):
        """A cause was double-clicked."""

    class Sorted(Message):
        """The order was changed."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        recoverable: Callable[[Cause], bool | None],
        runbook: Callable[[str], str | None],
        *,
        has_states: bool,
    ) -> None:
        hidden = () if has_states else (CauseColumn.STATE, CauseColumn.OWNER)
        self._shown = [n for n, (_, meaning) in enumerate(_COLUMNS) if meaning not in hidden]
        super().__init__([_COLUMNS[n][0] for n in self._shown], margin=1)
        self._clock = clock
        self._recoverable = recoverable
        self._runbook = runbook
        self._at_cursor: Cause | None = None
        self._was_last = False
        """Whether somebody takes care of the cause under the cursor, as last shown."""
        self.decided: str | None = None
        """The cause that was last acknowledged, snoozed or resolved on this screen: the cursor goes with it."""
        self._failures = 0
        self._most = 1
        self.past = CausePast()
        """The states of the causes. Set it before `causes`."""
        self.watch_sort()

    @property
    def sortable(self) -> list[CauseColumn]:
        """The columns that the causes can be sorted by."""
        return [column for column in CauseColumn if any(_COLUMNS[n][1] is column for n in self._shown)]

    @property
    def cause(self) -> Cause | None:
        """The cause under the cursor."""
        return self.causes[self.cursor] if self.cursor < len(self.causes) else None

    def total(self) -> int:
        return len(self.causes)

    def watch_causes(self, causes: Sequence[Cause]) -> None:
        self._failures = sum(cause.count for cause in causes)
        self._most = max((cause.count for cause in causes if not cause.overflow), default=1)
        owned = self.sort.column is CauseColumn.OWNER or any(self.past.life(cause).owner for cause in causes)
        self.hide(frozenset() if owned else frozenset({"owner"}))
        before = self._at_cursor
        place = None if before is None else (before.signature, before.overflow)
        at = next((row for row, cause in enumerate(causes) if (cause.signature, cause.overflow) == place), None)
        is_last = at is not None and self.past.life(causes[at]).state.is_listed_last
        if is_last and not self._was_last and before is not None and before.signature != self.decided:
            at = None  # an override has resolved it, or somebody else takes care: the next one takes its place
        was_at_top = self.top == 0
        self.rows_changed(at)
        if was_at_top and self.cursor < self.rows_shown:
            self.scroll_to(y=0, animate=False)  # worse causes are above it, and must be visible

    def validate_causes(self, causes: Sequence[Cause]) -> Sequence[Cause]:
        """The causes in the chosen order, then those that somebody takes care of, and last the rare ones as one."""
        ordered = sorted(causes, key=lambda cause: -cause.count)
        ordered.sort(key=self._sort_key, reverse=self.sort.descending)
        return sorted(ordered, key=lambda cause: (cause.overflow, self.past.life(cause).state.is_listed_last))

    def watch_sort(self) -> None:
        places = (place for place, n in enumerate(self._shown) if _COLUMNS[n][1] is self.sort.column)
        self.sorted_by = next(places), self.sort.descending
        if self.causes:
            self.causes = tuple(self.causes)
            self.cursor = 0
            self.refresh()

    def _sort_key(self, cause: Cause) -> Any:
        oldest = datetime.min.replace(tzinfo=UTC)
        match self.sort.column:
            case CauseColumn.CAUSE:
                return telling_line(cause.sample).lower()
            case CauseColumn.COUNT:
                return cause.count
            case CauseColumn.HOUR:
                return cause.recent
            case CauseColumn.LAST:
                return cause.last or oldest
            case CauseColumn.FIRST:
                return cause.first or oldest
            case CauseColumn.SYSTEMS:
                return ", ".join(name for name, _ in cause.backends)
            case CauseColumn.STATE:
                return list(CauseState).index(self.past.life(cause).state)
            case CauseColumn.OWNER:
                return self.past.life(cause).owner.lower()
            case CauseColumn.RECOVERABLE:
                return {True: 2, None: 1, False: 0}[self._recoverable(cause)]
            case _:
                assert_never(self.sort.column)

    def choose_sort(self, column: CauseColumn) -> None:
        self.sort = self.sort.chosen(column)
        self.post_message(self.Sorted())

    def heading_clicked(self, x: int) -> None:
        if (index := self.column_at(x)) is not None:
            self.choose_sort(_COLUMNS[self._shown[index]][1])

    def cells_at(self, row: int) -> Sequence[Cell]:
        cause, now = self.causes[row], self._clock()
        page, life = self._runbook(cause.sample) if cause.sample else None, self.past.life(cause)
        error = Cell(safe.line(telling_line(cause.sample))) if cause.signature else Cell(unnamed(cause), "muted")
        cells = (
            error,
            Cell(f"{cause.sign}{thousands(cause.count)}"),
            Cell(bar(cause.count / self._most, _BAR), "calm"),
            trend(cause, now),
            Cell(safe.line(systems_in(cause, self.width_of("systems"))), "muted"),
            state_cell(life) if cause.signature else Cell(""),
            Cell(safe.line(life.owner), "muted"),
            Cell("" if cause.last is None else short_age(now - cause.last)),
            Cell("" if cause.first is None else short_age(now - cause.first), "muted"),
            RECOVERABLE[self._recoverable(cause)],
            Cell("↗ page", "link", safe.address(page)) if page else Cell(""),
        )
        return [cells[n] for n in self._shown]

    def mark_at(self, row: int) -> Cell:
        return Cell("*", "accent") if self.past.is_new_to_you(self.causes[row]) else Cell("")

    def stamp(self, row: int) -> object:
        return self.causes[row], self._failures, self.past.life(self.causes[row]), int(self._clock().timestamp()) // 10

    def moved(self) -> None:
        self._at_cursor = self.cause
        self._was_last = self.cause is not None and self.past.life(self.cause).state.is_listed_last
        self.post_message(self.Moved())

    def entered(self) -> None:
        self.post_message(self.Chosen())
