"""The systems faults are tried on: each with its own store, its own workers, and an oracle that is not ours.

A system lives in a folder; `of(folder)` finds it again from any process. Items are named by their key without the
backend. The oracle is the store itself (triggers in the database, a watcher of the folder): whatever changes an item,
whoever does it, is noted there, and nothing of the console is asked about it.
"""

from __future__ import annotations

import random
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from console.core.backend import Attempts, Operation, Requeues, RunsEngine
from console.core.ports import Clock, Stop
from plugins.workflow_steps.prediction import WAKE_TASK
from tests import mariadb
from tests.redis_store import server_program

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
if mariadb.may_run():  # else the tests of mapped tables say in the summary that there is no MariaDB
    KINDS |= {"sql_table-mysql": "mysql:DelayedJobs"}
DISCARDS = {
    "sqlite_queue discard": "discards:DiscardedAnalyses",
    "sqlite_queue-tasks discard": "discards:DiscardedTasks",
    "file_queue discard": "discards:DiscardedFiles",
    "partition_store discard": "discards:DiscardedPartitions",
    "postgres_analyses discard": "discards:SkippedAnalyses",
    "workflow_steps discard": "discards:ResolvedSteps",
    "sql_table discard": "discards:CancelledJobs",
    "sql_table-statements discard": "discards:DeletedFailures",
    "sql_table-delete discard": "discards:DeletedJobs",
}
"""The same systems, with items that are discarded instead of requeued."""
if server_program() is not None:  # else the tests of those plugins say in the summary that there is no Redis
    KINDS |= {"rq": "redis_queues:Rq", "sidekiq": "redis_queues:Sidekiq"}
    DISCARDS |= {"rq discard": "redis_discards:CancelledJobs", "sidekiq discard": "redis_discards:KilledJobs"}
    if shutil.which("node") and shutil.which("npm"):
        KINDS |= {"bullmq": "redis_queues:BullMq"}
        DISCARDS |= {"bullmq discard": "redis_discards:RemovedJobs"}
ON_SERVERS = ("postgres_analyses", "workflow_steps", "sql_table", "sql_table-statements", *(kind for kind in KINDS if kind == "sql_table-mysql"))
"""Those whose server can end the console's connections."""
FAILED = "condition:failed,terminal"
KEEP = Operation()
RESET = Operation(attempts=Attempts.RESET)
WAKING = Operation(attempts=Attempts.RESET, flags=frozenset({WAKE_TASK}))


class System(ABC):
    """One attached system with failed items in it."""

    name = "queue"
    """What the backend is called."""
    operation = KEEP
    """What is done to its items."""
    wanted = FAILED
    """Which of them."""
    others_lock_rows = False
    """Whether others lock rows that they do not change, so that some may be left out, and recorded so."""

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
        """How often each item was requeued (or discarded), which only an operator does."""

    def taken_first(self) -> set[str]:
        """The items that a worker took before the console came to them, if that is possible."""
        return set()

    def snapshot(self) -> dict[str, Any] | None:
        """Everything that is stored of each item, where an undo has to restore it exactly."""
        return None

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

    def delete(self, ids: list[str]) -> None:
        """Somebody else deletes items."""
        raise NotImplementedError

    def take_back(self, ids: list[str]) -> None:
        """Somebody else ends items that wait, without an execution."""
        raise NotImplementedError

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
        try:
            backend.run(handler, clock, stop, lambda _: None)
        finally:
            backend.close()

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
    module, _, name = {**KINDS, **DISCARDS}[(folder / "system").read_text()].partition(":")
    found: type[System] = getattr(import_module(f"tests.faults.systems.{module}"), name)
    return found(folder)
