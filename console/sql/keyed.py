"""Rows by their keys, where no kept statement serves: keys that are not plain, and those held as an odd type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa

from console.core.item import ItemKey
from console.sql.database import Database, Row
from console.sql.layout import Expression, Predicate, Roles, Segment
from console.sql.statement import Binds, Prepared, united
from console.sql.values import text
from console.sql.where import has_key, may_be_loose, shows_key

Columns = tuple[Expression, ...] | None
"""What is read of a row; None for `Roles.row`."""


def of_each(segments: Sequence[Segment], columns: Columns, those: Callable[[int, Roles], Predicate]) -> Any:
    """One statement over all segments, each with the rows that are meant of it."""
    return united(
        sa.select(*(segment.roles.row if columns is None else columns))
        .select_from(segment.source)
        .where(those(number, segment.roles))
        for number, segment in enumerate(segments)
    )


def rows_where(
    database: Database,
    segments: Sequence[Segment],
    columns: Columns,
    now: datetime,
    those: Callable[[Roles, Binds], Predicate],
) -> list[Row]:
    """By a statement of its own, that is not kept."""
    binds = Binds()
    statement = of_each(segments, columns, lambda _, roles: those(roles, binds))
    return database.read(Prepared(statement, binds, database.dialect), now)


def loose_rows(
    database: Database, segments: Sequence[Segment], columns: Columns, now: datetime, keys: Sequence[ItemKey]
) -> list[Row]:
    """Rows of SQLite that hold their key as another type than their column's, which may hold anything; of the
    keys that no other row has, because 1 and '1' are two rows."""
    found: list[Row] = []
    for segment in segments:
        key, row = segment.roles.key, segment.roles.row if columns is None else columns
        some = [one for one in keys if may_be_loose(segment.roles, one.parts)]
        if not some:
            continue
        usual = {_told(held) for held in rows_where(database, [segment], key, now, partial(is_one_of, some, True))}
        missing = {one.parts: one for one in some if one.parts not in usual}
        if missing:
            asked = partial(_shows_one_of, list(missing.values()))
            loose = rows_where(database, [segment], (*key, *row), now, asked)
            found += [held[len(key) :] for held in loose if _told(held[: len(key)]) in missing]
    return found


def is_one_of(keys: Sequence[ItemKey], sqlite: bool, roles: Roles, binds: Binds) -> Predicate:
    """Whether a row has one of these keys."""
    return has_key(roles, _fitting(keys, roles), binds, sqlite)


def _shows_one_of(keys: Sequence[ItemKey], roles: Roles, binds: Binds) -> Predicate:
    return shows_key(roles, _fitting(keys, roles), binds)


def _fitting(keys: Sequence[ItemKey], roles: Roles) -> list[tuple[str, ...]]:
    return [key.parts for key in keys if len(key.parts) == len(roles.key)]


def _told(key: Row) -> tuple[str, ...]:
    return tuple(map(text, key))
