"""Keyset pages: one statement per page, each segment and each half (values, then NULLs) served on its own.

A page is ordered by (is-null, value, tie). The rows with a value and those without are read by separate
arms of one UNION ALL, each with its own ORDER BY and LIMIT, so that an index on the column serves both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.selectable import Select

from console.core.query import Cursor, Sort, SortField
from console.sql.layout import Expression, Layout, Predicate, Roles, Segment
from console.sql.statement import Binds


class Shape(NamedTuple):
    """What a page statement depends on besides its values."""

    sort: Sort
    backward: bool
    cursor: str
    """`start`, `value` (after a row that has a value) or `null` (after one that has none)."""


def shape_of(sort: Sort, backward: bool, after: Cursor | None) -> Shape:
    return Shape(sort, backward, "start" if after is None else "null" if after.is_null else "value")


def given_for(after: Cursor | None, limit: int) -> dict[str, Any]:
    given: dict[str, Any] = {"limit": limit}
    if after is not None:
        given["after"] = after.value
        given.update({f"tie{n}": part for n, part in enumerate(after.key)})
    return given


def sort_value(layout: Layout, roles: Roles, sort: Sort) -> Expression | None:
    if sort.field is None:
        return layout.natural(roles)
    return {
        SortField.ID: roles.key[0], SortField.UPDATED: roles.updated, SortField.CREATED: roles.created,
        SortField.NEXT: roles.next, SortField.ATTEMPTS: roles.attempts, SortField.TYPE: roles.type,
    }[sort.field]


class PageBuilder:
    """Builds the statement of one page over the segments that matter, with their predicates already made."""

    def __init__(self, layout: Layout, shape: Shape, binds: Binds) -> None:
        self._layout = layout
        self._shape = shape
        self._binds = binds
        self._descending = shape.sort.descending != shape.backward
        name = "natural" if shape.sort.field is None else shape.sort.field.value
        self._nullable = name in layout.nullable

    def statement(self, arms: list[tuple[Segment, list[Predicate]]]) -> Any:
        selects = [select for segment, where in arms for select in self._halves(segment, where)]
        wrapped = [sa.select(select.subquery()) for select in selects]
        if len(wrapped) == 1:
            return selects[0]
        union = sa.union_all(*wrapped).subquery()
        order = [union.c.is_null.desc() if self._shape.backward else union.c.is_null]
        if "value" in union.c:
            order.append(self._directed(union.c.value))
        order += [self._directed(union.c[name]) for name in union.c.keys() if name.startswith("tie")]
        return sa.select(union).order_by(*order).limit(self._binds.given("limit"))

    def _halves(self, segment: Segment, where: list[Predicate]) -> Iterator[Select[Any]]:
        value = sort_value(self._layout, segment.roles, self._shape.sort)
        if value is None:
            yield self._arm(segment, where, None, False)
            return
        if not self._nullable:
            yield self._arm(segment, where, value, False)
            return
        after_null = self._shape.cursor == "null"
        after_value = self._shape.cursor == "value"
        if not (after_null and not self._shape.backward):
            yield self._arm(segment, [*where, value.is_not(None)], value, False)
        if not (after_value and self._shape.backward):
            yield self._arm(segment, [*where, value.is_(None)], value, True)

    def _arm(self, segment: Segment, where: list[Predicate], value: Expression | None, is_null: bool) -> Select[Any]:
        ties = segment.roles.tie
        columns = [
            *(column.label(f"c{n}") for n, column in enumerate(segment.roles.row)),
            sa.literal_column("1" if is_null else "0").label("is_null"),
            *([value.label("value")] if value is not None else []),
            *(tie.label(f"tie{n}") for n, tie in enumerate(ties)),
        ]
        ordered = [*([value] if value is not None and not is_null else []), *ties]
        select = sa.select(*columns).select_from(segment.source).where(*where)
        if keyset := self._keyset(value, is_null, ties):
            select = select.where(keyset[0])
        return select.order_by(*(self._directed(c) for c in ordered)).limit(self._binds.given("limit"))

    def _keyset(
        self, value: Expression | None, is_null: bool, ties: tuple[Expression, ...]
    ) -> tuple[Predicate] | None:
        """Past the cursor within this half; nothing where the whole half lies past it."""
        cursor = self._shape.cursor
        if cursor == "start" or (cursor == "value" and is_null) or (cursor == "null" and not is_null and value is not None):
            return None
        columns = [*([value] if value is not None and not is_null else []), *ties]
        names = [*(["after"] if value is not None and not is_null else []), *(f"tie{n}" for n in range(len(ties)))]
        given = [self._binds.given(name) for name in names]
        if len(columns) == 1:
            return ((columns[0] < given[0]) if self._descending else (columns[0] > given[0]),)
        left, right = sa.tuple_(*columns), sa.tuple_(*given)
        return ((left < right) if self._descending else (left > right),)

    def _directed(self, column: Expression) -> Any:
        return column.desc() if self._descending else column.asc()
