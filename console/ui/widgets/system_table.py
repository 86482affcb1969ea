"""The table of the systems: one line each, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from textual.message import Message
from textual.reactive import reactive

from console.actions.tones import tone
from console.core.faults import Fault, sentences
from console.core.item import Condition
from console.core.text import ago, as_of
from console.ui import cells, safe
from console.ui.cells import Cell, Column
from console.ui.health import SLOW_REFRESH, SPARKS, Health
from console.ui.system_past import SystemPast
from console.ui.widgets.charts import resampled, spark
from console.ui.widgets.line_table import GAP, LineTable, layout
from console.ui.widgets.upcoming_chart import peak_of

if TYPE_CHECKING:
    from console.core.backend import Count

_CONDITIONS = (Condition.TERMINAL, Condition.STUCK, Condition.FAILED, Condition.UNKNOWN, Condition.RETRYING)
_COLUMNS = (
    Column("system", 9, 13, grows=2, most=24),
    Column("state", 6, 5),
    Column("terminal", 8, 12, right=True),
    Column("stuck", 5, 11, right=True),
    Column("failed", 6, 10, right=True),
    Column("unknown", 7, 7, right=True),
    Column("retrying", 8, 9, right=True),
    Column("24 h failures", 8, 6, grows=3, most=SPARKS, short="24 h"),
    Column("next", 11, 8, right=True),
)
_PAST = next(n for n, column in enumerate(_COLUMNS) if column.title.startswith("24 h"))
NOTHING = Cell("·", "muted")


def badness(health: Health) -> tuple[int, ...]:
    """The sort key of a system: the worst one has the greatest."""
    counted = {condition: count.value for condition, count in health.counts.items()}
    gone = counted.get(Condition.TERMINAL, 0) + counted.get(Condition.STUCK, 0)
    failed = counted.get(Condition.FAILED, 0) + counted.get(Condition.UNKNOWN, 0)
    return (int(health.fault is not None), len(health.errors), gone, failed, counted.get(Condition.RETRYING, 0))


def is_quiet(health: Health) -> bool:
    return bool(health.counts) and not any(badness(health))


class MoreSystems(NamedTuple):
    """The line in place of the systems that have no room."""

    hidden: int
    quiet: bool


class SystemTable(LineTable):
    """`healths` is set by the screen. Where not all have room, the worst are listed and the rest is one line."""

    healths: reactive[Sequence[Health]] = reactive(tuple, init=False, repaint=False)
    past: reactive[SystemPast] = reactive(SystemPast, init=False)

    class Moved(Message):
        """Another system is under the cursor."""

    class Chosen(Message):
        """Enter was pressed on a system, or it was double-clicked."""

    def __init__(self, healths: Sequence[Health] = ()) -> None:
        super().__init__(_COLUMNS, margin=2)
        self.most_rows = 1_000
        """For how many lines there is room."""
        self.expanded = False
        self._rows: list[Health | MoreSystems] = []
        self._at_cursor = ""
        self._is_moved = False
        """The cursor was moved: until then it is on the worst."""
        self.set_reactive(SystemTable.healths, healths)
        self._arrange()

    @property
    def health(self) -> Health | None:
        """The system under the cursor."""
        row = self._rows[self.cursor] if self.cursor < len(self._rows) else None
        return row if isinstance(row, Health) else None

    def total(self) -> int:
        return len(self._rows)

    def watch_healths(self) -> None:
        self._changed()

    def give_room(self, rows: int) -> None:
        """How many lines there are for systems, without the heading."""
        if rows != self.most_rows:
            self.most_rows = rows
            self._changed()

    def list_all(self) -> None:
        """List all systems, and scroll."""
        self.expanded = True
        self._changed()

    def _changed(self) -> None:
        self._arrange()
        names = [one.name if isinstance(one, Health) else "" for one in self._rows]
        if not self._is_moved:
            self.rows_changed(0)
        else:
            self.rows_changed(names.index(self._at_cursor) if self._at_cursor in names else None)

    def _arrange(self) -> None:
        ordered: list[Health | MoreSystems] = sorted(self.healths, key=badness, reverse=True)  # type: ignore[arg-type]
        most = max(self.most_rows, 2)
        if len(ordered) > most and not self.expanded:
            hidden = [one for one in ordered[most - 1 :] if isinstance(one, Health)]
            ordered = [*ordered[: most - 1], MoreSystems(len(hidden), all(map(is_quiet, hidden)))]
        self._rows = ordered
        unknown = any(health.counts.get(Condition.UNKNOWN, _ZERO).value for health in self.healths)
        self.hide(frozenset() if unknown else frozenset({"unknown"}))

    def gap_for(self, width: int) -> int:
        """Smaller where more columns fit then."""
        wide, narrow = (layout(self.columns, width, self.hidden, gap) for gap in (GAP, 1))
        return 1 if len(narrow) > len(wide) else GAP

    def stamp(self, row: int) -> object:
        one = self._rows[row]
        return (one.shown(), one.read_at, self.past) if isinstance(one, Health) else one

    def watch_cursor(self, old: int, new: int) -> None:
        self._is_moved = True
        super().watch_cursor(old, new)

    def mark_at(self, row: int) -> Cell:
        one = self._rows[row]
        return Cell("✗", "error") if isinstance(one, Health) and one.fault is not None else Cell("")

    def moved(self) -> None:
        name = "" if self.health is None else self.health.name
        if name != self._at_cursor:
            self._at_cursor = name
            self.post_message(self.Moved())

    def entered(self) -> None:
        self.post_message(self.Chosen())

    def cells_at(self, row: int) -> Sequence[Cell] | Cell:
        one = self._rows[row]
        if isinstance(one, MoreSystems):
            what = "quiet" if one.quiet else "more systems"
            return Cell(f"+{one.hidden} {what}   enter lists all", "muted")
        if one.fault is not None and not one.counts:
            name = safe.fit(safe.line(one.name), self.widths()[0][1])
            return Cell(safe.line(f"{name}  {fault_words(one.fault)}"), "error")
        return (
            Cell(safe.line(one.name)),
            _state(one),
            *(_count(condition, one.counts.get(condition), one.answered) for condition in _CONDITIONS),
            self._past(one),
            _next(one),
        )

    def _past(self, health: Health) -> Cell:
        if health.fault is not None:
            return Cell(safe.line(fault_words(health.fault)), "error")
        if errors := health.errors:
            return Cell(safe.line(errors[0]), "error")
        width = next((size for index, size in self.widths() if index == _PAST), SPARKS)
        if recorded := self.past.counts(health.name, min(width, SPARKS)):
            return Cell(spark(recorded), "warning" if any(recorded) else "muted")
        if health.on_request:
            return Cell("ctrl+r reads it", "muted")
        if health.recent is None:
            return Cell("")
        counts = resampled(health.recent.counts, min(width, SPARKS))
        return Cell(spark(counts), "warning" if any(counts) else "muted")


class _NoCount(NamedTuple):
    value: int = 0


_ZERO = _NoCount()


def _state(health: Health) -> Cell:
    if health.fault is not None:
        return Cell("✗ down", "error")
    if health.errors:
        return Cell("⚠ live", "error")
    return Cell("● live", "good") if health.answered else Cell("◌ …", "muted")


def _count(condition: Condition, count: Count | None, answered: bool) -> Cell:
    if count is None or not count.value:
        return NOTHING if answered else Cell("")
    return Cell(cells.count(count), tone(condition))


def _next(health: Health) -> Cell:
    peak = None if health.soon is None else peak_of([health.soon])
    if peak is None:
        return NOTHING if health.soon is not None else Cell("")
    return Cell(f"{peak.words}{' ▲' if peak.storm else '  '}", "warning" if peak.storm else "calm")


def fault_words(fault: Fault) -> str:
    """The fault without the system's name, which is in the same line."""
    return sentences(fault.message, fault.fix)


class Ages(NamedTuple):
    """The ages of a system's figures, as they are shown."""

    oldest: str
    """The age of the oldest failure."""
    counts: str
    """How old the counts are, if they are older than the refresh."""
    failures: str


def ages_of(health: Health, now: datetime, refresh: timedelta) -> Ages:
    def read(figure: str, every: timedelta) -> str:
        at = health.read_at.get(figure)
        return "" if at is None else as_of(now - at, every)

    oldest = "" if health.oldest is None else ago(now - health.oldest)
    return Ages(oldest, read("counts", refresh), read("failures", max(refresh, SLOW_REFRESH)))
