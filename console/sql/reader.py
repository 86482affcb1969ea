"""Everything a SQL backend reads, from its layout: pages, counts, error streams, histograms, single rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import compress
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from console.core.backend import Count, ErrorBatch, Histogram, PageRequest, Timeline
from console.core.item import Condition, Item, ItemKey
from console.core.policy import RetryPolicy
from console.core.ports import Never, Stop
from console.core.query import Cursor, Field, Filter, Page, Sort, Term
from console.core.signature import signatures_of
from console.sql.database import Database, Row
from console.sql.keyed import is_one_of, loose_rows, of_each, rows_where
from console.sql.layout import Expression, Layout, Predicate, Segment
from console.sql.paging import (
    BYTEWISE,
    NO_TAIL,
    Arm,
    PageBuilder,
    Shape,
    Tail,
    given_for,
    is_one_range,
    shape_of,
    tail_of,
)
from console.sql.statement import Binds, Prepared, united
from console.sql.where import Where, head_of, is_given_key, plain_keys

_KEPT_STATEMENTS = 128
_KEYS_PER_READ = 200

T = TypeVar("T")


class _Paging(NamedTuple):
    """How pages of one shape are read."""

    statements: list[Prepared]
    """In the order of their rows; none where nothing here can be what is asked for."""
    tail: Tail


class _Widened:
    """Rows of other columns than `Roles.row`, if any are given; where it is wanted, with the error's head behind."""

    def __init__(self, columns: tuple[Expression, ...] | None, *, with_head: bool) -> None:
        self.columns = columns
        self.with_head = with_head
        self._rows: dict[int, tuple[Expression, ...]] = {}

    def segment(self, segment: Segment) -> Segment:
        """Segments that shared a row share it again."""
        roles = segment.roles
        if id(roles) not in self._rows:
            row = roles.row if self.columns is None else self.columns
            self._rows[id(roles)] = (*row, head_of(roles.error)) if self.with_head else row
        return replace(segment, roles=replace(roles, row=self._rows[id(roles)]))


