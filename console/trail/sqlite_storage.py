"""The trail in an SQLite file of its own. It fails closed: what is not known to be durable counts as not written."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from console.core.faults import BackendFault, Fault, ReadOnlyRefused, TrailBroken, TrailUnavailable, TrailUnreadable
from console.sql.database import begin_with, inserts, rows_of
from console.sql.sqlite import SqliteDatabase, connect, create_private_file, driver_of, sqlite_engine, switch_to_wal
from console.sql.sqlite_faults import cause_of
from console.trail.schema import SELECT_VERSION, ddl
from console.trail.storage import PATIENCE, Reading, Row, T, Writing, require_version

_READ_DEADLINE = timedelta(seconds=5)
_LOG_PAGES = 4_000
"""How long the log grows before it is copied into the file, which costs two syncs: 16 MB, a plan of 100 000 items."""

_DAMAGED = ("malformed", "not a database")


def _translate(error: BaseException, place: str) -> Fault:
    message = str(error)
    if any(words in message for words in _DAMAGED):
        return TrailBroken(f"the file is damaged ({message})", where=place)
    return TrailUnavailable(message, where=place)


class _Reading:
    """The file as readers see it: never created, and in read-only mode not changed by a single byte."""

    def __init__(self, path: Path, read_only: bool) -> None:
        self.database = SqliteDatabase(path, read_only=read_only, deadline=_READ_DEADLINE)

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self.database.fetch(sql, tuple(parameters))

    def now(self, ours: datetime) -> datetime:
        return ours


class _Transaction:
    """A `BEGIN IMMEDIATE` transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return rows_of(self._connection.exec_driver_sql(sql, tuple(parameters)))

    facts: Mapping[str, Any] = MappingProxyType({})

    def now(self, ours: datetime) -> datetime:
        return ours

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return self._connection.exec_driver_sql(sql, tuple(parameters)).rowcount

    def bulk(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        for sql, some in inserts(f"{table} ({', '.join(columns)})", rows):
            driver_of(self._connection).executemany(sql, some)


class SqliteStorage:
    """One trail file. Nothing is touched before the first use, nothing created before the first write."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.place = str(path)
        self._path = path
        self._read_only = read_only
        self._reading: _Reading | None = None
        self._lock = threading.RLock()
        self._writer = sqlite_engine(lambda _: self._connect())
        begin_with(self._writer, "BEGIN IMMEDIATE")
        self._identity: tuple[tuple[int, int], ...] = ()
        """Device and inode of the file, and of its log once we write."""
        self._ready = False

    # -- reading ---------------------------------------------------------------------------------

    def read(self, work: Callable[[Reading], T], empty: T) -> T:
        if not self._exists():
            if self._ready:
                raise self._gone()
            return empty
        try:
            reading = self._reader()
            return work(reading) if self._has_trail(reading) else empty
        except BackendFault as fault:
            damaged = any(words in fault.detail for words in _DAMAGED)
            raise (TrailBroken if damaged else TrailUnreadable)(fault.detail, where=self.place) from None

    def _exists(self) -> bool:
        try:
            return self._path.exists()
        except OSError as error:  # a parent folder that we may not read
            raise TrailUnreadable(error.strerror or str(error), where=self.place) from None

    def _reader(self) -> _Reading:
        """A file that we cannot write is read as in read-only mode; else SQLite would try to create a log."""
        with self._lock:
            if self._reading is None:
                reading = _Reading(self._path, self._read_only)
                self._reading = reading if reading.database.writable() else _Reading(self._path, True)
            return self._reading

    def _has_trail(self, reading: _Reading) -> bool:
        """Whether the tables exist. A file that is just being created has none yet."""
        if not self._ready:
            if not reading.database.columns("trail_schema"):
                return False
            require_version(reading.all(SELECT_VERSION)[0][0], self.place, TrailUnreadable)
            self._identity, self._ready = self._files(""), True
        return True

    def exposed(self) -> str:
        if not self._exists():
            return ""
        real = Path(os.path.realpath(self._path))
        for path in (real, real.parent):
            found, what = path.stat(), "its folder" if path == real.parent else "the file"
            if found.st_mode & (stat.S_IWOTH | stat.S_IWGRP) and not found.st_mode & stat.S_ISVTX:
                return f"other users of this machine can write {what}"
            if found.st_uid not in (os.getuid(), 0):
                return f"{what} belongs to another user"
        return ""

    # -- writing ---------------------------------------------------------------------------------

    def owning_role(self) -> str:
        return ""  # a file has no roles

    def write(self, work: Callable[[Writing], T], *, lasting: bool = True) -> T:
        if self._read_only:
            raise ReadOnlyRefused("the trail is opened for reading only", where=self.place)
        with self._lock:
            try:
                return self._write(work, lasting)
            except (DBAPIError, sqlite3.Error) as error:
                raise _translate(cause_of(error), self.place) from None
            except OSError as error:
                raise TrailUnavailable(error.strerror or str(error), where=self.place) from None

    def _write(self, work: Callable[[Writing], T], lasting: bool) -> T:
        with self._writer.connect() as connection:
            self._insist_on_same_files("", "-wal")
            # In WAL mode NORMAL leaves out the sync after each commit; the next FULL one syncs the whole log.
            driver_of(connection).execute(f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}")
            with connection.begin():
                result = work(_Transaction(connection))
            self._insist_on_same_files("", "-wal")
            return result

    def _connect(self) -> sqlite3.Connection:
        if self._ready:  # known from reading or writing: then it is that file or none
            self._insist_on_same_files("")
        create_private_file(self._path)
        connection = connect(self._path, "mode=rw", PATIENCE)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._identity, self._ready = self._files("", "-wal"), True
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Switch to WAL, and create the tables in an empty file."""
        if not switch_to_wal(connection, PATIENCE):
            raise TrailUnavailable("the file system does not support a write-ahead log", where=self.place)
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        with connection:  # commits, or rolls back
            if not connection.execute("SELECT 1 FROM sqlite_master").fetchall():
                for statement in ddl(self._writer.dialect):
                    connection.execute(statement)
            require_version(connection.execute(SELECT_VERSION).fetchone()[0], self.place)

    def _files(self, *suffixes: str) -> tuple[tuple[int, int], ...]:
        """Device and inode of these files. By stat only: closing a descriptor would drop SQLite's locks."""
        real = os.path.realpath(self._path)  # the log is next to the file that a symlink points to
        found = [os.stat(real + suffix) for suffix in suffixes]  # noqa: PTH116  twice a write
        return tuple((file.st_dev, file.st_ino) for file in found)

    def _insist_on_same_files(self, *suffixes: str) -> None:
        """SQLite keeps writing into a deleted file without an error, so this is checked before and after."""
        try:
            pairs = zip(suffixes, self._identity, strict=False)  # a file that was only read has no known log
            same = all(self._files(suffix) == (known,) for suffix, known in pairs)
        except FileNotFoundError:
            raise self._gone() from None
        if not same:
            raise TrailUnavailable(
                "the trail file was replaced while in use", where=self.place,
                fix="Find out why, then start again.",
            )

    def _gone(self) -> TrailUnavailable:
        return TrailUnavailable(
            "the trail file was deleted while in use", where=self.place, fix="Find out why, then start again."
        )

    def close(self) -> None:
        with self._lock:
            if self._reading is not None:
                self._reading.database.close()
                self._reading = None
            self._writer.dispose()
