"""Release: when the items of a plan may run. A pure function of the plan, so that it can be computed again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

from console.core.faults import UsageFault
from console.core.text import duration, parse_duration

_WINDOW = "Write the window as in over 30m."
_GOLDEN = 0.6180339887498949
CANARY_GROWTH = 5
"""Each step after a good canary is this many times as large."""
LONGEST, SLOWEST = timedelta(days=366), 1 / 3600
"""Beyond these a due time is a slip of the finger, or no time at all: the calendar ends with the year 9999."""


class _AtOnce:
    """What all releases say of positions within a backend's share: how long after its start they are due."""

    __slots__ = ()

    def offsets(self, positions: Sequence[int], total: int, seed: str) -> list[timedelta]:  # noqa: ARG002
        return [timedelta(0)] * len(positions)

    def offset(self, position: int, total: int, seed: str) -> timedelta:
        return self.offsets((position,), total, seed)[0]


@dataclass(frozen=True, slots=True)
class Now(_AtOnce):
    """All at once."""

    def __str__(self) -> str:
        return "now"


@dataclass(frozen=True, slots=True)
class Over(_AtOnce):
    """Evenly over a window, each item somewhere within its own share of it."""

    window: timedelta

    def __str__(self) -> str:
        return f"over {duration(self.window)}"

    def offsets(self, positions: Sequence[int], total: int, seed: str) -> list[timedelta]:
        """Steps of the golden ratio never come together, and where they begin is the plan's own: the same plan
        always gives the same position the same place in its share."""
        window, beginning, total = self.window, _beginning(seed), max(total, 1)
        return [window * ((n + (beginning + n * _GOLDEN) % 1.0) / total) for n in positions]


@dataclass(frozen=True, slots=True)
class Rate(_AtOnce):
    """So many per second."""

    per_second: float

    def __str__(self) -> str:
        return f"{self.per_second:g}/s"

    def offsets(self, positions: Sequence[int], total: int, seed: str) -> list[timedelta]:  # noqa: ARG002
        per_second = self.per_second
        return [timedelta(seconds=n / per_second) for n in positions]


@dataclass(frozen=True, slots=True)
class Canary(_AtOnce):
    """A few per backend first; the rest in growing steps once those are seen to succeed."""

    size: int

    def __str__(self) -> str:
        return f"canary {self.size}"

    def steps(self, total: int, first: int | None = None) -> list[int]:
        """The sizes of the steps that make up `total`, the first of them as large as is given."""
        sizes, size, left = [], first or self.size, total
        while left > 0:
            sizes.append(min(size, left))
            left -= size
            size *= CANARY_GROWTH
        return sizes


Release = Now | Over | Rate | Canary

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)/(s|m|h)")
_PER = {"s": 1, "m": 60, "h": 3600}


def parse_release(text: str) -> Release:
    """`now`, `over 30m`, `10/s`, `canary 20`."""
    words = text.split()
    match words:
        case ["now"]:
            return Now()
        case ["over", window]:
            return Over(_positive(window, text))
        case ["canary", size] if size.isascii() and size.isdigit() and 0 < int(size) <= 1_000_000:
            return Canary(int(size))
        case [rate] if (found := _RATE.fullmatch(rate)) and float(found[1]) > 0:
            return Rate(_sensible(float(found[1]) / _PER[found[2]], text))
    raise UsageFault(f"{text!r} is not a release", fix="Use now, over 30m, 10/s or canary 20.")


def _positive(window: str, text: str) -> timedelta:
    try:
        found = parse_duration(window)
    except ValueError:
        found = timedelta(0)
    if found <= timedelta(0):
        raise UsageFault(f"{text!r} is not a release", fix=_WINDOW)
    if found > LONGEST:
        raise UsageFault(f"{text!r} is not a release: it would take over a year", fix=_WINDOW)
    return found


def _sensible(per_second: float, text: str) -> float:
    if per_second < SLOWEST:
        raise UsageFault(f"{text!r} is not a release: it is slower than one an hour", fix="Write the rate as in 10/s.")
    return per_second


@lru_cache(maxsize=8)
def _beginning(seed: str) -> float:
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6]) / (1 << 48)
