"""Lays out the side panel of the Overview: its texts in full, charts and a list in the lines that are left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from console.ui.cells import Cell
from console.ui.widgets.charts import columns, resampled
from console.ui.widgets.text_pane import Line, wrapped

_LOWEST, _TALLEST = 2, 16
"""Lines of a chart, without its title, its axis and the empty line above it."""
_AROUND = 3
_NARROWEST = 24


class Chart(NamedTuple):
    """A chart over the width of the panel: what is above it, its counts, and what is below its two ends."""

    title: Line
    counts: Sequence[int | None]
    tone: str
    ends: tuple[str, str]


def arranged(
    texts: Sequence[Line], charts: Sequence[Chart], listed: Sequence[Line], width: int, height: int
) -> tuple[Line, ...]:
    """The lines of the panel, never more than `height`.

    Texts come first, then the charts, then the list under its title. If not all has room, the list gets shorter,
    then the charts go. Texts that are too long even so end with dots.
    """
    rows = _rows(texts, width)
    if len(rows) > height:
        return (*rows[: height - 1], [Cell("…", "muted")])
    kept = list(listed)
    while len(kept) > 1 and _left(rows, kept, width, height) < bool(charts) * (_AROUND + _LOWEST):
        kept.pop()
    below = [[], *kept] if len(kept) > 1 else []
    drawn = list(charts)
    left = _left(rows, kept, width, height) if below else height - len(rows)
    while drawn and left < len(drawn) * (_AROUND + _LOWEST):
        drawn.pop()
    each = min(left // len(drawn) - _AROUND, _TALLEST) if drawn else 0
    return (*rows, *(line for chart in drawn for line in _drawn(chart, width, each)), *_rows(below, width))


def _rows(lines: Sequence[Line], width: int) -> list[Line]:
    return [row for line in lines for row in wrapped(line, width)]


def _left(rows: Sequence[Line], listed: Sequence[Line], width: int, height: int) -> int:
    """How many lines are left below the texts and the list, with the empty line between them."""
    return height - len(rows) - len(_rows(listed, width)) - 1


def _drawn(chart: Chart, width: int, height: int) -> list[Line]:
    counts = _stretched(chart.counts, max(width, _NARROWEST))
    begin, end = chart.ends
    axis = begin.ljust(len(counts) - len(end)) + end
    return [[], chart.title, *([Cell(row, chart.tone)] for row in columns(counts, height)), [Cell(axis, "muted")]]


def _stretched(counts: Sequence[int | None], width: int) -> list[int | None]:
    """The counts in exactly this many columns: repeated where there are fewer, added up where there are more."""
    if len(counts) > width:
        return list(resampled([count or 0 for count in counts], width))
    return [counts[column * len(counts) // width] for column in range(width)]
