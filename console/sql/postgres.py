"""PostgreSQL databases that belong to someone else: few connections, short waits, reading ones that cannot write."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NamedTuple, TypeVar, cast

import psycopg
import sqlalchemy as sa
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import ArgumentError

from console.core.faults import BackendBusy, ConfigFault, DeadlineExceeded, ReadOnlyRefused, WrongSchema
from console.core.ports import Stop
from console.sql.database import Row, RowRefused
from console.sql.idle import Few
from console.sql.postgres_faults import ROW_REFUSALS, said, translate
from console.sql.statement import Prepared
from console.sql.times import zone_named
from console.sql.watchdog import Connection, Watch, Watchdog

# The driver logs what it also raises; nobody has asked for a log, so it would be written across the screen.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

T = TypeVar("T")

READERS, WRITERS = 3, 1
"""Connections kept at most: a console must not eat the database's."""
_LOCK_PATIENCE = timedelta(seconds=2)
_SERVER_SHARE = 0.9
"""The server is given this much of the deadline, so that it answers before this side cuts the connection."""
_TIMES = ("timestamp", "timestamptz", "date")


class Privileges(NamedTuple):
    """What the role of our connection could do to a table, whatever we let it do."""

    role: str
    can_read: bool
    can_write: bool
    superuser: bool
    owner: bool


def _bear_any_time(adapters: AdaptersMap) -> AdaptersMap:
    """A time Python cannot hold (infinity, 4000 BC) becomes its text instead of an error."""
    for name in _TIMES:
        oid = psycopg.adapters.types[name].oid
        inner = psycopg.adapters.get_loader(oid, psycopg.pq.Format.TEXT)
        assert inner is not None
        adapters.register_loader(oid, _tolerant(inner))
    return adapters


def _tolerant(inner: Any) -> type[Loader]:
    class Tolerant(Loader):
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._load = inner(oid, context).load

        def load(self, data: Buffer) -> Any:
            try:
                return self._load(data)
            except psycopg.DataError:
                return bytes(data).decode()

    return Tolerant


