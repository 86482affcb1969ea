"""The database of the history: an SQLite file of its own, or a schema in a PostgreSQL database.

Statements use `?` for values and `@` before the name of a table.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from console.core.faults import ConfigFault, HistoryUnavailable, ReadOnlyRefused
from console.history.schema import SCHEMA, VERSION, ddl
from console.sql.database import Row, Writer, as_fault, parse_url
from console.sql.sqlite import SqliteDatabase, connect, create_private_file, sqlite_path, switch_to_wal

if TYPE_CHECKING:
    from console.sql.database import EngineDatabase

_DEADLINE = timedelta(seconds=10)
_PATIENCE = 5.0
_WRITE_LOCK = 0x7265_7472_6869_7374
"""The advisory lock that every writer of a history in this database takes first."""
_TABLES_IN_SCHEMA = "SELECT count(*) FROM pg_tables WHERE schemaname = ? AND tablename = 'history_schema'"
_VERSION = "SELECT max(version) FROM @history_schema"


class Transaction:
    """One write transaction. There is never a second one at the same time."""

    def __init__(self, writer: Writer, storage: Storage) -> None:
        self._writer = writer
        self._native = storage.native
        self._shared_time = storage.shared_time

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._writer.execute(self._native(sql), tuple(parameters))

    def now(self, ours: datetime) -> datetime:
        """The time for all writers: the server's if there is one, else this machine's."""
        found = self._shared_time(self)
        return ours if found is None else found

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Execute a statement and return how many rows it changed."""
        return self._writer.change(self._native(sql), tuple(parameters))

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute one statement for many rows."""
        self._writer.executemany(self._native(sql), [tuple(row) for row in rows])


class Storage(ABC):
    """A database with a history in it, or without one until the first write."""

    def __init__(self, database: EngineDatabase, *, read_only: bool) -> None:
        self._database = database
        self.place = database.place
        self.read_only = read_only
        self._ready = False
        self._lock = RLock()

    @abstractmethod
    def native(self, sql: str) -> str:
        """The statement in the driver's own form."""

    @abstractmethod
    def _has_tables(self) -> bool: ...

    @abstractmethod
    def _create(self) -> None:
        """Make the database ready to be written, with its tables."""

    @abstractmethod
    def _begin(self, transaction: Transaction) -> None:
        """Let no other process write until this transaction ends."""

    def shared_time(self, transaction: Transaction) -> datetime | None:  # noqa: ARG002  a file has no clock
        """The time of the server; None if there is none."""
        return None

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """The rows of one statement; none if there is no history yet."""
        with self._translated():
            if not self._is_ready():
                return []
            return self._database.fetch(self.native(sql), tuple(parameters))

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """One transaction. It is committed at the end of the block; after an error nothing of it is kept."""
        if self.read_only:
            raise ReadOnlyRefused("the history is opened for reading only", where=self.place)
        with self._lock, self._translated():
            if not self._is_ready():
                self._create()
            with self._database.writing() as writer:
                transaction = Transaction(writer, self)
                self._begin(transaction)
                yield transaction

    def _is_ready(self) -> bool:
        if not self._ready and self._has_tables():
            ((found,),) = self._database.fetch(self.native(_VERSION), ())
            if found != VERSION:
                raise HistoryUnavailable(
                    f"it has format {found}, but this version of Retriage needs format {VERSION}", where=self.place,
                    fix="Use another history in the config, or move this one away.",
                )
            self._ready = True
        return self._ready

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with as_fault(HistoryUnavailable, self.place):
                yield
        except (OSError, sqlite3.Error) as error:
            raise HistoryUnavailable(str(error), where=self.place) from None

    def close(self) -> None:
        self._database.close()


class SqliteStorage(Storage):
    """A file that only its owner can read. It is created by the first write."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self._file = SqliteDatabase(path, read_only=read_only, deadline=_DEADLINE)
        super().__init__(self._file, read_only=read_only)
        self._path = path

    def native(self, sql: str) -> str:
        return _sqlite_form(sql)

    def _has_tables(self) -> bool:
        return self._path.exists() and "version" in self._file.columns("history_schema")

    def _is_ready(self) -> bool:
        """A file that was removed meanwhile is made again by the next write."""
        if self._ready and not self._path.exists():
            self._ready = False
            self._database.close()
        return super()._is_ready()

    def _create(self) -> None:
        create_private_file(self._path)
        with closing(connect(self._path, "mode=rw", _PATIENCE)) as connection:
            switch_to_wal(connection, _PATIENCE)
            connection.execute("BEGIN IMMEDIATE")
            with connection:  # commits, or rolls back
                if not connection.execute("SELECT 1 FROM sqlite_master").fetchall():
                    for statement in ddl(sqlite=True):
                        connection.execute(_sqlite_form(statement))

    def _begin(self, transaction: Transaction) -> None:
        """The transaction began with BEGIN IMMEDIATE."""


class PostgresStorage(Storage):
    """A schema of its own in a database. It is created by the first write."""

    def __init__(self, url: str, *, read_only: bool) -> None:
        from console.sql.postgres import PostgresDatabase

        super().__init__(PostgresDatabase(url, read_only=read_only, deadline=_DEADLINE), read_only=read_only)

    def native(self, sql: str) -> str:
        return _postgres_form(sql)

    def _has_tables(self) -> bool:
        return bool(self._database.fetch(self.native(_TABLES_IN_SCHEMA), (SCHEMA,))[0][0])

    def _create(self) -> None:
        with self._database.writing() as writer:
            transaction = Transaction(writer, self)
            self._begin(transaction)
            if not transaction.all(_TABLES_IN_SCHEMA, (SCHEMA,))[0][0]:
                transaction.run(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
                for statement in ddl(sqlite=False):
                    transaction.run(statement)

    def _begin(self, transaction: Transaction) -> None:
        transaction.all("SELECT pg_advisory_xact_lock(?)", (_WRITE_LOCK,))

    def shared_time(self, transaction: Transaction) -> datetime | None:
        found: datetime = transaction.all("SELECT clock_timestamp()")[0][0]
        return found


@lru_cache(maxsize=128)
def _sqlite_form(sql: str) -> str:
    return sql.replace("@", "")


@lru_cache(maxsize=128)
def _postgres_form(sql: str) -> str:
    return sql.replace("@", f"{SCHEMA}.").replace("?", "%s")


def open_storage(url: str, *, read_only: bool) -> Storage:
    """The storage at this URL. Nothing is read or created before its first use."""
    match parse_url(url, "Use sqlite:///… or postgresql://…").get_backend_name():
        case "sqlite":
            return SqliteStorage(sqlite_path(url), read_only=read_only)
        case "postgresql":
            try:
                return PostgresStorage(url, read_only=read_only)
            except ModuleNotFoundError:
                raise ConfigFault("The PostgreSQL driver is missing", fix="Install retriage[postgres].") from None
        case other:
            raise ConfigFault(f"A history cannot be stored in {other}", fix="Use sqlite:///… or postgresql://…")
