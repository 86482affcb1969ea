"""Webhooks, a home-made outbox table attached by a mapping alone: slow partners, and one that is gone."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from console.core.ports import Stop
from console.demo.seeding import DAY, HOUR, MINUTE, Row, fill, pick, sample_rows, sqlite_store
from console.demo.system import BuildContext, DemoSystem

FILE, _MAPPING_FILE = "webhooks.db", "webhooks.yaml"
GONE = "hooks.oldpartner.example"
_PARTNERS = ("hooks.acme.example", "hooks.globex.example", "api.initech.example")
_TRIES, _DELAY = 5, 30
_DDL = """
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY,
    event TEXT NOT NULL,
    partner TEXT NOT NULL,
    state TEXT NOT NULL,
    tries INTEGER NOT NULL,
    next_try_at TEXT,
    last_error TEXT,
    created_at TEXT NOT NULL,
    changed_at TEXT NOT NULL
);
CREATE INDEX outbox_state ON outbox (state, next_try_at);
"""
_MAPPING: dict[str, Any] = {
    "table": "outbox",
    "key": "id",
    "status": {
        "column": "state", "ready": ["queued"], "running": ["delivering"], "terminal": ["dead"], "done": ["delivered"],
    },
    "type": "event",
    "references": ["partner"],
    "attempts": "tries",
    "max_attempts": _TRIES,
    "next_run": "next_try_at",
    "error": "last_error",
    "created": "created_at",
    "updated": "changed_at",
    "execution_counter": "tries",
    "times": "text",
    "requeue": {
        "guard": ["state", "tries", "changed_at"],
        "set": {"state": "queued", "next_try_at": {"time": "due"}, "changed_at": {"time": "now"}},
        "attempts": {"keep": {"effect": "last_try"}, "reset": {"effect": "reset", "set": {"tries": 0}}},
    },
    "discard": {"conditions": ["retrying", "stuck"], "set": {"state": "dead", "changed_at": {"time": "now"}}},
}
_STATES = ((0.66, "delivered"), (0.08, "new"), (0.12, "slow"), (0.06, "dead"), (0.08, "gone"))


def _build(build: BuildContext) -> dict[str, Any]:
    rows = sample_rows(build, "webhooks", build.items, lambda chance: _row(build, chance))
    url = build.new_database(FILE)
    with sqlite_store(url, _DDL) as store:
        numbered = ((n + 1, *row) for n, row in zip(range(build.items), cycle(rows), strict=False))
        fill(store, "INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", numbered,
             lambda done: build.progress("webhooks", done, build.items))
    lines = [f"{key}: {json.dumps(value)}" for key, value in _MAPPING.items()]
    lines = ["# What the columns of the outbox mean. This is all Retriage needs.", *lines, ""]
    build.folder.write(_MAPPING_FILE, "\n".join(lines))
    return {
        "plugin": "sql_table", "url": url, "mapping": _MAPPING_FILE,
        "policy": {"unrecoverable": ["410 gone"]},
    }


def _row(build: BuildContext, chance: Random) -> Row:
    state, some = pick(chance, _STATES), chance.random()
    partner = GONE if state == "gone" else chance.choice(_PARTNERS)
    native, tries, age, due, error = {
        "delivered": ("delivered", 1, DAY * some, None, None),
        "new": ("queued", 0, MINUTE * some, 40 * MINUTE * some, None),
        "slow": ("queued", 1 + int(3 * some), 4 * MINUTE * some, 20 * MINUTE * some, _slow(partner, chance)),
        "dead": ("dead", _TRIES, 5 * HOUR * some, None, _slow(partner, chance)),
        "gone": ("dead", _TRIES, 9 * HOUR * some, None, _gone(chance)),
    }[state]
    event = chance.choice(("invoice.paid", "invoice.failed", "order.shipped"))
    return (
        event, partner, native, tries, None if due is None else build.time(due), error, build.time(-age - MINUTE),
        build.time(-age),
    )


def _slow(partner: str, chance: Random) -> str:
    return f"HTTP 503 Service Unavailable from {partner} (delivery {chance.getrandbits(40):010x})"


def _gone(chance: Random) -> str:
    return f"HTTP 410 Gone from {GONE}: endpoint removed (delivery {chance.getrandbits(40):010x})"


# --- its worker: the plugin attaches to any table, so the loop belongs to the application ---------------


def deliver(folder: Path, speed: int, stop: Stop) -> None:
    """Deliver what is due, one at a time."""
    chance = Random()
    with closing(sqlite3.connect(folder / FILE, timeout=30, isolation_level=None)) as connection:
        while not stop.requested:
            now = datetime.now(UTC)
            taken = connection.execute(
                "UPDATE outbox SET state = 'delivering', tries = tries + 1, changed_at = ? WHERE id = (SELECT id FROM"
                " outbox WHERE state = 'queued' AND next_try_at <= ? ORDER BY next_try_at LIMIT 1)"
                " RETURNING id, partner, tries", (now.isoformat(), now.isoformat()),
            ).fetchall()
            for id, partner, tries in taken:
                time.sleep(0.1 + 0.2 * chance.random())
                connection.execute(
                    "UPDATE outbox SET state = ?, next_try_at = ?, last_error = ?, changed_at = ? WHERE id = ?",
                    (*_outcome(partner, tries, speed, chance), datetime.now(UTC).isoformat(), id),
                )
            if not taken:
                time.sleep(0.5)


def _outcome(partner: str, tries: int, speed: int, chance: Random) -> Iterator[str | None]:
    """State, next try and error after a delivery."""
    if partner != GONE:
        return iter(("delivered", None, None))
    again = (datetime.now(UTC) + timedelta(seconds=_DELAY * 2**tries / speed)).isoformat()
    return iter(("queued", again, _gone(chance)) if tries < _TRIES else ("dead", None, _gone(chance)))


SYSTEMS = (DemoSystem("webhooks", 0.05, _build, most=8_000),)
