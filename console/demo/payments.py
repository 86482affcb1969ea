"""Payments, an analysis queue (`async_tasks`): throttled by the provider, with a storm of retries on its way."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from console.demo import incidents
from console.demo.filling import DAY, HOUR, MINUTE, Row, chosen, fill, laid_out, palette, sqlite_store
from console.demo.part import Part, Site
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL

DELAYS = (300, 900, 3600)
STORM = (34 * MINUTE, 37 * MINUTE)
"""When most of what was throttled comes back, from the world's now: the provider told everybody the same time."""
DECLINED = "13"
"""Orders that end so have a card no issuer takes."""

_INSERT = "INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_TYPES = ("CHARGE_CARD", "CHARGE_CARD", "CHARGE_CARD", "REFUND", "SEND_RECEIPT")
_STATES = (
    (0.60, "done"), (0.12, "waiting"), (0.006, "running"), (0.13, "throttled"), (0.075, "given up"),
    (0.025, "declined"), (0.044, "timed out"),
)


def _build(site: Site) -> dict[str, Any]:
    path = site.folder / "payments.db"
    odd = list(_odd(site))
    number = max(site.items - len(odd), 0)
    rows = palette(site, "payments", number, lambda chance: _row(site, chance))
    with sqlite_store(path, ASYNC_TASKS_DDL) as store:
        fill(store, _INSERT, laid_out(rows, number), lambda done: site.progress("payments", done, number))
        store.many(_INSERT, odd)
        store.many("UPDATE async_tasks SET last_error = CAST(last_error AS TEXT) WHERE task_id = ?", [("odd-bytes",)])
    return {
        "plugin": "sqlite_queue", "dialect": "async_tasks", "url": site.url(path),
        "handler": "console.demo.handlers:payments",
        "policy": {
            "max_attempts": 4, "delays": [site.delay(seconds) for seconds in DELAYS],
            "unrecoverable": ["card declined"],
        },
    }


def _row(site: Site, chance: Random) -> Row:
    """All but the id, in the order of the table's columns."""
    state = chosen(chance, _STATES)
    status, attempts, updated, due, error = _told(state, chance)
    waited = sum(DELAYS[: max(attempts - 1, 0)]) / site.speed
    kind = "CHARGE_CARD" if state == "declined" else chance.choice(_TYPES)
    order = chance.randrange(1_000, 9_999) * 100 + (13 if state == "declined" else chance.randrange(14, 99))
    return (
        kind, f"order-{order}", status, attempts, site.time(due), error,
        site.time(updated - waited - MINUTE * chance.random()), site.time(updated),
    )


def _told(state: str, chance: Random) -> tuple[str, int, float, float, str | None]:
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
            return "PENDING", 1 + (some > 0.2) + (some > 0.5), *_comes_back(chance), incidents.rate_limited(chance)
        case "given up":
            at = -40 * MINUTE * some - MINUTE
            return "FAILED", 4, at, at, incidents.rate_limited(chance)
        case "declined":
            return "FAILED", 1 + int(2 * some), -DAY * some, -DAY * some, incidents.declined(chance)
        case _:
            return "FAILED", 4, -DAY * some, -DAY * some, incidents.timed_out(chance)


def _comes_back(chance: Random) -> tuple[float, float]:
    """When a throttled payment was last tried, and when it is tried again."""
    roll = chance.random()
    if roll < 0.12:
        return -MINUTE * chance.random(), 15 + 90 * chance.random()
    if roll < 0.30:
        return -4 * MINUTE * chance.random(), HOUR * chance.random()
    early, late = STORM
    return -25 * MINUTE + 8 * MINUTE * chance.random(), early + (late - early) * chance.random() * chance.random()


def _odd(site: Site) -> Iterator[Row]:
    for n, error in enumerate(incidents.HOSTILE):
        at = site.time(-MINUTE * (n + 2))
        yield f"odd-{n:02}", "CHARGE_CARD", f"order-{n}", "FAILED", 4, at, error, site.time(-9_000), at
    at = site.time(-1_800)
    yield "odd-bytes", "REFUND", "order-7", "FAILED", 4, at, b"invalid \xff\xfe UTF-8", at, at
    yield "odd-times", None, None, "PENDING", 2, "tomorrow, maybe", "ERR_CLOCK: next_run_at was set by hand", "", at
    yield "odd-count", "REFUND", "order-8", "FAILED", -3, at, "ERR_COUNT: a counter below zero", at, at
    yield "odd-huge", "REFUND", "order-9", "FAILED", 2**62, at, "ERR_COUNT: a counter beyond reason", at, at
    yield "odd-late", "REFUND", "order-10", "PENDING", 1, "9999-12-31T23:59:59+00:00", "ERR_CLOCK: not soon", at, at


PARTS = (Part("payments", 0.40, _build),)
