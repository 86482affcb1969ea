"""Counts predictions that came true. The summary of a run has a line for each system; docs/measurements.md shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, NamedTuple

import pytest

_PROPERTY = "promises"


class Promises(NamedTuple):
    """What was predicted for the items of a system, and what happened."""

    items: int
    runs: int
    ran: int
    does_not_run: int
    did_not_run: int
    cannot_tell: int

    @property
    def wrong(self) -> int:
        return self.runs - self.ran + self.does_not_run - self.did_not_run


Record = Callable[[str, Mapping[Any, bool | None], Collection[Hashable]], None]
"""Compares whether each item was predicted to run (None: cannot tell) with those that ran; fails if one is wrong."""


@pytest.fixture
def promises(record_property: Callable[[str, object], None]) -> Record:
    def record(system: str, predicted: Mapping[Any, bool | None], ran: Collection[Hashable]) -> None:
        counts = Counter((will, key in ran) for key, will in predicted.items())
        found = Promises(
            len(predicted), counts[True, True] + counts[True, False], counts[True, True],
            counts[False, True] + counts[False, False], counts[False, False], counts[None, True] + counts[None, False],
        )
        record_property(_PROPERTY, [system, *found])
        wrong = [key for key, will in predicted.items() if will is not None and will != (key in ran)]
        assert not wrong, (found, wrong[:5])

    return record


def summary(terminal: Any) -> None:
    """Print one line for each system, over all tests of the run."""
    totals: dict[str, list[int]] = {}
    for report in terminal.stats.get("passed", []) + terminal.stats.get("failed", []):
        for name, value in getattr(report, "user_properties", ()):
            if name == _PROPERTY and report.when == "call":
                system, *counts = value
                totals[system] = [a + b for a, b in zip(totals.get(system, [0] * len(counts)), counts, strict=True)]
    if totals:
        terminal.section("predictions")
        terminal.line("| system | items | runs: predicted, true | does not run: predicted, true | cannot tell | wrong |")
        for system, counts in sorted(totals.items()):
            p = Promises(*counts)
            terminal.line(
                f"| {system} | {p.items} | {p.runs}, {p.ran} | {p.does_not_run}, {p.did_not_run} | {p.cannot_tell} | {p.wrong} |"
            )
