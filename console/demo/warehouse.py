"""Warehouse, partitions in SQLite or PostgreSQL with raw runs on disk: a renamed column breaks one query."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice, product
from random import Random
from typing import Any, NamedTuple

from console.demo import incidents
from console.demo.seeding import HOUR, fill, open_store, pick
from console.demo.system import BuildContext, DemoSystem
from plugins.partition_store.schema import STATE_DDL
from plugins.partition_store.sink import METADATA, PAYLOAD, Partition

BROKEN_QUERY = "invoices_daily"
_QUERIES = (BROKEN_QUERY, "orders_daily", "sessions_daily")
_CUSTOMERS = ("acme", "globex", "initech", "umbrella")
_BROKEN_DAYS = 3
_STATES = ((0.84, "success"), (0.05, "mismatch"), (0.03, "marked"), (0.04, "pending"), (0.04, "lost"))
_INSERT = "INSERT INTO partition_state VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class PartitionState(NamedTuple):
    """What is stored about a partition, and what its newest run contains."""

    status: str
    attempts: int
    error: str | None = None
    records: int = 3
    counted: int = 3
    has_run: bool = True


def _build(build: BuildContext) -> dict[str, Any]:
    url = build.server or build.new_database("warehouse.db")
    raw = build.folder.make_folder("raw")
    made: set[str] = set()
    chance = Random(f"{build.seed}:warehouse")
    days = (build.base.date() - timedelta(days=n) for n in range(10_000))
    wanted = islice(product(days, _QUERIES, _CUSTOMERS), max(build.items, len(_QUERIES)))
    found = []
    for n, (day, query, customer) in enumerate(wanted):
        partition = Partition("billing", customer, query, day.isoformat())
        state = _partition_state(n // (len(_QUERIES) * len(_CUSTOMERS)), query, chance)
        found.append((partition, state, 2 * HOUR * chance.random() + 600))
        build.progress("warehouse", n + 1, build.items)
    with open_store(url, STATE_DDL) as store:
        fill(store, _INSERT, (row for one in found for row in _stored(build, made, *one)))
    return {
        "plugin": "partition_store", "url": url, "raw_sink": str(raw), "validator": True,
        "handler": "console.demo.handlers:warehouse",
        "policy": {"max_attempts": 5, "max_age": "30d", "delays": ["5m", "30m", "2h", "2h"]},
    }


def _partition_state(age: int, query: str, chance: Random) -> PartitionState:
    if query == BROKEN_QUERY and age < _BROKEN_DAYS:
        attempts = 5 if age == _BROKEN_DAYS - 1 else 2 + age
        return PartitionState("failed", attempts, rejected(incidents.column_renamed(chance)))
    match pick(chance, _STATES):
        case "mismatch":
            return PartitionState("failed", 3, "COUNT_MISMATCH: 3 records, metadata says 4", counted=4)
        case "marked":
            return PartitionState("failed", 2, "UNREADABLE: empty payload, source system is gone [terminal]")
        case "pending":
            return PartitionState("pending", 0)
        case "lost":
            return PartitionState("failed", 1, "MISSING_RUN: the raw sink has no run", has_run=False)
        case _:
            return PartitionState("success", 1)


def rejected(error: str) -> str:
    """What the validator says about a run that fails in the database."""
    return f"REJECTED: {error}"


def _stored(
    build: BuildContext, made: set[str], partition: Partition, state: PartitionState, age: float
) -> Iterator[tuple[Any, ...]]:
    run = f"{partition.logical_date}T04:00:00.000Z"
    if state.has_run:
        _write_run(build, _made_folder(build, made, [*partition.segments, f"run_id={run}"]), partition, run, state)
    success = state.status == "success"
    yield (
        *partition, state.status, run if success else None, "v7" if success else None,
        state.records if success else None, build.time(-age), state.error, state.attempts,
    )


def _made_folder(build: BuildContext, made: set[str], segments: Sequence[str]) -> str:
    """The folder of a run, made with its parents where they are missing."""
    folder = "raw"
    for segment in segments:
        folder = f"{folder}/{segment}"
        if folder not in made:
            made.add(folder)
            build.folder.make_folder(folder)
    return folder


def _write_run(build: BuildContext, folder: str, partition: Partition, run: str, state: PartitionState) -> None:
    build.folder.write(f"{folder}/{PAYLOAD}", "".join(f'{{"row": {n}}}\n' for n in range(state.records)))
    version = "v8" if partition.query_name == BROKEN_QUERY and state.error else "v7"
    metadata = {
        **partition._asdict(), "run_id": run, "extracted_at": run, "schema_version": version,
        "record_count": state.counted, "api_version": "2026-10", "query_hash": "5f1d7a",
    }
    build.folder.write(f"{folder}/{METADATA}", json.dumps(metadata))


SYSTEMS = (DemoSystem("warehouse", 0.04, _build, most=240),)
