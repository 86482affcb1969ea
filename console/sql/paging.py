"""Keyset pages: the statement of one page over several segments.

A page is ordered by (is-null, value, tiebreaker). The rows with a value and the rows without are separate arms of
one UNION ALL, each with its own ORDER BY and LIMIT, so that an index on the column serves both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.selectable import Select

from console.core.query import Cursor, Sort, SortField
from console.sql.database import Binds
from console.sql.layout import Expression, Layout, Predicate, Roles, Segment
from console.sql.values import as_bytes, is_unicode

Arm = tuple[Segment, list[Predicate]]


class PageShape(NamedTuple):
    """What a page statement depends on, apart from its parameters."""

    sort: Sort
    backward: bool
    cursor: str
    """`start`, `value` (after a row with a value) or `null` (after a row without). The rows after a value can be
    read in two statements: `tied` (the same value) and `past` (beyond it)."""
    limit: int | None
    """A number is written into the statement, so that the server plans for few rows. None makes it a parameter: a
    walk uses one plan for many pages, and a plan for any number of rows reads in order instead of sorting."""
    as_bytes: frozenset[str] = frozenset()
    """The cursor's parameters whose text is not Unicode; they are bound as bytes."""


def shape_of(sort: Sort, backward: bool, after: Cursor | None, limit: int | None) -> PageShape:
    if after is None:
        return PageShape(sort, backward, "start", limit)
    odd = frozenset(name for name, value in _parameters(after) if isinstance(value, str) and not is_unicode(value))
    return PageShape(sort, backward, "null" if after.is_null else "value", limit, odd)


def _parameters(after: Cursor) -> Iterator[tuple[str, Any]]:
    yield "after", after.value
    for n, part in enumerate(after.key):
        yield f"tie{n}", part


def given_for(after: Cursor | None) -> dict[str, Any]:
    return {
        name: as_bytes(value) if isinstance(value, str) and not is_unicode(value) else value
        for name, value in (() if after is None else _parameters(after))
    }


class Ordering(NamedTuple):
    """What a dialect can order by."""

    collation: str | None
    """Orders text by its bytes, the one order that all backends have. None: text that is cast is ordered so."""
    has_nulls_last: bool = True
    has_row_ranges: bool = True
    """Whether an index serves a comparison of several columns with several values."""

    def bytewise(self, text: Expression) -> Expression:
        return text if self.collation is None else sa.collate(text, self.collation)


ORDERINGS = {
    "sqlite": Ordering("BINARY"),
    "postgresql": Ordering("C"),
    "mysql": Ordering(None, has_nulls_last=False, has_row_ranges=False),
}


def sort_value(layout: Layout, roles: Roles, sort: Sort, ordering: Ordering) -> Expression | None:
    """The expression a page is sorted by, as items show it: text as text, and NULL for what is not a time."""
    match sort.field:
        case None:
            return layout.natural(roles)
        case SortField.ID:
            # If segments are index ranges, reading the whole key index for each of them would be slower.
            return roles.key[0] if "id" in layout.served else ordering.bytewise(sa.cast(roles.key[0], sa.Text))
        case SortField.ATTEMPTS:
            return roles.attempts
        case SortField.TYPE:
            return ordering.bytewise(sa.func.nullif(sa.cast(roles.type, sa.Text), sa.literal_column("''")))
        case SortField.BACKEND:
            raise ValueError("a backend cannot be sorted by its own name")
        case SortField.UPDATED | SortField.CREATED | SortField.NEXT:
            time: Expression | None = getattr(roles, sort.field.value)
            return None if time is None else layout.time.ordered(time)


class Tail(NamedTuple):
    """The positions of the cursor's values in a row. Columns that the row has anyway are not read twice."""

    value: int | None
    ties: tuple[int, ...]
    added: frozenset[str]
    """The columns that are read only for the cursor."""

    def cursor(self, row: Sequence[Any]) -> Cursor:
        value = None if self.value is None else row[self.value]
        return Cursor(value, self.value is not None and value is None, tuple([row[place] for place in self.ties]))


NO_TAIL = Tail(None, (), frozenset())


def tail_of(layout: Layout, segments: Sequence[Segment], sort: Sort, ordering: Ordering) -> Tail:
    """The positions of the cursor's values in rows of these segments; missing columns are added at the end."""
    rows = [segment.roles.row for segment in segments]
    added: list[str] = []

    def place(name: str, wanted: Sequence[Expression]) -> int:
        for n, alike in enumerate(zip(*rows, strict=True)):
            if all(column is each for column, each in zip(alike, wanted, strict=True)):
                return n
        added.append(name)
        return len(rows[0]) + len(added) - 1

    values = [sort_value(layout, segment.roles, sort, ordering) for segment in segments]
    there = [value for value in values if value is not None]
    value = place("value", there) if there else None
    ties = zip(*(segment.roles.tiebreaker for segment in segments), strict=True)
    return Tail(value, tuple([place(f"tie{n}", same) for n, same in enumerate(ties)]), frozenset(added))


