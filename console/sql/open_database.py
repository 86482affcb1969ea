"""Opens a database by its URL. The PostgreSQL driver is imported only if it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from console.core.faults import ConfigFault
from console.sql.database import parse_url
from console.sql.sqlite import SqliteDatabase, sqlite_path

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

_FIX = "Write sqlite:///PATH or postgresql://USER@HOST/DATABASE."


def open_database(
    url: str,
    *,
    read_only: bool,
    deadline: timedelta,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> SqliteDatabase | PostgresDatabase:
    """The database at this URL. `functions` are SQL functions of our own; only SQLite needs them."""
    kind = parse_url(url, _FIX).get_backend_name()
    if kind == "sqlite":
        return SqliteDatabase(sqlite_path(url), read_only=read_only, deadline=deadline, functions=functions)
    if kind in ("postgresql", "postgres"):
        from console.sql.postgres import PostgresDatabase

        return PostgresDatabase(url, read_only=read_only, deadline=deadline)
    raise ConfigFault(f"databases of type {kind} are not supported", fix=_FIX)
