"""An SQLite authorizer that allows a connection to read and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_TRANSACTION})

_WITH_NAME = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
)
"""Pragmas whose argument is a name to look up."""
_PRAGMAS = _WITH_NAME | {
    "data_version", "read_uncommitted", "journal_mode", "user_version", "application_id", "encoding", "database_list",
    "page_count",
}
"""Pragmas that change nothing."""

_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "writefile", "edit", "fts3_tokenizer"})


def allow_reading_only(connection: sqlite3.Connection, functions: Iterable[str] = ()) -> None:
    """Make the connection refuse ATTACH, VACUUM INTO, temporary tables and every pragma that writes."""
    own = frozenset(functions)

    def authorize(
        action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if action in _READING:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            name = (second or "").lower()
            return sqlite3.SQLITE_DENY if name in _FORBIDDEN_FUNCTIONS and name not in own else sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA:
            allowed = first in _PRAGMAS and (second is None or first in _WITH_NAME)
            return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)
