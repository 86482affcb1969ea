"""How cost grows with the table, as a table and a plot at the end of the report.

Each case is timed at ten times as many rows each, and its exponent is the slope of log(time) over log(rows): what is
flat stays near 0, what is linear near 1. Absolute times are only for comparing with each other.
"""

from __future__ import annotations

import math
import sqlite3
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from rich.console import Group
from rich.table import Table
from rich.text import Text

from benchmarks.bulk import Bench
from benchmarks.console import DOWN, at_failures, config_for, console
from benchmarks.data import async_tasks
from benchmarks.measure import Result, timed
from benchmarks.opening import open_queue
from benchmarks.reading import FAILED, NOW, TERMINAL, request_after, to_come
from benchmarks.terminal import Terminal
from console.core.backend import PageRequest
from console.core.causes import Causes

SMALLEST = 10_000
FLAT, LINEAR = 0.2, 1.15
"""What an exponent may be at most, with room for caches that no longer hold everything."""
BOUNDED = 1.0
"""Linear up to its bound, flat from there on."""
_WIDE, _HIGH = 64, 16
LIMITS: Mapping[str, float] = {
    "first page": FLAT, "next page": FLAT, "page in the middle": FLAT, "last page": FLAT, "key down to repaint": FLAT,
    "bounded count": BOUNDED, "times to come": LINEAR, "causes": LINEAR, "propose a tenth": LINEAR,
    "carry out a tenth": LINEAR, "verify its trail": LINEAR,
}


def cases(quick: bool) -> Iterator[Result]:
    sizes = [SMALLEST * 10**n for n in range(3 if quick else 4)]
    taken: dict[str, list[float]] = {case: [] for case in LIMITS}
    for size in sizes:
        for case, seconds in {**_reading(size), **_repainting(size), **_bulk(size)}.items():
            taken[case].append(seconds)
    for case, times in taken.items():
        points = tuple(zip(sizes, times, strict=True))
        yield Result(f"growth of {case}", times[-1], times[0], exponent(sizes, times), LIMITS[case], 0.0, points=points)


def _median(work: Callable[[], object], turns: int) -> float:
    work()
    return statistics.median(timed(work) for _ in range(turns))


def _reading(rows: int) -> dict[str, float]:
    path = async_tasks(rows)
    backend, raw = open_queue(path), sqlite3.connect(path)
    requests = {
        "first page": PageRequest(FAILED, NOW), "next page": request_after(raw, 100),
        "page in the middle": request_after(raw, None), "last page": PageRequest(FAILED, NOW, backward=True),
    }
    raw.close()
    cases = {case: _median(partial(backend.page, request), 50) for case, request in requests.items()}
    cases["bounded count"] = _median(lambda: backend.counts(TERMINAL, NOW), 20)
    cases["times to come"] = _median(lambda: to_come(backend), 3)
    cases["causes"] = _median(lambda: Causes([backend], FAILED, NOW).collect(), 3)
    backend.close()
    return cases


def _repainting(rows: int) -> dict[str, float]:
    with Terminal(console(config_for(async_tasks(rows)))) as terminal:
        at_failures(terminal)
        for _ in range(terminal.size[0]):  # from here on every key scrolls
            terminal.press(DOWN)
        return {"key down to repaint": statistics.median(terminal.press(DOWN)[0] for _ in range(40))}


def _bulk(rows: int) -> dict[str, float]:
    bench = Bench(async_tasks(rows), "growth")
    plans = []
    proposed = timed(lambda: plans.append(bench.propose()))
    carried = timed(lambda: bench.carry_out(plans[0]))
    verified = timed(bench.trail.verify)
    bench.close()
    bench.path.unlink()
    return {"propose a tenth": proposed, "carry out a tenth": carried, "verify its trail": verified}


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of the line through the points, both axes logarithmic."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(s) for s in seconds]).slope


def report(results: Sequence[Result]) -> Group:
    """What grew how, in figures and as a picture; nothing of results that are no growth."""
    grown = [result for result in results if result.points]
    return Group(_table(grown), Text(_plot(grown))) if grown else Group()


def _table(grown: Sequence[Result]) -> Table:
    table = Table("", "case", *(f"{size:,} rows" for size, _ in grown[0].points), "exponent")
    for letter, result in _lettered(grown):
        times = (f"{seconds * 1000:.2f} ms" for _, seconds in result.points)
        table.add_row(letter, result.case, *times, f"{result.ratio:.2f}")
    return table


def _lettered(grown: Sequence[Result]) -> Iterator[tuple[str, Result]]:
    return zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", grown, strict=False)


def _plot(grown: Sequence[Result]) -> str:
    """Time over rows, both logarithmic; each case by the letter it has in the table."""
    every = [math.log10(seconds) for result in grown for _, seconds in result.points]
    low, high = math.floor(min(every)), math.ceil(max(every))
    sizes = [size for size, _ in grown[0].points]
    grid = [[" "] * (_WIDE + len(grown)) for _ in range(_HIGH)]
    for letter, result in _lettered(grown):
        for n, (_, seconds) in enumerate(result.points):
            row = grid[_HIGH - 1 - round((math.log10(seconds) - low) / max(high - low, 1) * (_HIGH - 1))]
            across = round(n * (_WIDE - 1) / max(len(sizes) - 1, 1))
            row[row.index(" ", across)] = letter  # what takes as long is drawn next to it
    lines = [f"{'10^' + str(high) + ' s':>8} ┐", *("         │" + "".join(row).rstrip() for row in grid)]
    edge = f"{'10^' + str(low) + ' s':>8} └{'─' * _WIDE}"
    return "\n".join([*lines, edge, f"{'':10}{sizes[0]:<{_WIDE - 12},}{sizes[-1]:>12,} rows"])
