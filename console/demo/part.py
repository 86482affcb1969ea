"""What the world is made of: each part builds one backend's store and says how to attach to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Site:
    """Where and how large a part is built. The same seed and base always give the same rows."""

    folder: Path
    items: int
    seed: int
    base: datetime
    """The world's now: every time in it is relative to this."""
    speed: int
    """How many times shorter the systems' own delays are than their originals."""
    progress: Callable[[str, int, int], None]
    server: str | None = None
    """The URL of a PostgreSQL for the parts that can use one."""

    def url(self, path: Path) -> str:
        return f"sqlite:///{path}"

    def time(self, seconds: float) -> str:
        """An instant so far from the base, as the systems write it."""
        return (self.base + timedelta(seconds=int(seconds))).isoformat()

    def delay(self, seconds: int) -> str:
        """One of a system's own delays, sped up, as config has it."""
        return f"{max(seconds // self.speed, 1)}s"


@dataclass(frozen=True, slots=True)
class Part:
    """A backend of the world: its name, its share of the items, and what builds it.

    `build` returns the backend's section of the config. `most` bounds what is slow to build; the rest goes to the
    parts without a bound.
    """

    name: str
    share: float
    build: Callable[[Site], Mapping[str, Any]]
    most: int | None = None


def sizes(parts: tuple[Part, ...], total: int) -> dict[str, int]:
    """How many items each part gets; together they are `total`."""
    bounded = {part.name: min(round(total * part.share), part.most) for part in parts if part.most is not None}
    free = [part for part in parts if part.most is None]
    left, weight = total - sum(bounded.values()), sum(part.share for part in free)
    given = {part.name: int(left * part.share / weight) for part in free}
    given[free[0].name] += left - sum(given.values())
    return {part.name: (bounded | given)[part.name] for part in parts}
