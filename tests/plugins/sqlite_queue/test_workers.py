"""Workers: eight processes on one file, and the loop that runs a handler."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import PageRequest
from console.core.item import Condition
from console.testing import ALL, FrozenClock, StopFlag
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL, TASKS_DDL
from tests.depth import in_depth
from tests.plugins.sqlite_queue import queue_files as files
from tests.plugins.sqlite_queue.claimers import EXECUTIONS

ROOT = Path(__file__).parents[3]
PROCESSES, TASKS, STUCK = 8, 40, 10
TAKEN = "ANALYZE_EXECUTED"
"""The type of tasks that the workers take."""


def fill(path: Path, dialect: files.Dialect) -> None:
    now = datetime.now(UTC)
    past, long_ago = (now - timedelta(minutes=1)).isoformat(), (now - timedelta(hours=1)).isoformat()
    if dialect == "tasks":
        rows = [
            {"id": f"t{n}", "status": "PENDING", "attempts": 0, "max_retries": 9, "created_at": past, "schedule": "{}"}
            for n in range(TASKS)
        ]
        files.insert(path, "tasks", rows)
        return
    files.insert(path, "async_tasks", [
        {"task_id": f"t{n}", "task_type": TAKEN, "status": "PENDING", "attempts": 0, "next_run_at": past, "updated_at": past}
        for n in range(TASKS - STUCK)
    ])
    files.insert(path, "async_tasks", [
        {"task_id": f"s{n}", "task_type": TAKEN, "status": "RUNNING", "attempts": 1, "next_run_at": past, "updated_at": long_ago}
        for n in range(STUCK)
    ])


@pytest.mark.parametrize(("dialect", "wal"), in_depth([("async_tasks", False), ("tasks", True)], quick=[("tasks", True)]))
def test_eight_processes_on_one_file(tmp_path: Path, dialect: files.Dialect, wal: bool) -> None:
    """One winner per claim, no lost update, exact counters; nobody, reader or worker, sees a lock error."""
    path = files.create(tmp_path / "queue.db", TASKS_DDL if dialect == "tasks" else ASYNC_TASKS_DDL, wal=wal)
    fill(path, dialect)
    go = tmp_path / "go"
    command = [sys.executable, "-m", "tests.plugins.sqlite_queue.claimers", str(path), dialect, str(go)]
    workers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    console = files.open_queue(path, dialect)
    go.touch()
    while any(worker.poll() is None for worker in workers):
        page = console.page(PageRequest(ALL, console.now(), limit=1000))
        assert len(page.items) == TASKS
        assert sum(count.value for count in console.counts(ALL, console.now()).values()) == TASKS
    answered = [worker.communicate() for worker in workers]
    assert [err for _, err in answered if err] == []
    answers = [json.loads(out) for out, _ in answered]

    won = Counter((id, attempts) for answer in answers for id, attempts in answer["won"])
    before = {f"s{n}": 1 for n in range(STUCK)} if dialect == "async_tasks" else {}
    ids = [*before, *(f"t{n}" for n in range(TASKS - len(before)))]
    assert won == Counter((id, n) for id in ids for n in range(before.get(id, 0) + 1, EXECUTIONS + 1))
    assert sum(answer["reclaimed"] for answer in answers) == len(before)
    with closing(sqlite3.connect(path)) as connection:
        states = connection.execute(f"SELECT status, attempts, count(*) FROM {dialect} GROUP BY 1, 2").fetchall()
    assert states == [("SUCCESS" if dialect == "tasks" else "DONE", EXECUTIONS, TASKS)]


class Hasty(FrozenClock):
    """Whoever has nothing to do sleeps a whole hour."""

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.tick(timedelta(hours=1))


class Coded(Exception):
    code = "ERR_UPSTREAM"


def circular() -> object:
    result: dict[Any, Any] = {}
    result["self"] = result
    return result


RAISES: dict[str, tuple[Exception, str]] = {
    "plain": (ValueError("boom"), "ERR_HANDLER: boom"),
    "coded": (Coded("503"), "ERR_UPSTREAM: 503"),
    "silent": (RuntimeError(), "ERR_HANDLER: RuntimeError"),
    "odd text": (ValueError("half \ud800 a pair"), r"ERR_HANDLER: half \ud800 a pair"),
}


@pytest.mark.parametrize("raised", RAISES)
@pytest.mark.parametrize("dialect", ["async_tasks", "tasks"])
def test_a_handler_that_raises_is_a_failed_attempt(tmp_path: Path, dialect: files.Dialect, raised: str) -> None:
    path = files.create(tmp_path / "queue.db", TASKS_DDL if dialect == "tasks" else ASYNC_TASKS_DDL)
    clock, error = Hasty(), RAISES[raised]
    when = (clock.now() - timedelta(minutes=1)).isoformat()
    if dialect == "tasks":
        files.insert(path, "tasks", [{"id": "t", "status": "PENDING", "attempts": 0, "func_path": "f", "created_at": when}])
    else:
        files.insert(path, "async_tasks", [{"task_id": "t", "status": "PENDING", "next_run_at": when, "task_type": TAKEN}])
    backend = files.open_queue(path, dialect)
    lines: list[str] = []
    stop = StopFlag(after_looks=12)

    def handler(*_: object) -> object:
        raise error[0]

    executions = backend.run(handler, clock, stop, lines.append)
    (item,) = backend.page(PageRequest(ALL, clock.now())).items
    assert executions == item.attempts == (3 if dialect == "tasks" else 4)
    assert (item.condition, item.error) == (Condition.TERMINAL, error[1])
    assert [line for line in lines if line.startswith("task t attempt 1 failed")]


@pytest.mark.parametrize("make", [lambda: {("a", 1): 2}, circular, lambda: object(), lambda: "fine"])
def test_whatever_a_handler_returns_it_is_done(tmp_path: Path, make: Callable[[], object]) -> None:
    path = files.create(tmp_path / "queue.db", TASKS_DDL)
    files.insert(path, "tasks", [{"id": "t", "status": "PENDING", "attempts": 0}])
    backend, clock = files.open_queue(path, "tasks"), Hasty()
    given: list[tuple[str, Mapping[str, Any]]] = []

    def handler(*call: Any) -> object:
        given.append(call)
        return make()

    assert backend.run(handler, clock, StopFlag(after_looks=3), lambda _: None) == 1
    (item,) = backend.page(PageRequest(ALL, clock.now())).items
    assert item.condition is Condition.DONE
    assert len(given) == 1


def test_a_worker_reclaims_the_abandoned(tmp_path: Path) -> None:
    path = files.create(tmp_path / "queue.db", ASYNC_TASKS_DDL)
    clock = Hasty()
    born = (clock.now() - timedelta(hours=1)).isoformat()
    files.insert(path, "async_tasks", [
        {"task_id": "t", "task_type": TAKEN, "status": "RUNNING", "attempts": 1, "next_run_at": born, "updated_at": born}
    ])
    backend = files.open_queue(path)
    lines: list[str] = []
    assert backend.run(lambda *_: None, clock, StopFlag(after_looks=2), lines.append) == 1
    assert lines == ["reclaimed 1 abandoned task", "task t attempt 2 done"]
