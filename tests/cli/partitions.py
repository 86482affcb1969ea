"""A partition store for the command line: an SQLite state, a raw sink on disk, and the config that attaches to them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from plugins.partition_store.schema import STATE_DDL
from plugins.partition_store.sink import METADATA, PAYLOAD, Partition
from tests.cli.place import Place

RUN = "2026-11-10T01:00:00.000Z"


def day(ago: int) -> str:
    return (datetime.now(UTC).date() - timedelta(days=ago)).isoformat()


@dataclass
class Pipeline:
    """A store named `parts`, attached."""

    place: Place

    def __post_init__(self) -> None:
        self.raw = self.place.folder / "raw"
        self.raw.mkdir()
        self.path = self.place.folder / "state.db"
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(STATE_DDL)
        self.attach()

    def attach(self, more: str = ", validator: true, policy: {max_attempts: 3}") -> None:
        self.place.sections["parts"] = (
            f'  parts: {{plugin: partition_store, url: "sqlite:///{self.path}", raw_sink: "{self.raw}"{more}}}\n'
        )

    def sql(self, text: str, parameters: Any = ()) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(text, parameters).fetchall()

    def put(self, partition: Partition, status: str = "failed", attempts: int = 1, *, run: bool = True, error: str = "BAD: it broke") -> str:
        self.sql(
            "INSERT INTO partition_state (source, customer_id, query_name, logical_date, status, attempt_count, updated_at, error_message)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*partition, status, attempts, "2026-11-10T02:00:00+00:00", error if status == "failed" else None),
        )
        if run:
            folder = self.raw.joinpath(*partition.segments, f"run_id={RUN}")
            folder.mkdir(parents=True)
            (folder / PAYLOAD).write_text('{"n": 1}\n')
            (folder / METADATA).write_text(json.dumps({"record_count": 1}))
        return f"parts/{'/'.join(partition)}"

    def statuses(self) -> dict[str, str]:
        return {f"{c}/{d}": status for c, d, status in self.sql("SELECT customer_id, logical_date, status FROM partition_state")}
