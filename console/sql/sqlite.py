"""SQLite databases that belong to someone else: never created, never migrated, never left locked."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.pysqlite import dialect as sqlite_dialect
from sqlalchemy.engine import Dialect

from console.core.faults import (
    BackendBusy,
    BackendFault,
    ConfigFault,
    DeadlineExceeded,
    ReadOnlyRefused,
    Unreachable,
    WrongSchema,
)
from console.core.paths import expanded
from console.core.ports import Stop
from console.sql.database import Row, RowRefused, TransactionRefused
from console.sql.idle import Idle
from console.sql.readonly import allow_reading_only
from console.sql.statement import Prepared
from console.sql.times import IsoText

_CACHE_KIB = 32_768
_STEPS_BETWEEN_LOOKS = 20_000
"""How many virtual machine steps SQLite takes before it asks whether the deadline has passed."""

_READS_OF_A_MOVING_FILE = 20

_REFUSALS = (sqlite3.IntegrityError, OverflowError)
"""An integer past 64 bits is refused by the driver in the database's stead."""

_REASONS: tuple[tuple[str, type[BackendFault], str], ...] = (
    ("file is not a database", Unreachable, "the file is not an SQLite database"),
    ("unable to open database file", Unreachable, "the file cannot be opened"),
    ("disk image is malformed", Unreachable, "the database file is damaged"),
    ("locked", BackendBusy, "someone holds its lock"),
    ("busy", BackendBusy, "someone holds its lock"),
    ("interrupted", DeadlineExceeded, "the query was given up"),
    ("no such table", WrongSchema, ""),
    ("no such column", WrongSchema, ""),
    ("readonly database", BackendFault, "the database cannot be written"),
    ("not authorized", BackendFault, "this connection may only read"),
    ("disk I/O error", Unreachable, "the disk reported an error"),
    ("database or disk is full", BackendFault, "the disk is full"),
)


def translate(error: sqlite3.Error, place: str) -> BackendFault:
    """The fault that says in the operator's words what SQLite said in its own."""
    said = str(error)
    for words, fault, meaning in _REASONS:
        if words in said:
            return fault(f"{meaning} ({said})" if meaning else said, where=place)
    return BackendFault(said, where=place)


