"""PostgreSQL databases of other systems: few connections, short waits, and connections for reading cannot write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import psycopg
import sqlalchemy as sa
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.pool import ConnectionPoolEntry

from console.core.backend import Finding, Severity
from console.core.faults import BackendFault, ConfigFault, WrongSchema
from console.core.ports import Stop
from console.sql.database import (
    Execute,
    Row,
    charge_time,
    make_engine,
    parse_url,
    rows_of,
)
from console.sql.guarded import Target
from console.sql.guarded_postgres import PostgresGuard
from console.sql.postgres_faults import ROW_REFUSALS, cause_of, message_of, translate
from console.sql.server import LOCK_PATIENCE, READERS, SERVER_SHARE, WRITERS, Privileges, ServerDatabase
from console.sql.times import zone_named
from console.sql.values import converted

# The driver logs errors that it also raises. Without a handler Python would print them over the screen.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

DriverConnection = psycopg.Connection[tuple[Any, ...]]

_FIX = "Write postgresql://USER@HOST/DATABASE."
_PIPELINES = psycopg.Pipeline.is_supported()
ASK_IF_READ_ONLY = "SELECT 1 / (current_setting('transaction_read_only') = 'on')::int"
"""Fails with a division by zero where the transaction can write."""
_BEGIN_DURABLY = """BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"""
_LARGE_OBJECTS_GUARDED = 160000
"""The first version whose read-only transactions cannot create large objects."""
_TIMES = ("timestamp", "timestamptz", "date")


class ServerSettings(NamedTuple):
    """What a server and the role of our connections have set."""

    version: int
    """Such as 150004."""
    may_create_large_objects: bool
    durable_commits: bool
    """Whether a commit waits for the disk unless a transaction asks for it."""


def setting_findings(settings: ServerSettings, role: str) -> Iterator[Finding]:
    """What the server or the role has set that weakens a promise."""
    if settings.version < _LARGE_OBJECTS_GUARDED and settings.may_create_large_objects:
        yield Finding(
            Severity.WARNING,
            "read-only",
            f"PostgreSQL {settings.version // 10_000} lets a function create large objects, even when it"
            " is called in a read-only transaction",
            f"Revoke EXECUTE on lo_create, lo_creat and lo_from_bytea from {role} and PUBLIC, or use PostgreSQL 16.",
        )
    if not settings.durable_commits:
        yield Finding(
            Severity.WARNING,
            "durability",
            f"role {role} has synchronous_commit=off: its own system can lose committed changes in a crash",
            "Retriage turns it on for its own changes.",
        )


def postgres_engine(
    url: sa.URL,
    options: str,
    connect: Callable[[ConnectionPoolEntry, dict[str, Any]], DriverConnection],
    **settings: Any,
) -> Engine:
    """An engine whose connections have these server options."""

    def do_connect(_: Any, record: ConnectionPoolEntry, __: Any, given: dict[str, Any]) -> DriverConnection:
        own = given.get("options")
        return connect(
            record,
            {
                "application_name": "retriage", **given,
                "options": f"{own} {options}" if own else options,
                "client_encoding": "utf8", "autocommit": True, "prepare_threshold": 0,
            },
        )

    engine = make_engine(url.set(drivername="postgresql+psycopg"), use_native_hstore=False, **settings)
    event.listen(engine, "do_connect", do_connect)
    return engine


def driver_of(connection: Connection) -> DriverConnection:
    return cast("DriverConnection", connection.connection.driver_connection)


def driver_is_dead(connection: Connection) -> bool:
    """Whether the server or the network has ended this connection."""
    return connection.invalidated or driver_of(connection).closed


def _timeouts(deadline: float, lock_patience: float) -> str:
    """The server's own time limits, which are shorter than ours: it says better what it waited for."""
    limit = max(int(deadline * SERVER_SHARE * 1000), 1)
    return f"-c statement_timeout={limit} -c lock_timeout={min(int(lock_patience * 1000), limit)}"


def _read_in_transaction(asked: str, place: str) -> Callable[..., bool]:
    """Executes one statement in a read-only transaction of its own, in one round trip.

    `asked` goes first. It fails on the server unless the transaction is read-only; then the statement does not run.
    """

    def execute(cursor: Any, sql: Any, parameters: Any, context: Any) -> bool:
        driver: DriverConnection = cursor.connection
        streams = context._is_server_side  # such a cursor lives as long as its transaction
        asking = driver.cursor()
        try:
            with nullcontext() if streams or not _PIPELINES else driver.pipeline():
                asking.execute(asked)
                cursor.execute(sql, parameters)
                if not streams:
                    driver.execute("COMMIT")  # `driver.commit` would wait for the answers twice
        except BaseException as error:
            with suppress(psycopg.Error):
                driver.rollback()
            if not isinstance(error, psycopg.errors.DivisionByZero) or asking.pgresult is not None:
                raise
            raise BackendFault(
                "the server would let this read-only connection write", where=place,
                fix="Connect to the server directly, not through a pooler that changes what is sent.",
            ) from None
        return True

    return execute


