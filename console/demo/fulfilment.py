"""Fulfilment, workflow steps in SQLite or PostgreSQL: orders stuck at a throttled payment or a carrier outage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from random import Random
from typing import Any, NamedTuple

from console.demo import incidents
from console.demo.seeding import DAY, HOUR, MINUTE, Row, fill, new_uuid, open_store, pick, sample_rows
from console.demo.system import BuildContext, DemoSystem
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
    "tasks": "task_uuid, created_at",
    "workflow_step_edges": "from_step_uuid, to_step_uuid",
    "named_steps": "named_step_uuid, name",
}


class Order(NamedTuple):
    """One task: its state, and when it began and last changed, in seconds from the base."""

    state: str
    began: float
    moved: float
    error: str | None
    attempts: int
    backoff: int | None


def _build(build: BuildContext) -> dict[str, Any]:
    number = max(build.items // len(STEPS), 1)
    orders = sample_rows(build, "fulfilment", number, _order)
    url = build.server or build.new_database("fulfilment.db")
    script = ddl(sqlite=build.server is None)
    dot = "tasker." if build.server else ""
    with open_store(url, script) as store:
        for n, (table, columns) in enumerate(_INSERTS.items(), 1):
            marks = ", ".join("?" * (columns.count(",") + 1))
            insert = f"INSERT INTO {dot}{table} ({columns}) VALUES ({marks})"  # noqa: S608  names are ours
            fill(store, insert, _rows(build, table, orders, number))
            build.progress("fulfilment", n, len(_INSERTS))
    return {
        "plugin": "workflow_steps", "url": url,
        "handler": "console.demo.handlers:fulfilment",
    }


def _order(chance: Random) -> Order:
    state, some = pick(chance, _STATES), chance.random()
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
    """The number of the step an order is stuck at. All steps before it are complete, all after it wait."""
    return {"throttled": 1, "waits": 1, "carrier": 2, "new": 0, "cancelled": 2}.get(order.state, len(STEPS))


def _rows(build: BuildContext, table: str, orders: list[Order], number: int) -> Iterator[Row]:
    if table == "named_steps":
        return ((new_uuid(-n), name) for n, name in enumerate(STEPS, 1))
    make = {
        "workflow_steps": _steps, "workflow_step_transitions": _step_transitions, "task_transitions": _task_transitions,
        "tasks": _tasks, "workflow_step_edges": _edges,
    }[table]
    numbered = zip(range(number), cycle(orders), strict=False)
    return (row for n, order in numbered for row in make(build, n * (len(STEPS) + 1), order))


def _steps(build: BuildContext, first: int, order: Order) -> Iterator[Row]:
    task, stuck = new_uuid(first), _fails_at(order)
    for n in range(len(STEPS)):
        done, failed = n < stuck, n == stuck and order.error is not None
        at = build.time(order.moved)
        results = json.dumps({"error": {"message": order.error}}) if failed else None
        yield (
            new_uuid(first + n + 1), task, new_uuid(-n - 1), True, 3, False, done, at if done else None,
            1 if done else order.attempts if failed else 0, at if done or failed else None,
            order.backoff if failed else None, json.dumps({"order": 100_000 + first}), results,
            build.time(order.began), at,
        )


def _step_transitions(build: BuildContext, first: int, order: Order) -> Iterator[Row]:
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
        yield from _transitions(build, new_uuid(first + n + 1), states, order)


def _task_transitions(build: BuildContext, first: int, order: Order) -> Iterator[Row]:
    last = {
        "complete": "complete", "throttled": "blocked_by_failures", "carrier": "blocked_by_failures",
        "waits": "waiting_for_retry", "cancelled": "cancelled",
    }.get(order.state)
    return _transitions(build, new_uuid(first), ["pending", *([last] if last else [])], order)


def _tasks(build: BuildContext, first: int, order: Order) -> Iterator[Row]:
    yield new_uuid(first), build.time(order.began)


def _transitions(build: BuildContext, id: str, states: list[str], order: Order) -> Iterator[Row]:
    """The transitions of a step or task, spread evenly over the order's time."""
    last = len(states) - 1
    for n, state in enumerate(states):
        at = build.time(order.began + (order.moved - order.began) * n / max(last, 1))
        metadata = json.dumps({"error_message": order.error}) if state == "error" else "{}"
        yield id, state, states[n - 1] if n else None, metadata, n + 1, n == last, at, at


def _edges(_site: BuildContext, first: int, _order: Order) -> Iterator[Row]:
    return ((new_uuid(first + n), new_uuid(first + n + 1)) for n in range(1, len(STEPS)))


SYSTEMS = (DemoSystem("fulfilment", 0.10, _build, most=8_000),)
