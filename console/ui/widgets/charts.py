"""Small charts made of block characters."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"
_ACROSS = " ▏▎▍▌▋▊▉█"


def spark(counts: Sequence[int]) -> str:
    """A chart in one line. Every count above zero is visible."""
    top = max(counts, default=0)
    if not top:
        return "▁" * len(counts)
    return "".join("▁" if not count else BLOCKS[max(2, round(count / top * 7))] for count in counts)


def columns(counts: Sequence[int], height: int) -> list[str]:
    """A column chart as lines from the top down. Every count above zero is visible."""
    top = max(counts, default=0)
    eighths = [0 if not count else max(1, round(count / top * height * 8)) for count in counts]
    return [
        "".join(BLOCKS[max(0, min(8, eighth - 8 * level))] for eighth in eighths) for level in reversed(range(height))
    ]


def bar(share: float, width: int) -> str:
    """A horizontal bar. Every share above zero is visible."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    full, rest = divmod(min(eighths, width * 8), 8)
    return "█" * full + (_ACROSS[rest] if rest else "")
