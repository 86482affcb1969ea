"""A chart of the failures of the last day over all systems, with a vertical line for each deploy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from console.core.history import Mark
from console.core.text import ago
from console.ui import safe
from console.ui.cells import thousands
from console.ui.widgets.charts import columns

AXIS = 7
"""Cells to the left of the picture."""
_DAY = timedelta(hours=24)
_LINE = "│"
_LONGEST, _SHORTEST = 60, 8
"""Cells for the text of a mark."""


class PastChart(Widget):
    """The screen sets `counts`, from 24 hours before `end` to `end`."""

    counts: reactive[Sequence[int | None]] = reactive(tuple)
    """None where nothing was recorded."""
    marks: reactive[Sequence[Mark]] = reactive(tuple)
    end: reactive[datetime | None] = reactive(None)
    recorded: reactive[bool] = reactive(False)
    """Whether the counts are from the history, else from the times in the rows."""
    moment: reactive[str] = reactive("")
    """The time at its right end, in the past."""

    def render(self) -> Content:
        height = self.size.height - 2
        if not self.counts or height < 1:
            return Content("")
        return Content("\n").join([self._heading(), *self._picture(height), self._scale()])

    @property
    def _room(self) -> int:
        return max(self.size.width - AXIS - 1, 1)

    def _column(self, mark: Mark) -> int:
        """Where a mark is, in columns from the left; -1 if it is outside the chart."""
        if self.end is None:
            return -1
        share = 1 - (self.end - mark.at) / _DAY
        return min(int(share * self._room), self._room - 1) if 0 <= share <= 1 else -1

    def _picture(self, height: int) -> list[Content]:
        room = self._room
        shown = [self.counts[((column + 1) * len(self.counts) - 1) // room] for column in range(room)]
        most = max((count for count in shown if count is not None), default=0)
        lines_at = {self._column(mark) for mark in self.marks}
        found = []
        for level, row in enumerate(columns(shown, height)):
            label = thousands(most) if level == 0 else ""
            parts = [safe.phrase("[$muted]$label[/]", label=safe.fit(label, AXIS - 2, right=True) + " │")]
            drawn = [(_LINE, True) if n in lines_at else (char, False) for n, char in enumerate(row)]
            for marked, run in groupby(drawn, key=lambda pair: pair[1]):
                text = "".join(char for char, _ in run)
                parts.append(safe.phrase("[$foreground]$run[/]" if marked else "[$warning]$run[/]", run=text))
            found.append(Content.assemble(*parts))
        return found

    def _scale(self) -> Content:
        step = self._room // 4
        marks = "".join(text.ljust(step) for text in ("-24h", "-18h", "-12h", "-6h"))
        end = self.moment or "now"
        room = max(self._room - len(end) - 1, 0)
        return Content.styled(f"{' ' * (AXIS - 2)} └{marks[:room].ljust(room)}{end}", "$muted")

    @property
    def _when(self) -> str:
        return f"at {self.moment}" if self.moment else "now"

    def _heading(self) -> Content:
        known = [count for count in self.counts if count is not None]
        if self.recorded:
            parts = [
                Content.from_markup("[$muted]  failed items, last 24 h[/]"),
                safe.phrase("[b]$count[/] [$muted]$when[/]", count=thousands(known[-1]), when=self._when),
                Content.from_markup("[$muted]as recorded[/]"),
            ]
        else:
            parts = [
                Content.from_markup("[$muted]  failures, last 24 h[/]"),
                Content.styled(thousands(sum(known)), "b"),
                Content.from_markup("[$muted]by the rows' times[/]"),
            ]
        for mark in reversed(self.marks):
            if self.end is None or self._column(mark) < 0:
                continue
            age = ago(self.end - mark.at)
            room = self.size.width - Content("   ").join(parts).cell_length - len(age) - 7
            if room < _SHORTEST:
                break
            text = safe.line(mark.text, min(room, _LONGEST))
            parts.append(safe.phrase("[b]│[/] $text [$muted]$age[/]", text=text, age=age))
        return Content("   ").join(parts)
