"""`python -m benchmarks [--quick] [--only NAME] [--json FILE]`: a table of ratios, bars and pass or fail."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import book, bulk, console, demo, peers, postgres, reading, startup
from benchmarks.measure import Result

SETS: dict[str, Callable[[bool], Iterator[Result]]] = {
    "reading": reading.cases, "bulk": bulk.cases, "trail": book.cases, "startup": startup.cases,
    "demo": demo.cases, "postgres": postgres.cases, "peers": peers.cases,
    "console": console.cases,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, few turns")
    parser.add_argument("--only", action="append", choices=sorted(SETS), help="only this set; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    options = parser.parse_args()
    results = [result for name in options.only or SETS for result in SETS[name](options.quick)]
    Console().print(_table(results))
    if options.json:
        options.json.write_text(json.dumps([{**asdict(r), "passed": r.passed} for r in results], indent=2) + "\n")
    return 0 if all(result.passed for result in results) else 1


def _table(results: list[Result]) -> Table:
    table = Table("case", "ours", "reference", "ratio", "bar", "spread", "")
    for r in results:
        table.add_row(r.case, _amount(r.ours, r.unit), _amount(r.reference, r.unit), f"{r.ratio:.2f}×",
                      f"≤ {r.bar:g}×", f"±{r.spread:.2f}", "pass" if r.passed else "FAIL")
    return table


def _amount(value: float, unit: str) -> str:
    return f"{value * 1000:.2f} ms" if unit == "s" else f"{value:.1f} {unit}"


if __name__ == "__main__":
    sys.exit(main())
