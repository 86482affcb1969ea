"""Charts as SVG inside the HTML: no script, no font, no address. The caller's `text` escapes texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from console.core.backend import Histogram
from console.core.history import Trend
from console.report.document import Event

Escape = Callable[[str], str]

_WIDTH, _HEIGHT = 760, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 34, 24
_MOST_LABELS = 8
_LABEL = 26


def spark(trend: Trend) -> str:
    """A trend of the size of a word."""
    width, height = 110, 22
    most = max(trend.known, default=0) or 1
    step = width / max(len(trend.values), 1)
    points = [(number * step + step / 2, None if value is None else height - 2 - value / most * (height - 4))
              for number, value in enumerate(trend.values)]
    lines = "".join(_line(run, height - 1, "spark") for run in _runs(points))
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="trend">{lines}</svg>'
    )


def trend_chart(title: str, trend: Trend, events: Sequence[Event], text: Escape) -> str:
    """A trend with its axes. A gap stays empty. Events are vertical lines."""
    most = _ceiling(max(trend.known, default=0))
    count = max(len(trend.values), 1)

    def x(at: datetime) -> float:
        return _LEFT + (at - trend.start) / (trend.width * count) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / most * (_HEIGHT - _TOP - _BOTTOM)

    points = [(x(trend.start + trend.width * (number + 0.5)), None if value is None else y(value))
              for number, value in enumerate(trend.values)]
    parts = [*_grid(most, y), *_hours(trend.start, trend.end, x)]
    parts += [_line(run, y(0), "area") for run in _runs(points)]
    shown = [event for event in events if trend.start <= event.at <= trend.end]
    for number, event in enumerate(shown):
        at = x(event.at)
        parts.append(f'<line class="event" x1="{at:.1f}" y1="{_TOP - 6}" x2="{at:.1f}" y2="{_HEIGHT - _BOTTOM}"/>')
        if number < _MOST_LABELS:
            room = _LABEL if len(shown) > 2 else 2 * _LABEL  # labels are on two lines
            label = event.label if len(event.label) <= room else event.label[: room - 1] + "…"
            left, anchor = (at - 3, "end") if at > _WIDTH * 0.55 else (at + 3, "start")
            place = f'x="{left:.1f}" y="{10 + number % 2 * 12}" text-anchor="{anchor}"'
            parts.append(f'<text class="label" {place}>{text(label)}</text>')
    return _chart(title, parts, text)


def bar_chart(title: str, histogram: Histogram, text: Escape) -> str:
    """Counts per step, as bars."""
    most = _ceiling(max(histogram.counts, default=0))
    count = max(len(histogram.counts), 1)
    end = histogram.start + histogram.width * count
    step = (_WIDTH - _LEFT - _RIGHT) / count

    def x(at: datetime) -> float:
        return _LEFT + (at - histogram.start) / (histogram.width * count) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / most * (_HEIGHT - _TOP - _BOTTOM)

    parts = [*_grid(most, y), *_hours(histogram.start, end, x)]
    for number, value in enumerate(histogram.counts):
        if value:
            left, top = _LEFT + number * step + 1, y(value)
            parts.append(
                f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{max(step - 2, 1):.1f}"'
                f' height="{y(0) - top:.1f}"/>'
            )
    return _chart(title, parts, text)


def _chart(title: str, parts: Sequence[str], text: Escape) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(title)}">'
        f'{"".join(parts)}</svg>'
    )


def _runs(points: Sequence[tuple[float, float | None]]) -> Iterator[list[tuple[float, float]]]:
    """The points between two gaps."""
    run: list[tuple[float, float]] = []
    for x, y in points:
        if y is not None:
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _line(run: Sequence[tuple[float, float]], base: float, kind: str) -> str:
    """A line with the area below it. A single point is a dot."""
    if len(run) == 1:
        return f'<circle class="{kind}-line" cx="{run[0][0]:.1f}" cy="{run[0][1]:.1f}" r="1.5"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
    area = f"{run[0][0]:.1f},{base:.1f} {path} {run[-1][0]:.1f},{base:.1f}"
    return f'<polygon class="{kind}-fill" points="{area}"/><polyline class="{kind}-line" points="{path}"/>'


def _ceiling(most: int) -> int:
    """A round number that is not below the highest value."""
    size = 1
    while size < most:
        for factor in (1, 2, 4, 6, 8):
            if factor * size >= most:
                return factor * size
        size *= 10
    return max(size, 1)


def _grid(most: int, y: Callable[[float], float]) -> Iterator[str]:
    for value in sorted({0, most // 2, most}):
        at = y(value)
        yield f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}"/>'
        yield f'<text class="axis" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value}</text>'


def _hours(start: datetime, end: datetime, x: Callable[[datetime], float]) -> Iterator[str]:
    """A few round times on the axis."""
    span = end - start
    steps = [timedelta(minutes=m) for m in (5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080)]
    step = next((step for step in steps if span / step <= 10), steps[-1])
    first = datetime.fromtimestamp((start.timestamp() // step.total_seconds() + 1) * step.total_seconds(), start.tzinfo)
    while first < end:
        label = f"{first:%m-%d}" if step >= timedelta(days=1) else f"{first:%H:%M}"
        yield f'<text class="axis" x="{x(first):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{label}</text>'
        first += step
