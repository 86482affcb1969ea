"""The trail in an SQLite file of its own. It fails closed: what cannot be known to last was not written."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy.dialects import sqlite as sqlite_dialect

from console.core.faults import BackendFault, Fault, ReadOnlyRefused, TrailBroken, TrailUnavailable
from console.sql.sqlite import SqliteDatabase
from console.sql.statement import inserts
from console.trail.schema import VERSION, ddl
from console.trail.storage import PATIENCE, Reading, Row, T, Writing

_READING_DEADLINE = timedelta(seconds=5)
_LOG_PAGES = 4_000
"""How long the log grows before it is copied into the file, which costs two syncs: 16 MB, a plan of 100 000 items."""

_DAMAGED = ("malformed", "not a database")


def _translate(error: sqlite3.Error, place: str) -> Fault:
    said = str(error)
    if any(words in said for words in _DAMAGED):
        return TrailBroken(f"the file is damaged ({said})", where=place)
    return TrailUnavailable(said, where=place)


class _Shelf:
    """The file as readers see it: never created, and in audit mode left untouched to the byte."""

    def __init__(self, path: Path, read_only: bool) -> None:
        self.database = SqliteDatabase(path, read_only=read_only, deadline=_READING_DEADLINE)

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self.database.fetch(sql, tuple(parameters))

    def now(self, ours: datetime) -> datetime:
        return ours


class _Transaction:
    """A `BEGIN IMMEDIATE` transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._connection.execute(sql, tuple(parameters)).fetchall()

    def now(self, ours: datetime) -> datetime:
        return ours

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return self._connection.execute(sql, tuple(parameters)).rowcount

    def bulk(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        for sql, some in inserts(f"{table} ({', '.join(columns)})", rows):
            self._connection.executemany(sql, some)


class SqliteStorage:
    """One trail file. Nothing is touched before the first use, nothing created before the first write."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.place = str(path)
        self._path = path
        self._read_only = read_only
        self._shelf: _Shelf | None = None
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
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
            shelf = self._reader()
            return work(shelf) if self._has_trail(shelf) else empty
        except BackendFault as fault:
            damaged = any(words in fault.detail for words in _DAMAGED)
            raise (TrailBroken if damaged else TrailUnavailable)(fault.detail, where=self.place) from None

    def _exists(self) -> bool:
        try:
            return self._path.exists()
        except OSError as error:  # a folder on the way that is not ours to look into
            raise TrailUnavailable(error.strerror or str(error), where=self.place) from None

    def _reader(self) -> _Shelf:
        """A file that we cannot write is read as in audit mode, or its log would be in the way."""
        with self._lock:
            if self._shelf is None:
                shelf = _Shelf(self._path, self._read_only)
                self._shelf = shelf if shelf.database.writable() else _Shelf(self._path, True)
            return self._shelf

    def _has_trail(self, shelf: _Shelf) -> bool:
        """A file that is still being created has no tables, and is no trail yet."""
        if not self._ready:
            if not shelf.database.columns("trail_schema"):
                return False
            self._check_version(shelf)
            self._identity, self._ready = self._files(""), True
        return True

    def _check_version(self, reading: Reading) -> None:
        found = reading.all("SELECT max(version) FROM trail_schema")[0][0]
        if found != VERSION:
            raise TrailUnavailable(
                f"its tables are of version {found}, this program knows version {VERSION}", where=self.place
            )

    # -- writing ---------------------------------------------------------------------------------

    def write(self, work: Callable[[Writing], T], *, lasting: bool = True) -> T:
        if self._read_only:
            raise ReadOnlyRefused("the trail is opened for reading only", where=self.place)
        with self._lock:
            try:
                return self._write(work, lasting)
            except sqlite3.Error as error:
                raise _translate(error, self.place) from None
            except OSError as error:
                raise TrailUnavailable(error.strerror or str(error), where=self.place) from None

    def _write(self, work: Callable[[Writing], T], lasting: bool) -> T:
        connection = self._opened()
        self._insist_on_same_files("", "-wal")
        # In WAL mode NORMAL leaves out the sync after each commit; the next FULL one syncs the whole log.
        connection.execute(f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(_Transaction(connection))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with suppress(sqlite3.Error):  # the first error is the one to tell
                    connection.execute("ROLLBACK")
            raise
        self._insist_on_same_files("", "-wal")
        return result

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._ready:  # known from reading: then it is that file or none
                self._insist_on_same_files("")
            self._create_file()
            connection = self._connect()
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._identity, self._ready = connection, self._files("", "-wal"), True
        return self._connection

    def _create_file(self) -> None:
        """Where a symlink leads, if it is one: a link may be laid before there is a trail."""
        real = Path(os.path.realpath(self._path))
        missing = [folder for folder in real.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(real, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(str(self._path.absolute()))}?mode=rw", uri=True, isolation_level=None,
            check_same_thread=False, timeout=PATIENCE,
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._switch_to_wal(connection)
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            transaction = _Transaction(connection)
            if not transaction.all("SELECT 1 FROM sqlite_master"):
                for statement in ddl(sqlite_dialect.dialect()):
                    connection.execute(statement)
            self._check_version(transaction)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with suppress(sqlite3.Error):  # the first error is the one to tell
                    connection.execute("ROLLBACK")
            raise

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        """SQLite does not wait for a lock here by itself, and two consoles may start at once."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.01)
                continue
            if mode != "wal":
                raise TrailUnavailable("the file system does not support a write-ahead log", where=self.place)
            return

    def _files(self, *suffixes: str) -> tuple[tuple[int, int], ...]:
        """Which files these really are. By stat only: closing a descriptor would drop SQLite's locks."""
        real = os.path.realpath(self._path)  # where a symlink leads now: the log is beside that file
        found = [os.stat(real + suffix) for suffix in suffixes]  # noqa: PTH116  twice a write
        return tuple((file.st_dev, file.st_ino) for file in found)

    def _insist_on_same_files(self, *suffixes: str) -> None:
        """SQLite goes on writing into a deleted file without a word, so look before and after."""
        try:
            pairs = zip(suffixes, self._identity, strict=False)  # of a file only read so far no log is known
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
            if self._shelf is not None:
                self._shelf.database.close()
                self._shelf = None
            if self._connection is not None:
                self._connection.close()
                self._connection = None
