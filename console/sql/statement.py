"""Statements built once with SQLAlchemy and run many times by the driver.

Building and compiling an expression costs more than fetching a page, so a `Prepared` keeps the compiled
text, and knows for each parameter whether it is fixed, follows the clock, or is given by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import BindParameter, ClauseElement, ColumnElement

FromNow = Callable[[datetime], Any]
_VALUES_AT_ONCE = 500
"""In one INSERT of many rows: half the cost of one row each; more gains nothing, and older SQLite takes 999."""


class Binds:
    """Collects the parameters of one statement while it is being built."""

    def __init__(self) -> None:
        self.fixed: dict[str, Any] = {}
        self.moving: dict[str, FromNow] = {}

    def value(self, value: Any) -> ColumnElement[Any]:
        """A value known now. Text that is not valid Unicode came out of a database as bytes and goes back so."""
        name = f"v{len(self.fixed)}"
        bound = sa.bindparam(name, type_=sa.types.NullType())
        if isinstance(value, str) and not is_unicode(value):
            self.fixed[name] = as_bytes(value)
            return sa.cast(bound, sa.Text)
        self.fixed[name] = value
        return bound

    def from_now(self, encode: FromNow, offset: timedelta = timedelta(0)) -> BindParameter[Any]:
        """The clock plus an offset, encoded as what it is compared with."""
        name = f"t{len(self.moving)}"
        self.moving[name] = lambda now: encode(_shifted(now, offset))
        return sa.bindparam(name, type_=sa.types.NullType())

    def given(self, name: str) -> BindParameter[Any]:
        """A parameter the caller supplies at each run."""
        return sa.bindparam(name, type_=sa.types.NullType())


def as_bytes(text: str) -> bytes:
    """What a tolerant decoder read, as it was."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair, which came from no decoder
        return text.encode("utf-8", "surrogatepass")


def is_unicode(text: str) -> bool:
    """Whether text can go to a driver as it is; what a tolerant decoder read may not."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _shifted(now: datetime, offset: timedelta) -> datetime:
    try:
        return now + offset
    except OverflowError:
        end = datetime.max if offset > timedelta(0) else datetime.min  # noqa: DTZ901  the zone is set below
        return end.replace(tzinfo=now.tzinfo)


class Prepared:
    """Compiled SQL and where each of its parameters comes from."""

    def __init__(self, statement: ClauseElement, binds: Binds, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)
        self.sql = str(compiled)
        self._order: list[str] | None = list(compiled.positiontup) if compiled.positiontup is not None else None
        self._fixed = {**compiled.params, **binds.fixed}
        self._moving = binds.moving

    def parameters(self, now: datetime, given: Mapping[str, Any]) -> Any:
        values = {**self._fixed, **given}
        for name, make in self._moving.items():
            values[name] = make(now)
        return values if self._order is None else [values[name] for name in self._order]


def inserts(into: str, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, list[Sequence[Any]]]]:
    """Statements for a table and its columns that insert all these rows, with what each is run for."""
    width = len(rows[0]) if rows else 1
    one, together = f"({', '.join('?' * width)})", max(1, _VALUES_AT_ONCE // width)
    whole = len(rows) - len(rows) % together
    parts = [rows[start : start + together] for start in range(0, whole, together)]
    yield (
        f"INSERT INTO {into} VALUES {', '.join([one] * together)}",  # noqa: S608  names from the schema
        [tuple(chain.from_iterable(part)) for part in parts],
    )
    yield f"INSERT INTO {into} VALUES {one}", list(rows[whole:])  # noqa: S608  names from the schema


def united(selects: Iterable[Any]) -> Any:
    """The rows of all of them, by one statement; None where there is nothing to select."""
    arms = list(selects)
    if not arms:
        return None
    return arms[0] if len(arms) == 1 else sa.union_all(*arms)
