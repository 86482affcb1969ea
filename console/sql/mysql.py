"""MySQL and MariaDB databases of other systems: short waits, and connections for reading cannot write.

Text is compared by the collation of its column, which usually ignores case. The collation of our connections orders
text by its bytes, so a column that is cast to text is compared exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, cast

import pymysql
import sqlalchemy as sa
from pymysql.constants import CLIENT, FIELD_TYPE
from pymysql.converters import conversions
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from console.core.backend import Finding, Severity
from console.core.faults import BackendFault, ConfigFault
from console.core.ports import Stop
from console.sql.database import (
    Execute,
    Row,
    begin_with,
    charge_time,
    make_engine,
    parse_url,
    rows_of,
)
from console.sql.mysql_faults import cause_of, is_of_one_row, message_of, translate
from console.sql.server import LOCK_PATIENCE, READERS, SERVER_SHARE, WRITERS, Privileges, ServerDatabase
from console.sql.values import converted

DriverConnection: TypeAlias = "pymysql.Connection[Any]"

_FIX = "Write mysql://USER@HOST/DATABASE or mariadb://USER@HOST/DATABASE."
_OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}
_STANDARD = "TRADITIONAL,ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION"
"""Quotes as in other databases, so that a mapping means the same, and a backslash in one cannot end a text."""
_FOR_READING = "READ ONLY"
_ASK_IF_READ_ONLY = (
    "SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_read_only', 'transaction_read_only') AND Value = 'ON'"
)
"""The older name and the newer one; each server has one of them or both."""
_GRANTED = r'(\*|`(?:[^`]|``)+`|"(?:[^"]|"")+"|\w+)'
_GRANT = re.compile(rf"GRANT (.+) ON (?:TABLE )?{_GRANTED}\.{_GRANTED} TO ", re.S)
_NUMBERS = {
    FIELD_TYPE.TINY: "smallint", FIELD_TYPE.SHORT: "smallint", FIELD_TYPE.INT24: "integer", FIELD_TYPE.LONG: "integer",
    FIELD_TYPE.LONGLONG: "bigint", FIELD_TYPE.YEAR: "integer", FIELD_TYPE.NEWDECIMAL: "numeric",
    FIELD_TYPE.DECIMAL: "numeric", FIELD_TYPE.DOUBLE: "double precision", FIELD_TYPE.FLOAT: "real",
}
_OTHERS = {
    FIELD_TYPE.DATETIME: "datetime", FIELD_TYPE.TIMESTAMP: "timestamp", FIELD_TYPE.DATE: "date",
    FIELD_TYPE.TIME: "time", FIELD_TYPE.JSON: "json", FIELD_TYPE.BIT: "bit",
}
_BINARY = 63
"""The number of the character set of bytes."""


def _time(text: str) -> datetime | str:
    """A stored time, or the text of one that Python cannot hold: a zero date. The driver's own way is slower."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


_DECODERS = {**conversions, FIELD_TYPE.DATETIME: _time, FIELD_TYPE.TIMESTAMP: _time}


class _Wire:
    """A connection as the watchdog needs it."""

    def __init__(self, connection: DriverConnection, settings: Mapping[str, Any]) -> None:
        self._connection = connection
        self._settings = settings

    def fileno(self) -> int:
        return cast("int", cast("Any", self._connection)._sock.fileno())

    def cancel_safe(self, *, timeout: float) -> None:
        """KILL QUERY, over a connection that is opened for it."""
        with pymysql.connect(**{**self._settings, "connect_timeout": max(int(timeout), 1)}) as other:
            other.query(f"KILL QUERY {int(cast('Any', self._connection).thread_id())}")


def is_mariadb(connection: DriverConnection) -> bool:
    return "MariaDB" in cast("Any", connection).get_server_info()


def driver_of(connection: Connection) -> DriverConnection:
    return cast("DriverConnection", connection.connection.driver_connection)


