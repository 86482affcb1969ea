"""A database by its URL, whichever of the two kinds it is. The PostgreSQL driver is imported only when used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from console.core.faults import ConfigFault
from console.sql.sqlite import SqliteDatabase, sqlite_path

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase


def open_database(
    url: str,
    *,
    read_only: bool,
    deadline: timedelta,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> SqliteDatabase | PostgresDatabase:
    """`functions` are SQL functions of our own, which only SQLite needs."""
    try:
        kind = sa.make_url(url).get_backend_name()
    except ArgumentError:
        raise ConfigFault("the url cannot be read", fix="Write sqlite:///PATH or postgresql://USER@HOST/DB.") from None
    if kind == "sqlite":
        return SqliteDatabase(sqlite_path(url), read_only=read_only, deadline=deadline, functions=functions)
    if kind in ("postgresql", "postgres"):
        from console.sql.postgres import PostgresDatabase

        return PostgresDatabase(url, read_only=read_only, deadline=deadline)
    raise ConfigFault(f"there is no way to read {kind}", fix="Write sqlite:///PATH or postgresql://USER@HOST/DB.")
