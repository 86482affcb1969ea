"""What the world is made of: each part builds one backend's store and says how to attach to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
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
    progress: Callable[[str, int, int], None]

    def url(self, path: Path) -> str:
        return f"sqlite:///{path}"


@dataclass(frozen=True, slots=True)
class Part:
    """A backend of the world: its name, its share of the items, and what builds it.

    `build` returns the backend's section of the config.
    """

    name: str
    share: float
    build: Callable[[Site], Mapping[str, Any]]
