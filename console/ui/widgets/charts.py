"""Small charts made of block characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = " ▁▂▃▄▅▆▇█"
_ACROSS = " ▏▎▍▌▋▊▉█"


NOTHING = "·"
"""Where nothing was recorded."""


def spark(counts: Sequence[int | None]) -> str:
    """A chart in one line. Every count above zero is visible, and None is a dot."""
    top = max((count for count in counts if count is not None), default=0)
    return "".join(
        NOTHING if count is None else "▁" if not count else BLOCKS[max(2, round(count / top * 7))] for count in counts
    )


def columns(counts: Sequence[int | None], height: int) -> list[str]:
    """A column chart as lines from the top down. Every count above zero is visible, and None is a dot."""
    top = max((count for count in counts if count is not None), default=0)
    eighths = [0 if not count else max(1, round(count / top * height * 8)) for count in counts]
    rows = [[BLOCKS[max(0, min(8, eighth - 8 * level))] for eighth in eighths] for level in reversed(range(height))]
    for row in rows[-1:]:
        row[:] = [NOTHING if count is None else char for count, char in zip(counts, row, strict=True)]
    return ["".join(row) for row in rows]


def bar(share: float, width: int) -> str:
    """A horizontal bar. Every share above zero is visible."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    full, rest = divmod(min(eighths, width * 8), 8)
    return "█" * full + (_ACROSS[rest] if rest else "")


def resampled(counts: Sequence[int], width: int) -> list[int]:
    """The same counts in fewer columns; counts that share a column are added."""
    if width >= len(counts) or width <= 0:
        return list(counts)
    edges = [column * len(counts) // width for column in range(width + 1)]
    return [sum(counts[first:last]) for first, last in pairwise(edges)]
