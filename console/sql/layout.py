"""The SQL form of a backend's tables: which expression is the key, the status, the due time and so on.

`QueueTableBackend` makes a layout from a declared table. A plugin with several tables or pipelines makes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import FromClause

from console.core.item import Condition, Item
from console.sql.database import Binds, FromNow, Row
from console.sql.times import TimeStyle

Expression = ColumnElement[Any]
Predicate = ColumnElement[bool]
Residual = Callable[[Binds], Predicate | None]
"""The predicate of a condition within its segment, at a bound time; None if the whole segment has the condition."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The expressions of one segment, by what they mean."""

    key: tuple[Expression, ...]
    tiebreaker: tuple[Expression, ...]
    """Unique; orders the rows that are equal in the sort column."""
    row: tuple[Expression, ...]
    """What is read of each row; `Layout.read` makes an item of it."""
    type: Expression
    status: Expression
    attempts: Expression
    error: Expression
    created: Expression | None
    updated: Expression | None
    next: Expression | None
    references: tuple[Expression, ...] = ()
    expires: Expression | None = None
    native_key: Callable[[tuple[str, ...]], tuple[Any, ...] | None] | None = None
    """Converts the parts of a key to the columns' values (a number, a UUID); None if no row can have that key."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that an index finds together (one status, one pipeline), and their conditions."""

    source: FromClause
    base_filter: Predicate | None
    """Which rows of the source belong to the segment; None for all."""
    roles: Roles
    conditions: Mapping[Condition, Residual]
    scattered: bool = False
    """The base filter is several index ranges rather than one; few rows are expected in it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole backend: its segments, its default order, and how a row becomes an item."""

    segments: tuple[Segment, ...]
    read: Callable[[Row, datetime], Item]
    """Makes an item from the columns of `Roles.row`."""
    time: TimeStyle
    natural: Callable[[Roles], Expression | None]
    """What pages are ordered by, latest first, if no sort is chosen; None for the tiebreaker alone."""
    nullable: frozenset[str] = field(default_factory=frozenset)
    """The sort fields (and `natural`) that may be NULL."""
    served: frozenset[str] = frozenset()
    """The sort fields that an index serves, besides `natural`; the others are sorted."""
    moving: Mapping[str, FromNow] = field(default_factory=dict)
    """The parameters within its expressions that depend on the time of execution."""
    segments_are_indexed: bool = True
    """Each segment is its own index range; otherwise one pass over the table reads them all."""


def everything(_binds: Binds) -> None:
    """The residual of a segment in which all rows have one condition."""
    return


def outside(column: Expression, known: Iterable[str]) -> Predicate:
    """Values other than the known ones, written as ranges so that an index can serve it."""
    ordered = sorted(known)
    edges = pairwise(ordered)
    return sa.or_(
        column.is_(None),
        column < ordered[0],
        *(sa.and_(column > low, column < high) for low, high in edges),
        column > ordered[-1],
    )
