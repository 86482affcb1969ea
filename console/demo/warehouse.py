"""Warehouse, partitions in SQLite or PostgreSQL with raw runs on disk: a renamed column breaks one query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from console.demo import incidents
from console.demo.filling import HOUR, chosen, fill, postgres_store, sqlite_store
from console.demo.part import Part, Site
from plugins.partition_store.schema import STATE_DDL
from plugins.partition_store.sink import METADATA, PAYLOAD, Partition

BROKEN_QUERY = "invoices_daily"
_QUERIES = (BROKEN_QUERY, "orders_daily", "sessions_daily")
_CUSTOMERS = ("acme", "globex", "initech", "umbrella")
_BROKEN_DAYS = 3
_STATES = ((0.84, "success"), (0.05, "mismatch"), (0.03, "marked"), (0.04, "pending"), (0.04, "lost"))
_INSERT = "INSERT INTO partition_state VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Told(NamedTuple):
    """What is stored of a partition, and whether its newest run is what it should be."""

    status: str
    attempts: int
    error: str | None = None
    records: int = 3
    counted: int = 3
    has_run: bool = True


def _build(site: Site) -> dict[str, Any]:
    path, raw = site.folder / "warehouse.db", site.folder / "raw"
    raw.mkdir()
    chance = Random(f"{site.seed}:warehouse")
    days = (site.base.date() - timedelta(days=n) for n in range(10_000))
    wanted = islice(product(days, _QUERIES, _CUSTOMERS), max(site.items, len(_QUERIES)))
    found = []
    for n, (day, query, customer) in enumerate(wanted):
        partition = Partition("billing", customer, query, day.isoformat())
        told = _told(n // (len(_QUERIES) * len(_CUSTOMERS)), query, chance)
        found.append((partition, told, 2 * HOUR * chance.random() + 600))
        site.progress("warehouse", n + 1, site.items)
    with postgres_store(site.server, STATE_DDL) if site.server else sqlite_store(path, STATE_DDL) as store:
        fill(store, _INSERT, (row for one in found for row in _stored(site, raw, *one)))
    return {
        "plugin": "partition_store", "url": site.server or site.url(path), "raw_sink": str(raw), "validator": True,
        "handler": "console.demo.handlers:warehouse",
        "policy": {"max_attempts": 5, "max_age": "30d", "delays": ["5m", "30m", "2h", "2h"]},
    }


def _told(age: int, query: str, chance: Random) -> Told:
    if query == BROKEN_QUERY and age < _BROKEN_DAYS:
        attempts = 5 if age == _BROKEN_DAYS - 1 else 2 + age
        return Told("failed", attempts, f"REJECTED: {incidents.column_renamed(chance)}")
    match chosen(chance, _STATES):
        case "mismatch":
            return Told("failed", 3, "COUNT_MISMATCH: 3 records, metadata says 4", counted=4)
        case "marked":
            return Told("failed", 2, "UNREADABLE: empty payload, source system is gone [terminal]")
        case "pending":
            return Told("pending", 0)
        case "lost":
            return Told("failed", 1, "MISSING_RUN: the raw sink shows no run", has_run=False)
        case _:
            return Told("success", 1)


def _stored(site: Site, raw: Path, partition: Partition, told: Told, age: float) -> Iterator[tuple[Any, ...]]:
    run = f"{partition.logical_date}T04:00:00.000Z"
    if told.has_run:
        _write_run(raw.joinpath(*partition.segments, f"run_id={run}"), partition, run, told)
    success = told.status == "success"
    yield (
        *partition, told.status, run if success else None, "v7" if success else None,
        told.records if success else None, site.time(-age), told.error, told.attempts,
    )


def _write_run(folder: Path, partition: Partition, run: str, told: Told) -> None:
    folder.mkdir(parents=True)
    (folder / PAYLOAD).write_text("".join(f'{{"row": {n}}}\n' for n in range(told.records)))
    version = "v8" if partition.query_name == BROKEN_QUERY and told.error else "v7"
    metadata = {
        **partition._asdict(), "run_id": run, "extracted_at": run, "schema_version": version,
        "record_count": told.counted, "api_version": "2026-10", "query_hash": "5f1d7a",
    }
    (folder / METADATA).write_text(json.dumps(metadata))


PARTS = (Part("warehouse", 0.04, _build, most=240),)
