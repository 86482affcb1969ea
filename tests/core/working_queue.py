"""A queue whose own workers work whenever anybody sleeps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from plugins.sqlite_queue.engine import AsyncTaskQueue
from tests.faults.world import NOON, FrozenClock, QueueFile, World

Handled = Callable[[str], str | None]


class WorkingClock(FrozenClock):
    """While anybody sleeps, a worker of the queue works: so many tasks a nap, each by `handle`: an error, or None."""

    def __init__(self) -> None:
        super().__init__(NOON)
        self.handle: Handled = lambda _: None
        self.queues: list[AsyncTaskQueue] = []
        self.per_nap = 7
        self.executed: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.tick(timedelta(seconds=seconds))
        for queue in self.queues:
            for _ in range(self.per_nap):
                if (task := queue.claim()) is None:
                    break
                self.tick(timedelta(milliseconds=1))
                self.executed.append(task.id)
                error = self.handle(task.id)
                if error is None:
                    queue.complete(task)
                elif error != "for ever":
                    queue.fail(task, error)


class CanaryWorld(World):
    clock: WorkingClock

    def worker(self, queue: QueueFile) -> None:
        backend = queue.open()
        self._open.append(backend)
        self.clock.queues.append(AsyncTaskQueue(backend.database, backend.policy, self.clock))
