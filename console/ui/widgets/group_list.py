"""Groups of failures as a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from textual.message import Message
from textual.reactive import reactive

from console.core.grouping import Group
from console.ui import safe
from console.ui.cells import Cell, Column, short_age, telling_line, thousands
from console.ui.widgets.charts import bar
from console.ui.widgets.line_table import LineTable

_SHARE = 10
_COLUMNS = (
    Column("count", 8, 9, right=True),
    Column("share", _SHARE + 5, 6),
    Column("last hour", 9, 5, right=True),
    Column("last", 5, 7, right=True),
    Column("first", 5, 3, right=True),
    Column("recoverable", 11, 2),
    Column("backends", 10, 4, grows=2, most=40),
    Column("cause", 20, 8, grows=5),
    Column("runbook", 7, 1),
)

JUDGED = {None: Cell("~ unclear", "muted"), True: Cell("✓ yes", "good"), False: Cell("✗ no", "error")}
"""Whether a failure may succeed when it is tried again."""


def trend(group: Group, now: datetime) -> Cell:
    """How many in the last hour, and whether that is more or less than in the hours before."""
    if not group.recent:
        return Cell("↓ –", "muted")
    hours = 1.0 if group.first is None else max((now - group.first) / timedelta(hours=1), 1.0)
    before = (group.count - group.recent) / max(hours - 1, 1.0)
    arrow, tone = ("↑", "warning") if group.recent > 1.5 * before else ("→", "plain")
    if group.recent * 2 < before:
        arrow, tone = "↓", "muted"
    return Cell(f"{arrow} +{thousands(group.recent)}", tone)


class GroupList(LineTable):
    """The parent sets `groups`; the cursor stays on its group by signature."""

    groups: reactive[Sequence[Group]] = reactive(tuple, init=False, repaint=False)

    class Moved(Message):
        """Another group is under the cursor."""

    class Chosen(Message):
        """A double click on a group."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        recoverable: Callable[[Group], bool | None],
        runbook: Callable[[str], str | None],
    ) -> None:
        super().__init__(_COLUMNS, margin=1)
        self._clock = clock
        self._recoverable = recoverable
        self._runbook = runbook
        self._under: Group | None = None
        self._all = 0

    @property
    def group(self) -> Group | None:
        return self.groups[self.cursor] if self.cursor < len(self.groups) else None

    def total(self) -> int:
        return len(self.groups)

    def watch_groups(self, groups: Sequence[Group]) -> None:
        self._all = sum(group.count for group in groups)
        under = self._under
        self.rows_changed(
            None if under is None else next((n for n, g in enumerate(groups) if g.signature == under.signature), None)
        )

    def cells_at(self, row: int) -> Sequence[Cell]:
        group, now = self.groups[row], self._clock()
        share = group.count / max(self._all, 1)
        percent = f"{share:>4.0%}" if share >= 0.01 else " <1%"
        judged = JUDGED[self._recoverable(group)]
        names = ", ".join(name if len(group.backends) == 1 else f"{name} {thousands(n)}" for name, n in group.backends)
        sample = telling_line(group.sample)
        page = self._runbook(group.sample) if group.sample else None
        return (
            Cell(thousands(group.count)),
            Cell(f"{percent} {bar(share, _SHARE)}", "calm"),
            trend(group, now),
            Cell("" if group.last is None else short_age(now - group.last)),
            Cell("" if group.first is None else short_age(now - group.first), "muted"),
            judged,
            Cell(safe.line(names), "muted"),
            Cell(safe.line(sample)) if group.signature else Cell("no error text", "muted"),
            Cell("↗ page", "link", safe.address(page)) if page else Cell(""),
        )

    def stamp(self, row: int) -> object:
        return self.groups[row], self._all, int(self._clock().timestamp()) // 10

    def moved(self) -> None:
        self._under = self.group
        self.post_message(self.Moved())

    def entered(self) -> None:
        self.post_message(self.Chosen())
