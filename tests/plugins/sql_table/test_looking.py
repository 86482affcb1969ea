"""What `retriage map` looks at: a database may hold more than tables of rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from plugins.sql_table.looking import look

SECONDS = timedelta(seconds=5)


def test_a_table_that_cannot_be_read_does_not_hide_the_queue_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, attempts INTEGER, error TEXT, next_run_at TEXT);"
            " CREATE VIRTUAL TABLE docs USING fts5(body)"
        )
    found = look(f"sqlite:///{path}", None, SECONDS, "sqlite:///x.db")
    assert found.told[0] == "Proposed for table jobs; every guess has its reason beside it."
    if found.backend is not None:
        found.backend.close()