def _read_in_transaction(cursor: Any, sql: Any, parameters: Any, context: Any) -> bool:
    """Executes one statement in a read-only transaction of its own. A stream ends its transaction itself."""
    driver: DriverConnection = cursor.connection
    try:
        driver.query("START TRANSACTION READ ONLY")
        cursor.execute(sql, parameters)
        if not context._is_server_side:
            driver.commit()
    except BaseException:
        with suppress(pymysql.Error):
            driver.rollback()
        raise
    return True


def _storable(text: str) -> str:
    """Text that the driver can encode. What no column could store becomes text that no row has."""
    return text.encode("utf-8", "replace").decode()


class MysqlDatabase(ServerDatabase):
    """One database on a server."""

    refusals = (pymysql.IntegrityError, pymysql.DataError)
    driver_error = pymysql.Error

    def __init__(self, url: str, *, read_only: bool = False, deadline: timedelta = timedelta(seconds=5)) -> None:
        parsed = _parsed(url)
        seconds = deadline.total_seconds()
        # Each transaction is ended where it began. SQLAlchemy would send another ROLLBACK after it, which costs a round
        # trip: after every read, and whenever a connection goes back to its pool.
        reader = self._engine(
            parsed, _FOR_READING, pool_size=READERS, pool_timeout=seconds, isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,
        )
        writer = self._engine(parsed, "READ WRITE", pool_size=WRITERS, pool_timeout=seconds)
        event.listen(reader, "do_execute", _read_in_transaction)
        begin_with(writer, "START TRANSACTION READ WRITE")
        super().__init__(
            _shown(parsed), reader, writer, read_only=read_only, deadline=seconds, write_deadline=seconds
        )

    # -- connecting ------------------------------------------------------------------------------

    def _engine(self, url: sa.URL, access: str, **settings: Any) -> Engine:
        engine = make_engine(
            url.set(drivername="mysql+pymysql"), max_overflow=0, pool_reset_on_return=None, **settings
        )

        def connect(_: Any, record: ConnectionPoolEntry, __: Any, given: dict[str, Any]) -> DriverConnection:
            return self._connect(record, given)

        def prepare(connection: DriverConnection, _: ConnectionPoolEntry) -> None:
            for statement in self._session(access, mariadb=is_mariadb(connection)):
                connection.query(statement)
            if access == _FOR_READING:
                self._require_read_only(connection)

        event.listen(engine, "do_connect", connect)
        event.listen(engine, "connect", prepare)  # after SQLAlchemy, which sets the collation of a connection too
        return engine

    def _connect(self, record: ConnectionPoolEntry, given: Mapping[str, Any]) -> DriverConnection:
        settings = {
            "program_name": "retriage", "connect_timeout": max(int(self._deadline / 2), 2), **given,
            "charset": "utf8mb4", "autocommit": True, "client_flag": CLIENT.FOUND_ROWS, "conv": _DECODERS,
            "read_timeout": self._deadline + 1, "write_timeout": self._deadline + 1,
        }
        connection = pymysql.connect(**settings)
        try:
            wire = record.info["wire"] = _Wire(connection, settings)
            record.info["watch"] = self._watchdog.begin(wire, self._deadline)
            self._require_version(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _session(self, access: str, *, mariadb: bool) -> Iterator[str]:
        """What every session of ours has set. The server's time limit is shorter than ours: it says what it was."""
        yield f"SET NAMES utf8mb4 COLLATE {'utf8mb4_nopad_bin' if mariadb else 'utf8mb4_0900_bin'}"
        # For reading, the session is read-only too: CREATE, DROP and the like end the transaction that forbids them.
        yield f"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, {access}"
        limit = self._deadline * SERVER_SHARE
        own = f"max_statement_time = {limit}" if mariadb else f"max_execution_time = {max(int(limit * 1000), 1)}"
        waits = max(int(min(LOCK_PATIENCE, limit)), 1)
        yield (
            f"SET SESSION {own}, lock_wait_timeout = {waits}, innodb_lock_wait_timeout = {waits}, time_zone = '+00:00',"
            f" sql_mode = '{_STANDARD}', group_concat_max_len = 1048576"
        )

    def _require_read_only(self, connection: DriverConnection) -> None:
        """Ask the server: a proxy may drop or answer what sets up a session."""
        with connection.cursor() as cursor:
            cursor.execute(_ASK_IF_READ_ONLY)
            if cursor.fetchall():
                return
        connection.close()
        raise BackendFault(
            "the server would let this read-only connection write", where=self.place,
            fix="Connect to the server directly, not through a proxy that changes what is sent.",
        )

    def _require_version(self, connection: DriverConnection) -> None:
        shown = cast("Any", connection).get_server_info()
        kind = "MariaDB" if is_mariadb(connection) else "MySQL"
        found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", shown)  # MariaDB puts 5.5.5- first, for old clients
        numbers = tuple(map(int, found.groups())) if found else ()
        if numbers < _OLDEST[kind]:
            oldest = ".".join(map(str, _OLDEST[kind]))
            fix = f"Retriage needs {kind} {oldest} or newer."
            raise BackendFault(f"{kind} {shown} is too old", where=self.place, fix=fix)

    def _wire(self, connection: Connection) -> _Wire:
        return cast("_Wire", connection.info["wire"])

    def _is_dead(self, connection: Connection) -> bool:
        return connection.invalidated or not driver_of(connection).open

    def _translate(self, error: Exception) -> BackendFault:
        return translate(cause_of(error), self.place)

    def _message(self, error: Exception) -> str:
        return message_of(cause_of(error))

    def _is_refusal(self, error: Exception) -> bool:
        return is_of_one_row(error)

    # -- reading ---------------------------------------------------------------------------------

    def _fetch(self, connection: Connection, execute: Execute, parameters: Any) -> list[Row]:
        try:
            return rows_of(execute(connection, parameters))
        except UnicodeEncodeError:
            return rows_of(execute(connection, converted(parameters, _storable)))

    def _batches(self, execute: Execute, parameters: Any, stop: Stop, size: int) -> Iterator[list[Row]]:
        """A stream that is not read to its end is cut off: the driver would read the rest first."""
        with self._at_work(self._reader, self._deadline) as (connection, watch):
            complete, cursor = False, None
            try:
                streaming = connection.execution_options(yield_per=size)
                result = execute(streaming, converted(parameters, _storable))
                cursor = result.cursor
                while not stop.requested:
                    rows = result.fetchmany(size)
                    charge_time(connection)
                    if not rows:
                        complete = True
                        break
                    with self._at_rest(connection, watch):
                        yield list(map(tuple, rows))
            except (DBAPIError, pymysql.Error) as error:
                raise self._fault(error, watch) from None
            finally:
                if complete:
                    with suppress(pymysql.Error):
                        driver_of(connection).commit()
                else:
                    _abandon(cursor)
                    watch.cut_off()

    def type_of(self, sql: str) -> str:
        """The type of the one column that a statement returns, by the names that `console.sql` uses."""

        def look(connection: Connection) -> str:
            cursor: Any = connection.exec_driver_sql(sql).cursor
            field = cursor._result.fields[0]
            return _type_name(field.type_code, field.charsetnr)

        return self._unless_dead(look)

    # -- the rest --------------------------------------------------------------------------------

    def columns(self, table: str) -> Mapping[str, str]:
        return dict(self.fetch(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = coalesce(%s, database()) AND table_name = %s ORDER BY ordinal_position",
            _split(table),
        ))

    def has_index(self, table: str, columns: Sequence[str]) -> bool:
        """Whether an index on whole columns begins with these."""
        rows = self.fetch(
            "SELECT index_name, group_concat(if(sub_part IS NULL, column_name, '') ORDER BY seq_in_index"
            " SEPARATOR '\n') FROM information_schema.statistics"
            " WHERE table_schema = coalesce(%s, database()) AND table_name = %s GROUP BY index_name",
            _split(table),
        )
        wanted = list(columns)
        return any(str(names).split("\n")[: len(wanted)] == wanted for _, names in rows)

    def estimated_rows(self, table: str) -> int | None:
        """The number that the storage engine last counted; None for a view."""
        rows = self.fetch(
            "SELECT table_rows FROM information_schema.tables WHERE table_schema = coalesce(%s, database())"
            " AND table_name = %s", _split(table),
        )
        return None if not rows or rows[0][0] is None else int(rows[0][0])

    def privileges(self, table: str) -> Privileges:
        user, may, everywhere = self._granted(table)
        every = "ALL PRIVILEGES" in may
        superuser = bool(everywhere & {"ALL PRIVILEGES", "SUPER"})
        return Privileges(user, every or "UPDATE" in may, superuser, owner=False)

    def may_have_triggers(self, table: str) -> bool:
        """Whether an UPDATE may do something else than it says. A user without the privilege TRIGGER cannot know."""
        _, may, _ = self._granted(table)
        if not may & {"ALL PRIVILEGES", "TRIGGER"}:
            return True
        ((count,),) = self.fetch(
            "SELECT count(*) FROM information_schema.triggers WHERE event_object_schema = coalesce(%s, database())"
            " AND event_object_table = %s AND event_manipulation = 'UPDATE'", _split(table),
        )
        return bool(count)

    def _granted(self, table: str) -> tuple[str, set[str], set[str]]:
        """Our user, and its privileges on a table and on everything, by its grants."""
        ((user, here),) = self.fetch("SELECT current_user(), database()", ())
        schema, name = _split(table)
        grants = [_GRANT.match(str(line)) for (line,) in self.fetch("SHOW GRANTS", ())]
        may: set[str] = set()
        everywhere: set[str] = set()
        for grant in filter(None, grants):
            what, where, which = (re.sub(r'([`"])\1', r"\1", part.strip('`"')) for part in grant.groups())
            given = {word.strip().upper() for word in re.sub(r"\([^)]*\)", "", what).split(",")}
            if where == "*":
                everywhere |= given
            if (where == "*" or _is_like(schema or here, where)) and which in ("*", name):
                may |= given
        return str(user), may, everywhere

    def server_findings(self, role: str) -> Iterator[Finding]:
        """What the server has set that weakens a promise."""
        ((flushed,),) = self.fetch("SELECT @@innodb_flush_log_at_trx_commit", ())
        if flushed != 1:
            yield Finding(
                Severity.WARNING, "durability",
                f"the server has innodb_flush_log_at_trx_commit={flushed}: after a crash of the machine, requeues by"
                f" {role} can be lost", "Set it to 1.",
            )

    def now(self) -> datetime:
        ((now,),) = self.fetch("SELECT utc_timestamp(6)", ())
        return cast("datetime", now).replace(tzinfo=UTC)


def _abandon(cursor: Any) -> None:
    """Let the driver forget the rows that a cut connection will not send; it would wait for them when it cleans up."""
    if stream := getattr(cursor, "_result", None):
        stream.unbuffered_active = False
        stream.connection = None


def _type_name(code: int, charset: int) -> str:
    known = _NUMBERS.get(code) or _OTHERS.get(code)
    if known is not None:
        return known
    return "blob" if charset == _BINARY and code != FIELD_TYPE.NULL else "text"


def _is_like(name: str, pattern: str) -> bool:
    """Whether a grant's pattern covers a database: `%` and `_` stand for other characters unless escaped."""
    pieces = re.findall(r"\\.|.", pattern, re.S)
    made = [{"%": ".*", "_": "."}.get(piece, re.escape(piece.removeprefix("\\"))) for piece in pieces]
    return re.fullmatch("".join(made), name, re.S) is not None


def _split(table: str) -> tuple[str | None, str]:
    schema, _, name = table.rpartition(".")
    return schema or None, name


def _parsed(url: str) -> sa.URL:
    parsed = parse_url(url, _FIX)
    if parsed.get_backend_name() not in ("mysql", "mariadb"):
        raise ConfigFault("the url is not one of a MySQL or MariaDB database", fix=_FIX)
    if not parsed.database:
        raise ConfigFault("the url names no database", fix=_FIX)
    return parsed


def _shown(url: sa.URL) -> str:
    """The address without password and options."""
    host = url.host or str(url.query.get("unix_socket", ""))
    user = f"{url.username}@" if url.username else ""
    return f"{url.get_backend_name()}://{user}{host}{f':{url.port}' if url.port else ''}/{url.database}"
