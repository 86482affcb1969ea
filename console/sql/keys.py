"""Rows by key: the predicates for it, and the rows whose key is stored as another type than its column's."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import Any

import sqlalchemy as sa

from console.core.item import ItemKey
from console.sql.database import Binds, BoundStatement, Database, Row, union_of
from console.sql.layout import Expression, Predicate, Roles, Segment
from console.sql.values import as_bytes, is_unicode, text

_WHOLE = re.compile("0|-?[1-9][0-9]{0,18}")

def is_key(roles: Roles, parts: tuple[str, ...], binds: Binds, sqlite: bool) -> Predicate:
    """Whether a row has this key, as `rows.py` reads it: in SQLite a BLOB equals its text, and NULL the empty text."""
    if roles.native_key is not None:
        native = roles.native_key(parts)
        return sa.false() if native is None else sa.and_(*map(operator.eq, roles.key, map(binds.value, native)))
    return sa.and_(*(_is_part(column, [part], binds, sqlite) for column, part in zip(roles.key, parts, strict=True)))


def has_key(roles: Roles, keys: Sequence[tuple[str, ...]], binds: Binds, sqlite: bool) -> Predicate:
    """Whether a row has one of these keys; a key of one column needs only one IN."""
    if not keys or len(roles.key) > 1:
        return sa.or_(sa.false(), *(is_key(roles, parts, binds, sqlite) for parts in keys))
    (column,) = roles.key
    if roles.native_key is None:
        return _is_part(column, [part for (part,) in keys], binds, sqlite)
    natives = [native for native in map(roles.native_key, keys) if native is not None]
    return column.in_([binds.value(value) for (value,) in natives]) if natives else sa.false()


def _is_part(column: Expression, parts: Sequence[str], binds: Binds, sqlite: bool) -> Predicate:
    if not sqlite:
        return column.in_([binds.value(part) for part in parts])
    same = column.in_([binds.value(one) for part in parts for one in (part, as_bytes(part))])
    return same if all(parts) else sa.or_(same, column.is_(None))


def shows_key(roles: Roles, keys: Sequence[tuple[str, ...]], binds: Binds) -> Predicate:
    """Whether a row of SQLite is listed under one of these keys; its columns may hold values of any type."""
    if not keys or len(roles.key) > 1:
        found = (map(_shows_part, roles.key, ([part] for part in parts), repeat(binds)) for parts in keys)
        return sa.or_(sa.false(), *(sa.and_(*parts) for parts in found))
    (column,) = roles.key
    return _shows_part(column, [part for (part,) in keys], binds)


def may_be_loose(roles: Roles, parts: tuple[str, ...]) -> bool:
    """Whether a row may be listed under this key that `is_key` does not find, because it is stored as a number."""
    fits = len(parts) == len(roles.key)
    return fits and (roles.native_key is not None or any(_whole(part) or _real(part) is not None for part in parts))


def _shows_part(column: Expression, parts: Sequence[str], binds: Binds) -> Predicate:
    """By all values that are shown as such a text, which an index finds. Values that are only equal to one of them
    (1.0 and 1, or 7 and '07' in a column of numbers) are excluded."""
    whole = [int(part) for part in parts if _whole(part)]
    broken = [number for part in parts if (number := _real(part)) is not None]
    texts = [binds.value(part) for part in parts]
    equal = column.in_([*texts, *map(binds.value, [*map(as_bytes, parts), *whole, *broken])])
    is_real = sa.func.typeof(column) == sa.literal_column("'real'")  # SQLite formats a REAL differently from Python
    shown = sa.and_(sa.not_(is_real), sa.cast(column, sa.Text).in_(texts))
    if broken:
        shown = sa.or_(shown, sa.and_(is_real, column.in_(list(map(binds.value, broken)))))
    same = sa.and_(equal, shown)
    return same if all(parts) else sa.or_(same, column.is_(None))


def _whole(part: str) -> bool:
    return bool(_WHOLE.fullmatch(part)) and -(2**63) <= int(part) < 2**63


def _real(part: str) -> float | None:
    try:
        number = float(part)
    except ValueError:
        return None
    return number if str(number) == part and part != "nan" else None


def plain_keys(roles: Sequence[Roles], keys: Sequence[tuple[str, ...]], sqlite: bool) -> dict[str, Any] | None:
    """The parameters of `is_given_key` for these keys; None if a key is unusual and needs `is_key`."""
    given: dict[str, Any] = {}
    for number, role in enumerate(roles):
        for n, parts in enumerate(keys):
            if len(parts) != len(role.key) or not all(part and is_unicode(part) for part in parts):
                return None
            native: Sequence[Any] = parts
            if role.native_key is not None:
                native = role.native_key(parts) or [None] * len(parts)  # no row has this key
            for place, value in enumerate(native):
                given[f"k{number}_{n}_{place}"] = value
                if sqlite and role.native_key is None:
                    given[f"b{number}_{n}_{place}"] = as_bytes(value)
    return given


def is_given_key(roles: Roles, number: int, count: int, binds: Binds, sqlite: bool) -> Predicate:
    """Whether a row has one of `count` keys, which are parameters."""
    both = ("k", "b") if sqlite and roles.native_key is None else ("k",)

    def values(n: int, place: int) -> list[Expression]:
        return [binds.given(f"{kind}{number}_{n}_{place}") for kind in both]

    if len(roles.key) == 1:
        return roles.key[0].in_([value for n in range(count) for value in values(n, 0)])
    return sa.or_(
        *(
            sa.and_(*(column.in_(values(n, place)) for place, column in enumerate(roles.key)))
            for n in range(count)
        )
    )


Columns = tuple[Expression, ...] | None
"""The columns to read; None for `Roles.row`."""


def select_each(segments: Sequence[Segment], columns: Columns, where: Callable[[int, Roles], Predicate]) -> Any:
    """One statement over all segments; `where` selects the rows of each."""
    return union_of(
        sa.select(*(segment.roles.row if columns is None else columns))
        .select_from(segment.source)
        .where(where(number, segment.roles))
        for number, segment in enumerate(segments)
    )


def rows_where(
    database: Database,
    segments: Sequence[Segment],
    columns: Columns,
    now: datetime,
    where: Callable[[Roles, Binds], Predicate],
) -> list[Row]:
    """Rows by a statement that is built for this call only."""
    binds = Binds()
    statement = select_each(segments, columns, lambda _, roles: where(roles, binds))
    return database.read(BoundStatement(statement, binds), now)


def loose_rows(
    database: Database, segments: Sequence[Segment], columns: Columns, now: datetime, keys: Sequence[ItemKey]
) -> list[Row]:
    """Rows of SQLite whose key is stored as another type than its column's, for the keys that no other row has.

    SQLite columns hold values of any type, so 1 and '1' can be two rows.
    """
    found: list[Row] = []
    for segment in segments:
        key, row = segment.roles.key, segment.roles.row if columns is None else columns
        some = [one for one in keys if may_be_loose(segment.roles, one.parts)]
        if not some:
            continue
        usual = {_as_text(held) for held in rows_where(database, [segment], key, now, partial(is_one_of, some, True))}
        missing = {one.parts: one for one in some if one.parts not in usual}
        if missing:
            shown = partial(_shows_one_of, list(missing.values()))
            loose = rows_where(database, [segment], (*key, *row), now, shown)
            found += [held[len(key) :] for held in loose if _as_text(held[: len(key)]) in missing]
    return found


def is_one_of(keys: Sequence[ItemKey], sqlite: bool, roles: Roles, binds: Binds) -> Predicate:
    """Whether a row has one of these keys."""
    return has_key(roles, _fitting(keys, roles), binds, sqlite)


def _shows_one_of(keys: Sequence[ItemKey], roles: Roles, binds: Binds) -> Predicate:
    return shows_key(roles, _fitting(keys, roles), binds)


def _fitting(keys: Sequence[ItemKey], roles: Roles) -> list[tuple[str, ...]]:
    return [key.parts for key in keys if len(key.parts) == len(roles.key)]


def _as_text(key: Row) -> tuple[str, ...]:
    return tuple(map(text, key))
