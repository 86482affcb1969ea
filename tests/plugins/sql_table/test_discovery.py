"""`retriage map` on databases with more than plain tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from plugins.sql_table.backend import SqlTable
from plugins.sql_table.discovery import discover

SECONDS = timedelta(seconds=5)


def test_an_unreadable_table_does_not_hide_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, attempts INTEGER, error TEXT, next_run_at TEXT);"
            " CREATE VIRTUAL TABLE docs USING fts5(body)"
        )
    found = discover(SqlTable, f"sqlite:///{path}", None, SECONDS, "sqlite:///x.db")
    assert found.notes[0] == "Proposed for table jobs. Each guess has its reason as a comment."
    if found.backend is not None:
        found.backend.close()


@pytest.mark.parametrize(("statuses", "proposed"), [
    (("pending", "failed", "cancelled"), "  set: {status: cancelled, updated_at: {time: now}}"),
    (("pending", "failed", "skipped", "canceled"), "  set: {status: canceled, updated_at: {time: now}}"),
    (("pending", "failed", "done"), "# discard: no proposal; no status is known to mean cancelled"),
])
def test_a_discard_is_proposed_only_where_a_status_means_cancelled(tmp_path: Path, statuses: tuple[str, ...], proposed: str) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT NOT NULL DEFAULT 'pending', attempts INTEGER NOT NULL,"
            " last_error TEXT, run_at TEXT, updated_at TEXT)"
        )
        at = "2026-11-10T10:00:00+00:00"
        rows = [(status, n, "boom" if status == "failed" else None, at, at) for n, status in enumerate(statuses)]
        connection.executemany("INSERT INTO jobs (status, attempts, last_error, run_at, updated_at) VALUES (?, ?, ?, ?, ?)", rows)
        connection.commit()
    found = discover(SqlTable, f"sqlite:///{path}", None, SECONDS, "sqlite:///x.db")
    assert proposed in found.text.splitlines()
    assert found.backend is not None
    assert (found.backend.abilities.discard is not None) == proposed.startswith("  set")
    found.backend.close()
