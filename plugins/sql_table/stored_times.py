"""How a mapped table stores times, and how columns with different formats are converted to a common one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import sqlalchemy as sa

from console.sql.layout import Expression
from console.sql.times import Aware, IsoText, Naive, TimeStyle

_START = datetime(1970, 1, 1, tzinfo=UTC)
_FORM = re.compile(r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")
_NUMBERS = frozenset({"smallint", "integer", "bigint", "numeric", "double precision", "real"})
_WITH_ZONE, _WITHOUT_ZONE = "timestamp with time zone", "timestamp without time zone"


class Epoch:
    """Times stored as a number of units since 1970."""

    def __init__(self, unit: timedelta, *, sqlite: bool) -> None:
        self._unit = unit
        self._sqlite = sqlite

    def encode(self, instant: datetime) -> int:
        return (instant - _START) // self._unit

    def decode(self, raw: Any) -> datetime | None:
        if isinstance(raw, bool) or not isinstance(raw, int | float | Decimal) or raw != raw:
            return None
        try:
            return _START + (float(raw) if isinstance(raw, Decimal) else raw) * self._unit
        except OverflowError:
            return None

    def bound(self, instant: datetime) -> float:
        return (instant - _START) / self._unit

    def compared(self, column: Expression) -> Expression:
        low, high = self._edges()
        held = sa.and_(column >= low, column < high)
        if self._sqlite:
            kinds: list[Expression] = [sa.literal_column("'integer'"), sa.literal_column("'real'")]
            held = sa.and_(sa.func.typeof(column).in_(kinds), held)
        return sa.case((held, column))

    def ordered(self, column: Expression) -> Expression:
        return self.compared(column)

    def _edges(self) -> tuple[Expression, Expression]:
        """The first and last number that Python's calendar can represent."""
        first = (datetime.min.replace(tzinfo=UTC) - _START) // self._unit
        last = (datetime.max.replace(tzinfo=UTC) - _START) // self._unit
        return sa.literal_column(str(first)), sa.literal_column(str(last + 1))


@dataclass(frozen=True, slots=True)
class TimeKind:
    """How one column stores times."""

    name: str
    style: TimeStyle
    precision: int | None = None
    form: str = ""
    """For text: an example of the format to write if the column was empty."""

    def encode(self, instant: datetime, instead_of: Any = None) -> Any:
        """The value to store: with the precision of the column, or for text in the format of the replaced value."""
        if isinstance(self.style, IsoText):
            return _in_form(instant, instead_of if isinstance(instead_of, str) else self.form, self.style)
        kept = 10 ** (6 - self.precision) if self.precision is not None and self.precision < 6 else 1
        return self.style.encode(instant.replace(microsecond=instant.microsecond // kept * kept))


    def decode(self, imaged: Any) -> datetime | None:
        """The time in an image, where timestamps are ISO 8601 text; None if it is none."""
        if isinstance(self.style, IsoText | Epoch) or not isinstance(imaged, str):
            return self.style.decode(imaged)
        return self.style.decode(datetime.fromisoformat(imaged))


def _in_form(instant: datetime, form: str, style: IsoText) -> str:
    found = _FORM.fullmatch(form)
    if found is None:
        return style.encode(instant)
    between, fraction, offset = found.groups()
    local = instant if offset else datetime.fromisoformat(style.encode(instant))
    text = f"{local:%Y-%m-%d}{between}{local:%H:%M:%S}"
    if fraction:
        text += f".{local.microsecond:06}"[: len(fraction)].ljust(len(fraction), "0")
    if not offset:
        return text
    return text + ("Z" if offset == "Z" else "+00:00" if ":" in offset else "+0000")


def kind_of(type: str, declared: str | None, zone: Any, *, sqlite: bool, precision: int | None = None) -> TimeKind:
    """How a column of this type stores times; raises ValueError if it cannot."""
    if declared in ("epoch", "epoch_ms"):
        if not sqlite and type not in _NUMBERS:
            raise ValueError(f"is {type}, not a number; remove `times`")
        unit = timedelta(seconds=1) if declared == "epoch" else timedelta(milliseconds=1)
        return TimeKind(declared, Epoch(unit, sqlite=sqlite))
    if sqlite:
        return TimeKind("text", IsoText(zone), form="2000-01-01 00:00:00" if declared == "datetime" else "")
    if type == _WITH_ZONE:
        return TimeKind(_WITH_ZONE, Aware(), precision)
    if type == _WITHOUT_ZONE:
        return TimeKind(_WITHOUT_ZONE, Naive(zone), precision)
    if type in ("datetime", "timestamp"):  # of MySQL, which converts a timestamp to the session's zone: UTC
        own = zone if type == "datetime" else UTC
        return TimeKind("datetime" if _is_utc(own) else f"{type} in a zone", Naive(own), precision or 0)
    hint = "; use `times: epoch` or `times: epoch_ms` if it counts from 1970" if type in _NUMBERS else ""
    raise ValueError(f"is {type}, not a time{hint}")


def _is_utc(zone: Any) -> bool:
    return zone is UTC or zone.utcoffset(None) == timedelta(0)


def common(kinds: Iterable[TimeKind], zone: Any, *, sqlite: bool) -> tuple[TimeStyle, Callable[[TimeKind, Any], Any]]:
    """A common style, and a function that converts an expression of each kind to it."""
    found = {kind.name: kind.style for kind in kinds}
    if not found:
        return (IsoText(zone) if sqlite else Aware()), lambda _kind, expression: expression
    if "datetime in a zone" in found and len(found) > 1:
        raise ValueError("the table has DATETIME and TIMESTAMP columns, which can be compared only in UTC")
    if len(found) == 1:
        return next(iter(found.values())), lambda _kind, expression: expression
    return Aware(), lambda kind, expression: _aware(kind, expression, zone)


def _aware(kind: TimeKind, expression: Any, zone: Any) -> Any:
    """For PostgreSQL only: in SQLite all time columns of a mapping have the same kind."""
    if kind.name == _WITHOUT_ZONE:
        return cast("Any", sa.func.timezone(sa.literal(str(zone), sa.Text()), expression))
    return expression
