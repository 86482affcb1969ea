"""The ways in which systems store times, and their conversion from and to aware UTC datetimes.

Bound values are converted rather than columns, so that an index on a time column still serves.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from console.core.faults import ConfigFault


def zone_named(name: str, place: str = "") -> tzinfo:
    """The zone with this name in the time zone database."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise ConfigFault(
            f"unknown time zone {name!r}", where=place, fix="Set time_zone to a name such as Europe/Berlin."
        ) from None


class TimeStyle(Protocol):
    """One way of storing instants."""

    def encode(self, instant: datetime) -> Any:
        """The bound value for an instant."""

    def decode(self, raw: Any) -> datetime | None:
        """The instant of a stored value; None for NULL and for what is not a time."""

    def bound(self, instant: datetime) -> Any:
        """The bound value that is compared with `compared`."""

    def compared(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """An expression that compares exactly as the decoded instants do; NULL for what is not a time."""

    def ordered(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """An expression that sorts as the instants do, and is cheap for values in the usual format."""


_MOMENT = timedelta(milliseconds=1)
_CALENDAR = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


def _in(zone: tzinfo, instant: datetime) -> datetime:
    """The wall-clock time in the zone; the first and last hours of the calendar are not converted."""
    try:
        return instant if instant.tzinfo is zone else instant.astimezone(zone)
    except OverflowError:
        return instant.replace(tzinfo=zone)


def _utc(instant: datetime) -> datetime | None:
    if instant.tzinfo is UTC:
        return instant
    try:
        return instant.astimezone(UTC)
    except (OverflowError, ValueError):
        return None


def _within(column: ColumnElement[Any], first: str, last: str) -> ColumnElement[Any]:
    """A time of PostgreSQL if Python can hold it; infinity and other years become NULL."""
    return sa.case((column.between(sa.literal_column(first), sa.literal_column(last)), column))


LONGEST_TIME = 64
"""The most characters of a text that can be a time. Nothing longer is taken for one, and it is not read to find out."""
UTC_TEXT = "retriage_utc"
"""Our own SQL function: a text that is a time, as the same instant in UTC in one format; else NULL."""


def in_bytes(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Text as bytes, because SQLite passes no text to a function that is not UTF-8; NULL for other types and for text
    that is too long to be a time."""
    is_text = sa.func.typeof(column) == sa.literal_column("'text'")
    return sa.case((sa.and_(is_text, _short(column)), sa.cast(column, sa.LargeBinary)))


def _short(column: ColumnElement[Any]) -> ColumnElement[Any]:
    size = sa.func.length(sa.cast(column, sa.LargeBinary))  # SQLite's length of a text ends at a NUL
    return size <= sa.literal_column(str(LONGEST_TIME))


class IsoText:
    """ISO-8601 text as `datetime.isoformat()` writes it in UTC; text without an offset is read in `zone`.

    Text in that format sorts as its instants do. Text in other formats (`Z`, another offset, a blank instead of the
    T) does not, and text that only looks like a time must not match at all: that is what the function is for.
    """

    def __init__(self, zone: tzinfo = UTC) -> None:
        self._zone = zone

    @property
    def functions(self) -> dict[str, Callable[[Any], Any]]:
        """The SQL functions that a connection needs for `compared` and `ordered`."""
        return {UTC_TEXT: self._utc_text}

    def _utc_text(self, raw: bytes | None) -> str | None:
        at = self.decode_bytes(raw)
        return None if at is None else at.isoformat()

    def decode_bytes(self, raw: bytes | None) -> datetime | None:
        """Like `decode`, for an SQL function that gets `in_bytes` of a column."""
        return self.decode(raw.decode("ascii")) if raw is not None and raw.isascii() else None

    def encode(self, instant: datetime) -> str:
        return (instant if instant.tzinfo is self._zone else _in(self._zone, instant)).isoformat()

    def decode(self, raw: Any) -> datetime | None:
        if not isinstance(raw, str) or len(raw) > LONGEST_TIME or not raw.isascii():
            return None  # Python accepts any character as separator
        try:
            instant = datetime.fromisoformat(raw)
        except ValueError:
            return None
        if instant.tzinfo is UTC:
            return instant
        return _utc(instant if instant.tzinfo else instant.replace(tzinfo=self._zone))

    def bound(self, instant: datetime) -> str:
        return _in(UTC, instant).isoformat()

    def compared(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return getattr(sa.func, UTC_TEXT)(in_bytes(column))  # type: ignore[no-any-return]

    def ordered(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        usual = column.op("GLOB", is_comparison=True)(sa.literal_column("'[0-9]???-??-??T??:??:??*+00:00'"))
        return sa.case((sa.and_(_short(column), usual), column), else_=self.compared(column))


class Naive:
    """TIMESTAMP without time zone, written in `zone`. In the hour that clocks repeat the first pass is meant."""

    def __init__(self, zone: tzinfo = UTC) -> None:
        self.zone = zone
        self.repeats = zone.utcoffset(None) is None
        """Whether the zone has hours that its clocks show twice."""
        self._is_utc = zone.utcoffset(None) == timedelta(0)

    def encode(self, instant: datetime) -> datetime:
        return _in(self.zone, instant).replace(tzinfo=None)

    def decode(self, raw: Any) -> datetime | None:
        if not isinstance(raw, datetime):
            return None
        if raw.tzinfo is None:
            raw = raw.replace(tzinfo=UTC if self._is_utc else self.zone)
        return raw if raw.tzinfo is UTC else _utc(raw)

    def ambiguous(self, raw: Any) -> bool:
        """Whether this wall-clock time happened twice."""
        if not self.repeats or not isinstance(raw, datetime) or raw.tzinfo:
            return False
        first, second = (raw.replace(tzinfo=self.zone, fold=fold).utcoffset() for fold in (0, 1))
        return first is not None and second is not None and first > second

    def bound(self, instant: datetime) -> datetime:
        """In the second pass of a repeated hour, everything stored in that hour is earlier: the end of the hour."""
        local = _in(self.zone, instant)
        return local.replace(tzinfo=None) if not local.fold else self._end_of_repeat(local)

    def _end_of_repeat(self, second_pass: datetime) -> datetime:
        now, before = second_pass.utcoffset(), second_pass.replace(fold=0).utcoffset()
        assert now is not None
        assert before is not None
        late = second_pass.astimezone(UTC)
        early = late - (before - now)
        while late - early > _MOMENT:
            middle = early + (late - early) / 2
            if _in(self.zone, middle).utcoffset() == now:
                late = middle
            else:
                early = middle
        return (late + before).replace(tzinfo=None, microsecond=0) - timedelta(microseconds=1)

    def compared(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return _within(column, *map(self._literal, _CALENDAR))

    def later(self, column: ColumnElement[Any], wait: ColumnElement[Any]) -> ColumnElement[Any]:
        """A stored time plus an interval, in the zone's own hours; at most the end of the calendar."""
        zone = sa.literal(str(self.zone), sa.Text())
        end: ColumnElement[Any] = sa.literal_column(self._literal(_CALENDAR[1]))
        moved = sa.func.timezone(zone, sa.func.timezone(zone, self.compared(column)) + wait)
        return sa.case((moved > end, end), else_=moved)

    def _literal(self, instant: datetime) -> str:
        return f"timestamp '{self.encode(instant).isoformat(' ')}'"

    def ordered(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return column


class Aware:
    """TIMESTAMP WITH TIME ZONE."""

    def encode(self, instant: datetime) -> datetime:
        return instant

    def decode(self, raw: Any) -> datetime | None:
        return _utc(raw) if isinstance(raw, datetime) and raw.tzinfo else None

    def bound(self, instant: datetime) -> datetime:
        return self.encode(instant)

    def compared(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Each end of the calendar in UTC and in the session's zone, because the year may differ between them."""
        first, last = ([f"timestamptz '{end.replace(tzinfo=zone)}'" for zone in (UTC, None)] for end in _CALENDAR)
        return _within(column, f"greatest({', '.join(first)})", f"least({', '.join(last)})")

    def ordered(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return column
