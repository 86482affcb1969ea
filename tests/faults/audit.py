"""The changes that a naive auditor makes, found by the same comparison as for the promises."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from tests.faults import systems
from tests.faults.world import QueueFile, hashes


def files_left_by_a_naive_reader() -> int:
    """The files that `mode=ro` creates next to a quiet database with a write-ahead log."""
    with tempfile.TemporaryDirectory(prefix="retriage-audit-") as name:
        folder = Path(name)
        queue = QueueFile.create(folder / "queue.db", oracle=False)
        queue.script("PRAGMA wal_checkpoint(TRUNCATE)")
        before = set(folder.iterdir())
        with closing(sqlite3.connect(f"file:{queue.path}?mode=ro", uri=True)) as reader:
            reader.execute("SELECT count(*) FROM async_tasks").fetchone()
            return len(set(folder.iterdir()) - before)


def raw_data_written_again() -> tuple[bool, bool]:
    """A script writes the same bytes again: whether the hash of the tree shows that, and whether the contents alone do."""
    with tempfile.TemporaryDirectory(prefix="retriage-raw-") as name:
        folder = Path(name)
        system, _ = systems.create("partition_store", folder, 3)
        assert isinstance(system, systems.Raw)
        before, contents = system.raw_hash(), hashes(folder / "raw")
        for file in (folder / "raw").rglob("*.json"):
            file.write_bytes(file.read_bytes())
        return system.raw_hash() != before, hashes(folder / "raw") != contents
