"""Databases on servers: pooled connections that may have died, deadlines kept from this side, and cancelling."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, NamedTuple, TypeVar

from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from console.core.backend import Finding
from console.core.faults import BackendBusy, BackendFault, DeadlineExceeded, Unreachable
from console.sql.database import EngineDatabase, Execute, Row, Writer, start_timing
from console.sql.watchdog import Watch, Watchdog, Wire

T = TypeVar("T")

READERS, WRITERS = 2, 1
"""Connections kept at most: they count against the limit of a server that others need."""
LOCK_PATIENCE = 2.0
SERVER_SHARE = 0.9
"""The server gets this part of the deadline, so that it answers before this side cuts the connection."""


class Privileges(NamedTuple):
    """What the user of our connections may do with a table; the connections themselves may be allowed less."""

    role: str
    can_write: bool
    superuser: bool
    owner: bool


class ServerDatabase(EngineDatabase):
    """One database on a server. A dialect adds its engines, and how its driver connects, cancels and fails."""

    driver_error: ClassVar[type[Exception]]
    """The base class of the driver's errors."""

    def __init__(
        self, place: str, reader: Engine, writer: Engine, *, read_only: bool, deadline: float, write_deadline: float
    ) -> None:
        super().__init__(place, reader, writer, read_only=read_only)
        self._deadline = deadline
        self._write_deadline = write_deadline
        self._watchdog = Watchdog()

    @abstractmethod
    def _wire(self, connection: Connection) -> Wire:
        """The driver's connection, to be watched."""

    @abstractmethod
    def _is_dead(self, connection: Connection) -> bool:
        """Whether the server or the network has ended this connection."""

    @abstractmethod
    def _translate(self, error: Exception) -> BackendFault:
        """The fault for an error of the driver, in plain words."""

    @abstractmethod
    def _message(self, error: Exception) -> str:
        """The server's own message without values."""

    @abstractmethod
    def _fetch(self, connection: Connection, execute: Execute, parameters: object) -> list[Row]:
        """All rows of one statement."""

    @contextmanager
    def _at_work(self, engine: Engine, deadline: float) -> Iterator[tuple[Connection, Watch]]:
        """A connection with its deadline. It is not used again after a cancel, which may still be under way."""
        try:
            connection = engine.connect()
        except PoolTimeout:
            raise BackendBusy("all of our connections to it are in use", where=self.place) from None
        except (DBAPIError, self.driver_error) as error:
            raise self._translate(error) from None
        except (TypeError, ValueError) as error:
            what = f"the driver cannot use something in the url ({error})"
            raise Unreachable(what, where=self.place, fix="Check the url in the config.") from None
        with self._lent(engine), connection:
            if first := connection.info.pop("watch", None):
                self._watchdog.end(first)
            watch = self._watchdog.begin(self._wire(connection), deadline)
            try:
                yield connection, watch
            finally:
                self._watchdog.end(watch)
                if watch.cut or watch.cancelled or self._is_dead(connection):
                    connection.invalidate()

    def _fault(self, error: Exception, watch: Watch) -> Exception:
        if watch.cancelled:
            return DeadlineExceeded("the query was cancelled", where=self.place)
        if watch.cut:
            return DeadlineExceeded(f"the server does not answer (waited {watch.patience:g} s)", where=self.place)
        return self._translate(error)

    # -- reading ---------------------------------------------------------------------------------

    @staticmethod
    @contextmanager
    def _at_rest(connection: Connection, watch: Watch) -> Iterator[None]:
        """The caller works on a batch: that counts neither for the deadline nor for the reading budget."""
        watch.rest()
        try:
            yield
        finally:
            watch.again()
            start_timing(connection)

    def _all(self, execute: Execute, parameters: object) -> list[Row]:
        return self._unless_dead(lambda connection: self._fetch(connection, execute, parameters))

    def _unless_dead(self, work: Callable[[Connection], T]) -> T:
        """A pooled connection may have died in a restart of the server. Reading again does no harm."""
        for attempt in (1, 2):
            with self._at_work(self._reader, self._deadline) as (connection, watch):
                try:
                    return work(connection)
                except (DBAPIError, self.driver_error) as error:
                    if attempt == 2 or not self._is_dead(connection) or watch.cut or watch.cancelled:
                        raise self._fault(error, watch) from None
        raise AssertionError("the second attempt returns or raises")

    # -- writing ---------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Writer]:
        with self._begun() as (transaction, watch):
            try:
                with transaction:
                    yield Writer(transaction.connection, self._is_refusal, self._message, watch.again)
            except (DBAPIError, self.driver_error) as error:
                raise self._fault(error, watch) from None

    @contextmanager
    def _begun(self) -> Iterator[tuple[RootTransaction, Watch]]:
        """A transaction. If a pooled connection turns out to be dead, nothing has been written: take another."""
        for attempt in (1, 2):
            with self._at_work(self._writer, self._write_deadline) as (connection, watch):
                try:
                    transaction = connection.begin()
                except (DBAPIError, self.driver_error) as error:
                    if attempt == 2 or not self._is_dead(connection) or watch.cut:
                        raise self._fault(error, watch) from None
                    continue
                yield transaction, watch
                return

    # -- the rest --------------------------------------------------------------------------------

    @abstractmethod
    def privileges(self, table: str) -> Privileges:
        """What our user may do with a table."""

    @abstractmethod
    def server_findings(self, role: str) -> Iterator[Finding]:
        """What the server or the user has set that weakens a promise."""

    def cancel(self) -> None:
        self._watchdog.cancel()
