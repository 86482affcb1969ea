"""The systems of the demo: each builds its own store and returns the config section for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from console.demo.folder import DemoFolder


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Where a system is built and how large. The same seed and base always give the same rows."""

    folder: DemoFolder
    items: int
    seed: int
    base: datetime
    """The demo's present: every time in it is relative to this."""
    speed: int
    """How many times shorter the systems' own delays are than in reality."""
    progress: Callable[[str, int, int], None]
    server: str | None = None
    """The URL of a PostgreSQL server, for the systems that can use one."""
    redis: str | None = None
    """The URL of a Redis server, for the system that needs one."""

    def new_database(self, name: str) -> str:
        """Create an empty SQLite file and return its URL."""
        return f"sqlite:///{self.folder.file(name)}"

    def time(self, seconds: float) -> str:
        """The time this many seconds from the base, as the systems store it."""
        return (self.base + timedelta(seconds=int(seconds))).isoformat()

    def delay(self, seconds: int) -> str:
        """One of a system's own delays, shortened by the speed, as a config value."""
        return f"{max(seconds // self.speed, 1)}s"


@dataclass(frozen=True, slots=True)
class DemoSystem:
    """A system of the demo: its name, its share of the items, and the function that builds it.

    `build` returns the backend's section of the config. `most` limits the systems that are slow to build; what is
    left goes to the systems without a limit.
    """

    name: str
    share: float
    build: Callable[[BuildContext], Mapping[str, Any]]
    most: int | None = None


def sizes(systems: tuple[DemoSystem, ...], total: int) -> dict[str, int]:
    """How many items each system gets; together they are `total`."""
    bounded = {one.name: min(round(total * one.share), one.most) for one in systems if one.most is not None}
    free = [system for system in systems if system.most is None]
    left, weight = total - sum(bounded.values()), sum(system.share for system in free)
    given = {system.name: int(left * system.share / weight) for system in free}
    given[free[0].name] += left - sum(given.values())
    return {system.name: (bounded | given)[system.name] for system in systems}