class _Tolerant:
    """Decodes what is not UTF-8 too, and notes whether there was any."""

    def __init__(self) -> None:
        self.needed = False

    def __call__(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.needed = True
            return raw.decode("utf-8", "surrogateescape")


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


class SqliteWriter:
    """One `BEGIN IMMEDIATE` transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._savepoints = 0

    def execute(self, sql: str, parameters: Any = ()) -> Sequence[Row]:
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except _REFUSALS as error:
            raise self._refused(error) from None

    def executemany(self, sql: str, rows: Sequence[Any]) -> None:
        try:
            self._connection.executemany(sql, rows)
        except _REFUSALS as error:
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> Exception:
        return (RowRefused if self._connection.in_transaction else TransactionRefused)(str(error))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self._savepoints += 1
        name = f"s{self._savepoints}"
        self._connection.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute(f"ROLLBACK TO {name}")
                self._connection.execute(f"RELEASE {name}")
            raise
        self._connection.execute(f"RELEASE {name}")


class SqliteDatabase:
    """One SQLite file. Reads go through connections that can only read, writes through ones that begin at once."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        deadline: timedelta = timedelta(seconds=5),
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.place = str(path)
        self._path = path
        self._read_only = read_only
        self._deadline = deadline.total_seconds()
        self._functions = {**IsoText().functions, **(functions or {})}
        self._reading = Idle(self._open_reading)
        self._writing = Idle(self._open_writing)
        self._seen: object = None
        self._generation = 0
        self.dialect: Dialect = sqlite_dialect()

    # -- opening ---------------------------------------------------------------------------------

    def _connect(self, mode: str) -> sqlite3.Connection:
        if not self._path.exists():
            raise Unreachable("there is no such file", where=self.place, fix="Check the path in the url.")
        if self._path.is_dir():
            raise Unreachable("this is a directory, not a database file", where=self.place)
        uri = f"file:{quote(str(self._path.absolute()))}?{mode}"
        connection = sqlite3.connect(
            uri,
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=self._deadline,
            cached_statements=256,
        )
        for name, function in self._functions.items():
            connection.create_function(name, -1, function, deterministic=True)
        return connection

    def _open_reading(self) -> sqlite3.Connection:
        with self._told():
            connection = self._connect(self._reading_mode())
            connection.execute("PRAGMA query_only = 1")
            connection.execute("PRAGMA temp_store = MEMORY")
            allow_reading_only(connection, self._functions)
            return connection

    def _open_writing(self) -> sqlite3.Connection:
        """A chunk is prepared in a table in memory, and its pages stay in the cache until it is written."""
        with self._told():
            connection = self._connect("mode=rw")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            return connection

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What SQLite says on the way, in our words."""
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self.place) from None

    def _reading_mode(self) -> str:
        """In audit mode a quiet WAL database is opened immutable: `mode=ro` would leave -wal and -shm behind.

        A log whose writer crashed is read by `mode=ro`, which leaves a -shm. What leaves none (`vfs=unix-none`) has no
        locks, and on closing deletes a log without a whole transaction in it.
        """
        if not self._read_only:
            return "mode=rw"
        return "mode=ro&immutable=1" if self._is_quiet_wal() else "mode=ro"

    def _is_quiet_wal(self) -> bool:
        try:
            with self._path.open("rb") as file:
                header = file.read(20)
        except OSError:
            return False
        return header[18:20] == b"\x02\x02" and not self._wal_size()

    def _wal_size(self) -> int:
        try:
            return Path(f"{os.path.realpath(self._path)}-wal").stat().st_size  # SQLite keeps it beside the real file
        except OSError:
            return 0

    def _fingerprint(self) -> object:
        """What tells that an immutable connection has gone stale."""
        try:
            seen = self._path.stat()
        except OSError:
            return None
        if self._wal_size():
            return (seen.st_dev, seen.st_ino, "wal")
        return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)

    # -- reading ---------------------------------------------------------------------------------

    def _reopen_if_changed(self) -> object:
        """The state of the file that is read from now on."""
        if not self._read_only:
            return None
        if (now := self._fingerprint()) != self._seen:
            self._reading.close()
            self._seen = now
        return now

    def _moved(self, since: object) -> bool:
        return self._read_only and self._fingerprint() != since

    def _watched(self, connection: sqlite3.Connection, generation: int) -> None:
        """The deadline begins now; what was cancelled since `generation` is given up."""
        end = time.monotonic() + self._deadline
        connection.set_progress_handler(
            lambda: time.monotonic() > end or self._generation != generation, _STEPS_BETWEEN_LOOKS
        )

    def read(self, statement: Prepared, now: datetime, given: Mapping[str, Any] | None = None) -> list[Row]:
        return self.fetch(statement.sql, statement.parameters(now, given or {}))

    def fetch(self, sql: str, parameters: Any) -> list[Row]:
        """Rows of a statement in the driver's own words.

        An immutable connection sees no lock, so what was read while the file changed is read again; a file that is
        half of each state may even look damaged.
        """
        for _ in range(_READS_OF_A_MOVING_FILE):
            state = self._reopen_if_changed()
            place, raw = self._reading.take()
            try:
                rows = self._fetch(raw, sql, parameters)
            except DeadlineExceeded:
                raise
            except BackendFault:
                if not self._moved(state):
                    raise
                continue
            finally:
                self._reading.give_back(place, raw)
            if not self._moved(state):
                return rows
        raise BackendBusy("the file keeps changing while it is read", where=self.place)

    def _fetch(self, raw: sqlite3.Connection, sql: str, parameters: Any) -> list[Row]:
        self._watched(raw, self._generation)
        try:
            rows = raw.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise translate(error, self.place) from None
            raw.text_factory = _Tolerant()
            return self._fetch(raw, sql, parameters)
        except UnicodeEncodeError:
            return self._fetch(raw, sql, [_encodable(value) for value in parameters])
        except sqlite3.Error as error:
            raise translate(error, self.place) from None
        if raw.text_factory is not str:  # the next page may well be as odd as this one
            raw.text_factory = _Tolerant() if raw.text_factory.needed else str
        return rows

    def stream(self, statement: Prepared, now: datetime, stop: Stop, size: int = 5_000) -> Iterator[list[Row]]:
        """What an immutable connection has given out cannot be read again: a file that changes after that ends the
        stream, before that it is begun again."""
        parameters, given = statement.parameters(now, {}), False
        for _ in range(_READS_OF_A_MOVING_FILE):
            state = self._reopen_if_changed()
            try:
                with closing(self._stream(statement.sql, parameters, stop, size)) as batches:
                    for rows in batches:
                        if self._moved(state):
                            break
                        given = True
                        yield rows
            except DeadlineExceeded:
                raise
            except BackendFault:
                if not self._moved(state):
                    raise
            if not self._moved(state) or stop.requested:
                return
            if given:
                break
        raise BackendBusy("the file changed while it was read", where=self.place)

    def _stream(self, sql: str, parameters: Any, stop: Stop, size: int) -> Generator[list[Row], None, None]:
        """Text that is not UTF-8 is met only on the way: within one read transaction the statement is then
        run again by a decoder that bears it, and what was already given out is passed over."""
        with self._reading.taken() as raw:
            given = 0
            try:
                raw.execute("BEGIN")
                for factory in (str, _Tolerant()):
                    raw.text_factory = factory
                    try:
                        for rows in self._batches(raw, sql, parameters, stop, size, given):
                            given += len(rows)
                            yield rows
                        break
                    except sqlite3.OperationalError as error:
                        if "decode to UTF-8" not in str(error) or factory is not str:
                            raise
            except sqlite3.Error as error:
                raise translate(error, self.place) from None
            finally:
                raw.text_factory = str
                if raw.in_transaction:
                    raw.rollback()

    def _batches(
        self, raw: sqlite3.Connection, sql: str, parameters: Any, stop: Stop, size: int, skip: int
    ) -> Iterator[list[Row]]:
        generation = self._generation
        self._watched(raw, generation)
        cursor = raw.execute(sql, parameters)
        while not stop.requested and (rows := cursor.fetchmany(size)):
            if skip < len(rows):
                yield rows[skip:]
            skip = max(0, skip - len(rows))
            self._watched(raw, generation)  # the time the rows were worked on is not the database's
        cursor.close()

    # -- writing ---------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[SqliteWriter]:
        if self._read_only:
            raise ReadOnlyRefused(where=self.place)
        with self._writing.taken() as raw:
            try:
                raw.execute("BEGIN IMMEDIATE")
                try:
                    yield SqliteWriter(raw)
                except BaseException:
                    raw.rollback()
                    raise
                raw.execute("COMMIT")
            except sqlite3.Error as error:
                if raw.in_transaction:
                    raw.rollback()
                raise translate(error, self.place) from None

    # -- the rest --------------------------------------------------------------------------------

    def _pragma(self, name: str, subject: str) -> list[Row]:
        quoted = self.dialect.identifier_preparer.quote_identifier(subject)
        return self.fetch(f"PRAGMA {name}({quoted})", ())

    def columns(self, table: str) -> Mapping[str, str]:
        return {name: kind for _, name, kind, *_ in self._pragma("table_info", table)}

    def has_rowid(self, table: str) -> bool:
        """Whether rows have a rowid to break ties with: not in views and WITHOUT ROWID tables, nor where a column
        of that name hides it."""
        if any(name.lower() == "rowid" for name in self.columns(table)):
            return False
        return any(
            (kind, without) == ("table", 0)
            for schema, _, kind, _, without, *_ in self._pragma("table_list", table)
            if schema == "main"
        )

    def has_index(self, table: str, columns: Sequence[str]) -> bool:
        """Whether a full index begins with these columns."""
        wanted = list(columns)
        for _, index, _, _, partial in self._pragma("index_list", table):
            indexed = [name for _, _, name in self._pragma("index_info", index)]
            if not partial and indexed[: len(wanted)] == wanted:
                return True
        return False

    def writable(self) -> bool:
        """Whether the file and its folder would let this process write."""
        real = Path(os.path.realpath(self._path))  # its log is made beside that one, not beside a symlink
        return os.access(real, os.W_OK) and os.access(real.parent, os.W_OK)

    def now(self) -> datetime:
        """SQLite has no clock but its host's."""
        return datetime.now(UTC)

    def cancel(self) -> None:
        self._generation += 1

    def close(self) -> None:
        self._reading.close()
        self._writing.close()


def sqlite_path(url: str) -> Path:
    """The file of a `sqlite:///…` URL."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        raise ConfigFault("the url must name a file, as in sqlite:////srv/queue.db")
    return expanded(parsed.database, ConfigFault)
