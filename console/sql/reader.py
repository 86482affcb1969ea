"""All reading of a SQL backend: pages, counts, errors, histograms and single rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import compress
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from console.core.backend import Buckets, Count, ErrorBatch, Histogram, PageRequest, Timeline
from console.core.item import Condition, Item, ItemKey
from console.core.policy import RetryPolicy
from console.core.ports import Never, Stop
from console.core.query import Cursor, Field, Filter, Page, Sort, Term
from console.core.signature import signatures_of
from console.sql.counting import ConditionCounter
from console.sql.database import Binds, BoundStatement, Database, Row, union_of
from console.sql.keys import is_given_key, is_one_of, loose_rows, plain_keys, rows_where, select_each
from console.sql.layout import Expression, Layout, Predicate, Segment
from console.sql.paging import (
    NO_TAIL,
    ORDERINGS,
    Arm,
    PageBuilder,
    PageShape,
    Tail,
    given_for,
    is_one_range,
    shape_of,
    tail_of,
)
from console.sql.where import Where, shown_error

_KEPT_STATEMENTS = 128
_KEYS_PER_READ = 200

T = TypeVar("T")


class _Paging(NamedTuple):
    """The statements of pages that differ only in their values."""

    statements: list[BoundStatement]
    """In the order of their rows; none if no row can match."""
    tail: Tail


class _OtherColumns:
    """Segments that are read with other columns than `Roles.row`, and with the start of the error if needed."""

    def __init__(self, columns: tuple[Expression, ...] | None, *, with_head: bool) -> None:
        self.columns = columns
        self.with_head = with_head
        self._rows: dict[int, tuple[Expression, ...]] = {}

    def segment(self, segment: Segment) -> Segment:
        """The segment with the new columns; segments that shared their columns still do."""
        roles = segment.roles
        if id(roles) not in self._rows:
            row = roles.row if self.columns is None else self.columns
            self._rows[id(roles)] = (*row, shown_error(roles.error)) if self.with_head else row
        return replace(segment, roles=replace(roles, row=self._rows[id(roles)]))


class Reader:
    """Reads one database as its layout describes it."""

    def __init__(self, name: str, database: Database, layout: Layout, policy: RetryPolicy) -> None:
        self._database = database
        self.layout = layout
        self._ordering = ORDERINGS[database.dialect.name]
        self._where = Where(name, database.dialect, layout.time, policy)
        self._kept: dict[Hashable, Any] = {}
        self._lock = Lock()
        self._counter = ConditionCounter(database, layout, self._where, self._statement)

    # -- pages -----------------------------------------------------------------------------------

    def page(self, request: PageRequest) -> Page:
        paging = self._paging(request)
        rows = self._rows_of(paging, request)
        more = len(rows) > request.limit
        rows = rows[: request.limit]
        if request.backward:
            rows.reverse()
        return self._as_page(rows, request, more, paging.tail)

    def page_rows(self, request: PageRequest) -> list[Row]:
        """The stored rows of a page, and one more if there are more."""
        return self._rows_of(self._paging(request), request)

    def _rows_of(self, paging: _Paging, request: PageRequest) -> list[Row]:
        given, limit = given_for(request.after), request.limit + 1
        rows: list[Row] = []
        for statement in paging.statements:
            if len(rows) < limit:
                rows += self._database.read(statement, request.now, given)
        return rows[:limit]

    def _paging(self, request: PageRequest) -> _Paging:
        filter, shape = request.filter, shape_of(request.sort, request.backward, request.after, request.limit + 1)
        return self._once(("page", filter, shape), lambda: self._new_paging(filter, shape))

    def _new_paging(self, filter: Filter, shape: PageShape) -> _Paging:
        segments = self._segments(filter)
        if not segments:
            return _Paging([], NO_TAIL)
        tail = tail_of(self.layout, segments, shape.sort, self._ordering)
        parts = _parts(shape, apart=is_one_range(self.layout, shape.sort, segments))
        made = (self._built(partial(self._page_statement, filter, part, tail, None)) for part in parts)
        return _Paging([statement for statement in made if statement is not None], tail)

    def _page_statement(
        self, filter: Filter, shape: PageShape, tail: Tail, other: _OtherColumns | None, binds: Binds
    ) -> Any:
        arms = self._arms(filter, binds)
        if not arms:
            return None
        if other is not None:
            arms = [(other.segment(segment), where) for segment, where in arms]
        statement = PageBuilder(self.layout, shape, binds, self._ordering).statement(arms)
        width = len(arms[0][0].roles.row)
        needed = [c for n, c in enumerate(statement.selected_columns) if n < width or c.key in tail.added]
        return statement.with_only_columns(*needed)

    def _as_page(self, rows: list[Row], request: PageRequest, more: bool, tail: Tail) -> Page:
        if not rows:
            return Page((), None, None)
        read, now = self.layout.read, request.now
        width = len(self.layout.segments[0].roles.row)
        own = [row[:width] for row in rows] if tail.added else rows
        items = tuple([read(row, now) for row in own])
        first, last = (tail.cursor(row) for row in (rows[0], rows[-1]))
        if request.backward:
            return Page(items, last if request.after is not None else None, first if more else None)
        return Page(items, last if more else None, first if request.after is not None else None)

    def _arms(self, filter: Filter, binds: Binds) -> list[Arm]:
        """The segments that can have matching rows, each with its predicates."""
        wanted = filter.conditions()
        arms = [
            (segment, self._belongs(segment, here, binds))
            for segment in self.layout.segments
            if (here := [c for c in segment.conditions if c in wanted])
        ]
        if not self.layout.segments_are_indexed:
            arms = _in_one_pass(arms)
        return [(segment, [*where, *self._where.predicates(filter, segment.roles, binds)]) for segment, where in arms]

    def _segments(self, filter: Filter) -> list[Segment]:
        if not self.layout.segments_are_indexed:
            return [segment for segment, _ in self._arms(filter, Binds())]
        wanted = filter.conditions()
        return [segment for segment in self.layout.segments if not wanted.isdisjoint(segment.conditions)]

    def _belongs(self, segment: Segment, conditions: list[Condition], binds: Binds) -> list[Predicate]:
        where = [] if segment.base_filter is None else [segment.base_filter]
        if len(conditions) < len(segment.conditions):
            where.append(sa.or_(*(self._residual(segment, c, binds) for c in conditions)))
        return where

    def _residual(self, segment: Segment, condition: Condition, binds: Binds) -> Predicate:
        predicate = segment.conditions[condition](binds)
        return sa.true() if predicate is None else predicate

    def _statement(self, key: Hashable, build: Callable[[Binds], Any]) -> BoundStatement | None:
        return self._once(key, lambda: self._built(build))

    def _built(self, build: Callable[[Binds], Any]) -> BoundStatement | None:
        binds = Binds(self.layout.moving)
        built = build(binds)
        return None if built is None else BoundStatement(built, binds)

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Build something once per key; the oldest entry is dropped first.

        The lookup needs no lock: it is one dictionary operation, and two threads build the same.
        """
        made: T | None = self._kept.get(key)
        if made is None:
            made = make()
            with self._lock:
                while len(self._kept) >= _KEPT_STATEMENTS:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = made
        return made

    def walk(
        self,
        filter: Filter,
        sort: Sort,
        columns: tuple[Expression, ...] | None,
        now: datetime,
        stop: Stop,
        size: int = 5_000,
    ) -> Iterator[list[Row]]:
        """All rows that match a filter, in list order, read by keyset pages: these columns or `Roles.row`.

        Rows may have more columns at their end. `cause:` terms are applied here.
        """
        causes, filter = filter.terms_for(Field.CAUSE), filter.without(Field.CAUSE)
        other = _OtherColumns(columns, with_head=bool(causes))
        segments = [other.segment(segment) for segment in self._segments(filter)]
        if not segments:
            return
        apart = is_one_range(self.layout, sort, segments)
        tail = tail_of(self.layout, segments, sort, self._ordering)
        cursor: Cursor | None = None
        while not stop.requested:
            given = given_for(cursor)
            rows: list[Row] = []
            for part in _parts(shape_of(sort, False, cursor, None), apart=apart):
                if len(rows) < size:
                    given["limit"] = size - len(rows)
                    rows += self._database.read(self._walking(filter, other, part, tail), now, given)
            if found := _of_causes(rows, causes, len(segments[0].roles.row) - 1) if causes else rows:
                yield found
            if len(rows) < size:
                return
            cursor = tail.cursor(rows[-1])

    def _walking(self, filter: Filter, other: _OtherColumns, shape: PageShape, tail: Tail) -> BoundStatement:
        build = partial(self._page_statement, filter, shape, tail, other)
        statement = self._statement(("walk", filter, shape, other.columns, other.with_head), build)
        assert statement is not None
        return statement

    # -- counts ----------------------------------------------------------------------------------

    def counts(self, filter: Filter, now: datetime, cap: int | None) -> Mapping[Condition, Count]:
        return self._counter.counts(filter, now, cap)

    def is_costly(self, now: datetime) -> bool:
        """Whether a question over all rows reads a large table without an index."""
        return self._counter.is_costly(now)

    # -- streams ---------------------------------------------------------------------------------

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        def build(binds: Binds) -> Any:
            return union_of(
                sa.select(shown_error(segment.roles.error), _or_null(segment.roles.updated))
                .select_from(segment.source)
                .where(*where)
                for segment, where in self._arms(filter, binds)
            )

        statement = self._statement(("errors", filter), build)
        if statement is None:
            return
        for rows in self._database.stream(statement, now, stop):
            yield ErrorBatch(rows, self.layout.time.decode)

    def histogram(self, timeline: Timeline, filter: Filter, now: datetime, buckets: Buckets) -> Histogram:
        def build(binds: Binds) -> Any:
            return union_of(
                sa.select(column).select_from(segment.source).where(*where, column.is_not(None))
                for segment, where in self._arms(filter, binds)
                if (column := getattr(segment.roles, timeline.value)) is not None
            )

        statement = self._statement(("histogram", filter, timeline), build)
        batches = () if statement is None else self._database.stream(statement, now, Never())
        decode = self.layout.time.decode
        return buckets.histogram(at for rows in batches for (raw,) in rows if (at := decode(raw)) is not None)

    # -- single items ----------------------------------------------------------------------------

    def rows(
        self, keys: Sequence[ItemKey], now: datetime, columns: Sequence[Expression] | None = None
    ) -> Iterator[Row]:
        """The rows of these keys in any condition: these columns or `Roles.row`."""
        for start in range(0, len(keys), _KEYS_PER_READ):
            some = keys[start : start + _KEYS_PER_READ]
            yield from self._rows_of_keys(some, now, None if columns is None else tuple(columns))

    def _rows_of_keys(
        self, keys: Sequence[ItemKey], now: datetime, columns: tuple[Expression, ...] | None
    ) -> list[Row]:
        """Ordinary keys are read by a kept statement for that number of keys, unusual ones by one built for them."""
        segments, sqlite = list(self._keyed()), self._database.dialect.name == "sqlite"
        given = plain_keys([segment.roles for segment in segments], [key.parts for key in keys], sqlite)
        if given is None:
            rows = rows_where(self._database, segments, columns, now, partial(is_one_of, keys, sqlite))
        else:
            kept = self._statement(
                ("keys", len(keys), columns),
                lambda binds: select_each(
                    segments, columns, lambda n, roles: is_given_key(roles, n, len(keys), binds, sqlite)
                ),
            )
            rows = [] if kept is None else self._database.read(kept, now, given)
        if sqlite and len(rows) < len(keys):
            rows += loose_rows(self._database, segments, columns, now, keys)
        return rows

    def _keyed(self) -> Iterator[Segment]:
        """One segment per set of roles. Its base filter is not used: it would mislead the planner."""
        seen: set[int] = set()
        for segment in self.layout.segments:
            if id(segment.roles) not in seen:
                seen.add(id(segment.roles))
                yield segment

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        found = (self.layout.read(row, now) for row in self.rows(keys, now))
        return {item.key: item for item in found}


def _parts(shape: PageShape, *, apart: bool) -> list[PageShape]:
    """The statements of one page: in a single range first the rows with the cursor's value, then those past it."""
    if not apart or shape.cursor != "value":
        return [shape]
    return [shape._replace(cursor="tied"), shape._replace(cursor="past")]


def _of_causes(rows: list[Row], terms: Sequence[Term], head: int) -> list[Row]:
    """The rows whose error has the wanted signature."""
    signatures = signatures_of([row[head] or None for row in rows])
    fits = {signature: all(term.matches_signature(signature) for term in terms) for signature in set(signatures)}
    return list(compress(rows, map(fits.__getitem__, signatures)))


def _in_one_pass(arms: list[Arm]) -> list[Arm]:
    """One arm per source, so that a table without the index is scanned once."""
    by_source: dict[int, list[Arm]] = {}
    for arm in arms:
        by_source.setdefault(id(arm[0].source), []).append(arm)
    return [(same[0][0], [sa.or_(*(sa.and_(sa.true(), *where) for _, where in same))]) for same in by_source.values()]


def _or_null(column: Expression | None) -> Expression:
    return sa.null() if column is None else column