def is_one_range(layout: Layout, sort: Sort, segments: Sequence[Segment]) -> bool:
    """Whether a page is one range of one index, so that tied rows and later rows need no merging."""
    if sort.field is not None or len(segments) > 1 or segments[0].scattered:
        return False
    return layout.natural(segments[0].roles) is not None and "natural" not in layout.nullable


class PageBuilder:
    """Builds the statement of one page from segments and their predicates."""

    def __init__(self, layout: Layout, shape: PageShape, binds: Binds, ordering: Ordering) -> None:
        self._layout = layout
        self._ordering = ordering
        self._shape = shape
        self._binds = binds
        self._limit: Any = binds.given("limit") if shape.limit is None else sa.literal_column(str(shape.limit))
        self._descending = shape.sort.descending != shape.backward
        name = "natural" if shape.sort.field is None else shape.sort.field.value
        self._nullable = name in layout.nullable
        self._served = shape.sort.field is None or name in layout.served

    def statement(self, arms: list[Arm]) -> Any:
        if not self._is_sorted_first(arms):
            return self._union(arms)
        thin = [(replace(segment, roles=replace(segment.roles, row=())), where) for segment, where in arms]
        return self._with_rows(arms[0][0], self._union(thin).subquery())

    def _is_sorted_first(self, arms: list[Arm]) -> bool:
        """Without an index for the order, keys are sorted before rows are read: sorting whole rows is slower."""
        first = arms[0][0]
        alike = all(
            segment.source is first.source
            and segment.roles.row is first.roles.row
            and segment.roles.tiebreaker is first.roles.tiebreaker
            for segment, _ in arms
        )
        return alike and not self._served and isinstance(first.source, sa.TableClause)

    def _with_rows(self, segment: Segment, found: Any) -> Any:
        """An outer join although every row exists: with an inner join SQLite would materialise each row it sorts."""
        ties = segment.roles.tiebreaker
        same = sa.and_(*(tie == found.c[f"tie{n}"] for n, tie in enumerate(ties)))
        columns = [column.label(f"c{n}") for n, column in enumerate(segment.roles.row)]
        kept = sa.select(*columns, *found.c).select_from(found.outerjoin(segment.source, same))
        return kept.order_by(*self._order(found))

    def _union(self, arms: list[Arm]) -> Any:
        selects = [select for segment, where in arms for select in self._halves(segment, where)]
        if len(selects) == 1:
            return selects[0]
        union = sa.union_all(*(sa.select(select.subquery()) for select in selects)).subquery()
        return sa.select(union).order_by(*self._order(union)).limit(self._limit)

    def _order(self, found: Any) -> list[Any]:
        order: list[Any] = []
        if self._nullable:
            order.append(found.c.is_null.desc() if self._shape.backward else found.c.is_null)
        if "value" in found.c:
            order.append(self._directed(found.c.value))
        return order + [self._directed(found.c[name]) for name in list(found.c.keys()) if name.startswith("tie")]

    def _halves(self, segment: Segment, where: list[Predicate]) -> Iterator[Select[Any]]:
        value = sort_value(self._layout, segment.roles, self._shape.sort, self._ordering)
        if value is None:
            yield self._arm(segment, where, None, False)
            return
        if not self._nullable:
            yield from self._valued(segment, where, value)
            return
        if not self._served:
            yield self._sorted(segment, where, value)
            return
        after_null = self._shape.cursor == "null"
        after_value = self._shape.cursor == "value"
        if not (after_null and not self._shape.backward):
            yield from self._valued(segment, [*where, value.is_not(None)], value)
        if not (after_value and self._shape.backward):
            yield self._arm(segment, [*where, value.is_(None)], value, True)

    def _valued(self, segment: Segment, where: list[Predicate], value: Expression) -> Iterator[Select[Any]]:
        """After a row, first the rows with the same value, then those beyond. Compared as a pair, the index would
        read all rows of an equal value again for every page, and after an incident there may be very many."""
        cursor = self._shape.cursor
        if cursor not in ("value", "tied", "past") or not self._served or segment.scattered:
            yield self._arm(segment, where, value, False)
            return
        if cursor != "past":
            at, ties = self._given("after"), segment.roles.tiebreaker
            names = [f"tie{n}" for n in range(len(ties))]
            yield self._select(segment, [*where, value == at, self._beyond(ties, names)], value, False)
        if cursor != "tied":
            yield self._select(segment, [*where, self._beyond((value,), ["after"])], value, False)

    def _sorted(self, segment: Segment, where: list[Predicate], value: Expression) -> Select[Any]:
        """Rows with and without a value in one pass, because each half would read and sort the same rows. `is_null` is
        computed for the few rows that are left: it costs as much as the value itself."""
        ties = segment.roles.tiebreaker
        select = sa.select(
            *(column.label(f"c{n}") for n, column in enumerate(segment.roles.row)),
            value.label("value"),
            *(tie.label(f"tie{n}") for n, tie in enumerate(ties)),
        ).select_from(segment.source)
        past = [] if (beyond := self._past(value, ties)) is None else [beyond]
        order = [*self._nulls_at_the_end(), *map(self._directed, ties)]
        few = select.where(*where, *past).order_by(*order).limit(self._limit).subquery()
        width = len(segment.roles.row)
        columns = list(few.c)
        is_null = few.c.value.is_(None).label("is_null")
        halves: Any = is_null.desc() if self._shape.backward else is_null
        found: Select[Any] = sa.select(*columns[:width], is_null, *columns[width:])
        return found.order_by(halves, *map(self._directed, columns[width:]))

    def _nulls_at_the_end(self) -> list[Any]:
        """The value of `_sorted`, in order. Rows without one come last, whatever the direction."""
        first = self._directed(sa.literal_column("value"))
        if self._ordering.has_nulls_last:
            return [first.nulls_first() if self._shape.backward else first.nulls_last()]
        is_null: Any = sa.literal_column("value IS NULL")
        return [is_null.desc() if self._shape.backward else is_null, first]

    def _past(self, value: Expression, ties: tuple[Expression, ...]) -> Predicate | None:
        """Rows after the cursor, with or without a value."""
        if self._shape.cursor == "start":
            return None
        own = self._keyset(value, self._shape.cursor == "null", ties)
        assert own is not None
        if self._shape.cursor == "value":
            return own if self._shape.backward else sa.or_(value.is_(None), own)
        return sa.or_(value.is_not(None), own) if self._shape.backward else sa.and_(value.is_(None), own)

    def _arm(self, segment: Segment, where: list[Predicate], value: Expression | None, is_null: bool) -> Select[Any]:
        past = [] if (found := self._keyset(value, is_null, segment.roles.tiebreaker)) is None else [found]
        return self._select(segment, [*where, *past], value, is_null)

    def _select(
        self, segment: Segment, where: list[Predicate], value: Expression | None, is_null: bool
    ) -> Select[Any]:
        ties = segment.roles.tiebreaker
        columns = [
            *(column.label(f"c{n}") for n, column in enumerate(segment.roles.row)),
            sa.literal_column("1" if is_null else "0").label("is_null"),
            *([value.label("value")] if value is not None else []),
            *(tie.label(f"tie{n}") for n, tie in enumerate(ties)),
        ]
        ordered = [*([value] if value is not None and not is_null else []), *ties]
        select = sa.select(*columns).select_from(segment.source).where(*where)
        return select.order_by(*(self._directed(c) for c in ordered)).limit(self._limit)

    def _keyset(self, value: Expression | None, is_null: bool, ties: tuple[Expression, ...]) -> Predicate | None:
        """Rows of this half after the cursor; None if all of them are."""
        cursor = self._shape.cursor
        if (
            cursor == "start"
            or (cursor == "value" and is_null)
            or (cursor == "null" and not is_null and value is not None)
        ):
            return None
        columns = [*([value] if value is not None and not is_null else []), *ties]
        names = [
            *(["after"] if value is not None and not is_null else []),
            *(f"tie{n}" for n in range(len(ties))),
        ]
        return self._beyond(columns, names)

    def _beyond(self, columns: Sequence[Expression], names: Sequence[str]) -> Predicate:
        given = [self._given(name) for name in names]
        if len(columns) == 1:
            return columns[0] < given[0] if self._descending else columns[0] > given[0]
        left, right = sa.tuple_(*columns), sa.tuple_(*given)
        beyond = left < right if self._descending else left > right
        if self._ordering.has_row_ranges and all(isinstance(column, sa.ColumnClause) for column in columns):
            return beyond
        # No index has all of these columns; a bound on the first one at least tells it where to begin.
        bound = columns[0] <= given[0] if self._descending else columns[0] >= given[0]
        return sa.and_(bound, beyond)

    def _given(self, name: str) -> Expression:
        given = self._binds.given(name)
        return sa.cast(given, sa.Text) if name in self._shape.as_bytes else given

    def _directed(self, column: Expression) -> Any:
        return column.desc() if self._descending else column.asc()
