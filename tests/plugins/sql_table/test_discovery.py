"""`retriage map` on databases with more than plain tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from plugins.sql_table.discovery import discover

SECONDS = timedelta(seconds=5)


def test_an_unreadable_table_does_not_hide_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, attempts INTEGER, error TEXT, next_run_at TEXT);"
            " CREATE VIRTUAL TABLE docs USING fts5(body)"
        )
    found = discover(f"sqlite:///{path}", None, SECONDS, "sqlite:///x.db")
    assert found.notes[0] == "Proposed for table jobs. Each guess has its reason as a comment."
    if found.backend is not None:
        found.backend.close()
