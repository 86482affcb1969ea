"""Jobs, a contract queue (`tasks`): mails fail because of an expired key, PDFs because of a missing column."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from random import Random
from typing import Any, NamedTuple

from console.demo import incidents
from console.demo.seeding import DAY, HOUR, MINUTE, Row, fill, new_id, pick, sample_rows, sqlite_store
from console.demo.system import BuildContext, DemoSystem
from plugins.sqlite_queue.schema import TASKS_DDL

MAIL, PDF, CONTACT, REPORT = "mail.send_invoice", "billing.render_pdf", "crm.sync_contact", "reports.nightly"

_INSERT_TASK = "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_RESULT = "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?)"
_NO_SCHEDULE = '{"eta": null, "interval": null}'
_STATES = (
    (0.60, "success"), (0.10, "waiting"), (0.01, "running"), (0.02, "abandoned"), (0.01, "cancelled"),
    (0.13, "key"), (0.05, "column"), (0.02, "memory"), (0.04, "timeout"), (0.02, "retrying"),
)


class TaskState(NamedTuple):
    """The columns of a task in one state. Times are seconds from the base."""

    status: str
    function: str
    attempts: int
    updated: float
    eta: float | None = None
    error: str | None = None


def _build(build: BuildContext) -> dict[str, Any]:
    url = build.new_database("jobs.db")
    odd = list(_odd(build))
    number = max(build.items - len(odd), 0)
    pairs = sample_rows(build, "jobs", number, lambda chance: _pair(build, chance))
    with sqlite_store(url, TASKS_DDL, "DELETE") as store:
        tasks = ((new_id(n), *task) for n, (task, _) in zip(range(number), cycle(pairs), strict=False))
        fill(store, _INSERT_TASK, tasks, lambda done: build.progress("jobs", done, number))
        results = ((id, *ended[1:]) for id, ended in _ended(pairs, number))
        fill(store, _INSERT_RESULT, results)
        store.many(_INSERT_TASK, odd)
    return {
        "plugin": "sqlite_queue", "dialect": "tasks", "url": url,
        "handler": "console.demo.handlers:jobs", "policy": {"unrecoverable": ["invalid api key"]},
    }


def _ended(pairs: list[tuple[Row, Row | None]], number: int) -> Iterator[tuple[str, Row]]:
    for n, (_, ended) in zip(range(number), cycle(pairs), strict=False):
        if ended is not None:
            yield new_id(n), ended


def _pair(build: BuildContext, chance: Random) -> tuple[Row, Row | None]:
    """A task and, if it has one, its result; both without an id."""
    state = _task_state(pick(chance, _STATES), chance)
    at = build.time(state.updated)
    tried = at if state.attempts else None
    due = None if state.eta is None else build.time(state.eta)
    task = (
        state.function, f"[{chance.randrange(10_000, 99_999)}]", "{}", state.status,
        _NO_SCHEDULE if due is None else json.dumps({"eta": due, "interval": None}), due, 3, 600, state.attempts,
        build.time(state.updated - 90 * chance.random()), at, tried, "null",
    )
    if not state.attempts or state.status == "RUNNING":
        return task, None
    return task, ("", state.status, "null" if state.error is None else None, state.error, at, state.attempts, tried)


def _task_state(state: str, chance: Random) -> TaskState:
    some = chance.random()
    any_of = chance.choice((MAIL, PDF, CONTACT, REPORT))
    match state:
        case "success":
            return TaskState("SUCCESS", any_of, 1, -DAY * some)
        case "waiting":
            return TaskState("PENDING", any_of, 0, -300 * some, 45 * MINUTE * chance.random())
        case "running":
            return TaskState("RUNNING", REPORT, 1, -400 * some)
        case "abandoned":
            return TaskState("RUNNING", REPORT, 1, -20 * MINUTE - 2 * HOUR * some)
        case "cancelled":
            return TaskState("CANCELLED", any_of, 0, -DAY * some)
        case "key":
            return TaskState("FAILED", MAIL, 3, -6 * HOUR * some, None, incidents.api_key_expired(chance))
        case "column":
            return TaskState("FAILED", PDF, 3, -2 * HOUR * some, None, incidents.column_renamed(chance))
        case "memory":
            return TaskState("FAILED", REPORT, 3, -DAY * some, None, incidents.out_of_memory(chance))
        case "timeout":
            return TaskState("FAILED", CONTACT, 3, -DAY * some, None, incidents.timed_out(chance))
        case _:
            return TaskState(
                "PENDING", CONTACT, 1 + (some < 0.5), -30 * some, 5 * MINUTE * chance.random(),
                incidents.timed_out(chance),
            )


def _odd(build: BuildContext) -> Iterator[Row]:
    at = build.time(-900)

    def task(id: str, status: str | None, error: str, attempts: Any = 1, eta: str | None = None) -> Row:
        return (id, CONTACT, "[]", "{}", status, _NO_SCHEDULE, eta, 3, 600, attempts, at, at, at, json.dumps(error))

    yield task("odd-status", "PAUSED_BY_HAND", "somebody edited the table")
    yield task("odd-null", None, "no status at all", None)
    yield task("odd-eta", "PENDING", "an eta that is no time", 1, "after lunch")
    yield task("odd \x1b[31mid\x1b[0m/slash", "FAILED", "an id with controls in it", 3)


SYSTEMS = (DemoSystem("jobs", 0.24, _build),)