def _plain(value: Any) -> Any:
    """Text as PostgreSQL can take it; what it could never hold becomes something it does not hold."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "\ufdd0")


def _all_plain(parameters: Any) -> Any:
    if isinstance(parameters, Mapping):
        return {name: _plain(value) for name, value in parameters.items()}
    return [_plain(value) for value in parameters]


class PostgresWriter:
    """One READ COMMITTED transaction; every statement has the deadline for itself."""

    def __init__(self, connection: Connection, watch: Watch) -> None:
        self._connection = connection
        self._watch = watch
        self._savepoints = 0

    def execute(self, sql: str, parameters: Any = ()) -> Sequence[Row]:
        try:
            cursor = self._connection.execute(cast("Any", sql), parameters)
            rows = cursor.fetchall() if cursor.description else []
        except ROW_REFUSALS as error:
            raise RowRefused(said(error)) from None
        self._watch.again()
        return rows

    def executemany(self, sql: str, rows: Sequence[Any]) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.executemany(cast("Any", sql), rows)
        except ROW_REFUSALS as error:
            raise RowRefused(said(error)) from None
        self._watch.again()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self._savepoints += 1
        name = f"s{self._savepoints}"
        self.execute(f"SAVEPOINT {name}")
        try:
            yield
        except Exception:
            if not self._connection.closed:
                self.execute(f"ROLLBACK TO {name}")
                self.execute(f"RELEASE {name}")
            raise
        self.execute(f"RELEASE {name}")


class PostgresDatabase:
    """One database on a server. Nothing is connected before the first use."""

    def __init__(
        self, url: str, *, read_only: bool = False, deadline: timedelta = timedelta(seconds=5)
    ) -> None:
        parsed = _parsed(url)
        self.dialect: Dialect = cast("Any", psycopg_dialect)()
        self._arguments: dict[str, Any] = cast("Any", self.dialect).create_connect_args(parsed)[1]
        self.place = _shown(parsed)
        self._read_only = read_only
        self._deadline = deadline.total_seconds()
        self._watchdog = Watchdog()
        self._readers = Few(self._open_reading, READERS, READERS)
        self._writers = Few(self._open_writing, WRITERS + 1, WRITERS)

    # -- opening ---------------------------------------------------------------------------------

    def _open_reading(self) -> Connection:
        connection = self._connect(f"-c default_transaction_read_only=on -c lock_timeout={self._milliseconds()}")
        connection.read_only = True
        return connection

    def _open_writing(self) -> Connection:
        patience = min(int(_LOCK_PATIENCE.total_seconds() * 1000), self._milliseconds())
        connection = self._connect(f"-c default_transaction_read_only=off -c lock_timeout={patience}")
        _bear_any_time(connection.adapters)
        return connection

    def _milliseconds(self) -> int:
        return max(int(self._deadline * _SERVER_SHARE * 1000), 1)

    def _connect(self, options: str) -> Connection:
        given = self._arguments.get("options")
        ours = f"{options} -c statement_timeout={self._milliseconds()}"
        return psycopg.connect(
            **{
                "application_name": "retriage", "connect_timeout": max(int(self._deadline / 2), 2), **self._arguments,
                "options": f"{given} {ours}" if given else ours, "client_encoding": "utf8",
            },
            autocommit=True, prepare_threshold=0,
        )

    @contextmanager
    def _at_work(self, few: Few[Connection]) -> Iterator[tuple[Connection, Watch]]:
        """A connection with its deadline. One that was cut or cancelled is not used again: the cancel may still be
        under way."""
        try:
            place, connection = few.take(self._deadline)
        except psycopg.Error as error:
            raise translate(error, self.place) from None
        except TimeoutError:
            raise BackendBusy("all of our connections to it are at work", where=self.place) from None
        sound = False
        try:
            watch = self._watchdog.begin(connection, self._deadline)
            try:
                yield connection, watch
            finally:
                self._watchdog.end(watch)
                sound = not (watch.cut or watch.cancelled or connection.closed)
        finally:
            few.give_back(place, connection, sound=sound)

    # -- reading ---------------------------------------------------------------------------------

    def read(self, statement: Prepared, now: datetime, given: Mapping[str, Any] | None = None) -> list[Row]:
        return self.fetch(statement.sql, statement.parameters(now, given or {}))

    def fetch(self, sql: str, parameters: Any) -> list[Row]:
        """Rows of a statement in the driver's own words. A kept connection may have died of a restart: another
        is tried, because reading twice does no harm."""
        for kept in range(READERS, -1, -1):
            with self._at_work(self._readers) as (connection, watch):
                try:
                    return self._fetch(connection, sql, parameters)
                except psycopg.Error as error:
                    if not (kept and connection.closed and not watch.cut and not watch.cancelled):
                        raise self._told(error, watch) from None
        raise AssertionError("the last try returns or raises")

    def _fetch(self, connection: Connection, sql: str, parameters: Any) -> list[Row]:
        """Almost always parameters and rows are as they should be, and the fastest loaders read them; where this
        side cannot write or read a value, all is done again with ways that bear anything."""
        nothing_to_fill_in = not parameters and "%" not in sql  # then the driver need not look for where
        try:
            return connection.execute(cast("Any", sql), None if nothing_to_fill_in else parameters).fetchall()
        except UnicodeEncodeError:
            pass
        except psycopg.DataError as error:
            if error.sqlstate is not None:
                raise
        with connection.cursor() as cursor:
            _bear_any_time(cursor.adapters)
            return cursor.execute(cast("Any", sql), _all_plain(parameters)).fetchall()

    def _told(self, error: psycopg.Error, watch: Watch) -> Exception:
        if watch.cancelled:
            return DeadlineExceeded("the query was given up", where=self.place)
        if watch.cut:
            return DeadlineExceeded(f"no answer within {self._deadline:g} s", where=self.place)
        return translate(error, self.place)

    def stream(self, statement: Prepared, now: datetime, stop: Stop, size: int = 5_000) -> Iterator[list[Row]]:
        parameters = statement.parameters(now, {})
        with self._at_work(self._readers) as (connection, watch):
            try:
                connection.execute("BEGIN READ ONLY")
                with connection.cursor(name="retriage") as cursor:
                    _bear_any_time(cursor.adapters)
                    cursor.execute(cast("Any", statement.sql), _all_plain(parameters))
                    while not stop.requested and (rows := cursor.fetchmany(size)):
                        watch.rest()
                        yield rows
                        watch.again()
            except psycopg.Error as error:
                raise self._told(error, watch) from None
            finally:
                with suppress(psycopg.Error):
                    if not connection.closed:
                        connection.execute("ROLLBACK")

    # -- writing ---------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[PostgresWriter]:
        if self._read_only:
            raise ReadOnlyRefused(where=self.place)
        with self._begun() as (connection, watch):
            try:
                yield PostgresWriter(connection, watch)
                connection.execute("COMMIT")
            except psycopg.Error as error:
                raise self._told(error, watch) from None
            finally:
                with suppress(psycopg.Error):
                    if not connection.closed and connection.info.transaction_status:
                        connection.execute("ROLLBACK")

    @contextmanager
    def _begun(self) -> Iterator[tuple[Connection, Watch]]:
        """A transaction. Nothing was written yet when a kept connection turns out to be dead: take another."""
        for kept in range(WRITERS + 1, -1, -1):
            with self._at_work(self._writers) as (connection, watch):
                try:
                    connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
                except psycopg.Error as error:
                    if not (kept and connection.closed and not watch.cut):
                        raise self._told(error, watch) from None
                    continue
                yield connection, watch
                return

    # -- the rest --------------------------------------------------------------------------------

    def quoted(self, table: str) -> str:
        """`schema.table` with every part quoted, for SQL that has parameters: a percent sign stands there twice."""
        return _named(table).replace("%", "%%")

    def columns(self, table: str) -> Mapping[str, str]:
        rows = self.fetch(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [_named(table)],
        )
        return dict(rows)

    def has_index(self, table: str, columns: Sequence[str]) -> bool:
        """Whether a full, valid index begins with these columns."""
        rows = self.fetch(
            "SELECT array_agg(a.attname::text ORDER BY k.place) FROM pg_index i,"
            " unnest(i.indkey) WITH ORDINALITY AS k(number, place), pg_attribute a"
            " WHERE i.indrelid = to_regclass(%s) AND i.indisvalid AND i.indpred IS NULL"
            " AND a.attrelid = i.indrelid AND a.attnum = k.number GROUP BY i.indexrelid",
            [_named(table)],
        )
        return any(indexed[: len(columns)] == list(columns) for (indexed,) in rows)

    def privileges(self, table: str) -> Privileges:
        rows = self.fetch(
            "SELECT current_user::text, has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'UPDATE'),"
            " r.rolsuper, pg_has_role(c.relowner, 'USAGE') FROM pg_class c, pg_roles r"
            " WHERE c.oid = to_regclass(%s) AND r.rolname = current_user",
            [_named(table)],
        )
        if not rows:
            raise WrongSchema(f"there is no table {table!r}", where=self.place)
        return Privileges(*rows[0])

    def zone(self) -> tzinfo:
        """The zone this database and role are set to: what NOW() into a TIMESTAMP column is written in."""
        ((name,),) = self.fetch("SELECT current_setting('TimeZone')", ())
        return zone_named(name, self.place)

    def now(self) -> datetime:
        ((now,),) = self.fetch("SELECT clock_timestamp() AT TIME ZONE 'UTC'", ())
        return cast("datetime", now).replace(tzinfo=UTC)

    def cancel(self) -> None:
        self._watchdog.cancel()

    def close(self) -> None:
        self._readers.close()
        self._writers.close()


def _named(table: str) -> str:
    """`schema.table` with every part quoted, as PostgreSQL itself reads it."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))


def _parsed(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        raise ConfigFault("the url cannot be read", fix="Write postgresql://USER@HOST/DATABASE.") from None
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise ConfigFault("the url is not one of PostgreSQL", fix="Write postgresql://USER@HOST/DATABASE.")
    return parsed


def _shown(url: sa.URL) -> str:
    """Where it is, without password and options."""
    host = url.host or str(url.query.get("host", ""))
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{user}{host}{port}/{url.database or ''}"
