"""The partition store: state in SQLite with a trigger as oracle, raw runs on disk, which nobody may touch."""

from __future__ import annotations

import atexit
import hashlib
import json
import random
import shutil
import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from console.core.policy import PolicyOverride
from plugins.partition_store import PartitionStore
from plugins.partition_store.backend import Options
from plugins.partition_store.schema import STATE_DDL
from tests.faults.systems.sqlite_queues import ORACLE, SqliteSystem

NAMED = "{0}.source || '/' || {0}.customer_id || '/' || {0}.query_name || '/' || {0}.logical_date"
FIRST_DAY = date(2026, 1, 1)
DAYS = 250


@cache
def _raw_runs(items: int) -> Path:
    """Raw data is never written, so every store that this process makes has the same."""
    root = Path(tempfile.mkdtemp(prefix="retriage-raw-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for n in range(items):
        customer, day = f"c{n // DAYS}", (FIRST_DAY + timedelta(days=n % DAYS)).isoformat()
        run = f"{day}T01:00:00.000Z"
        folder = root.joinpath("ads", f"customer_id={customer}", "query_name=spend", f"logical_date={day}", f"run_id={run}")
        folder.mkdir(parents=True)
        (folder / "payload.jsonl").write_text('{"n": 1}\n')
        metadata = {"source": "ads", "customer_id": customer, "query_name": "spend", "logical_date": day, "run_id": run, "record_count": 1,
                "schema_version": "v1"}
        (folder / "metadata.json").write_text(json.dumps(metadata))
    return root


class Partitions(SqliteSystem):
    name = "parts"
    ddl, table, failed, pending = STATE_DDL, "partition_state", "failed", "pending"
    key = NAMED.format("partition_state")

    def create(self, items: int) -> list[str]:
        began = datetime.now(UTC) - timedelta(hours=1)
        rows = []
        for n in range(items):
            day = (FIRST_DAY + timedelta(days=n % DAYS)).isoformat()
            at = (began + timedelta(microseconds=n + 1)).isoformat()
            rows.append(("ads", f"c{n // DAYS}", "spend", day, "failed", None, None, None, at, "COUNT_MISMATCH: 1", 1))
        (self.folder / "raw").symlink_to(_raw_runs(items))
        with closing(sqlite3.connect(self.folder / "queue.db", isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(self.ddl)
            connection.execute("BEGIN")
            connection.executemany(f"INSERT INTO partition_state VALUES ({', '.join('?' * 11)})", rows)
            connection.execute("COMMIT")
            oracle = ORACLE.format(table="partition_state", key="{key}")
            for old in ("OLD", "NEW"):
                oracle = oracle.replace(f"{old}.{{key}}", NAMED.format(old))
            connection.executescript(oracle)
        return sorted(self.present())

    def raw_hash(self) -> str:
        """Of the whole raw tree: names, times and contents."""
        digest = hashlib.sha256()
        raw = (self.folder / "raw").resolve()
        for path in sorted(raw.rglob("*")):
            stat = path.lstat()
            digest.update(f"{path.relative_to(raw)} {stat.st_mtime_ns} {stat.st_ino} {stat.st_mode}\n".encode())
            if path.is_file():
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def open(self, deadline: timedelta = timedelta(seconds=30)) -> PartitionStore:  # type: ignore[override]
        options = Options(url=f"sqlite:///{self.folder}/queue.db", raw_sink=str((self.folder / "raw").resolve()), validator=True)
        return PartitionStore.open(self.name, options, PolicyOverride(), read_only=False, deadline=deadline)

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        at = (datetime.now(UTC) - timedelta(minutes=chance.randrange(1, 50))).isoformat()
        where = "WHERE source = ? AND customer_id = ? AND query_name = ? AND logical_date = ?"
        with closing(sqlite3.connect(self.folder / "queue.db", isolation_level=None)) as connection:
            connection.execute("BEGIN")
            for id in ids:
                sql, *values = chance.choice((
                    ("UPDATE partition_state SET status = 'success', attempt_count = attempt_count + 1, updated_at = ?", at),
                    ("UPDATE partition_state SET status = 'pending'",),
                    ("UPDATE partition_state SET attempt_count = attempt_count + 1",),
                    ("UPDATE partition_state SET updated_at = ?", at),
                    ("UPDATE partition_state SET current_run_id = 'another'",),
                    ("DELETE FROM partition_state",),
                    ("UPDATE partition_state SET query_name = 'moved'",),
                ))
                connection.execute(f"{sql} {where}", (*values, *id.split("/")))
            connection.execute("COMMIT")

    def naive(self, chunk: int = 100) -> bool:
        with closing(sqlite3.connect(self.folder / "queue.db", isolation_level=None, timeout=30)) as connection:
            rows: list[Any] = connection.execute(
                "UPDATE partition_state SET status = 'pending' WHERE rowid IN (SELECT rowid FROM partition_state"
                f" WHERE status = 'failed' LIMIT ?) AND status = 'failed' RETURNING {self.key}", (chunk,),
            ).fetchall()
            connection.executemany("INSERT INTO notes VALUES (?)", rows)
        return bool(rows)
