"""How a plugin describes its tables to the SQL machinery: which expression plays which part."""

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
from console.sql.database import Row
from console.sql.statement import Binds
from console.sql.times import TimeStyle

Expression = ColumnElement[Any]
Predicate = ColumnElement[bool]
Residual = Callable[[Binds], Predicate | None]
"""What tells a condition within its segment, at a bound now; None when the whole segment has it."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The expressions of one segment. `tie` is unique and breaks ties in every order."""

    key: tuple[Expression, ...]
    tie: tuple[Expression, ...]
    row: tuple[Expression, ...]
    type: Expression
    status: Expression
    attempts: Expression
    error: Expression
    created: Expression | None
    updated: Expression | None
    next: Expression | None
    references: tuple[Expression, ...] = ()
    native_key: Callable[[tuple[str, ...]], tuple[Any, ...] | None] | None = None
    """The parts of a key as its columns hold them (a number, a uuid); None for what can be no key here."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows an index can find together (one status, one pipeline), and their conditions."""

    source: FromClause
    lead: Predicate | None
    roles: Roles
    conditions: Mapping[Condition, Residual]
    scattered: bool = False
    """The lead is several index ranges rather than one; few rows are expected in it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole backend: its segments, its own order, and how a row becomes an item."""

    segments: tuple[Segment, ...]
    read: Callable[[Row, datetime], Item]
    """`rows.py`: the columns of `Roles.row` → a judged item."""
    time: TimeStyle
    natural: Callable[[Roles], Expression | None]
    """What pages are ordered by when nobody chose a column, latest first; None for the tie alone."""
    nullable: frozenset[str] = field(default_factory=frozenset)
    """The sort fields (and `natural`) that may be NULL."""
    served: frozenset[str] = frozenset()
    """The sort fields whose order an index gives, besides `natural`; the others are sorted."""
    leads_are_indexed: bool = True
    """Each segment is its own index range; otherwise one pass over the table reads them all."""


def everything(_binds: Binds) -> None:
    """The residual of a segment that has only one condition."""
    return


def outside(column: Expression, known: Iterable[str]) -> Predicate:
    """Values that are none of the known ones, as ranges: an index finds at once that there are none."""
    ordered = sorted(known)
    edges = pairwise(ordered)
    return sa.or_(
        column.is_(None),
        column < ordered[0],
        *(sa.and_(column > low, column < high) for low, high in edges),
        column > ordered[-1],
    )
