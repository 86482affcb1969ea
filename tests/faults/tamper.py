"""Tampering is found: edits, deletions, swaps and insertions in a trail, and a tail that is cut off.

The naive variant only checks that every number is there, and must miss some edits.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from console.core.override import OverrideState
from console.trail.anchor import AnchorLine, read_anchors
from tests.trail.test_verify import TAMPERINGS, Tampered
from tests.trail.world import START, carried, trail_at


@dataclass
class Tampering:
    """`missed` must be 0."""

    trials: int = 0
    missed: int = 0
    missed_by_naive: int = 0

    @property
    def ok(self) -> bool:
        return not self.missed


def _trail(folder: Path) -> tuple[bytes, list[AnchorLine]]:
    with trail_at(f"sqlite:///{folder}/trail.db", anchor=f"{folder}/anchors") as trail:
        for number in range(4):
            carried(trail, f"op{number}", chunks=4, size=3)
            trail.refuse({"why": "read-only"}, START)
            trail.mark(f"op{number}", OverrideState.FINISHED, "", START)
    return (folder / "trail.db").read_bytes(), list(read_anchors(folder / "anchors"))


def trials(count: int, seed: int) -> Tampering:
    total = Tampering()
    with tempfile.TemporaryDirectory(prefix="retriage-tamper-") as name:
        folder = Path(name)
        content, anchors = _trail(folder)
        for n in range(count):
            copy = Tampered(content, folder / f"{n}.db")
            chance, before = random.Random(seed + n), copy.content()
            if n % 11 == 10:
                last = copy.database.execute("SELECT max(seq) FROM record").fetchone()[0]
                copy.database.execute("DELETE FROM record WHERE seq > ?", (chance.randrange(last),))
            while copy.content() == before:  # two that are swapped may be alike
                TAMPERINGS[n % 11](copy.database, chance)
            total.trials += 1
            seen = [row[0] for row in copy.database.execute("SELECT seq FROM record ORDER BY seq")]
            total.missed_by_naive += seen == list(range(1, len(seen) + 1))
            total.missed += copy.verify(anchors).ok
            (folder / f"{n}.db").unlink()
    return total
