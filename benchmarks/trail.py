"""The trail: verifying, against hashing the same bytes."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bulk import Bench
from benchmarks.data import CACHE, async_tasks
from benchmarks.measure import Result, compare


def cases(quick: bool) -> Iterator[Result]:
    bench = Bench(async_tasks(200_000 if quick else 1_000_000), "verified")
    bench.carry_out(bench.propose())
    trail = CACHE / "verified_trail.db"
    yield compare("trail verify", 3.0, bench.trail.verify, lambda: _hashed(trail), turns=5,
                  note="records and item outcomes")
    bench.close()


def _hashed(trail: Path) -> str:
    digest = hashlib.sha256()
    connection = sqlite3.connect(trail)
    for (body,) in connection.execute("SELECT body FROM record ORDER BY seq"):
        digest.update(body.encode())
    for row in connection.execute("SELECT ordinal, key, outcome, detail FROM item_outcome ORDER BY seq, ordinal"):
        digest.update(("\x1f".join(map(str, row)) + "\n").encode())
    connection.close()
    return digest.hexdigest()
