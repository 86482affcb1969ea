"""Databases of other systems: statements with their values, transactions, and what every dialect shares.

A new dialect subclasses `EngineDatabase`: it makes the two engines, guards the connections of the first, and says
how a read is repeated and how an error is worded.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from itertools import chain
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import unquote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, CursorResult, Dialect, Engine
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.sql.elements import BindParameter, ColumnElement

from console.core.budget import charge
from console.core.faults import BackendFault, ConfigFault, Fault, ReadOnlyRefused
from console.core.ports import Stop
from console.core.urls import url_parts
from console.sql.values import as_bytes, is_unicode

# SQLAlchemy's pool logs errors of dead connections. Without a handler Python would print them over the screen.
logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())

Row = tuple[Any, ...]
T = TypeVar("T")
FromNow = Callable[[datetime], Any]
Given = Mapping[str, Any] | None
"""The values that a caller passes to a statement."""
Execute = Callable[[Connection, Any], CursorResult[Any]]
"""Executes one statement with these parameters."""

_VALUES_PER_INSERT = 500
"""Half the cost of one row per INSERT; more gains nothing, and older SQLite takes 999 parameters at most."""
_STATEMENTS_CACHED = 64
"""A compiled statement of ours takes about 150 kB, and few forms of them are in use at a time."""


class AsStored(sa.types.UserDefinedType[Any]):
    """A bound value that already is what the column holds. SQLAlchemy must not convert it to the column's type."""

    cache_ok = True


_AS_STORED = AsStored()


class Binds:
    """The parameters of one statement, collected while it is built."""

    def __init__(self, moving: Mapping[str, FromNow] | None = None) -> None:
        self.fixed: dict[str, Any] = {}
        self.moving: dict[str, FromNow] = dict(moving or {})

    def value(self, value: Any) -> ColumnElement[Any]:
        """A value that is known now. Text that is not valid Unicode was read as bytes and is bound as bytes."""
        name = f"v{len(self.fixed)}"
        bound = sa.bindparam(name, type_=_AS_STORED)
        if isinstance(value, str) and not is_unicode(value):
            self.fixed[name] = as_bytes(value)
            return sa.cast(bound, sa.Text)
        self.fixed[name] = value
        return bound

    def from_now(self, encode: FromNow, offset: timedelta = timedelta(0)) -> BindParameter[Any]:
        """The time of the execution plus an offset, encoded for the column it is compared with."""
        name = f"t{len(self.moving)}"
        self.moving[name] = lambda now: encode(shifted(now, offset))
        return sa.bindparam(name, type_=_AS_STORED)

    @staticmethod
    def given(name: str) -> BindParameter[Any]:
        """A parameter that the caller or the layout passes at each execution."""
        return sa.bindparam(name, type_=_AS_STORED)


class BoundStatement(NamedTuple):
    """A statement and the values of its parameters. Keep it: SQLAlchemy compiles the same object only once."""

    statement: sa.Executable
    binds: Binds

    def parameters(self, now: datetime, given: Given = None) -> dict[str, Any]:
        """All values for an execution at `now`."""
        values = {**self.binds.fixed, **(given or {})}
        for name, make in self.binds.moving.items():
            values[name] = make(now)
        return values


def shifted(now: datetime, offset: timedelta) -> datetime:
    """The time plus an offset, or the end of the calendar."""
    try:
        return now + offset
    except OverflowError:
        end = datetime.max if offset > timedelta(0) else datetime.min  # noqa: DTZ901  the zone is set below
        return end.replace(tzinfo=now.tzinfo)


