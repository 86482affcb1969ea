"""What `__main__` opens for a command: the commands themselves see only `core`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

from console.core.backend import Backend
from console.core.desk import Desk


class PluginInfo(NamedTuple):
    """An installed plugin, whether or not it can be loaded."""

    name: str
    distribution: str
    version: str
    capabilities: tuple[str, ...]
    problem: str = ""


class WorldOrder(NamedTuple):
    """Which sandbox world is wanted; what is None is the world's own choice."""

    folder: str | None = None
    scale: int | None = None
    seed: int | None = None
    speed: int | None = None
    reset: bool = False
    postgres: bool = False


class World(Protocol):
    """A sandbox world that was built."""

    @property
    def config(self) -> Path: ...

    @property
    def told(self) -> str:
        """What whoever opens it should know."""

    def live(self, keep: ExitStack) -> None:
        """Let its own systems work until `keep` is closed."""


class Sketch(Protocol):
    """What a look at somebody's database gave."""

    @property
    def text(self) -> str:
        """A mapping or a section for the config, to keep."""

    @property
    def told(self) -> tuple[str, ...]: ...

    @property
    def backend(self) -> Backend | None:
        """What the text would attach; None where it needs correcting first."""


class Doors(Protocol):
    """The ways out of a command."""

    def desk(self, config: str | None = None) -> Desk:
        """The desk the config describes; the one named on the command line unless another is given."""

    def plugins(self) -> Sequence[PluginInfo]:
        """Every installed plugin."""

    def world(self, order: WorldOrder, progress: Callable[[str, int, int], None]) -> World:
        """Build or reuse a sandbox world; ours until the end. `progress` gets what, done and total."""

    def live(self, world: World) -> None:
        """Let the world's own systems work until the end."""

    def sketch(self, place: str, table: str | None) -> Sketch:
        """Look at a database, by its URL or as a configured backend, and propose how to attach it."""

    def open_console(self, config: str | None = None, *, guided: bool = False) -> int:
        """The console, until it is left; `guided` shows the tour."""
