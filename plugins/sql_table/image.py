"""The image of a row: the values that a plan records, compares and sets.

It holds the guard columns and then the written columns, in the order of the mapping, as JSON values. The before-image
is read from the database, the after-image is computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from console.core.backend import GONE, Action, Image, Operation
from console.sql.layout import Expression
from console.sql.times import IsoText, zone_named
from console.sql.values import plain
from plugins.sql_table.change_schema import Assignment, RequeueSection
from plugins.sql_table.fragments import formula
from plugins.sql_table.layout import MappedLayout
from plugins.sql_table.mapping import TableMapping
from plugins.sql_table.resolved import ResolvedMapping
from plugins.sql_table.stored_times import TimeKind, kind_of
from plugins.sql_table.tables import Column
from plugins.sql_table.writes import way_of, ways, write_rules

_PAYLOADS = frozenset({"json", "jsonb", "bytea", "blob", "xml"})
_Setter = Callable[[Image, datetime, datetime], Any]
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ImageColumn:
    """One value of the image: how to read it, and how to write it if an UPDATE sets it."""

    name: str
    column: str
    stored: Column
    read: str | None = None
    """An expression that replaces the column."""
    write: str | None = None
    time: TimeKind | None = None
    is_set: bool = True


def assignments(mapping: TableMapping) -> list[tuple[tuple[str, ...], Assignment]]:
    """All assignments of the requeue and the discard, each with its location in the mapping."""
    discard = mapping.discard
    given = [] if discard is None else [(("discard", "set", name), one) for name, one in discard.set.items()]
    return ([] if mapping.requeue is None else requeue_assignments(mapping.requeue)) + given


def requeue_assignments(requeue: RequeueSection) -> list[tuple[tuple[str, ...], Assignment]]:
    """All assignments of a requeue, each with its location in the mapping."""
    listed: list[tuple[tuple[str, ...], Assignment]] = [
        (("requeue", "set", name), assigned) for name, assigned in requeue.set.items()
    ]
    for attempts, rule in (("keep", requeue.attempts.keep), ("reset", requeue.attempts.reset)):
        if rule is not None:
            listed += [(("requeue", "attempts", attempts, "set", name), one) for name, one in rule.set.items()]
    return listed


class RowImage:
    """The image of the rows of one mapping, checked against the attached tables."""

    def __init__(self, resolved: ResolvedMapping, layout: MappedLayout) -> None:
        assert resolved.mapping.requeue is not None
        self.requeue = resolved.mapping.requeue
        self.rules = write_rules(resolved.mapping)
        self._resolved = resolved
        self._layout = layout
        self.parts = self._image_parts()
        self.reads = self._all_reads()
        self.assigned = ways(resolved.mapping)
        """The assignments of each way to write (see `way_of`), by column."""
        self._setters = {way: self._all_setters(given) for way, given in self.assigned.items()}
        self._formulas = {
            way: [formula(one.formula) for one in given.values() if one.formula is not None]
            for way, given in self.assigned.items()
        }

    def _image_parts(self) -> tuple[ImageColumn, ...]:
        requeue, found = self.requeue, {}
        for n, name in enumerate(requeue.guard):
            found[name] = self._part(name, None, "requeue", "guard", n)
        source = self._resolved.mapping.created
        created = None if source is None else source.column
        if created is not None and created in self._resolved.table.columns and created not in found:
            # Another row with the same key was created at another time, even if all else is equal.
            found[created] = self._part(created, None, "created")
        for loc, assigned in assignments(self._resolved.mapping):
            made = self._part(loc[-1], assigned, *loc)
            found[loc[-1]] = made if found.get(loc[-1]) is None else self._merged(found[loc[-1]], made, *loc)
        return tuple(found.values())

    def _merged(self, one: ImageColumn, other: ImageColumn, *loc: str | int) -> ImageColumn:
        """One value of the image that several sections use."""
        if one.is_set and (one.column, one.read, one.write) != (other.column, other.read, other.write):
            raise self._resolved.fault(f"{one.name!r} is another column or expression in requeue", *loc)
        return replace(other, time=one.time or other.time, is_set=one.is_set or other.is_set)

    def _part(self, name: str, assigned: Assignment | None, *loc: str | int) -> ImageColumn:
        by_update = self.rules[str(loc[0]) if loc[0] in self.rules else Action.REQUEUE.value].by_update
        column = name if assigned is None or assigned.column is None else assigned.column
        if assigned is not None and column in self._resolved.mapping.keys:
            raise self._resolved.fault(f"{column!r} is the key of the row and cannot be set", *loc)
        if assigned is not None and assigned.read is not None:
            found = self._resolved.expression(assigned.read, *loc, "read")
            stored = self._resolved.column(column, *loc).column
            typed = found.column if found.type else stored
            return ImageColumn(name, column, typed, assigned.read, assigned.write, is_set=by_update)
        found = self._resolved.column(column, *loc)
        if by_update and column not in self._resolved.table.columns:
            raise self._resolved.fault(f"{column!r} is not a column of {self._resolved.table.full_name!r} itself", *loc)
        if assigned is not None and by_update and found.column.generated:
            raise self._resolved.fault(f"{column!r} is a generated column and cannot be set", *loc)
        self._require_no_payload(column, found.column, *loc)
        for given in ("value", "later"):
            if assigned is not None and given in assigned.model_fields_set and by_update:
                self._resolved.require_fit(getattr(assigned, given), found.column, *loc)
        time = self._time_kind(name, found.column, assigned, *loc)
        return ImageColumn(name, column, found.column, time=time, is_set=assigned is not None and by_update)

    def _require_no_payload(self, column: str, stored: Column, *loc: str | int) -> None:
        """Images are stored in the trail, which must not contain error texts or payloads."""
        error = self._resolved.mapping.error
        what = "an error text" if error is not None and error.column == column else None
        if what is None and stored.type.lower().removesuffix("[]") in _PAYLOADS:
            what = "a payload"
        if what is not None:
            fix = "Use read and write to compare and set only a part of it."
            raise self._resolved.fault(f"{column!r} would store {what} in the trail", *loc, fix=fix)

    def _time_kind(
        self, name: str, column: Column, assigned: Assignment | None, *loc: str | int
    ) -> TimeKind | None:
        """How the column stores times; None if it holds none."""
        mapping, known = self._resolved.mapping, self._layout.times
        source = next((p for p in known.kinds if getattr(mapping, p).column == name), None)
        if source is not None and column.precision is None:
            return known.kinds[source]
        is_time = assigned is not None and assigned.time is not None
        if not is_time and (self._resolved.sqlite or not column.type.startswith(("timestamp", "datetime"))):
            return None
        zone = zone_named(mapping.time_zone)
        try:
            return kind_of(column.type, mapping.times, zone, sqlite=self._resolved.sqlite, precision=column.precision)
        except ValueError as problem:
            raise self._resolved.fault(str(problem), *loc) from None

    def _all_reads(self) -> tuple[Expression, ...]:
        """The expressions that read an image."""
        return tuple(
            self._resolved.column(part.column).expression if part.read is None
            else self._resolved.expression(part.read).expression
            for part in self.parts
        )

    # -- after-images ----------------------------------------------------------------------------

    def after(self, before: Image, operation: Operation, at: datetime, due: datetime) -> Image:
        """The image after a requeue or a discard, computed from the before-image alone."""
        if operation.discards and self.rules[Action.DISCARD].delete:
            return GONE
        return tuple([setter(before, at, due) for setter in self._setters[way_of(operation)]])

    def fits(self, before: Sequence[Any], way: str) -> bool:
        """Whether SQLite can store every result of a formula. PostgreSQL itself rejects numbers that are too large."""
        if not self._resolved.sqlite or not self._formulas[way]:
            return True
        columns = {part.name: value for part, value in zip(self.parts, before, strict=True)}
        return all(-_LARGEST <= made.value(columns) <= _LARGEST for made in self._formulas[way])

    def _all_setters(self, assigned: Mapping[str, Assignment]) -> Sequence[_Setter]:
        return [
            self._setter(n, part, assigned[part.name]) if part.name in assigned else _kept(n)
            for n, part in enumerate(self.parts)
        ]

    def _setter(self, n: int, part: ImageColumn, assigned: Assignment) -> _Setter:
        if assigned.formula is not None:
            made, names = formula(assigned.formula), [one.name for one in self.parts]
            return lambda before, _at, _due: made.value(dict(zip(names, before, strict=True)))
        if assigned.time is not None:
            assert part.time is not None
            if assigned.plus is not None:
                return _raised(n, part.time, assigned.plus, is_due=assigned.time == "due")
            return _timed(n, part.time, is_due=assigned.time == "due")
        value, later = (
            int(given) if isinstance(given, bool) and self._resolved.sqlite else given
            for given in (assigned.value, assigned.later)
        )
        if "later" in assigned.model_fields_set:
            return lambda _before, at, due: later if due > at else value
        return lambda _before, _at, _due: value


def _kept(n: int) -> _Setter:
    return lambda before, _at, _due: before[n]


def _raised(n: int, kind: TimeKind, plus: timedelta, *, is_due: bool) -> _Setter:
    """Sets a time some time after now or due, unless the column already has a later one."""

    def stored(before: Image, at: datetime, due: datetime) -> Any:
        wanted = (due if is_due else at) + plus
        present = kind.decode(before[n])
        if present is not None and present >= wanted:
            return before[n]
        return plain(kind.encode(wanted, before[n]))

    return stored


def _timed(n: int, kind: TimeKind, *, is_due: bool) -> _Setter:
    """Sets a time. The last encoded instant is kept, because all rows of a chunk get the same one."""
    last: tuple[datetime | None, Any] = (None, None)

    def stored(before: Image, at: datetime, due: datetime) -> Any:
        nonlocal last
        instant = due if is_due else at
        if isinstance(kind.style, IsoText):
            return kind.encode(instant, before[n])
        known, value = last
        if known is not instant:
            value = plain(kind.encode(instant))
            last = (instant, value)
        return value

    return stored
