"""SQLite databases of other systems: never created, never migrated, never left locked."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from sqlalchemy import event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from console.core.budget import hold_limit
from console.core.faults import BackendBusy, ConfigFault, ReadTooLong, Unreachable
from console.core.paths import expanded
from console.core.ports import Stop
from console.sql.database import (
    EngineDatabase,
    Execute,
    Row,
    Writer,
    begin_with,
    charge_time,
    make_engine,
    parse_url,
    rows_of,
    start_timing,
)
from console.sql.guarded import SqliteGuard, Target
from console.sql.readonly import allow_reading_only
from console.sql.sqlite_faults import cause_of, is_interrupted, is_undecodable, translate
from console.sql.times import IsoText
from console.sql.values import converted

_POOL_SIZE = 4
_CACHE_KIB = 32_768
_STEPS_BETWEEN_CHECKS = 20_000
"""How many virtual machine steps SQLite takes before it checks the deadline."""

_READS_OF_A_CHANGING_FILE = 20
_SIZE_PROBES = 300


class RetriageDialect(SQLiteDialect_pysqlite):
    """SQLAlchemy's SQLite dialect without the `floor` and `regexp` it would put in place of the database's own."""

    supports_statement_cache = True

    def on_connect(self) -> None:  # type: ignore[override]
        return None


registry.register("sqlite.retriage", __name__, RetriageDialect.__name__)


def sqlite_engine(connect: Callable[[ConnectionPoolEntry], sqlite3.Connection], **options: Any) -> Engine:
    """An engine whose connections are made by `connect`, as many as are needed at a time; a few are kept."""
    engine = make_engine("sqlite+retriage://", poolclass=QueuePool, pool_size=_POOL_SIZE, max_overflow=-1, **options)
    event.listen(engine, "do_connect", lambda _dialect, record, _args, _parameters: connect(record))
    return engine


def create_private_file(path: Path) -> None:
    """Create the file that the path points to, for its owner only. A symlink may exist before its file does."""
    real = Path(os.path.realpath(path))
    for folder in reversed([folder for folder in real.parents if not folder.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(real, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def connect(path: Path, mode: str, patience: float) -> sqlite3.Connection:
    """A connection in autocommit mode. The mode is part of the URI, so that the file is never created."""
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=patience,
        cached_statements=256,
    )


def switch_to_wal(connection: sqlite3.Connection, patience: float) -> bool:
    """Switch a file to a write-ahead log; False if its file system has none. SQLite itself does not wait for a lock
    here, and two processes may create the file at the same time."""
    end = time.monotonic() + patience
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return str(mode) == "wal"


def driver_of(connection: Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.driver_connection)


class _LenientDecoder:
    """Decodes text that is not UTF-8 too, and remembers whether there was any."""

    def __init__(self) -> None:
        self.needed = False

    def __call__(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.needed = True
            return raw.decode("utf-8", "surrogateescape")


def _held_for(connection: Connection) -> float:
    """Seconds since the statement, or the transaction around it, began to read."""
    began: float = connection.info["held" if "held" in connection.info else "began"]
    return time.perf_counter() - began


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _prepare_for_chunks(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    """A chunk is prepared in a temporary table in memory; its pages stay in the cache until they are written."""
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


class SqliteDatabase(EngineDatabase):
    """One SQLite file. Connections for reading can only read; write transactions take the lock at once."""

    refusals = (sqlite3.IntegrityError, OverflowError)
    """The driver itself rejects an integer of more than 64 bits."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        deadline: timedelta = timedelta(seconds=5),
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self._path = path
        self._deadline = deadline.total_seconds()
        self._functions = {**IsoText().functions, **(functions or {})}
        self._cancellations = 0
        reader = sqlite_engine(
            self._connect_for_reading,
            isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,
            pool_reset_on_return=None,
        )
        writer = sqlite_engine(lambda _: self._connect("mode=rw"))
        event.listen(reader, "connect", self._guard)
        event.listen(writer, "connect", _prepare_for_chunks)
        begin_with(writer, "BEGIN IMMEDIATE")
        super().__init__(str(path), reader, writer, read_only=read_only)

    # -- connecting ------------------------------------------------------------------------------

    def _connect(self, mode: str) -> sqlite3.Connection:
        if not self._path.exists():
            raise Unreachable("there is no such file", where=self.place, fix="Check the path in the url.")
        if self._path.is_dir():
            raise Unreachable("this is a directory, not a database file", where=self.place)
        connection = connect(self._path, mode, self._deadline)
        for name, function in self._functions.items():
            connection.create_function(name, -1, function, deterministic=True)
        return connection

    def _connect_for_reading(self, record: ConnectionPoolEntry) -> sqlite3.Connection:
        """In read-only mode a WAL database without a writer is opened immutable: `mode=ro` would create -wal and -shm.

        A log left by a crashed writer is read with `mode=ro`, which creates a -shm file. The only way without one
        (`vfs=unix-none`) takes no locks, and deletes on closing a log that holds no complete transaction.
        """
        if not self._read_only:
            return self._connect("mode=rw")
        record.info["state"] = self._state()
        if self._is_quiet_wal():
            record.info["delays_writers"] = False  # it takes no lock
            return self._connect("mode=ro&immutable=1")
        return self._connect("mode=ro")

    def _guard(self, connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        connection.execute("PRAGMA query_only = 1")
        connection.execute("PRAGMA temp_store = MEMORY")
        allow_reading_only(connection, self._functions)

    def _is_quiet_wal(self) -> bool:
        return self._has_log() and not self._wal_size()

    def _has_log(self) -> bool:
        """Whether its journal is a write-ahead log. Only for read-only mode: closing the file here ends all locks that
        this process has on it."""
        try:
            with self._path.open("rb") as file:
                header = file.read(20)
        except OSError:
            return False
        return header[18:20] == b"\x02\x02"

    def _wal_size(self) -> int:
        try:
            return Path(f"{os.path.realpath(self._path)}-wal").stat().st_size  # SQLite creates it next to the real file
        except OSError:
            return 0

    def _state(self) -> object:
        """What the file looks like now. An immutable connection is out of date once this changes."""
        try:
            seen = self._path.stat()
        except OSError:
            return None
        if self._wal_size():
            return (seen.st_dev, seen.st_ino, "wal")
        return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)

    def _has_changed(self, connection: Connection) -> bool:
        """Whether the file has changed since this connection was opened; only read-only mode needs to know."""
        return self._read_only and self._state() != connection.info["state"]

    def _renew_if_changed(self, connection: Connection) -> None:
        if self._has_changed(connection):
            connection.invalidate()  # the next statement opens a new one

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, sqlite3.Error) as error:
            raise translate(cause_of(error), self.place) from None

    # -- reading ---------------------------------------------------------------------------------

    def _start_deadline(self, connection: Connection, cancellations: int) -> None:
        """SQLite gives up after the deadline, once `cancel` has been called again, or when writers wait too long."""
        end, limit = time.monotonic() + self._deadline, self._hold_limit(connection)
        connection.info["too_long"] = False

        def give_up() -> bool:
            too_long = connection.info["too_long"] = limit is not None and _held_for(connection) > limit
            return too_long or time.monotonic() > end or self._cancellations != cancellations

        driver_of(connection).set_progress_handler(give_up, _STEPS_BETWEEN_CHECKS)

    def _hold_limit(self, connection: Connection) -> float | None:
        """With a rollback journal a reader keeps writers waiting; with a write-ahead log it does not."""
        limit = hold_limit()
        return limit if limit is not None and self._delays_writers(connection) else None

    def _delays_writers(self, connection: Connection) -> bool:
        if "delays_writers" not in connection.info:
            ((mode,),) = driver_of(connection).execute("PRAGMA journal_mode")
            connection.info["delays_writers"] = mode != "wal"
        return bool(connection.info["delays_writers"])

    def _require_short_hold(self, connection: Connection) -> None:
        limit = self._hold_limit(connection)
        if limit is not None and (connection.info["too_long"] or _held_for(connection) > limit):
            raise ReadTooLong(f"its writers would wait for more than {limit * 1000:.0f} ms", where=self.place)

    def _all(self, execute: Execute, parameters: Any) -> list[Row]:
        """An immutable connection takes no lock. If the file changed during a read, the read is repeated; a file
        that is half old and half new may even look damaged."""
        with self._translated():
            for _ in range(_READS_OF_A_CHANGING_FILE):
                with self._lent(self._reader), self._reader.connect() as connection:
                    self._renew_if_changed(connection)
                    try:
                        rows = self._fetch(connection, execute, parameters)
                    except (DBAPIError, sqlite3.Error) as error:
                        if is_interrupted(error):
                            self._require_short_hold(connection)
                        if is_interrupted(error) or not self._has_changed(connection):
                            raise
                        continue
                    if not self._has_changed(connection):
                        return rows
        raise BackendBusy("the file keeps changing while it is read", where=self.place)

    def _fetch(self, connection: Connection, execute: Execute, parameters: Any) -> list[Row]:
        driver = driver_of(connection)
        self._start_deadline(connection, self._cancellations)
        try:
            rows = rows_of(execute(connection, parameters))
        except UnicodeEncodeError:
            return self._fetch(connection, execute, converted(parameters, _encodable))
        except (DBAPIError, sqlite3.OperationalError) as error:
            if not is_undecodable(error):
                raise
            driver.text_factory = _LenientDecoder()
            return self._fetch(connection, execute, parameters)
        if driver.text_factory is not str:  # the next page may need it too
            driver.text_factory = _LenientDecoder() if driver.text_factory.needed else str
        return rows

    def _batches(self, execute: Execute, parameters: Any, stop: Stop, size: int) -> Iterator[list[Row]]:
        """If the file changes before the first batch, reading starts again; after it, the stream ends with a fault."""
        started = False
        for _ in range(_READS_OF_A_CHANGING_FILE):
            with self._translated(), self._lent(self._reader), self._reader.connect() as connection:
                self._renew_if_changed(connection)
                try:
                    with closing(self._stream(connection, execute, parameters, stop, size)) as batches:
                        for rows in batches:
                            if self._has_changed(connection):
                                break
                            started = True
                            yield rows
                except (DBAPIError, sqlite3.Error) as error:
                    if is_interrupted(error):
                        self._require_short_hold(connection)
                    if is_interrupted(error) or not self._has_changed(connection):
                        raise
                if not self._has_changed(connection) or stop.requested:
                    return
            if started:
                break
        raise BackendBusy("the file changed while it was read", where=self.place)

    def _stream(
        self, connection: Connection, execute: Execute, parameters: Any, stop: Stop, size: int
    ) -> Generator[list[Row], None, None]:
        """Text that is not UTF-8 shows up only while rows are read. Then the statement is executed again with a
        lenient decoder, in the same read transaction, and the rows already returned are skipped."""
        driver, returned = driver_of(connection), 0
        try:
            connection.exec_driver_sql("BEGIN")
            for decoder in (str, _LenientDecoder()):
                driver.text_factory = decoder
                try:
                    for rows in self._fetch_many(connection, execute, parameters, stop, size, returned):
                        returned += len(rows)
                        yield rows
                    break
                except (DBAPIError, sqlite3.OperationalError) as error:
                    if not is_undecodable(error) or decoder is not str:
                        raise
        finally:
            driver.text_factory = str
            driver.rollback()
            connection.info.pop("held", None)

    def _fetch_many(
        self, connection: Connection, execute: Execute, parameters: Any, stop: Stop, size: int, skip: int
    ) -> Iterator[list[Row]]:
        cancellations = self._cancellations
        self._start_deadline(connection, cancellations)
        cursor = cast("sqlite3.Cursor", execute(connection, parameters).cursor)
        connection.info.setdefault("held", connection.info["began"])
        while not stop.requested and (rows := cursor.fetchmany(size)):
            self._require_short_hold(connection)
            charge_time(connection)
            if skip < len(rows):
                yield rows[skip:]
            skip = max(0, skip - len(rows))
            self._start_deadline(connection, cancellations)  # the caller's own work does not count
            start_timing(connection)
        charge_time(connection)
        cursor.close()

    # -- writing ---------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Writer]:
        with self._translated(), self._lent(self._writer), self._writer.begin() as connection:
            yield Writer(connection, self._is_refusal, str, lambda: None)

    def guard(self, target: Target) -> SqliteGuard:
        """The guarded writes to a table."""
        return SqliteGuard(self, target)

    # -- the rest --------------------------------------------------------------------------------

    def _pragma(self, name: str, subject: str) -> list[Row]:
        quoted = self.dialect.identifier_preparer.quote_identifier(subject)
        return self.fetch(f"PRAGMA {name}({quoted})", ())

    def columns(self, table: str) -> Mapping[str, str]:
        return {name: kind for _, name, kind, *_ in self._pragma("table_info", table)}

    def has_rowid(self, table: str) -> bool:
        """Whether rows have a rowid: not in views and WITHOUT ROWID tables, nor where a column has that name."""
        if any(name.lower() == "rowid" for name in self.columns(table)):
            return False
        return any(
            (kind, without) == ("table", 0)
            for schema, _, kind, _, without, *_ in self._pragma("table_list", table)
            if schema == "main"
        )

    def has_index(self, table: str, columns: Sequence[str]) -> bool:
        """By SQLite's own lists. SQLAlchemy finds partial indexes by a regular expression over their DDL, and prints a
        warning for every index on an expression."""
        wanted = list(columns)
        return any(
            [name for _, _, name in self._pragma("index_info", index)][: len(wanted)] == wanted
            for _, index, _, _, partial in self._pragma("index_list", table)
            if not partial
        )

    def estimated_rows(self, table: str) -> int | None:
        """By random rowids: how many of them exist. A table may have deleted most of its rows."""
        if not self.has_rowid(table):
            return None
        quoted = self.dialect.identifier_preparer.quote_identifier(table)
        # In one SELECT, SQLite would read the whole table for both.
        ends = f"SELECT (SELECT min(rowid) FROM {quoted}), (SELECT max(rowid) FROM {quoted})"  # noqa: S608
        ((first, last),) = self.fetch(ends, ())
        if first is None:
            return 0
        span = last - first + 1
        probes = [random.randint(first, last) for _ in range(_SIZE_PROBES)]
        marks = ", ".join("?" * len(probes))
        ((found,),) = self.fetch(f"SELECT count(*) FROM {quoted} WHERE rowid IN ({marks})", probes)  # noqa: S608
        return int(span * found / len(set(probes)))

    def writable(self) -> bool:
        """Whether this process may write the file and its folder."""
        real = Path(os.path.realpath(self._path))  # SQLite creates the log next to this file, not next to a symlink
        return os.access(real, os.W_OK) and os.access(real.parent, os.W_OK)

    def now(self) -> datetime:
        """This machine's time: SQLite has no clock of its own."""
        return datetime.now(UTC)

    def cancel(self) -> None:
        self._cancellations += 1


def sqlite_path(url: str) -> Path:
    """The file of a `sqlite:///…` URL."""
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        raise ConfigFault("the url must name a file, as in sqlite:////srv/queue.db")
    return expanded(parsed.database, ConfigFault)