def _begin_durably(connection: Connection) -> None:
    """Begin a transaction whose commit is durable, in one round trip, whatever the role or a pooler has set."""
    driver_of(connection).execute(_BEGIN_DURABLY, prepare=False)


def _load_any_time(adapters: AdaptersMap) -> None:
    """Read a time that Python cannot hold (infinity, 4000 BC) as its text instead of raising an error."""
    for name in _TIMES:
        oid = psycopg.adapters.types[name].oid
        inner = psycopg.adapters.get_loader(oid, psycopg.pq.Format.TEXT)
        assert inner is not None
        adapters.register_loader(oid, _lenient(inner))


def _load_any_time_if_lenient(
    _connection: Connection, cursor: Any, _sql: str, _parameters: Any, context: Any, _many: bool
) -> None:
    if context.execution_options.get("lenient"):
        _load_any_time(cursor.adapters)


def _lenient(inner: Any) -> type[Loader]:
    class LenientLoader(Loader):
        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._load = inner(oid, context).load

        def load(self, data: Buffer) -> Any:
            try:
                return self._load(data)
            except psycopg.DataError:
                return bytes(data).decode()

    return LenientLoader


def _storable(text: str) -> str:
    """Text that PostgreSQL accepts. What it could never store becomes text that no row has."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufdd0")


class PostgresDatabase(ServerDatabase):
    """One database on a server."""

    refusals = ROW_REFUSALS
    driver_error = psycopg.Error

    def __init__(
        self,
        url: str,
        *,
        read_only: bool = False,
        deadline: timedelta = timedelta(seconds=5),
        write_deadline: timedelta | None = None,
        asked: str = ASK_IF_READ_ONLY,
    ) -> None:
        parsed = _parsed(url)
        to_read, to_write = deadline.total_seconds(), (write_deadline or deadline).total_seconds()
        reader = postgres_engine(
            parsed,
            f"-c default_transaction_read_only=on -c jit=off {_timeouts(to_read, to_read / 2)}",
            self._connect_for_reading,
            pool_size=READERS,
            max_overflow=0,
            pool_timeout=to_read,
            pool_reset_on_return=None,
        )
        writer = postgres_engine(
            parsed,
            f"-c default_transaction_read_only=off {_timeouts(to_write, LOCK_PATIENCE)}",
            self._connect,
            pool_size=WRITERS,
            max_overflow=1,
            pool_timeout=to_write,
        )
        event.listen(reader, "do_execute", _read_in_transaction(asked, _shown(parsed)))
        event.listen(reader, "before_cursor_execute", _load_any_time_if_lenient)
        event.listen(writer, "connect", lambda connection, _: _load_any_time(connection.adapters))
        event.listen(writer, "begin", _begin_durably)
        super().__init__(
            _shown(parsed), reader, writer, read_only=read_only, deadline=to_read, write_deadline=to_write
        )

    # -- connecting ------------------------------------------------------------------------------

    def _connect(self, record: ConnectionPoolEntry, settings: dict[str, Any]) -> DriverConnection:
        """SQLAlchemy asks a new server a few questions before the connection is ours: they have a deadline too."""
        connection = self._open(settings)
        try:
            record.info["watch"] = self._watchdog.begin(connection, self._write_deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_for_reading(self, record: ConnectionPoolEntry, settings: dict[str, Any]) -> DriverConnection:
        """The driver begins every transaction with BEGIN READ ONLY. A session default alone would not do: a function
        that is called while reading can turn it off, and poolers drop it."""
        connection = self._connect(record, {**settings, "autocommit": False})
        connection.read_only = True
        return connection

    def _open(self, settings: dict[str, Any]) -> DriverConnection:
        return psycopg.connect(**{"connect_timeout": max(int(self._deadline / 2), 2), **settings})

    def _wire(self, connection: Connection) -> DriverConnection:
        return driver_of(connection)

    def _is_dead(self, connection: Connection) -> bool:
        return driver_is_dead(connection)

    def _translate(self, error: Exception) -> BackendFault:
        return translate(cause_of(error), self.place)

    def _message(self, error: Exception) -> str:
        return message_of(cause_of(error))

    # -- reading ---------------------------------------------------------------------------------

    def _fetch(self, connection: Connection, execute: Execute, parameters: Any) -> list[Row]:
        """Almost always the driver's fast loaders do. If this side cannot write or read a value, the statement is
        executed again in a way that can."""
        try:
            return rows_of(execute(connection, parameters))
        except UnicodeEncodeError:
            pass
        except (DBAPIError, psycopg.DataError) as error:
            cause = cause_of(error)
            if not isinstance(cause, psycopg.DataError) or cause.sqlstate is not None:
                raise
        return rows_of(execute(connection.execution_options(lenient=True), converted(parameters, _storable)))

    def _batches(self, execute: Execute, parameters: Any, stop: Stop, size: int) -> Iterator[list[Row]]:
        with self._at_work(self._reader, self._deadline) as (connection, watch):
            try:
                streaming = connection.execution_options(lenient=True, yield_per=size)
                with closing(execute(streaming, converted(parameters, _storable))) as result:
                    while not stop.requested and (rows := result.fetchmany(size)):
                        charge_time(connection)
                        with self._at_rest(connection, watch):
                            yield list(map(tuple, rows))
            except (DBAPIError, psycopg.Error) as error:
                raise self._fault(error, watch) from None
            finally:
                if not connection.invalidated:
                    with suppress(psycopg.Error):
                        driver_of(connection).rollback()

    # -- writing ---------------------------------------------------------------------------------

    def guard(self, target: Target) -> PostgresGuard:
        """The guarded writes to a table."""
        return PostgresGuard(self, target)

    # -- the rest --------------------------------------------------------------------------------

    def quoted(self, table: str) -> str:
        """`schema.table` quoted for a statement with parameters: percent signs are doubled."""
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
        schema, _, name = table.rpartition(".")
        wanted = list(columns)

        def look(connection: Connection) -> bool:
            inspector = sa.inspect(connection)
            indexes = filter(_is_full_and_valid, inspector.get_indexes(name, schema or None))
            key = inspector.get_pk_constraint(name, schema or None)["constrained_columns"]
            indexed: list[Sequence[str | None]] = [key, *(index["column_names"] for index in indexes)]
            return any(list(names[: len(wanted)]) == wanted for names in indexed)

        try:
            return self._unless_dead(look)
        except NoSuchTableError:
            return False

    def estimated_rows(self, table: str) -> int | None:
        """The number that the last ANALYZE or VACUUM stored; None for a view or a foreign table."""
        rows = self.fetch(
            "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s) AND relkind IN ('r', 'p', 'm')",
            [_named(table)],
        )
        return rows[0][0] if rows and rows[0][0] >= 0 else None

    def privileges(self, table: str) -> Privileges:
        rows = self.fetch(
            "SELECT current_user::text, has_table_privilege(c.oid, 'UPDATE'), r.rolsuper,"
            " pg_has_role(c.relowner, 'USAGE') FROM pg_class c, pg_roles r"
            " WHERE c.oid = to_regclass(%s) AND r.rolname = current_user",
            [_named(table)],
        )
        if not rows:
            raise WrongSchema(f"there is no table {table!r}", where=self.place)
        return Privileges(*rows[0])

    def server_settings(self) -> ServerSettings:
        """What the server and the role have set that our promises depend on."""
        ((version, lo_create, commits),) = self.fetch(
            "SELECT current_setting('server_version_num')::int,"
            " has_function_privilege('pg_catalog.lo_create(oid)', 'EXECUTE'), current_setting('synchronous_commit')",
            (),
        )
        return ServerSettings(version, lo_create, commits != "off")

    def server_findings(self, role: str) -> Iterator[Finding]:
        return setting_findings(self.server_settings(), role)

    def may(self, table: str, privilege: str, columns: Sequence[str]) -> bool:
        """Whether our role has this privilege on all these columns, by itself or on the whole table."""
        ((allowed,),) = self.fetch(
            "SELECT bool_and(has_column_privilege(to_regclass(%s), named, %s)) FROM unnest(%s::text[]) named",
            [_named(table), privilege, list(columns)],
        )
        return bool(allowed)

    def zone(self) -> tzinfo:
        """The time zone of this database and role, in which NOW() is written into a TIMESTAMP column."""
        ((name,),) = self.fetch("SELECT current_setting('TimeZone')", ())
        return zone_named(name, self.place)

    def now(self) -> datetime:
        ((now,),) = self.fetch("SELECT clock_timestamp() AT TIME ZONE 'UTC'", ())
        return cast("datetime", now).replace(tzinfo=UTC)


def _is_full_and_valid(index: Any) -> bool:
    return not {"postgresql_where", "postgresql_invalid"} & index.get("dialect_options", {}).keys()


def _named(table: str) -> str:
    """`schema.table` with each part quoted."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))


def _parsed(url: str) -> sa.URL:
    parsed = parse_url(url, _FIX)
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise ConfigFault("the url is not one of a PostgreSQL database", fix=_FIX)
    return parsed


def _shown(url: sa.URL) -> str:
    """The address without password and options."""
    hosts, ports = (str(url.query.get(name, "")).split(",") for name in ("host", "port"))
    if url.host:
        hosts, ports = [url.host], [str(url.port or "")]
    hosts = [f"[{host}]" if ":" in host else host for host in hosts]
    servers = ",".join(f"{host}:{port}" if port else host for host, port in zip_longest(hosts, ports, fillvalue=""))
    user = f"{url.username}@" if url.username else ""
    return f"postgresql://{user}{servers}/{url.database or ''}"
