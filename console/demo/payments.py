"""Payments, an analysis queue (`async_tasks`): throttled by the provider, with a storm of retries to come."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from console.demo import incidents
from console.demo.seeding import DAY, HOUR, MINUTE, Row, fill, pick, sample_rows, sqlite_store, with_new_ids
from console.demo.system import BuildContext, DemoSystem
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL

DELAYS = (300, 900, 3600)
STORM = (34 * MINUTE, 37 * MINUTE)
"""When most throttled payments are retried, in seconds from the base: the provider gave all of them the same time."""
EVERY = 60
"""A worker takes ten payments each time this many seconds have passed."""
DECLINED = "13"
"""Orders whose number ends with this have a card that is always declined."""
EXPIRED = ("27", "58", "86")
"""Orders whose number ends with this have a card that has expired since: they fail again, with a new error."""

_INSERT = "INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_TYPES = ("CHARGE_CARD", "CHARGE_CARD", "CHARGE_CARD", "REFUND", "SEND_RECEIPT")
_STATES = (
    (0.60, "done"), (0.12, "waiting"), (0.006, "running"), (0.13, "throttled"), (0.075, "given up"),
    (0.025, "declined"), (0.044, "timed out"),
)


def _build(build: BuildContext) -> dict[str, Any]:
    url = build.new_database("payments.db")
    odd = list(_odd(build))
    number = max(build.items - len(odd), 0)
    rows = sample_rows(build, "payments", number, lambda chance: _row(build, chance))
    with sqlite_store(url, ASYNC_TASKS_DDL) as store:
        fill(store, _INSERT, with_new_ids(rows, number), lambda done: build.progress("payments", done, number))
        store.many(_INSERT, odd)
        store.many("UPDATE async_tasks SET last_error = CAST(last_error AS TEXT) WHERE task_id = ?", [("odd-bytes",)])
    return {
        "plugin": "sqlite_queue", "dialect": "async_tasks", "url": url,
        "task_types": sorted({*_TYPES}), "batch": 10, "every": build.delay(EVERY),
        "handler": "console.demo.handlers:payments",
        "policy": {
            "max_attempts": 4, "delays": [build.delay(seconds) for seconds in DELAYS],
            "unrecoverable": ["card declined"],
        },
    }


def _row(build: BuildContext, chance: Random) -> Row:
    """All but the id, in the order of the table's columns."""
    state = pick(chance, _STATES)
    status, attempts, updated, due, error = _columns(state, chance)
    waited = sum(DELAYS[: max(attempts - 1, 0)]) / build.speed
    kind = "CHARGE_CARD" if state == "declined" else chance.choice(_TYPES)
    order = chance.randrange(1_000, 9_999) * 100 + (13 if state == "declined" else chance.randrange(14, 99))
    return (
        kind, f"order-{order}", status, attempts, build.time(due), error,
        build.time(updated - waited - MINUTE * chance.random()), build.time(updated),
    )


def _columns(state: str, chance: Random) -> tuple[str, int, float, float, str | None]:
    """Status, attempts, seconds (from the base) of the last update and of the due time, error."""
    some = chance.random()
    match state:
        case "done":
            return "DONE", 1, -DAY * some, -DAY * some, None
        case "waiting":
            return "PENDING", 0, -600 * some, 45 * MINUTE * chance.random() + 5, None
        case "running":
            return "RUNNING", 1, -100 * some, -100 * some, None
        case "throttled":
            return "PENDING", 1 + (some > 0.2) + (some > 0.5), *_throttled_times(chance), incidents.rate_limited(chance)
        case "given up":
            at = -40 * MINUTE * some - MINUTE
            return "FAILED", 4, at, at, incidents.rate_limited(chance)
        case "declined":
            return "FAILED", 1 + int(2 * some), -DAY * some, -DAY * some, incidents.declined(chance)
        case _:
            return "FAILED", 4, -DAY * some, -DAY * some, incidents.timed_out(chance)


def _throttled_times(chance: Random) -> tuple[float, float]:
    """When a throttled payment was last tried and when it is tried again, in seconds from the base."""
    roll = chance.random()
    if roll < 0.12:
        return -MINUTE * chance.random(), 15 + 90 * chance.random()
    if roll < 0.30:
        return -4 * MINUTE * chance.random(), HOUR * chance.random()
    early, late = STORM
    return -25 * MINUTE + 8 * MINUTE * chance.random(), early + (late - early) * chance.random() * chance.random()


def _odd(build: BuildContext) -> Iterator[Row]:
    for n, error in enumerate(incidents.HOSTILE):
        at = build.time(-5 * HOUR - MINUTE * n)
        yield f"odd-{n:02}", "CHARGE_CARD", f"order-{n}", "FAILED", 4, at, error, build.time(-9_000), at
    at = build.time(-6 * HOUR)
    yield "odd-bytes", "REFUND", "order-7", "FAILED", 4, at, b"invalid \xff\xfe UTF-8", at, at
    yield "odd-times", None, None, "PENDING", 2, "tomorrow, maybe", "ERR_CLOCK: next_run_at was set by hand", "", at
    yield "odd-count", "REFUND", "order-8", "FAILED", -3, at, "ERR_COUNT: a counter below zero", at, at
    yield "odd-huge", "REFUND", "order-9", "FAILED", 2**62, at, "ERR_COUNT: a counter beyond reason", at, at
    yield "odd-late", "REFUND", "order-10", "PENDING", 1, "9999-12-31T23:59:59+00:00", "ERR_CLOCK: not soon", at, at


SYSTEMS = (DemoSystem("payments", 0.40, _build),)
