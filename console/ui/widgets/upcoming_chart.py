"""A chart of the next retries over all systems, so that a retry storm is seen before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from console.core.text import countdown
from console.ui import safe
from console.ui.cells import thousands
from console.ui.health import BUCKETS, DAY, HOUR, Health
from console.ui.widgets.charts import columns, spark

if TYPE_CHECKING:
    from console.core.backend import Histogram

_AXIS = 7
_STORM_FACTOR = 3
_STORM_FROM = 10
_SMALL = 4
"""Below this many lines the chart is one line."""


def storms(counts: list[int]) -> set[int]:
    """The buckets in which far more retries are due than on average."""
    total = sum(counts)
    mean = total / max(len(counts), 1)
    return {i for i, count in enumerate(counts) if count >= _STORM_FROM and count > _STORM_FACTOR * mean}


class Peak(NamedTuple):
    """The time with the most retries."""

    retries: int
    ahead: timedelta
    storm: bool

    @property
    def words(self) -> str:
        return f"{thousands(self.retries)} in {short(self.ahead)}"


def summed(histograms: Iterable[Histogram]) -> list[int]:
    counts = [0] * BUCKETS
    for histogram in histograms:
        counts = [a + b for a, b in zip(counts, histogram.counts, strict=True)]
    return counts


def peak_of(histograms: Iterable[Histogram]) -> Peak | None:
    """The fullest bucket of these histograms together; None if nothing is due."""
    found = list(histograms)
    counts = summed(found)
    if not any(counts):
        return None
    at = counts.index(max(counts))
    return Peak(counts[at], found[0].width * at, at in storms(counts))


class UpcomingChart(Widget):
    """A histogram of the next hour or day, with the numbers in its heading. Where it has few lines, it is one line."""

    healths: reactive[Mapping[str, Health]] = reactive(dict)
    day: reactive[bool] = reactive(False)
    age: reactive[str] = reactive("")
    """How old the oldest of these figures is, if it is older than the refresh."""
    moment: reactive[str] = reactive("")
    """The time at its left end, in the past."""

    @property
    def span(self) -> timedelta:
        return DAY if self.day else HOUR

    def _histograms(self) -> dict[str, Histogram]:
        each = {name: health.later if self.day else health.soon for name, health in self.healths.items()}
        return {name: histogram for name, histogram in each.items() if histogram is not None}

    def render(self) -> Content:
        found = self._histograms()
        counts = summed(found.values())
        heading = self._heading(counts, found)
        height = self.size.height - 1
        if height < _SMALL:
            line = Content.styled(spark(self._stretched(counts, self.size.width - 4)), "$calm")
            return Content("\n").join([heading, Content.assemble("  ", line)]) if height else heading
        return Content("\n").join([heading, *self._picture(counts, height - 1), self._scale()])

    @property
    def _room(self) -> int:
        """The width of the picture."""
        return max(self.size.width - _AXIS - 1, 1)

    def _bucket(self, column: int, room: int) -> int:
        return column * BUCKETS // room

    def _stretched(self, counts: list[int], room: int) -> list[int]:
        """One number per column: that of its bucket; in a narrow terminal, the greatest of several buckets."""
        if room >= BUCKETS:
            return [counts[self._bucket(column, room)] for column in range(room)]
        edges = [self._bucket(column, room) for column in range(room)] + [BUCKETS]
        return [max(counts[first:last]) for first, last in pairwise(edges)]

    def _picture(self, counts: list[int], height: int) -> list[Content]:
        room = self._room
        shown = self._stretched(counts, room)
        stormy = storms(counts)
        high = {column for column, count in enumerate(shown) if any(counts[bucket] == count for bucket in stormy)}
        top = max(shown)
        lines = []
        for level, row in enumerate(columns(shown, height)):
            label = thousands(top) if level == 0 and top else ""
            parts = [safe.phrase("[$muted]$label[/]", label=safe.fit(label, _AXIS - 2, right=True) + " │")]
            for storm, run in groupby(enumerate(row), key=lambda pair: pair[0] in high):
                parts.append(Content.styled("".join(char for _, char in run), "$warning" if storm else "$calm"))
            lines.append(Content.assemble(*parts))
        return lines

    def _scale(self) -> Content:
        ticks = 4
        step = self._room // ticks
        begin = self.moment or "now"
        marks = "".join((begin if n == 0 else f"+{short(self.span * n / ticks)}").ljust(step) for n in range(ticks))
        return Content.styled(" " * (_AXIS - 2) + " └" + marks[: self._room - 4] + f"+{short(self.span)}", "$muted")

    def _heading(self, counts: list[int], found: Mapping[str, Histogram]) -> Content:
        span = "day" if self.day else "hour"
        parts = [safe.phrase("[$muted]  retries, next $span[/]", span=span)]
        if not found:
            parts.append(Content.from_markup("[$muted]counting…[/]"))
        peak = peak_of(found.values())
        if found:
            unread = any(health.fault is None and name not in found for name, health in self.healths.items())
            least = "≥ " if unread else ""
            parts.append(safe.phrase("[b]$total[/] [$muted]due[/]", total=least + thousands(sum(counts))))
        if overdue := sum(histogram.before for histogram in found.values()):
            when = f"at {self.moment}" if self.moment else "now"
            parts.append(safe.phrase("[b]$count[/] [$muted]overdue $when[/]", count=thousands(overdue), when=when))
        if peak is not None:
            words = safe.phrase("[$muted]peak[/] $words", words=peak.words)
            storm = Content.from_markup("  [b $warning]▲ storm[/]") if peak.storm else Content("")
            parts.append(Content.assemble(words, storm))
        if self.age:
            parts.append(safe.phrase("[$muted]$age[/]", age=self.age))
        while len(parts) > 1 and Content("   ").join(parts).cell_length > self.size.width:
            parts.pop()
        line = Content("   ").join(parts)
        other = safe.phrase("[$muted]t: $other[/] ", other="hour" if self.day else "day")
        room = self.size.width - line.cell_length - other.cell_length
        return Content.assemble(line, " " * room, other) if room > 0 else line


def short(span: timedelta) -> str:
    return countdown(span).replace(" 00m", "").replace(" 00s", "").replace(" 0h", "").replace(" ", "")
