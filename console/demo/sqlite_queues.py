"""Two SQLite queues in the middle of an incident: payments (`async_tasks`) and jobs (`tasks`)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from console.demo import incidents
from console.demo.part import Part, Site
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL, TASKS_DDL

Row = tuple[Any, ...]

_DAY = 86_400
_BATCH = 10_000
_DELAYS = (300, 900, 3600)


class _Times:
    """Instants around the world's base, as the queues write them."""

    def __init__(self, base: datetime) -> None:
        self._base = base

    def __call__(self, seconds: float) -> str:
        return (self._base + timedelta(seconds=int(seconds))).isoformat()


def _id(number: int) -> str:
    """Eight hex digits in no visible order, never twice."""
    return f"{number * 2_654_435_761 % 2**32:08x}"


def _create(path: Path, ddl: str, journal: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.executescript(ddl)
    return connection


def _fill(connection: sqlite3.Connection, statements: Sequence[str], rows: Iterator[Sequence[Row | None]],
          site: Site, what: str, total: int) -> None:
    """Rows for each statement, in large transactions."""
    done = 0
    connection.execute("BEGIN")
    batch: list[Sequence[Row | None]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            done += _write(connection, statements, batch)
            site.progress(what, done, total)
            batch = []
    done += _write(connection, statements, batch)
    connection.execute("COMMIT")
    site.progress(what, total, total)


def _write(connection: sqlite3.Connection, statements: Sequence[str], batch: list[Sequence[Row | None]]) -> int:
    for n, statement in enumerate(statements):
        connection.executemany(statement, [row for rows in batch if (row := rows[n]) is not None])
    return len(batch)


# --- payments: the analysis queue's table ------------------------------------------------------------

_INSERT_ASYNC = "INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PAYMENT_TYPES = ("CHARGE_CARD", "CHARGE_CARD", "CHARGE_CARD", "REFUND", "SEND_RECEIPT")


def _payments(site: Site) -> dict[str, Any]:
    path = site.folder / "payments.db"
    connection = _create(path, ASYNC_TASKS_DDL, "OFF")
    odd = list(_odd_payments(_Times(site.base)))
    rows = (((row),) for row in _payment_rows(site, site.items - len(odd)))
    _fill(connection, (_INSERT_ASYNC,), rows, site, "payments", site.items - len(odd))
    connection.executemany(_INSERT_ASYNC, odd)
    connection.execute("UPDATE async_tasks SET last_error = CAST(last_error AS TEXT) WHERE task_id = 'odd-bytes'")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    return {
        "plugin": "sqlite_queue", "dialect": "async_tasks", "url": site.url(path),
        "policy": {"max_attempts": 4, "delays": ["5m", "15m", "60m"], "unrecoverable": ["card declined"]},
    }


def _payment_rows(site: Site, number: int) -> Iterator[Row]:
    chance, times = Random(f"{site.seed}:payments"), _Times(site.base)
    random, whole = chance.random, chance.randrange
    for n in range(number):
        status, attempts, updated, due, error = _payment(chance, random())
        created = updated - _waited(attempts) - 60 * random()
        yield (
            _id(n), _PAYMENT_TYPES[whole(5)], f"order-{whole(100_000, 999_999)}", status, attempts,
            times(due), error, times(created), times(updated),
        )


def _payment(chance: Random, roll: float) -> tuple[str, int, float, float, str | None]:
    """Status, attempts, seconds (from the base) of the last update and of the due time, error."""
    some = chance.random()
    if roll < 0.74:
        at = -_DAY * some
        return "DONE", 1, at, at, None
    if roll < 0.80:
        return "PENDING", 0, -600 * some, 3600 * chance.random() - 60, None
    if roll < 0.82:
        return "RUNNING", 1, -200 * some, -200 * some, None
    if roll < 0.825:
        return "RUNNING", 2, -700 - 5400 * some, -700 - 5400 * some, incidents.timed_out(chance)
    if roll < 0.93:
        return _storm(chance, some)
    if roll < 0.96:
        at = -5400 * some
        return "FAILED", 4, at, at, incidents.rate_limited(chance)
    at = -_DAY * some
    if roll < 0.975:
        return "FAILED", 1 + int(2 * chance.random()), at, at, incidents.declined(chance)
    return "FAILED", 4, at, at, incidents.timed_out(chance)


def _storm(chance: Random, some: float) -> tuple[str, int, float, float, str | None]:
    """The provider throttled everybody forty minutes ago: third failures come due together."""
    attempts = 1 if some < 0.15 else 2 if some < 0.35 else 3
    if attempts == 3:
        at = -2520 + 330 * chance.random() * chance.random()
    else:
        at = -_DELAYS[attempts - 1] * chance.random()
    return "PENDING", attempts, at, at + _DELAYS[attempts - 1], incidents.rate_limited(chance)


def _waited(attempts: int) -> int:
    return sum(_DELAYS[: max(attempts - 1, 0)])


def _odd_payments(times: _Times) -> Iterator[Row]:
    for n, error in enumerate(incidents.HOSTILE):
        at = times(-60 * n)
        yield f"odd-{n:02}", "CHARGE_CARD", f"order-{n}", "FAILED", 4, at, error, times(-9000), at
    at = times(-1800)
    yield "odd-bytes", "REFUND", "order-7", "FAILED", 4, at, b"invalid \xff\xfe UTF-8", at, at
    yield "odd-times", None, None, "PENDING", 2, "tomorrow, maybe", "ERR_CLOCK: next_run_at was set by hand", "", at
    yield "odd-count", "REFUND", "order-8", "FAILED", -3, at, "ERR_COUNT: a counter below zero", at, at
    yield "odd-huge", "REFUND", "order-9", "FAILED", 2**62, at, "ERR_COUNT: a counter beyond reason", at, at
    yield "odd-late", "REFUND", "order-10", "PENDING", 1, "9999-12-31T23:59:59+00:00", "ERR_CLOCK: not soon", at, at


# --- jobs: the contract queue's tables ----------------------------------------------------------------

_INSERT_TASK = "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_RESULT = "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?)"
_FUNCTIONS = ("mail.send_invoice", "billing.render_pdf", "crm.sync_contact", "reports.nightly")
_SCHEDULE = '{"eta": "%s", "interval": null}'
_NO_SCHEDULE = '{"eta": null, "interval": null}'


def _jobs(site: Site) -> dict[str, Any]:
    path = site.folder / "jobs.db"
    connection = _create(path, TASKS_DDL, "OFF")
    odd = list(_odd_jobs(_Times(site.base)))
    rows = _job_rows(site, site.items - len(odd))
    _fill(connection, (_INSERT_TASK, _INSERT_RESULT), rows, site, "jobs", site.items - len(odd))
    connection.executemany(_INSERT_TASK, odd)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    return {
        "plugin": "sqlite_queue", "dialect": "tasks", "url": site.url(path),
        "policy": {"unrecoverable": ["invalid api key"]},
    }


def _job_rows(site: Site, number: int) -> Iterator[Sequence[Row | None]]:
    chance, times = Random(f"{site.seed}:jobs"), _Times(site.base)
    random, whole = chance.random, chance.randrange
    for n in range(number):
        status, function, attempts, updated, eta, error = _job(chance, random())
        id, at = _id(n), times(updated)
        tried = at if attempts else None
        due = None if eta is None else times(eta)
        task = (
            id, _FUNCTIONS[function], f"[{whole(10_000, 99_999)}]", "{}", status,
            _NO_SCHEDULE if due is None else _SCHEDULE % due, due, 3, 600, attempts,
            times(updated - 90 * random()), at, tried, "null",
        )
        ended = None
        if attempts and status != "RUNNING":
            ended = (id, status, "null" if error is None else None, error, at, attempts, tried)
        yield task, ended


def _job(chance: Random, roll: float) -> tuple[str, int, int, float, float | None, str | None]:
    """Status, function, attempts, seconds (from the base) of the last update and of the eta, error."""
    some, function = chance.random(), int(4 * chance.random())
    if roll < 0.76:
        return "SUCCESS", function, 1, -_DAY * some, None, None
    if roll < 0.80:
        return "PENDING", function, 0, -300 * some, None, None
    if roll < 0.82:
        return "RUNNING", function, 1, -400 * some, None, None
    if roll < 0.825:
        return "RUNNING", function, 1, -1200 - 7200 * some, None, None
    if roll < 0.83:
        return "CANCELLED", function, 0, -_DAY * some, None, None
    if roll < 0.90:
        return "FAILED", 0, 3, -6 * 3600 * some, None, incidents.api_key_expired(chance)
    if roll < 0.95:
        return "FAILED", 1, 3, -2 * 3600 * some, None, incidents.column_renamed(chance)
    if roll < 0.96:
        return "FAILED", 3, 3, -_DAY * some, None, incidents.out_of_memory(chance)
    if roll < 0.99:
        return "FAILED", 2, 3, -_DAY * some, None, incidents.timed_out(chance)
    return "PENDING", 2, 1 + (some < 0.5), -30 * some, 60 * chance.random(), incidents.timed_out(chance)


def _odd_jobs(times: _Times) -> Iterator[Row]:
    at = times(-900)

    def task(id: str, status: str | None, error: str, attempts: Any = 1, eta: str | None = None) -> Row:
        told = json.dumps(error)
        return (id, "crm.sync_contact", "[]", "{}", status, _NO_SCHEDULE, eta, 3, 600, attempts, at, at, at, told)

    yield task("odd-status", "PAUSED_BY_HAND", "somebody edited the table")
    yield task("odd-null", None, "no status at all", None)
    yield task("odd-eta", "PENDING", "an eta that is no time", 1, "after lunch")
    yield task("odd \x1b[31mid\x1b[0m/slash", "FAILED", "an id with controls in it", 3)


PARTS = (Part("payments", 0.55, _payments), Part("jobs", 0.45, _jobs))
