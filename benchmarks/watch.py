"""What following an override takes: the share of the watched system's time, and memory for ten times as many items."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Result, from_pairs

_SHARE = 0.01
"""The share of a system's time that reading may take when nobody asks."""


def cases(quick: bool) -> Iterator[Result]:
    small, large = (1_000, 10_000) if quick else (10_000, 100_000)
    few, many = (_watched(items) for items in (small, large))
    took, allowed = many["took"] * 60 / many["elapsed"], 60 * _SHARE
    yield from_pairs(f"watch {large} items, of the system's time a minute", 1.0, [(took, allowed)])
    yield from_pairs(f"watch memory, {large} items against {small}", 1.1, [(many["peak"], few["peak"])], unit="MB")


def _watched(items: int) -> dict[str, float]:
    """Each step in a process of its own, so that its memory is that of the watch alone."""
    program = [sys.executable, "-m", "benchmarks.programs.watching"]
    with TemporaryDirectory() as folder:
        subprocess.run([*program, "prepare", folder, str(items)], check=True, cwd=Path.cwd())
        done = subprocess.run([*program, "watch", folder], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found
