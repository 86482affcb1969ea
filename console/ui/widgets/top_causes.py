"""The causes that matter now, for the Overview."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from textual.message import Message
from textual.reactive import reactive

from console.core.cause_count import Cause
from console.core.cause_life import CauseLife, CauseState
from console.core.text import telling_line
from console.ui import safe
from console.ui.cause_past import state_cell, trend
from console.ui.cells import Cell, Column, thousands, with_more
from console.ui.widgets.line_table import LineTable

_COLUMNS = (
    Column("top causes", 20, 9, grows=6, share=0.44),
    Column("count", 6, 8, right=True),
    Column("1 h", 6, 7, right=True),
    Column("systems", 12, 5, grows=2, most=32),
    Column("state", 10, 4, grows=1, most=20),
)

def life_cell(life: CauseLife | None) -> Cell:
    """The state of a cause, and who has it."""
    if life is None:
        return Cell("")
    owner = life.owner or (life.by if life.state is CauseState.ACKNOWLEDGED else "")
    state = state_cell(life)
    return state._replace(text=safe.line(f"{state.text} {owner}".strip()))


class TopCauses(LineTable):
    """The screen sets `causes`, the most important first."""

    causes: reactive[Sequence[Cause]] = reactive(tuple, init=False, repaint=False)
    lives: reactive[Mapping[str, CauseLife]] = reactive(dict, init=False)
    hidden_causes: reactive[int] = reactive(0, init=False)
    """How many more there are."""
    note: reactive[str] = reactive("", init=False)
    """What stands in place of the causes."""

    class Chosen(Message):
        """Enter was pressed on a cause, or it was double-clicked."""

    class Moved(Message):
        """Another cause is under the cursor."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(_COLUMNS, margin=2)
        self._clock = clock
        self._at_cursor: str | None = None
        self._is_moved = False
        """The cursor was moved: until then it is on the first."""

    @property
    def cause(self) -> Cause | None:
        return self.causes[self.cursor] if self.cursor < len(self.causes) else None

    def total(self) -> int:
        return len(self.causes) or int(bool(self.note))

    def watch_causes(self) -> None:
        self.hide(frozenset() if self.lives else frozenset({"state"}))
        places = [cause.signature for cause in self.causes]
        self.rows_changed(places.index(self._at_cursor) if self._is_moved and self._at_cursor in places else 0)

    def watch_lives(self) -> None:
        self.watch_causes()

    def watch_hidden_causes(self) -> None:
        shown = len(self.causes)
        title = f"top {shown} of {thousands(shown + self.hidden_causes)} causes" if self.hidden_causes else "top causes"
        self.columns = (_COLUMNS[0]._replace(title=title), *_COLUMNS[1:])
        self.refresh()

    def watch_note(self) -> None:
        self.rows_changed(None)

    def stamp(self, row: int) -> object:
        return (self.causes[row], self.lives.get(self.causes[row].signature or "")) if self.causes else self.note

    def cells_at(self, row: int) -> Sequence[Cell] | Cell:
        if not self.causes:
            return Cell(self.note, "muted")
        cause = self.causes[row]
        return (
            Cell(safe.line(telling_line(cause.sample))) if cause.signature else Cell("no error text", "muted"),
            Cell(f"{cause.sign}{thousands(cause.count)}"),
            trend(cause, self._clock()),
            Cell(safe.line(with_more([name for name, _ in cause.backends], self.width_of("systems"))), "muted"),
            life_cell(self.lives.get(cause.signature or "")),
        )

    def watch_cursor(self, old: int, new: int) -> None:
        self._is_moved = True
        super().watch_cursor(old, new)

    def moved(self) -> None:
        cause = self.cause
        self._at_cursor = None if cause is None else cause.signature
        self.post_message(self.Moved())

    def entered(self) -> None:
        if self.cause is not None:
            self.post_message(self.Chosen())
