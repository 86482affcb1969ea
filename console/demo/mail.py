"""Mail, a folder of task files: the same expired key, and files that a crash left behind."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from console.demo import incidents
from console.demo.seeding import DAY, HOUR, MINUTE, new_id, pick, sample_rows
from console.demo.system import BuildContext, DemoSystem

_QUEUE, _RESULTS = "mail/queue", "mail/results"
RECEIPT, REMINDER = "mail.send_receipt", "mail.send_reminder"

_STATES = (
    (0.58, "sent"), (0.12, "waiting"), (0.20, "key"), (0.05, "timeout"), (0.03, "abandoned"), (0.02, "retrying"),
)
_BROKEN = {"half-written.task": '{"id": "half-written", "func_pa', "empty.done": "", "notes.txt": "remember to rotate"}


def _build(build: BuildContext) -> dict[str, Any]:
    base = build.folder.make_folder("mail")
    for folder in (_QUEUE, _RESULTS):
        build.folder.make_folder(folder)
    number = max(build.items - len(_BROKEN), 0)
    for n, (state, task, error) in enumerate(sample_rows(build, "mail", number, lambda chance: _task(build, chance))):
        _write(build, f"mail-{new_id(n)}", state, task, error)
        build.progress("mail", n + 1, number)
    for name, content in _BROKEN.items():
        build.folder.write(f"{_QUEUE}/{name}", content)
    return {
        "plugin": "file_queue", "path": str(base), "handler": "console.demo.handlers:mail",
        "policy": {"unrecoverable": ["invalid api key"]},
    }


def _write(build: BuildContext, id: str, state: str, task: dict[str, Any], error: str | None) -> None:
    ended = {"sent": "done", "key": "done", "timeout": "done", "abandoned": "running"}.get(state, "task")
    build.folder.expect(*(f"{_QUEUE}/{id}.{name}" for name in ("task", "running", "done")), f"{_RESULTS}/{id}.result")
    build.folder.write(f"{_QUEUE}/{id}.{ended}", json.dumps({"id": id, **task}))
    if task["attempts"] and state != "abandoned":
        result = {
            "task_id": id, "status": task["status"], "result": None, "error": error,
            "finished_at": task["updated_at"], "attempts": task["attempts"], "last_attempt_at": task["last_attempt_at"],
        }
        build.folder.write(f"{_RESULTS}/{id}.result", json.dumps(result))


def _task(build: BuildContext, chance: Random) -> tuple[str, dict[str, Any], str | None]:
    state, some = pick(chance, _STATES), chance.random()
    statuses = {"sent": "SUCCESS", "key": "FAILED", "timeout": "FAILED", "abandoned": "RUNNING"}
    attempts = {"sent": 1, "waiting": 0, "abandoned": 1, "retrying": 2}.get(state, 3)
    errors = {"key": incidents.api_key_expired, "timeout": incidents.timed_out, "retrying": incidents.timed_out}
    ages = {"sent": DAY * some, "key": 6 * HOUR * some, "timeout": DAY * some, "abandoned": 2 * HOUR + HOUR * some}
    at = build.time(-ages.get(state, MINUTE * some))
    eta = {"waiting": 45 * MINUTE * some, "retrying": 5 * MINUTE * some}.get(state)
    task = {
        "func_path": RECEIPT if state == "key" else REMINDER, "args": [chance.randrange(10_000, 99_999)], "kwargs": {},
        "status": statuses.get(state, "PENDING"),
        "schedule": {"eta": None if eta is None else build.time(eta), "interval": None},
        "max_retries": 3, "timeout": 600, "attempts": attempts, "created_at": at, "updated_at": at,
        "last_attempt_at": at if attempts else None,
    }
    return state, task, errors[state](chance) if state in errors else None


SYSTEMS = (DemoSystem("mail", 0.08, _build, most=400),)
