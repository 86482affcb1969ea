"""Opens a database by its URL. The driver of a server is imported only if it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from console.core.faults import ConfigFault
from console.sql.database import parse_url
from console.sql.sqlite import SqliteDatabase, sqlite_path

if TYPE_CHECKING:
    from console.sql.mysql import MysqlDatabase
    from console.sql.postgres import PostgresDatabase

    AnyDatabase = SqliteDatabase | PostgresDatabase | MysqlDatabase

_FIX = "Write sqlite:///PATH or postgresql://USER@HOST/DATABASE."
_ANY_FIX = "Write sqlite:///PATH, postgresql://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE."


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
        with _driver("PostgreSQL", "postgres"):
            from console.sql.postgres import PostgresDatabase

        return PostgresDatabase(url, read_only=read_only, deadline=deadline)
    raise ConfigFault(f"databases of type {kind} are not supported", fix=_FIX)


def open_any_database(
    url: str,
    *,
    read_only: bool,
    deadline: timedelta,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> AnyDatabase:
    """The database at this URL, which may also be MySQL or MariaDB."""
    kind = parse_url(url, _ANY_FIX).get_backend_name()
    if kind in ("sqlite", "postgresql", "postgres"):
        return open_database(url, read_only=read_only, deadline=deadline, functions=functions)
    if kind not in ("mysql", "mariadb"):
        raise ConfigFault(f"databases of type {kind} are not supported", fix=_ANY_FIX)
    with _driver("MySQL", "mysql"):
        from console.sql.mysql import MysqlDatabase

    return MysqlDatabase(url, read_only=read_only, deadline=deadline)


@contextmanager
def _driver(name: str, extra: str) -> Iterator[None]:
    """Around the import of a database's module, whose driver comes with an extra."""
    try:
        yield
    except ModuleNotFoundError:
        raise ConfigFault(f"The {name} driver is missing", fix=f"Install retriage[{extra}].") from None