class Reader:
    """The reading half of the contract over one database and layout."""

    def __init__(self, name: str, database: Database, layout: Layout, policy: RetryPolicy) -> None:
        self._database = database
        self.layout = layout
        self._bytewise = BYTEWISE[database.dialect.name]
        self._where = Where(name, database.dialect, layout.time, policy)
        self._kept: dict[Hashable, Any] = {}
        self._lock = Lock()

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
        """What a page is made of, as stored: one row more than asked for where there are more."""
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

    def _new_paging(self, filter: Filter, shape: Shape) -> _Paging:
        segments = self._segments(filter)
        if not segments:
            return _Paging([], NO_TAIL)
        tail = tail_of(self.layout, segments, shape.sort, self._bytewise)
        parts = _parts(shape, apart=is_one_range(self.layout, shape.sort, segments))
        made = (self._built(partial(self._page_statement, filter, part, tail, None)) for part in parts)
        return _Paging([statement for statement in made if statement is not None], tail)

    def _page_statement(self, filter: Filter, shape: Shape, tail: Tail, wide: _Widened | None, binds: Binds) -> Any:
        arms = self._arms(filter, binds)
        if not arms:
            return None
        if wide is not None:
            arms = [(wide.segment(segment), where) for segment, where in arms]
        statement = PageBuilder(self.layout, shape, binds, self._bytewise).statement(arms)
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
        """The segments that can hold what is asked for, each with its predicates."""
        wanted = filter.conditions()
        arms = [
            (segment, self._belongs(segment, here, binds))
            for segment in self.layout.segments
            if (here := [c for c in segment.conditions if c in wanted])
        ]
        if not self.layout.leads_are_indexed:
            arms = _in_one_pass(arms)
        return [(segment, [*where, *self._where.predicates(filter, segment.roles, binds)]) for segment, where in arms]

    def _segments(self, filter: Filter) -> list[Segment]:
        if not self.layout.leads_are_indexed:
            return [segment for segment, _ in self._arms(filter, Binds())]
        wanted = filter.conditions()
        return [segment for segment in self.layout.segments if not wanted.isdisjoint(segment.conditions)]

    def _belongs(self, segment: Segment, conditions: list[Condition], binds: Binds) -> list[Predicate]:
        where = [] if segment.lead is None else [segment.lead]
        if len(conditions) < len(segment.conditions):
            where.append(sa.or_(*(self._residual(segment, c, binds) for c in conditions)))
        return where

    def _residual(self, segment: Segment, condition: Condition, binds: Binds) -> Predicate:
        predicate = segment.conditions[condition](binds)
        return sa.true() if predicate is None else predicate

    def _prepared(self, key: Hashable, build: Callable[[Binds], Any]) -> Prepared | None:
        return self._once(key, lambda: self._built(build))

    def _built(self, build: Callable[[Binds], Any]) -> Prepared | None:
        binds = Binds()
        built = build(binds)
        return None if built is None else Prepared(built, binds, self._database.dialect)

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is made from a request, kept for the next alike; the first made goes first.

        Looking needs no lock: it is one dictionary operation, and what two threads make at once is the same.
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
        """Other columns of everything a filter asks for, or `Roles.row`, in list order, by keyset pages. Rows may go
        on behind them. Here `signature:` terms are heard."""
        causes, filter = filter.terms_for(Field.SIGNATURE), filter.without(Field.SIGNATURE)
        wide = _Widened(columns, with_head=bool(causes))
        segments = [wide.segment(segment) for segment in self._segments(filter)]
        if not segments:
            return
        apart = is_one_range(self.layout, sort, segments)
        tail = tail_of(self.layout, segments, sort, self._bytewise)
        cursor: Cursor | None = None
        while not stop.requested:
            given = given_for(cursor)
            rows: list[Row] = []
            for part in _parts(shape_of(sort, False, cursor, None), apart=apart):
                if len(rows) < size:
                    given["limit"] = size - len(rows)
                    rows += self._database.read(self._walking(filter, wide, part, tail), now, given)
            if found := _of_causes(rows, causes, len(segments[0].roles.row) - 1) if causes else rows:
                yield found
            if len(rows) < size:
                return
            cursor = tail.cursor(rows[-1])

    def _walking(self, filter: Filter, wide: _Widened, shape: Shape, tail: Tail) -> Prepared:
        build = partial(self._page_statement, filter, shape, tail, wide)
        statement = self._prepared(("walk", filter, shape, wide.columns, wide.with_head), build)
        assert statement is not None
        return statement

    # -- counts ----------------------------------------------------------------------------------

    def counts(self, filter: Filter, now: datetime, cap: int | None) -> Mapping[Condition, Count]:
        wanted = filter.conditions()

        def build(binds: Binds) -> Any:
            return self._count_statement(filter, wanted, cap, binds)

        statement = self._prepared(("counts", filter, cap), build)
        totals = dict.fromkeys(wanted, 0)
        if statement is not None:
            for condition, found in self._database.read(statement, now):
                totals[Condition(condition)] += found
        return {
            condition: Count(min(found, cap), False) if cap is not None and found > cap else Count(found)
            for condition, found in totals.items()
        }

    def _count_statement(self, filter: Filter, wanted: frozenset[Condition], cap: int | None, binds: Binds) -> Any:
        selects = []
        for segment in self.layout.segments:
            for condition in segment.conditions:
                if condition not in wanted:
                    continue
                residual = segment.conditions[condition](binds)
                where = [p for p in (segment.lead, residual) if p is not None]
                where += self._where.predicates(filter, segment.roles, binds)
                rows: Any = sa.select(sa.literal_column("1").label("one")).select_from(segment.source).where(*where)
                if cap is not None:
                    rows = rows.limit(sa.literal_column(str(cap + 1)))
                name: Any = sa.literal_column(f"'{condition.value}'").label("condition")
                selects.append(sa.select(name, sa.func.count()).select_from(rows.subquery()))
        return sa.union_all(*selects) if selects else None

    # -- streams ---------------------------------------------------------------------------------

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        def build(binds: Binds) -> Any:
            return united(
                sa.select(head_of(segment.roles.error), _or_null(segment.roles.updated))
                .select_from(segment.source)
                .where(*where)
                for segment, where in self._arms(filter, binds)
            )

        statement = self._prepared(("errors", filter), build)
        if statement is None:
            return
        for rows in self._database.stream(statement, now, stop):
            yield ErrorBatch(rows, self.layout.time.decode)

    def histogram(
        self,
        timeline: Timeline,
        filter: Filter,
        now: datetime,
        start: datetime,
        width: timedelta,
        buckets: int,
    ) -> Histogram:
        def build(binds: Binds) -> Any:
            return united(
                sa.select(column).select_from(segment.source).where(*where, column.is_not(None))
                for segment, where in self._arms(filter, binds)
                if (column := getattr(segment.roles, timeline.value)) is not None
            )

        statement = self._prepared(("histogram", filter, timeline), build)
        counts = [0] * (buckets + 2)
        edges = [start + width * n for n in range(buckets + 1)]
        decode = self.layout.time.decode
        if statement is not None:
            for rows in self._database.stream(statement, now, Never()):
                for (raw,) in rows:
                    if (at := decode(raw)) is not None:
                        counts[bisect_right(edges, at)] += 1
        return Histogram(start, width, tuple(counts[1:-1]), counts[0], counts[-1])

    # -- single items ----------------------------------------------------------------------------

    def rows(
        self, keys: Sequence[ItemKey], now: datetime, columns: Sequence[Expression] | None = None
    ) -> Iterator[Row]:
        """The rows of some keys, whatever their condition: the columns asked for, or `Roles.row`."""
        for start in range(0, len(keys), _KEYS_PER_READ):
            some = keys[start : start + _KEYS_PER_READ]
            yield from self._rows_of_keys(some, now, None if columns is None else tuple(columns))

    def _rows_of_keys(
        self, keys: Sequence[ItemKey], now: datetime, columns: tuple[Expression, ...] | None
    ) -> list[Row]:
        """By one statement for so many plain keys, kept; what is no plain key is asked for by one of its own."""
        segments, sqlite = list(self._keyed()), self._database.dialect.name == "sqlite"
        given = plain_keys([segment.roles for segment in segments], [key.parts for key in keys], sqlite)
        if given is None:
            rows = rows_where(self._database, segments, columns, now, partial(is_one_of, keys, sqlite))
        else:
            kept = self._prepared(
                ("keys", len(keys), columns),
                lambda binds: of_each(
                    segments, columns, lambda n, roles: is_given_key(roles, n, len(keys), binds, sqlite)
                ),
            )
            rows = [] if kept is None else self._database.read(kept, now, given)
        if sqlite and len(rows) < len(keys):
            rows += loose_rows(self._database, segments, columns, now, keys)
        return rows

    def _keyed(self) -> Iterator[Segment]:
        """One segment for each way a key finds its row; their leads would only mislead the planner."""
        seen: set[int] = set()
        for segment in self.layout.segments:
            if id(segment.roles) not in seen:
                seen.add(id(segment.roles))
                yield segment

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        found = (self.layout.read(row, now) for row in self.rows(keys, now))
        return {item.key: item for item in found}


def _parts(shape: Shape, *, apart: bool) -> list[Shape]:
    """The statements of one page: past a row of a single range, what shares its value, then what lies beyond."""
    if not apart or shape.cursor != "value":
        return [shape]
    return [shape._replace(cursor="tied"), shape._replace(cursor="past")]


def _of_causes(rows: list[Row], terms: Sequence[Term], head: int) -> list[Row]:
    """The rows whose error has the signature that is asked for."""
    signatures = signatures_of([row[head] or None for row in rows])
    fits = {signature: all(term.matches_signature(signature) for term in terms) for signature in set(signatures)}
    return list(compress(rows, map(fits.__getitem__, signatures)))


def _in_one_pass(arms: list[Arm]) -> list[Arm]:
    """Segments of the same source as one arm, so that a table without the index is walked once."""
    by_source: dict[int, list[Arm]] = {}
    for arm in arms:
        by_source.setdefault(id(arm[0].source), []).append(arm)
    return [(same[0][0], [sa.or_(*(sa.and_(sa.true(), *where) for _, where in same))]) for same in by_source.values()]


def _or_null(column: Expression | None) -> Expression:
    return sa.null() if column is None else column
