"""How cost grows with the table: `python -m benchmarks.growth [--most ROWS]`, as a table and a plot.

Each case is timed at ten times as many rows each, and its exponent is the slope of log(time) over log(rows): what is
flat stays near 0, what is linear near 1. Absolute times are only for comparing with each other.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.bulk import Bench
from benchmarks.data import async_tasks
from benchmarks.measure import timed
from benchmarks.opening import open_queue
from benchmarks.reading import FAILED, NOW
from console.core.backend import PageRequest
from console.core.groups import Groups
from console.core.query import Filter

SMALLEST = 10_000
FLAT, LINEAR = 0.2, 1.15
"""What an exponent may be at most, with room for caches that no longer hold everything."""
_WIDE, _HIGH = 64, 16


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, metavar="ROWS", help="the largest table")
    most = parser.parse_args().most
    sizes = [SMALLEST * 10**n for n in range(8) if SMALLEST * 10**n <= most]
    taken: dict[str, list[float]] = {}
    for size in sizes:
        for case, seconds in {**_reading(size), **_bulk(size)}.items():
            taken.setdefault(case, []).append(seconds)
    out = Console()
    out.print(_table(sizes, taken))
    out.print(_plot(sizes, taken), soft_wrap=True)


def _median(work: Callable[[], object], turns: int) -> float:
    work()
    return statistics.median(timed(work) for _ in range(turns))


def _reading(rows: int) -> dict[str, float]:
    backend = open_queue(async_tasks(rows))
    terminal = Filter.parse("condition:terminal")
    cases = {
        "first page": _median(lambda: backend.page(PageRequest(FAILED, NOW)), 50),
        "last page": _median(lambda: backend.page(PageRequest(FAILED, NOW, backward=True)), 50),
        "bounded count": _median(lambda: backend.counts(terminal, NOW), 20),
        "groups": _median(lambda: Groups([backend], FAILED, NOW).collect(), 1),
    }
    backend.close()
    return cases


def _bulk(rows: int) -> dict[str, float]:
    bench = Bench(async_tasks(rows), "growth")
    plans = []
    proposed = timed(lambda: plans.append(bench.propose()))
    carried = timed(lambda: bench.carry_out(plans[0]))
    bench.close()
    return {"propose a tenth": proposed, "carry out a tenth": carried}


LIMITS: Mapping[str, float] = {
    "first page": FLAT, "last page": FLAT, "bounded count": 1.0, "groups": LINEAR,
    "propose a tenth": LINEAR, "carry out a tenth": LINEAR,
}


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of the line through the points, both axes logarithmic."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(s) for s in seconds]).slope


def _table(sizes: Sequence[int], taken: Mapping[str, Sequence[float]]) -> Table:
    table = Table("case", *(f"{size:,} rows" for size in sizes), "exponent", "at most", "")
    for case, seconds in taken.items():
        slope = exponent(sizes, seconds) if len(sizes) > 1 else 0.0
        shown = [f"{s * 1000:.2f} ms" for s in seconds]
        table.add_row(case, *shown, f"{slope:.2f}", f"{LIMITS[case]:g}", "pass" if slope <= LIMITS[case] else "FAIL")
    return table


def _plot(sizes: Sequence[int], taken: Mapping[str, Sequence[float]]) -> str:
    """Time over rows, both logarithmic; each case by a letter of its own."""
    every = [math.log10(s) for seconds in taken.values() for s in seconds]
    low, high = math.floor(min(every)), math.ceil(max(every))
    grid = [[" "] * _WIDE for _ in range(_HIGH)]
    for letter, seconds in zip("ABCDEFGH", taken.values(), strict=False):
        for n, s in enumerate(seconds):
            across = round(n * (_WIDE - 1) / max(len(sizes) - 1, 1))
            up = round((math.log10(s) - low) / max(high - low, 1) * (_HIGH - 1))
            grid[_HIGH - 1 - up][across] = letter
    lines = [f"{'10^' + str(high) + ' s':>8} ┐", *("         │" + "".join(row) for row in grid)]
    legend = "   ".join(f"{letter} {case}" for letter, case in zip("ABCDEFGH", taken, strict=False))
    edge = f"{'10^' + str(low) + ' s':>8} └{'─' * _WIDE}"
    return "\n".join([*lines, edge, f"{'':10}{sizes[0]:<{_WIDE - 12},}{sizes[-1]:>12,} rows", legend])


if __name__ == "__main__":
    main()
