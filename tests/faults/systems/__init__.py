"""The systems faults are tried on: each with its own store, its own workers, and an oracle that is not ours.

A system lives in a folder; `of(folder)` finds it again from any process. Items are named by their key without the
backend. The oracle is the store itself (triggers in the database, a watcher of the folder): whatever changes an item,
whoever does it, is noted there, and nothing of the console is asked about it.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from console.core.backend import Attempts, Operation, Requeues, RunsEngine
from console.core.ports import Clock, Stop
from plugins.workflow_steps.prediction import WAKE_TASK

KINDS = {
    "sqlite_queue": "sqlite_queues:AnalysisQueue",
    "sqlite_queue-tasks": "sqlite_queues:ContractQueue",
    "file_queue": "files:FileTasks",
    "partition_store": "partitions:Partitions",
    "postgres_analyses": "analyses:Analyses",
    "workflow_steps": "steps:Steps",
    "sql_table": "mapped:River",
    "sql_table-statements": "mapped:SolidQueue",
}
ON_POSTGRES = ("postgres_analyses", "workflow_steps", "sql_table", "sql_table-statements")
FAILED = "condition:failed,terminal"
KEEP = Operation()
RESET = Operation(attempts=Attempts.RESET)
WAKING = Operation(attempts=Attempts.RESET, flags=frozenset({WAKE_TASK}))


class System(ABC):
    """One attached system with failed items in it."""

    name = "queue"
    """What the backend is called."""
    operation = KEEP
    """How its failed items are requeued."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def create(self, items: int) -> list[str]:
        """Make the store with so many failed items in it; the oracle knows nothing yet."""

    @abstractmethod
    def open(self, deadline: timedelta = timedelta(seconds=30)) -> Requeues: ...

    @abstractmethod
    def present(self) -> set[str]:
        """Every item that is there, whole."""

    @abstractmethod
    def requeued(self) -> Counter[str]:
        """How often each item was requeued, which only an operator does."""

    @abstractmethod
    def touched(self) -> set[str]:
        """Every item that is not as it was when the oracle was last reset."""

    @abstractmethod
    def forget(self) -> None:
        """What the test itself did is not what is asked."""

    @abstractmethod
    def taken(self) -> bool:
        """Whether a worker has begun anything."""

    @abstractmethod
    def mutate(self, ids: list[str], chance: random.Random) -> None:
        """Whatever their system, or anyone, may do to items: each is another than before."""

    @abstractmethod
    def naive(self, chunk: int = 100) -> bool:
        """What a script would do: requeue what is failed now, and note it afterwards. False: nothing was."""

    @abstractmethod
    def notes(self) -> Counter[str]:
        """What the script has noted."""

    def work(self, handler: Callable[..., object], clock: Clock, stop: Stop) -> None:
        """The system's own worker, until stopped."""
        backend = self.open()
        assert isinstance(backend, RunsEngine)
        backend.run(handler, clock, stop, lambda _: None)

    def drop(self) -> None:  # noqa: B027  most have nothing
        """Leave nothing running or stored outside of the folder."""


@runtime_checkable
class Raw(Protocol):
    """A system with data that nobody may touch."""

    def raw_hash(self) -> str: ...


def create(kind: str, folder: Path, items: int) -> tuple[System, list[str]]:
    (folder / "state").mkdir(exist_ok=True)
    (folder / "system").write_text(kind)
    system = of(folder)
    return system, system.create(items)


def of(folder: Path) -> System:
    module, _, name = KINDS[(folder / "system").read_text()].partition(":")
    found: type[System] = getattr(import_module(f"tests.faults.systems.{module}"), name)
    return found(folder)
