"""One of several worker processes on one file: reclaims once, then claims until nothing is left to do.

Prints every claim it won as JSON. An execution fails while the counter is below three, and then succeeds.
"""

from __future__ import annotations

import json
import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from console.core.policy import FixedDelays, PolicyOverride
from plugins.sqlite_queue.engine import AsyncTaskQueue, ContractQueue
from tests.plugins.sqlite_queue.queue_files import open_queue

EXECUTIONS = 3


class WallClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def main(path: str, dialect: str, go: str) -> None:
    at_once = PolicyOverride(max_attempts=EXECUTIONS + 1, backoff=FixedDelays((timedelta(0),)))
    backend = open_queue(Path(path), "tasks" if dialect == "tasks" else "async_tasks", policy=at_once)
    queue: AsyncTaskQueue | ContractQueue
    if dialect == "tasks":
        queue = ContractQueue(backend.database, backend.policy, WallClock(), random.Random())
        open_tasks = "SELECT count(*) FROM tasks WHERE status IN ('PENDING', 'RUNNING')"
    else:
        queue = AsyncTaskQueue(backend.database, backend.policy, WallClock())
        open_tasks = "SELECT count(*) FROM async_tasks WHERE status IN ('PENDING', 'RUNNING')"
    while not Path(go).exists():
        time.sleep(0.002)
    reclaimed = queue.reclaim()
    won = []
    while True:
        task = queue.claim()
        if task is None:
            if backend.database.fetch(open_tasks, ()) == [(0,)]:
                break
            continue
        won.append((task.id, task.attempts))
        settled = queue.complete(task) if task.attempts >= EXECUTIONS else queue.fail(task, "ERR: again")
        assert settled, "whoever claimed a task settles it"
    sys.stdout.write(json.dumps({"reclaimed": reclaimed, "won": won}))


if __name__ == "__main__":
    main(*sys.argv[1:])
