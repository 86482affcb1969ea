"""What the SQL machinery needs from a database, whichever driver speaks to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy.engine import Dialect

from console.core.ports import Stop
from console.sql.statement import Prepared

Row = tuple[Any, ...]


class RowRefused(Exception):
    """The database refused what one statement would do to a row: a unique index, a check, a trigger."""


class TransactionRefused(Exception):
    """The database refused a row and took the whole transaction back with it (`ON CONFLICT ROLLBACK`)."""


class Writer(Protocol):
    """A transaction that holds the write lock from its first statement; commits at the end of the block."""

    def execute(self, sql: str, parameters: Any = ()) -> Sequence[Row]:
        """Run one statement and fetch what it returns."""

    def executemany(self, sql: str, rows: Sequence[Any]) -> None:
        """Run one statement for many rows."""

    def savepoint(self) -> AbstractContextManager[None]:
        """A part that may fail on its own."""


class Database(Protocol):
    """One attached database. Reading connections cannot write; writing ones never create a database."""

    dialect: Dialect
    place: str

    def read(self, statement: Prepared, now: datetime, given: Mapping[str, Any] | None = None) -> list[Row]:
        """All rows of a statement, within the deadline."""

    def fetch(self, sql: str, parameters: Any) -> list[Row]:
        """All rows of a statement in the driver's own words, within the deadline."""

    def stream(self, statement: Prepared, now: datetime, stop: Stop, size: int = 5_000) -> Iterator[list[Row]]:
        """Rows in batches, until the end or `stop`; the deadline holds for each batch."""

    def writing(self) -> AbstractContextManager[Writer]:
        """A write transaction, refused on a read-only database."""

    def columns(self, table: str) -> Mapping[str, str]:
        """Column names and declared types of a table or view; empty when there is none."""

    def now(self) -> datetime: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...
