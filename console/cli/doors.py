"""What `__main__` opens for a command: the commands themselves see only `core`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from console.core.desk import Desk


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """An installed plugin, whether or not it can be loaded."""

    name: str
    distribution: str
    version: str
    capabilities: tuple[str, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class WorldOrder:
    """Which sandbox world is wanted; what is None is the world's own choice."""

    folder: str | None
    scale: int | None
    seed: int | None
    reset: bool


class Doors(Protocol):
    """The ways out of a command."""

    def desk(self, config: str | None = None) -> Desk:
        """The desk the config describes; the one named on the command line unless another is given."""

    def plugins(self) -> Sequence[PluginInfo]:
        """Every installed plugin."""

    def world(self, order: WorldOrder, progress: Callable[[str, int, int], None]) -> str:
        """Build or reuse a sandbox world; the path of its config. `progress` gets what, done and total."""

    def open_console(self, desk: Desk) -> int:
        """The console, until it is left."""
