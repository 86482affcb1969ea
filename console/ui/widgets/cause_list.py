"""The list of causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from textual.message import Message
from textual.reactive import reactive

from console.core.cause_count import Cause
from console.ui import safe
from console.ui.cells import Cell, Column, short_age, telling_line, thousands
from console.ui.widgets.charts import bar
from console.ui.widgets.line_table import LineTable

_BAR = 10
_COLUMNS = (
    Column("count", 8, 9, right=True),
    Column("share", _BAR + 5, 6),
    Column("last hour", 9, 5, right=True),
    Column("last", 5, 7, right=True),
    Column("first", 5, 3, right=True),
    Column("recoverable", 11, 2),
    Column("systems", 10, 4, grows=2, most=40),
    Column("cause", 20, 8, grows=5),
    Column("runbook", 7, 1),
)

RECOVERABLE = {None: Cell("~ unclear", "muted"), True: Cell("✓ yes", "good"), False: Cell("✗ no", "error")}
"""Whether a retry can succeed."""


def trend(cause: Cause, now: datetime) -> Cell:
    """The failures of the last hour, and whether they are more or fewer than per hour before."""
    if not cause.recent:
        return Cell("↓ –", "muted")
    hours = 1.0 if cause.first is None else max((now - cause.first) / timedelta(hours=1), 1.0)
    before = (cause.count - cause.recent) / max(hours - 1, 1.0)
    arrow, tone = ("↑", "warning") if cause.recent > 1.5 * before else ("→", "plain")
    if cause.recent * 2 < before:
        arrow, tone = "↓", "muted"
    return Cell(f"{arrow} +{thousands(cause.recent)}", tone)


def unnamed(cause: Cause) -> str:
    """What is shown for failures without a signature."""
    return "other causes, too many to list" if cause.overflow else "no error text"


class CauseList(LineTable):
    """The parent sets `causes`; the cursor stays on its cause."""

    causes: reactive[Sequence[Cause]] = reactive(tuple, init=False, repaint=False)

    class Moved(Message):
        """Another cause is under the cursor."""

    class Chosen(Message):
        """A cause was double-clicked."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        recoverable: Callable[[Cause], bool | None],
        runbook: Callable[[str], str | None],
    ) -> None:
        super().__init__(_COLUMNS, margin=1)
        self._clock = clock
        self._recoverable = recoverable
        self._runbook = runbook
        self._at_cursor: Cause | None = None
        self._failures = 0

    @property
    def cause(self) -> Cause | None:
        """The cause under the cursor."""
        return self.causes[self.cursor] if self.cursor < len(self.causes) else None

    def total(self) -> int:
        return len(self.causes)

    def watch_causes(self, causes: Sequence[Cause]) -> None:
        self._failures = sum(cause.count for cause in causes)
        before = self._at_cursor
        place = None if before is None else (before.signature, before.overflow)
        rows = (row for row, cause in enumerate(causes) if (cause.signature, cause.overflow) == place)
        self.rows_changed(next(rows, None))

    def cells_at(self, row: int) -> Sequence[Cell]:
        cause, now = self.causes[row], self._clock()
        share = cause.count / max(self._failures, 1)
        percent = f"{share:>4.0%}" if share >= 0.01 else " <1%"
        names = ", ".join(name if len(cause.backends) == 1 else f"{name} {thousands(n)}" for name, n in cause.backends)
        page = self._runbook(cause.sample) if cause.sample else None
        return (
            Cell(thousands(cause.count)),
            Cell(f"{percent} {bar(share, _BAR)}", "calm"),
            trend(cause, now),
            Cell("" if cause.last is None else short_age(now - cause.last)),
            Cell("" if cause.first is None else short_age(now - cause.first), "muted"),
            RECOVERABLE[self._recoverable(cause)],
            Cell(safe.line(names), "muted"),
            Cell(safe.line(telling_line(cause.sample))) if cause.signature else Cell(unnamed(cause), "muted"),
            Cell("↗ page", "link", safe.address(page)) if page else Cell(""),
        )

    def stamp(self, row: int) -> object:
        return self.causes[row], self._failures, int(self._clock().timestamp()) // 10

    def moved(self) -> None:
        self._at_cursor = self.cause
        self.post_message(self.Moved())

    def entered(self) -> None:
        self.post_message(self.Chosen())
