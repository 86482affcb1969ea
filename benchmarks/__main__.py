"""`python -m benchmarks [--quick] [--only NAME] [--margin X] [--json FILE]`: ratios, bars, pass or fail."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    bulk,
    console,
    demo,
    growth,
    history,
    idle,
    mysql,
    peers,
    postgres,
    reading,
    redis_queues,
    startup,
    texts,
    trail,
    watch,
)
from benchmarks.measure import Result

SETS: dict[str, Callable[[bool], Iterator[Result]]] = {
    "reading": reading.cases, "texts": texts.cases, "bulk": bulk.cases, "trail": trail.cases, "startup": startup.cases,
    "demo": demo.cases, "postgres": postgres.cases, "mysql": mysql.cases, "peers": peers.cases,
    "redis": redis_queues.cases, "console": console.cases, "growth": growth.cases, "history": history.cases,
    "idle": idle.cases, "watch": watch.cases,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, few turns")
    parser.add_argument("--only", action="append", choices=sorted(SETS), help="only this set; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--margin", type=float, default=1.0, metavar="X",
                        help="fail only above so many times the bar, and only if measuring twice again says so too")
    options = parser.parse_args()
    results: list[Result] = []
    for name in options.only or SETS:
        found = _measured(name, options.quick)
        for _ in range(2 if options.margin > 1 else 0):
            if all(result.within(options.margin) for result in found):
                break
            found = [min(pair, key=lambda result: result.ratio)
                     for pair in zip(found, _measured(name, options.quick), strict=True)]
        results += found
    Console().print(_table(results), growth.report(results))
    if options.json:
        options.json.write_text(json.dumps([{**asdict(r), "passed": r.passed} for r in results], indent=2) + "\n")
    return 0 if all(result.within(options.margin) for result in results) else 1


def _measured(name: str, quick: bool) -> list[Result]:
    """The cases of one set, each reported as soon as it is known."""
    found = []
    for result in SETS[name](quick):
        sys.stderr.write(f"{'pass' if result.passed else 'FAIL'}  {_ratio(result, result.ratio):>7}  {result.case}\n")
        found.append(result)
    return found


def _table(results: list[Result]) -> Table:
    table = Table("case", "ours", "reference", "ratio", "bar", "spread", "")
    for r in results:
        table.add_row(r.case, _amount(r.ours, r.unit), _amount(r.reference, r.unit), _ratio(r, r.ratio),
                      f"≤ {_ratio(r, r.bar)}", f"±{r.spread:.2f}", "pass" if r.passed else "FAIL")
    return table


def _ratio(result: Result, value: float) -> str:
    return f"^{value:.2f}" if result.points else f"{value:.2f}×"


def _amount(value: float, unit: str) -> str:
    return f"{value * 1000:.2f} ms" if unit == "s" else f"{value:.1f} {unit}"


if __name__ == "__main__":
    sys.exit(main())
