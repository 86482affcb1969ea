"""What `__main__` provides to a command. The commands themselves import only `core` and `actions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from console.core.backend import Backend, Count
from console.core.faults import Fault
from console.core.item import Condition
from console.core.session import Session
from console.core.system_table import SystemRow

if TYPE_CHECKING:
    from console.core.agent import AgentSession

ReportProgress = Callable[[str, int, int], None]
"""Called with what is being built, how much is done and the total."""


class PluginInfo(NamedTuple):
    """An installed plugin, whether or not it can be loaded."""

    name: str
    distribution: str
    version: str
    capabilities: tuple[str, ...]
    systems: tuple[SystemRow, ...] = ()
    """The systems that it attaches, and what can be done to each."""
    problem: str = ""


class DemoOptions(NamedTuple):
    """Which demo to build or reuse. None: whatever an existing demo has, or the default for a new one."""

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
    redis: bool = False
    """Add an RQ queue to a new demo, on a private Redis, where one can be had. It runs until the console is closed."""


class Demo(Protocol):
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


class AttachableQueue(Protocol):
    """A queue that `attach` found."""

    @property
    def name(self) -> str: ...

    @property
    def system(self) -> str: ...

    @property
    def counts(self) -> Mapping[Condition, Count] | None:
        """What needs attention in it; None if that could not be read."""

    @property
    def note(self) -> str: ...

    @property
    def attached_as(self) -> str | None:
        """The name of the backend that has it already."""


class FoundQueues(Protocol):
    """What `attach` found behind a URL."""

    @property
    def queues(self) -> Sequence[AttachableQueue]: ...

    @property
    def faults(self) -> Sequence[Fault]:
        """Why a plugin could not look."""

    @property
    def read_only(self) -> bool:
        """Whether the config that they would be added to says so."""


class CommandContext(Protocol):
    """Everything a command can ask for. Closed when the command ends."""

    def session(self, config: str | None = None) -> Session:
        """The session for this config; by default the one named on the command line."""

    def agent_session(self) -> AgentSession:
        """What an agent's process works with: backends that cannot be written, and a trail that takes proposals."""

    def plugins(self) -> Sequence[PluginInfo]:
        """Every installed plugin."""

    def build_demo(self, options: DemoOptions, progress: ReportProgress) -> Demo:
        """Build or reuse a demo."""

    def start_demo_workers(self, demo: Demo) -> None:
        """Run the demo systems' own workers until the command ends."""

    def propose_mapping(self, place: str, table: str | None) -> MappingProposal:
        """Look at a database, by URL or as a configured backend, and propose how to attach it."""

    def find_queues(self, place: str) -> FoundQueues:
        """The queues behind a URL, in a file or in a folder."""

    def section_of(self, queues: Sequence[AttachableQueue]) -> str:
        """The lines below `backends:` that attach these queues."""

    def config_path(self) -> Path:
        """The config file that is used, or would be."""

    def add_to_config(self, queues: Sequence[AttachableQueue]) -> bool:
        """Add the queues to the config file. False where a person has to do it."""

    def open_console(self, config: str | None = None, *, guided: bool = False) -> int:
        """Run the console; `guided` shows the tour. Returns its exit code."""
