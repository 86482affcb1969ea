"""Speed does not slip away unnoticed: ratios of small runs, with a margin that no busy machine uses up."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.growth import exponent, report
from benchmarks.measure import Result, from_pairs
from tests.depth import campaign

ROOT = Path(__file__).parent.parent.parent
MARGIN = "3"


@campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["reading", "texts", "bulk", "trail"])
def test_no_case_is_far_above_its_bar(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "RETRIAGE_BENCHMARKS": str(tmp_path)}
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", name, "--margin", MARGIN]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_ratio_is_the_median_of_neighbours() -> None:
    """A machine that is busy for a while is busy for both."""
    result = from_pairs("case", 2.0, [(1.5, 1.0), (15.0, 10.0), (9.0, 1.0)])
    assert (result.ratio, result.passed) == (1.5, True)


def test_a_case_above_its_bar_fails_and_one_within_the_margin_does_not() -> None:
    slow = Result("case", 5.0, 1.0, 5.0, 2.0, 0.0)
    assert (slow.passed, slow.within(3), slow.within(2)) == (False, True, False)


def test_the_exponent_tells_flat_from_linear() -> None:
    sizes = [10, 100, 1_000]
    assert exponent(sizes, [3.0, 3.0, 3.0]) == pytest.approx(0)
    assert exponent(sizes, [1.0, 10.0, 100.0]) == pytest.approx(1)


def test_growth_is_shown_in_figures_and_as_a_picture() -> None:
    flat, linear, other = (
        Result(f"growth of {name}", 1.0, 1.0, 0.0, 0.2, 0.0, points=((10, first), (100, last)))
        for name, first, last in (("paging", 0.1, 0.1), ("bulk", 0.1, 1.0), ("counting", 0.1, 0.1))
    )
    out = Console(width=100, file=io.StringIO())
    with out.capture() as captured:
        out.print(report([Result("case", 5.0, 1.0, 5.0, 2.0, 0.0), flat, linear, other]))
    shown = captured.get()
    assert "growth of paging" in shown
    assert "1000.00 ms" in shown
    assert "│ABC" in shown  # what takes as long stands side by side
    assert shown.index("│" + " " * 63 + "B") < shown.index("│ABC")
