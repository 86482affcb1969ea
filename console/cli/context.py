"""What `__main__` provides to a command. The commands themselves import only `core` and `actions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

from console.core.backend import Backend
from console.core.session import Session

ReportProgress = Callable[[str, int, int], None]
"""Called with what is being built, how much is done and the total."""


class PluginInfo(NamedTuple):
    """An installed plugin, whether or not it can be loaded."""

    name: str
    distribution: str
    version: str
    capabilities: tuple[str, ...]
    problem: str = ""


class DemoOptions(NamedTuple):
    """Which demo to build or reuse. None means: as it is, or the default for a new one."""

    folder: str | None = None
    scale: int | None = None
    seed: int | None = None
    speed: int | None = None
    """How many times shorter the systems' own delays are than in reality."""
    reset: bool = False
    postgres: bool = False
    """Use a real PostgreSQL where a system can. It stops with the demo, so the demo is always rebuilt."""
    read_only: bool = False
    """Build nothing: only a demo that exists can be opened."""


class DemoWorld(Protocol):
    """A demo that is ready to be opened."""

    @property
    def config(self) -> Path: ...

    @property
    def message(self) -> str:
        """What the user should know about it; may be empty."""

    def start_workers(self, stack: ExitStack) -> None:
        """Run the demo systems' own workers until `stack` is closed."""


class MappingProposal(Protocol):
    """What `map` found in a database."""

    @property
    def text(self) -> str:
        """A mapping or a config section, as YAML."""

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def backend(self) -> Backend | None:
        """The backend this text would attach; None where the text has to be corrected first."""


class CommandContext(Protocol):
    """Everything a command can ask for. Closed when the command ends."""

    def session(self, config: str | None = None) -> Session:
        """The session for this config; by default the one named on the command line."""

    def plugins(self) -> Sequence[PluginInfo]:
        """Every installed plugin."""

    def demo_world(self, options: DemoOptions, progress: ReportProgress) -> DemoWorld:
        """Build or reuse a demo."""

    def start_demo_workers(self, world: DemoWorld) -> None:
        """Run the demo systems' own workers until the command ends."""

    def propose_mapping(self, place: str, table: str | None) -> MappingProposal:
        """Look at a database, by URL or as a configured backend, and propose how to attach it."""

    def open_console(self, config: str | None = None, *, guided: bool = False) -> int:
        """Run the console; `guided` shows the tour. Returns its exit code."""
