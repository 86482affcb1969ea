"""Pace: when the items of a plan are requeued. A pure function of the plan, so that it can be computed again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, assert_never

from console.core.faults import UsageFault
from console.core.text import duration, parse_duration

_WINDOW = "Write it like this: over 30m."
_GOLDEN = 0.6180339887498949
CANARY_GROWTH = 5
"""Each step after a successful canary is this many times as large."""
LONGEST, SLOWEST = timedelta(days=366), 1 / 3600
"""Longer or slower is a typing mistake, and could leave the calendar, which ends with the year 9999."""


class _AtOnce:
    """The default of every pace: all items are due at the start."""

    __slots__ = ()

    def offsets(self, positions: Sequence[int], total: int, seed: str) -> list[timedelta]:  # noqa: ARG002
        """How long after the start the items at these positions of a backend's part are due."""
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
    """Evenly over a window, each item at a pseudo-random moment in its own slot."""

    window: timedelta

    def __str__(self) -> str:
        return f"over {duration(self.window)}"

    def offsets(self, positions: Sequence[int], total: int, seed: str) -> list[timedelta]:
        """The moment within a slot comes from golden-ratio steps that start at a value derived from the plan's hash:
        well spread, and the same every time it is computed for the same plan."""
        window, start, total = self.window, _fraction(seed), max(total, 1)
        return [window * ((n + (start + n * _GOLDEN) % 1.0) / total) for n in positions]


@dataclass(frozen=True, slots=True)
class Rate(_AtOnce):
    """A fixed number per second."""

    per_second: float

    def __str__(self) -> str:
        return f"{self.per_second:g}/s"

    def offsets(self, positions: Sequence[int], total: int, seed: str) -> list[timedelta]:  # noqa: ARG002
        per_second = self.per_second
        return [timedelta(seconds=n / per_second) for n in positions]


@dataclass(frozen=True, slots=True)
class Canary(_AtOnce):
    """A few per backend first. The rest follows in growing steps when those have succeeded."""

    size: int

    def __str__(self) -> str:
        return f"canary {self.size}"

    def steps(self, total: int, first: int | None = None) -> list[int]:
        """The sizes of the steps that make up `total`."""
        sizes, size, left = [], first or self.size, total
        while left > 0:
            sizes.append(min(size, left))
            left -= size
            size *= CANARY_GROWTH
        return sizes


Pace = Now | Over | Rate | Canary

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)/(s|m|h)")
_PER = {"s": 1, "m": 60, "h": 3600}


def parse_pace(text: str) -> Pace:
    """Read `now`, `over 30m`, `10/s` or `canary 20`."""
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
    raise UsageFault(f"Unknown pace {text!r}", fix="Use now, over 30m, 10/s or canary 20.")


def _positive(window: str, text: str) -> timedelta:
    try:
        found = parse_duration(window)
    except ValueError:
        found = timedelta(0)
    if found <= timedelta(0):
        raise UsageFault(f"Unknown pace {text!r}", fix=_WINDOW)
    if found > LONGEST:
        raise UsageFault(f"Pace {text!r} takes more than a year", fix=_WINDOW)
    return found


def _sensible(per_second: float, text: str) -> float:
    if per_second < SLOWEST:
        raise UsageFault(f"Pace {text!r} is slower than one per hour", fix="Write it like this: 10/s.")
    return per_second


@lru_cache(maxsize=8)
def _fraction(seed: str) -> float:
    """A number from 0 to 1, derived from a text."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6]) / (1 << 48)


def packed_pace(pace: Pace) -> list[Any]:
    """The pace with its exact numbers, from which times are computed again; its text is rounded."""
    match pace:
        case Over(window):
            return ["over", window // timedelta(microseconds=1)]
        case Rate(per_second):
            return ["rate", per_second]
        case Canary(size):
            return ["canary", size]
        case Now():
            return ["now", 0]
        case _:
            assert_never(pace)


def unpacked_pace(packed: list[Any]) -> Pace:
    """Read what `packed_pace` made. Raises ValueError for anything else."""
    kind, number = packed
    match kind:
        case "over":
            return Over(timedelta(microseconds=number))
        case "rate":
            return Rate(number)
        case "canary":
            return Canary(number)
        case "now":
            return Now()
        case _:
            raise ValueError(kind)
