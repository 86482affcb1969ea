"""How a database stores instants, and how they become aware UTC datetimes and bound values again.

Bound values are converted, never columns, so that an index on a time column still serves.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement


class TimeStyle(Protocol):
    """One way of storing instants."""

    def encode(self, instant: datetime) -> Any:
        """The bound value for an instant."""

    def decode(self, raw: Any) -> datetime | None:
        """The instant a stored value means; None when there is none or it is not a time."""

    def valid(self, column: ColumnElement[Any]) -> ColumnElement[bool] | None:
        """A predicate for values that compare as times, where a column may hold anything."""


def _utc(instant: datetime) -> datetime | None:
    if instant.tzinfo is UTC:
        return instant
    try:
        return instant.astimezone(UTC)
    except (OverflowError, ValueError):
        return None


class IsoText:
    """ISO-8601 text as `datetime.isoformat()` writes it in UTC; text without an offset is read in `zone`."""

    def __init__(self, zone: tzinfo = UTC) -> None:
        self._zone = zone

    def encode(self, instant: datetime) -> str:
        return instant.astimezone(self._zone).isoformat()

    def decode(self, raw: Any) -> datetime | None:
        if not isinstance(raw, str):
            return None
        try:
            instant = datetime.fromisoformat(raw)
        except ValueError:
            return None
        if instant.tzinfo is UTC:
            return instant
        return _utc(instant if instant.tzinfo else instant.replace(tzinfo=self._zone))

    def valid(self, column: ColumnElement[Any]) -> ColumnElement[bool] | None:
        return column.op("GLOB")(sa.literal_column("'[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*'"))


class Naive:
    """TIMESTAMP without time zone, written in `zone`. The hour a clock repeats is read as its first pass."""

    def __init__(self, zone: tzinfo = UTC) -> None:
        self._zone = zone

    def encode(self, instant: datetime) -> datetime:
        return instant.astimezone(self._zone).replace(tzinfo=None)

    def decode(self, raw: Any) -> datetime | None:
        if not isinstance(raw, datetime):
            return None
        return _utc(raw if raw.tzinfo else raw.replace(tzinfo=self._zone))

    def ambiguous(self, raw: Any) -> bool:
        """Whether the wall-clock time happened twice."""
        if not isinstance(raw, datetime) or raw.tzinfo:
            return False
        first, second = (raw.replace(tzinfo=self._zone, fold=fold).utcoffset() for fold in (0, 1))
        return first is not None and second is not None and first > second

    def valid(self, column: ColumnElement[Any]) -> ColumnElement[bool] | None:  # noqa: ARG002
        return None


class Aware:
    """TIMESTAMP WITH TIME ZONE."""

    def encode(self, instant: datetime) -> datetime:
        return instant

    def decode(self, raw: Any) -> datetime | None:
        return _utc(raw) if isinstance(raw, datetime) and raw.tzinfo else None

    def valid(self, column: ColumnElement[Any]) -> ColumnElement[bool] | None:  # noqa: ARG002
        return None
