"""The data sets: built once, kept in `.benchmarks/`, copied where a case changes them."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL

CACHE = Path(os.environ.get("RETRIAGE_BENCHMARKS", ".benchmarks"))
START = datetime(2026, 11, 1, tzinfo=UTC)
_CACHE_KB = 2_000_000
"""Keys are random: with the pages of their index in memory ten million take minutes, without them an hour."""
CAUSES = (
    "ERR_RATE: rate limit exceeded, retry after {n} s",
    "ERR_TIMEOUT: upstream 10.0.{a}.{b} did not answer in 30 s",
    "ERR_VALIDATION: position {n} does not exist",
    "ERR_AUTH: invalid api key",
    "ERR_DB: deadlock detected, process {n}",
)


def async_tasks(rows: int) -> Path:
    """An `async_tasks` file: a tenth failed, a twentieth being retried, the rest done."""
    path = CACHE / f"async_tasks_{rows}.db"
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    connection = sqlite3.connect(unfinished)
    connection.execute("PRAGMA journal_mode = OFF")  # an unfinished one is thrown away anyhow
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
    table, index = ASYNC_TASKS_DDL.split("CREATE INDEX", 1)
    connection.executescript(table)
    connection.executemany("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", _tasks(rows))
    connection.executescript(f"CREATE INDEX{index}")
    connection.commit()
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    unfinished.rename(path)
    return path


def _tasks(rows: int) -> Iterator[tuple[object, ...]]:
    chance = random.Random(rows)
    texts = [
        cause.format(n=chance.randrange(10_000), a=chance.randrange(256), b=chance.randrange(256))
        for cause in CAUSES
        for _ in range(40)
    ]
    for number in range(rows):
        at = START + timedelta(seconds=number * 1_300_000 / rows)
        updated = (at + timedelta(seconds=5, microseconds=number % 1_000_000)).isoformat()
        status, attempts, error = "DONE", 1, None
        if number % 10 == 0:
            status, attempts, error = "FAILED", 4, texts[number // 10 % len(texts)]
        elif number % 20 == 1:
            status, attempts, error = "PENDING", 2, texts[number // 20 % len(texts)]
        id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        yield (
            id, "ANALYZE_EXECUTED", f"entity-{number}", status, attempts, at.isoformat(), error, at.isoformat(),
            updated,
        )


def copy_of(source: Path, name: str) -> Path:
    """A fresh copy to change, without the files that an earlier one left."""
    target = CACHE / name
    for leftover in CACHE.glob(f"{name}*"):
        leftover.unlink()
    shutil.copyfile(source, target)
    return target
