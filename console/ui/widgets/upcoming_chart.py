"""A chart of the next retries over all systems, so that a retry storm is seen before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from console.core.text import countdown
from console.ui import safe
from console.ui.cells import thousands
from console.ui.health import BUCKETS, DAY, HOUR, Health
from console.ui.widgets.charts import columns

if TYPE_CHECKING:
    from console.core.backend import Histogram

_AXIS = 7
_STORM_FACTOR = 3
_STORM_FROM = 10


def storms(counts: list[int]) -> set[int]:
    """The buckets in which far more retries are due than on average."""
    total = sum(counts)
    mean = total / max(len(counts), 1)
    return {i for i, count in enumerate(counts) if count >= _STORM_FROM and count > _STORM_FACTOR * mean}


class UpcomingChart(Widget):
    """A histogram of the next hour or day, with the numbers below it."""

    healths: reactive[Mapping[str, Health]] = reactive(dict)
    day: reactive[bool] = reactive(False)
    age: reactive[str] = reactive("")
    """How old the oldest of these figures is, if it is older than the refresh."""

    @property
    def span(self) -> timedelta:
        return DAY if self.day else HOUR

    def _histograms(self) -> dict[str, Histogram]:
        each = {name: health.later if self.day else health.soon for name, health in self.healths.items()}
        return {name: histogram for name, histogram in each.items() if histogram is not None}

    def watch_day(self) -> None:
        self._title()

    def on_mount(self) -> None:
        self._title()

    def _title(self) -> None:
        other = "hour" if self.day else "day"
        self.border_title = Content.from_markup(f"Retries in the next [b]{'day' if self.day else 'hour'}[/b]")
        self.border_subtitle = Content.from_markup(f"[$muted]h: next {other}[/]")

    def render(self) -> Content:
        found = self._histograms()
        counts = [0] * BUCKETS
        for histogram in found.values():
            counts = [a + b for a, b in zip(counts, histogram.counts, strict=True)]
        overdue = sum(histogram.before for histogram in found.values())
        numbers = self._numbers(counts, found, overdue)
        height = max(self.size.height - 1 - len(numbers), 1)
        return Content("\n").join([*self._picture(counts, height), self._scale(), *numbers])

    @property
    def _room(self) -> int:
        """The width available for the buckets."""
        return max(self.size.width - _AXIS - 1, 1)

    @property
    def _per_column(self) -> int:
        """How many buckets share one column in a narrow terminal."""
        return ceil(BUCKETS / self._room)

    @property
    def _column_width(self) -> int:
        """The width of one column."""
        return max(self._room * self._per_column // BUCKETS, 1)

    def _picture(self, counts: list[int], height: int) -> list[Content]:
        width, per_column = self._column_width, self._per_column
        sums = [sum(counts[first : first + per_column]) for first in range(0, BUCKETS, per_column)]
        stormy = {bucket // per_column for bucket in storms(counts)}
        top = max(sums)
        lines = []
        for level, row in enumerate(columns(sums, height)):
            label = thousands(top) if level == 0 and top else ""
            parts = [safe.phrase("[$muted]$label[/]", label=safe.fit(label, _AXIS - 2, right=True) + " │")]
            for storm, run in groupby(enumerate(row), key=lambda pair: pair[0] in stormy):
                blocks = "".join(char * width for _, char in run)
                parts.append(Content.styled(blocks, "$warning" if storm else "$calm"))
            lines.append(Content.assemble(*parts))
        return lines

    def _scale(self) -> Content:
        ticks = 4
        step = ceil(BUCKETS / self._per_column) * self._column_width // ticks
        marks = "".join(("now" if n == 0 else f"+{_short(self.span * n / ticks)}").ljust(step) for n in range(ticks))
        return Content.styled(" " * (_AXIS - 2) + " └" + marks + f"+{_short(self.span)}", "$muted")

    def _numbers(self, counts: list[int], found: dict[str, Histogram], overdue: int) -> list[Content]:
        if not found:
            return [Content.from_markup(" [$muted]counting…[/]")]
        total = sum(counts)
        parts = [safe.phrase("[b]$total[/] [$muted]due[/]", total=thousands(total))]
        if overdue:
            parts.append(safe.phrase("[b]$overdue[/] [$muted]overdue now[/]", overdue=thousands(overdue)))
        if total:
            peak = counts.index(max(counts))
            starts = self.span / BUCKETS * peak
            words = safe.phrase("peak [b]$count[/] in $ahead", count=thousands(counts[peak]), ahead=countdown(starts))
            if peak in storms(counts):
                words = Content.assemble(Content.styled("▲ storm: ", "bold $warning"), words)
            parts.append(words)
        if self.age:
            parts.append(safe.phrase("[$muted]$age[/]", age=self.age))
        each = [
            safe.phrase("[$muted]$name[/] $count", name=name, count=thousands(sum(histogram.counts)))
            for name, histogram in found.items()
            if sum(histogram.counts)
        ]
        summary = Content.assemble(" ", Content("   ").join(parts))
        if not each:
            return [summary]
        width = self.size.width
        return [summary, Content.assemble(" ", Content("   ").join(each)).truncate(width, ellipsis=True)]


def _short(span: timedelta) -> str:
    return countdown(span).replace(" 00m", "").replace(" 00s", "").replace(" ", "")
