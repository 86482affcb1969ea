"""Jobs, a contract queue (`tasks`): mails that cannot be sent with an expired key, PDFs that miss a column."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from random import Random
from typing import Any, NamedTuple

from console.demo import incidents
from console.demo.filling import DAY, HOUR, MINUTE, Row, chosen, fill, new_id, palette, sqlite_store
from console.demo.part import Part, Site
from plugins.sqlite_queue.schema import TASKS_DDL

MAIL, PDF, CONTACT, REPORT = "mail.send_invoice", "billing.render_pdf", "crm.sync_contact", "reports.nightly"

_INSERT_TASK = "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_RESULT = "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?)"
_NO_SCHEDULE = '{"eta": null, "interval": null}'
_STATES = (
    (0.60, "success"), (0.10, "waiting"), (0.01, "running"), (0.02, "abandoned"), (0.01, "cancelled"),
    (0.13, "key"), (0.05, "column"), (0.02, "memory"), (0.04, "timeout"), (0.02, "retrying"),
)


class Told(NamedTuple):
    """What a state means: seconds are from the base."""

    status: str
    function: str
    attempts: int
    updated: float
    eta: float | None = None
    error: str | None = None


def _build(site: Site) -> dict[str, Any]:
    path = site.folder / "jobs.db"
    odd = list(_odd(site))
    number = max(site.items - len(odd), 0)
    pairs = palette(site, "jobs", number, lambda chance: _pair(site, _told(chosen(chance, _STATES), chance), chance))
    with sqlite_store(path, TASKS_DDL, "DELETE") as store:
        tasks = ((new_id(n), *task) for n, (task, _) in zip(range(number), cycle(pairs), strict=False))
        fill(store, _INSERT_TASK, tasks, lambda done: site.progress("jobs", done, number))
        results = ((id, *ended[1:]) for id, ended in _ended(pairs, number))
        fill(store, _INSERT_RESULT, results)
        store.many(_INSERT_TASK, odd)
    return {
        "plugin": "sqlite_queue", "dialect": "tasks", "url": site.url(path),
        "handler": "console.demo.handlers:jobs", "policy": {"unrecoverable": ["invalid api key"]},
    }


def _ended(pairs: list[tuple[Row, Row | None]], number: int) -> Iterator[tuple[str, Row]]:
    for n, (_, ended) in zip(range(number), cycle(pairs), strict=False):
        if ended is not None:
            yield new_id(n), ended


def _pair(site: Site, told: Told, chance: Random) -> tuple[Row, Row | None]:
    """A task without its id, and its result behind a place for the id, once there is one."""
    at = site.time(told.updated)
    tried = at if told.attempts else None
    due = None if told.eta is None else site.time(told.eta)
    task = (
        told.function, f"[{chance.randrange(10_000, 99_999)}]", "{}", told.status,
        _NO_SCHEDULE if due is None else json.dumps({"eta": due, "interval": None}), due, 3, 600, told.attempts,
        site.time(told.updated - 90 * chance.random()), at, tried, "null",
    )
    if not told.attempts or told.status == "RUNNING":
        return task, None
    return task, ("", told.status, "null" if told.error is None else None, told.error, at, told.attempts, tried)


def _told(state: str, chance: Random) -> Told:
    some = chance.random()
    any_of = chance.choice((MAIL, PDF, CONTACT, REPORT))
    match state:
        case "success":
            return Told("SUCCESS", any_of, 1, -DAY * some)
        case "waiting":
            return Told("PENDING", any_of, 0, -300 * some, 45 * MINUTE * chance.random())
        case "running":
            return Told("RUNNING", REPORT, 1, -400 * some)
        case "abandoned":
            return Told("RUNNING", REPORT, 1, -20 * MINUTE - 2 * HOUR * some)
        case "cancelled":
            return Told("CANCELLED", any_of, 0, -DAY * some)
        case "key":
            return Told("FAILED", MAIL, 3, -6 * HOUR * some, None, incidents.api_key_expired(chance))
        case "column":
            return Told("FAILED", PDF, 3, -2 * HOUR * some, None, incidents.column_renamed(chance))
        case "memory":
            return Told("FAILED", REPORT, 3, -DAY * some, None, incidents.out_of_memory(chance))
        case "timeout":
            return Told("FAILED", CONTACT, 3, -DAY * some, None, incidents.timed_out(chance))
        case _:
            return Told(
                "PENDING", CONTACT, 1 + (some < 0.5), -30 * some, 5 * MINUTE * chance.random(),
                incidents.timed_out(chance),
            )


def _odd(site: Site) -> Iterator[Row]:
    at = site.time(-900)

    def task(id: str, status: str | None, error: str, attempts: Any = 1, eta: str | None = None) -> Row:
        told = json.dumps(error)
        return (id, CONTACT, "[]", "{}", status, _NO_SCHEDULE, eta, 3, 600, attempts, at, at, at, told)

    yield task("odd-status", "PAUSED_BY_HAND", "somebody edited the table")
    yield task("odd-null", None, "no status at all", None)
    yield task("odd-eta", "PENDING", "an eta that is no time", 1, "after lunch")
    yield task("odd \x1b[31mid\x1b[0m/slash", "FAILED", "an id with controls in it", 3)


PARTS = (Part("jobs", 0.24, _build),)