def inserts(into: str, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, list[Sequence[Any]]]]:
    """INSERT statements for all these rows, each with the parameter sets to execute it with."""
    width = len(rows[0]) if rows else 1
    one, together = f"({', '.join('?' * width)})", max(1, _VALUES_PER_INSERT // width)
    whole = len(rows) - len(rows) % together
    parts = [rows[start : start + together] for start in range(0, whole, together)]
    yield (
        f"INSERT INTO {into} VALUES {', '.join([one] * together)}",  # noqa: S608  names from the schema
        [tuple(chain.from_iterable(part)) for part in parts],
    )
    yield f"INSERT INTO {into} VALUES {one}", list(rows[whole:])  # noqa: S608  names from the schema


def union_of(selects: Iterable[Any]) -> Any:
    """One statement for the rows of all selects; None if there is no select."""
    arms = list(selects)
    if not arms:
        return None
    return arms[0] if len(arms) == 1 else sa.union_all(*arms)


class RowRefused(Exception):
    """The database rejected a row because of a unique index, a check or a trigger."""


class TransactionRefused(Exception):
    """The database rejected a row and rolled back the whole transaction (`ON CONFLICT ROLLBACK`)."""


@contextmanager
def as_fault(kind: type[Fault], where: str) -> Iterator[None]:
    """Raise what a database reports in this block as a fault of another kind, for a store of our own."""
    try:
        yield
    except RowRefused as refused:
        raise kind(str(refused), where=where) from None
    except BackendFault as fault:
        raise kind(fault.detail, where=where) from None


def make_engine(url: str | sa.URL, **options: Any) -> Engine:
    """An engine whose pool hands out the connection used last, and whose errors never show parameters."""
    try:
        engine = sa.create_engine(
            url,
            pool_use_lifo=True,
            hide_parameters=True,
            enable_from_linting=False,
            query_cache_size=_STATEMENTS_CACHED,
            **options,
        )
    except (ArgumentError, ValueError, TypeError) as error:
        raise ConfigFault(f"an option in the url cannot be used ({error})") from None
    event.listen(engine, "before_cursor_execute", start_timing)
    return engine


def start_timing(connection: Connection, *_: Any) -> None:
    """From now on the database works for us."""
    connection.info["began"] = perf_counter()


def charge_time(connection: Connection) -> None:
    """The database has answered: charge the time it took to the reading budget."""
    charge(perf_counter() - connection.info["began"])


def parse_url(url: str, fix: str = "") -> sa.URL:
    """A database URL. Several hosts, or an encoded socket's folder, become `host` and `port` of the query: SQLAlchemy
    reads them only there."""
    try:
        parts = url_parts(url)
        if parts is None or (len(parts.servers) < 2 and "%" not in parts.servers[0][0]):
            return sa.make_url(url)
        hosts, ports = zip(*parts.servers, strict=True)
        parsed = sa.make_url(f"{parts.before}{parts.after}")
    except (ArgumentError, ValueError) as error:
        what = str(error) if type(error) is ValueError else "the url is not valid"
        raise ConfigFault(what, fix=fix) from None
    given = {"host": ",".join(map(unquote, hosts)), **({"port": ",".join(ports)} if any(ports) else {})}
    return parsed.update_query_dict(given)


def begin_with(engine: Engine, statement: str) -> None:
    """Let every transaction of an engine whose driver is in autocommit mode begin with this statement."""

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(statement)

    event.listen(engine, "begin", begin)


def rows_of(result: CursorResult[Any]) -> list[Row]:
    """All rows as the driver returns them: no column type may convert what is later compared with the stored value."""
    rows = cast("list[Row]", result.cursor.fetchall()) if result.returns_rows else []
    charge_time(result.connection)
    return rows


def driver_parameters(parameters: Any) -> Any:
    """The parameters of one execution: SQLAlchemy would take a list for those of several."""
    return parameters if isinstance(parameters, Mapping) else tuple(parameters)


def executes_text(sql: str) -> Execute:
    """A statement in the driver's own SQL."""
    return lambda connection, parameters: connection.exec_driver_sql(sql, driver_parameters(parameters))


def executes(statement: BoundStatement) -> Execute:
    """A SQLAlchemy statement."""
    return lambda connection, parameters: connection.execute(statement.statement, parameters)


class Writer:
    """A transaction that holds the write lock from its first statement and commits at the end of the block."""

    def __init__(
        self,
        connection: Connection,
        is_refusal: Callable[[Exception], bool],
        message: Callable[[Any], str],
        answered: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._is_refusal = is_refusal
        self._message = message
        self._answered = answered

    def execute(self, sql: str, parameters: Any = ()) -> list[Row]:
        """Execute one statement and return its rows."""
        with self._refused():
            return rows_of(self._connection.exec_driver_sql(sql, driver_parameters(parameters)))

    def executemany(self, sql: str, rows: Sequence[Any]) -> None:
        """Execute one statement for many rows."""
        with self._refused():
            if rows:
                self._connection.exec_driver_sql(sql, list(rows))

    def run(self, statement: BoundStatement, now: datetime) -> list[Row]:
        """Execute a SQLAlchemy statement and return its rows."""
        with self._refused():
            return rows_of(self._connection.execute(statement.statement, statement.parameters(now)))

    def change(self, sql: str, parameters: Any = ()) -> int:
        """Execute one statement and return how many rows it changed."""
        with self._refused():
            return self._connection.exec_driver_sql(sql, driver_parameters(parameters)).rowcount

    @contextmanager
    def driver(self) -> Iterator[Any]:
        """The driver's own connection, for bulk operations that SQLAlchemy does not have."""
        with self._refused():
            yield self._connection.connection.driver_connection

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Tell a rejected row from other errors; an answer starts the deadline anew."""
        try:
            yield
        except Exception as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            if not isinstance(cause, Exception) or not self._is_refusal(cause):
                raise
            refused = RowRefused if self._in_transaction() else TransactionRefused
            raise refused(self._message(cause)) from None
        self._answered()

    def _in_transaction(self) -> bool:
        """Whether the database still has the transaction open; `ON CONFLICT ROLLBACK` of SQLite ends it."""
        return bool(getattr(self._connection.connection.driver_connection, "in_transaction", True))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction that can fail without the rest."""
        nested = self._connection.begin_nested()
        try:
            yield
        except BaseException:
            if not self._connection.invalidated and self._in_transaction():
                nested.rollback()
            raise
        nested.commit()


class Database(Protocol):
    """A database of another system. Connections for reading cannot write; no connection creates a database."""

    dialect: Dialect
    place: str

    def read(self, statement: BoundStatement, now: datetime, given: Given = None) -> list[Row]:
        """All rows of a statement, within the deadline."""

    def fetch(self, sql: str, parameters: Any) -> list[Row]:
        """All rows of a statement in the driver's own SQL, within the deadline."""

    def stream(
        self, statement: BoundStatement, now: datetime, stop: Stop, size: int = 5_000, given: Given = None
    ) -> Iterator[list[Row]]:
        """Rows in batches until the end or until `stop`; each batch has the whole deadline."""

    def writing(self) -> AbstractContextManager[Writer]:
        """A write transaction; refused if the database is opened read-only."""

    def columns(self, table: str) -> Mapping[str, str]:
        """Column names and declared types of a table or view; empty if it does not exist."""

    def estimated_rows(self, table: str) -> int | None:
        """Roughly how many rows a table has, without reading it; None if the database cannot say."""

    def now(self) -> datetime: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class ParameterizedDatabase:
    """A database whose statements also get parameters that are computed at each execution."""

    def __init__(self, inner: Database, given: Callable[[datetime], Mapping[str, Any]]) -> None:
        self._inner = inner
        self._given = given
        self.dialect = inner.dialect
        self.place = inner.place
        self.columns = inner.columns
        self.estimated_rows = inner.estimated_rows
        self.fetch = inner.fetch
        self.writing = inner.writing
        self.now = inner.now

    def read(self, statement: BoundStatement, now: datetime, given: Given = None) -> list[Row]:
        return self._inner.read(statement, now, {**(given or {}), **self._given(now)})

    def stream(
        self, statement: BoundStatement, now: datetime, stop: Stop, size: int = 5_000, given: Given = None
    ) -> Iterator[list[Row]]:
        return self._inner.stream(statement, now, stop, size, {**(given or {}), **self._given(now)})

    def cancel(self) -> None:
        self._inner.cancel()

    def close(self) -> None:
        self._inner.close()


class EngineDatabase(ABC):
    """One database that is read through one engine and written through another. Nothing is opened before it is used."""

    refusals: ClassVar[tuple[type[Exception], ...]]
    """The driver's errors that are about one row."""

    def __init__(self, place: str, reader: Engine, writer: Engine, *, read_only: bool) -> None:
        self.place = place
        self.dialect: Dialect = reader.dialect
        self._reader = reader
        self._writer = writer
        self._read_only = read_only
        self._closed = False

    # -- reading ---------------------------------------------------------------------------------

    def read(self, statement: BoundStatement, now: datetime, given: Given = None) -> list[Row]:
        return self._all(executes(statement), statement.parameters(now, given))

    def fetch(self, sql: str, parameters: Any) -> list[Row]:
        return self._all(executes_text(sql), parameters)

    def stream(
        self, statement: BoundStatement, now: datetime, stop: Stop, size: int = 5_000, given: Given = None
    ) -> Iterator[list[Row]]:
        return self._batches(executes(statement), statement.parameters(now, given), stop, size)

    @abstractmethod
    def _all(self, execute: Execute, parameters: Any) -> list[Row]:
        """All rows, read again where that can help."""

    @abstractmethod
    def _batches(self, execute: Execute, parameters: Any, stop: Stop, size: int) -> Iterator[list[Row]]:
        """The rows in batches, from one snapshot."""

    # -- writing ---------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        if self._read_only:
            raise ReadOnlyRefused(where=self.place)
        with self._transaction() as writer:
            yield writer

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Writer]: ...

    def _is_refusal(self, error: Exception) -> bool:
        """Whether an error of the driver is about one row."""
        return isinstance(error, self.refusals)

    # -- the rest --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections that nobody uses. Each of the others is closed when its work ends, see `_lent`."""
        self._closed = True
        for engine in (self._reader, self._writer):
            engine.pool.dispose()  # `engine.dispose` would also forget the pool that the others come back to

    @contextmanager
    def _lent(self, engine: Engine) -> Iterator[None]:
        """A connection of this engine is in use in this block, and back in its pool at the end."""
        try:
            yield
        finally:
            if self._closed:  # meanwhile, by another thread
                engine.pool.dispose()


def read_ahead(batches: Iterator[T]) -> Iterator[T]:
    """The same batches, each read while the caller works on the one before. The thread starts
    with the second one: most selections end in the first."""
    first = next(batches, None)
    if first is None:
        return
    yield first
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, "read-ahead") as reader:
        coming = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield batch
