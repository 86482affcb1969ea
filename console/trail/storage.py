"""What the trail needs from a database of any kind. Statements use `?` for values and no SQL of one dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from console.core.advice import Advice, Step
from console.core.faults import TrailBroken, TrailUnavailable
from console.trail.schema import VERSION

Row = tuple[Any, ...]
T = TypeVar("T")

PATIENCE = 1.5
"""Seconds to wait for a database that does not answer, so that the fault is shown within two."""


class Reading(Protocol):
    """Executes statements that only read."""

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a statement."""

    def now(self, ours: datetime) -> datetime:
        """The time for all users of the trail: the server's if there is one, else this machine's."""


class Writing(Reading, Protocol):
    """One transaction. There is never a second writing transaction at the same time."""

    facts: Mapping[str, Any]
    """What the server knows about this transaction, for its records: role, address, time. Empty without a server."""

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Execute a statement and return how many rows it changed."""

    def bulk(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert many rows in the driver's fastest way."""


class Storage(Protocol):
    """A database with a trail in it, or without one until the first write."""

    place: str
    """Its address without secrets."""

    def read(self, work: Callable[[Reading], T], empty: T) -> T:
        """The result of `work`, or `empty` if there is no trail yet."""

    def write(self, work: Callable[[Writing], T], *, lasting: bool = True) -> T:
        """Run `work` in a transaction and make it durable, or raise and change nothing.

        A write that is not `lasting` may be lost in a crash until a lasting one follows.
        """

    def exposed(self) -> str:
        """Who besides its owner could write this trail, as a clause; empty if nobody."""

    def owning_role(self) -> str:
        """The database role in use, if it owns tables of the trail or is a superuser; empty if not."""

    def close(self) -> None: ...


def select(storage: Storage, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
    """The rows of one statement; none if there is no trail yet."""
    nothing: list[Row] = []
    return storage.read(lambda reading: reading.all(sql, parameters), nothing)


def require_version(found: object, place: str, fault: type[TrailUnavailable] = TrailUnavailable) -> None:
    """Refuse a trail of another format. There are no migrations."""
    if found != VERSION:
        known = "no format" if found is None else f"format {found}"
        raise fault(
            f"it has {known}, but this version of Retriage needs format {VERSION}",
            where=place,
            fix="Use another trail in the config, or move this one away.",
        )


# A key or unit may contain NUL or lone surrogates, because some systems have such rows. What SQLite or PostgreSQL would
# refuse is stored as JSON after a marker character. A stored text contains no other control characters, so texts joined
# by control characters can be split again.

MARK = "\x1a"
_UNSAFE = re.compile("[\x00-\x1f\ud800-\udfff]")


def storable(*columns: Sequence[str]) -> list[Sequence[str]]:
    """Columns of texts in their stored form: the same columns, unless some text has to be encoded."""
    # One check of all texts together, because almost always there is nothing to do.
    return [texts if "".join(texts).isprintable() else list(map(stored_text, texts)) for texts in columns]


def original(rows: Sequence[tuple[Any, ...]], *columns: int) -> Sequence[tuple[Any, ...]]:
    """Rows with the original texts; `columns` are the indexes of their text columns."""
    try:
        if "".join(filter(None, chain.from_iterable(map(itemgetter(*columns), rows)))).isprintable():
            return rows
        return [tuple(_restored(value) for value in row) for row in rows]
    except (TypeError, ValueError):
        raise TrailBroken("a text in it cannot be read", advice=Advice(Step.VERIFY_TRAIL)) from None


def stored_text(text: str) -> str:
    """One text in its stored form."""
    return MARK + json.dumps(text) if _UNSAFE.search(text) else text


def _restored(value: Any) -> Any:
    return json.loads(value[1:]) if isinstance(value, str) and value.startswith(MARK) else value
