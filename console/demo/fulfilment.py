"""Fulfilment, workflow steps in SQLite or PostgreSQL: orders stuck at a throttled card or a carrier that is down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from random import Random
from typing import Any, NamedTuple

from console.demo import incidents
from console.demo.filling import DAY, HOUR, MINUTE, Row, chosen, fill, new_uuid, palette, postgres_store, sqlite_store
from console.demo.part import Part, Site
from plugins.workflow_steps.schema import ddl

STEPS = ("reserve_stock", "charge_card", "print_label", "notify_customer")
_STATES = (
    (0.62, "complete"), (0.14, "throttled"), (0.10, "waits"), (0.06, "carrier"), (0.05, "new"), (0.03, "cancelled"),
)
_INSERTS = {
    "workflow_steps": "workflow_step_uuid, task_uuid, named_step_uuid, retryable, max_attempts, in_process, processed,"
    " processed_at, attempts, last_attempted_at, backoff_request_seconds, inputs, results, created_at, updated_at",
    "workflow_step_transitions": "workflow_step_uuid, to_state, from_state, metadata, sort_key, most_recent,"
    " created_at, updated_at",
    "task_transitions": "task_uuid, to_state, from_state, metadata, sort_key, most_recent, created_at, updated_at",
    "workflow_step_edges": "from_step_uuid, to_step_uuid",
    "named_steps": "named_step_uuid, name",
}


class Order(NamedTuple):
    """One task: how far it came, when it began and when it last moved, in seconds from the base."""

    state: str
    began: float
    moved: float
    error: str | None
    attempts: int
    backoff: int | None


def _build(site: Site) -> dict[str, Any]:
    number = max(site.items // len(STEPS), 1)
    orders = palette(site, "fulfilment", number, _order)
    path = site.folder / "fulfilment.db"
    script = ddl(sqlite=site.server is None)
    dot = "tasker." if site.server else ""
    with postgres_store(site.server, script) if site.server else sqlite_store(path, script) as store:
        for n, (table, columns) in enumerate(_INSERTS.items(), 1):
            marks = ", ".join("?" * (columns.count(",") + 1))
            insert = f"INSERT INTO {dot}{table} ({columns}) VALUES ({marks})"  # noqa: S608  names are ours
            fill(store, insert, _rows(site, table, orders, number))
            site.progress("fulfilment", n, len(_INSERTS))
    return {
        "plugin": "workflow_steps", "url": site.server or site.url(path),
        "handler": "console.demo.handlers:fulfilment",
    }


def _order(chance: Random) -> Order:
    state, some = chosen(chance, _STATES), chance.random()
    match state:
        case "throttled":
            moved = -35 * MINUTE * some - MINUTE
            return Order(state, moved - HOUR, moved, incidents.rate_limited(chance), 3, None)
        case "waits":
            again = (30 if some < 0.3 else 16 * MINUTE) + int(2 * MINUTE * chance.random())
            moved = -3 * MINUTE * some
            return Order(state, moved - HOUR, moved, incidents.rate_limited(chance), 2, again - int(moved))
        case "carrier":
            moved = -5 * HOUR * some
            return Order(state, moved - HOUR, moved, incidents.carrier_down(chance), 3, None)
        case "new":
            return Order(state, -5 * MINUTE * some, -5 * MINUTE * some, None, 0, None)
        case _:
            return Order(state, -DAY * some - HOUR, -DAY * some, None, 1, None)


def _fails_at(order: Order) -> int:
    """The step an order is stuck at; all before it are complete, all after it wait."""
    return {"throttled": 1, "waits": 1, "carrier": 2, "new": 0, "cancelled": 2}.get(order.state, len(STEPS))


def _rows(site: Site, table: str, orders: list[Order], number: int) -> Iterator[Row]:
    if table == "named_steps":
        return ((new_uuid(-n), name) for n, name in enumerate(STEPS, 1))
    make = {
        "workflow_steps": _steps, "workflow_step_transitions": _moves, "task_transitions": _task_moves,
        "workflow_step_edges": _edges,
    }[table]
    numbered = zip(range(number), cycle(orders), strict=False)
    return (row for n, order in numbered for row in make(site, n * (len(STEPS) + 1), order))


def _steps(site: Site, first: int, order: Order) -> Iterator[Row]:
    task, stuck = new_uuid(first), _fails_at(order)
    for n in range(len(STEPS)):
        done, failed = n < stuck, n == stuck and order.error is not None
        at = site.time(order.moved)
        results = json.dumps({"error": {"message": order.error}}) if failed else None
        yield (
            new_uuid(first + n + 1), task, new_uuid(-n - 1), True, 3, False, done, at if done else None,
            1 if done else order.attempts if failed else 0, at if done or failed else None,
            order.backoff if failed else None, json.dumps({"order": 100_000 + first}), results,
            site.time(order.began), at,
        )


def _moves(site: Site, first: int, order: Order) -> Iterator[Row]:
    stuck = _fails_at(order)
    for n in range(len(STEPS)):
        states = ["pending"]
        if n < stuck:
            states += ["in_progress", "complete"]
        elif n == stuck and order.error is not None:
            states += ["in_progress", "error", "waiting_for_retry"] * order.attempts
            if order.state != "waits":
                states.pop()
        elif order.state == "cancelled":
            states.append("cancelled")
        yield from _chain(site, new_uuid(first + n + 1), states, order)


def _task_moves(site: Site, first: int, order: Order) -> Iterator[Row]:
    last = {
        "complete": "complete", "throttled": "blocked_by_failures", "carrier": "blocked_by_failures",
        "waits": "waiting_for_retry", "cancelled": "cancelled",
    }.get(order.state)
    return _chain(site, new_uuid(first), ["pending", *([last] if last else [])], order)


def _chain(site: Site, id: str, states: list[str], order: Order) -> Iterator[Row]:
    """One transition after the other, evenly over the order's time, the last one most recent."""
    last = len(states) - 1
    for n, state in enumerate(states):
        at = site.time(order.began + (order.moved - order.began) * n / max(last, 1))
        told = json.dumps({"error_message": order.error}) if state == "error" else "{}"
        yield id, state, states[n - 1] if n else None, told, n + 1, n == last, at, at


def _edges(_site: Site, first: int, _order: Order) -> Iterator[Row]:
    return ((new_uuid(first + n), new_uuid(first + n + 1)) for n in range(1, len(STEPS)))


PARTS = (Part("fulfilment", 0.10, _build, most=8_000),)
