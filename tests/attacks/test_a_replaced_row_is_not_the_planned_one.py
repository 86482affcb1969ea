"""A row that another job replaced under the same key, with equal guard columns, is reported as changed and not touched."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.place import Place, at, failed

MAPPING = """
table: async_tasks
key: task_id
status: {column: status, ready: [PENDING], running: [RUNNING], failed: [FAILED], done: [DONE]}
type: task_type
attempts: attempts
next_run: next_run_at
error: last_error
created: created_at
updated: updated_at
times: text
requeue:
  guard: [status, attempts, updated_at]
  set: {status: PENDING, next_run_at: {time: due}, updated_at: {time: now}}
  attempts: {keep: {effect: last_try}}
"""


def sqlite_queue(place: Place) -> Callable[[], None]:
    path = place.queue("q", failed("a"))
    return lambda: _replace(path)


def mapped_table(place: Place) -> Callable[[], None]:
    path = place.queue("q", failed("a"))
    (place.folder / "map.yaml").write_text(MAPPING)
    (place.folder / "map.yaml").chmod(0o600)
    place.sections["q"] = f'  q: {{plugin: sql_table, url: "sqlite:///{path}", mapping: map.yaml}}\n'
    return lambda: _replace(path)


def _replace(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        row = list(failed("a"))
        connection.execute("DELETE FROM async_tasks")
        row[1], row[2], row[7] = "REFUND", "another entity", at(-30)
        connection.execute("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.close()


def task_files(place: Place) -> Callable[[], None]:
    queue = place.folder / "files" / "queue"
    queue.mkdir(parents=True)
    (place.folder / "files" / "results").mkdir()
    task = {
        "id": "a", "func_path": "mail.send", "args": [1], "kwargs": {}, "status": "FAILED",
        "schedule": {"eta": None, "interval": None}, "max_retries": 3, "timeout": 600, "attempts": 3,
        "created_at": at(-7200), "updated_at": at(-60), "last_attempt_at": at(-60),
    }
    (queue / "a.done").write_text(json.dumps(task))
    place.sections["q"] = f'  q: {{plugin: file_queue, path: "{place.folder}/files"}}\n'

    def replace() -> None:
        (queue / "a.done").write_text(json.dumps({**task, "func_path": "mail.refund", "args": [2], "created_at": at(-30)}))

    return replace


@pytest.mark.parametrize("system", [sqlite_queue, mapped_table, task_files])
def test_a_row_with_the_same_key_and_guard_but_another_birth_is_left_alone(
    place: Place, system: Callable[[Place], Callable[[], None]]
) -> None:
    replace = system(place)
    arguments = [] if system is mapped_table else ["--attempts", "reset"]
    plan = place.run("plan", "--where", "backend:q condition:*", *arguments)
    assert plan.code == 0, plan.err
    replace()
    done = place.run("apply", json.loads(plan.out)["plan_id"], "--reason", "x", "--confirm", "1")
    assert "1 changed since the plan" in done.err
