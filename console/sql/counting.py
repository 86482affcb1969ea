"""Counts per condition: by index ranges, in one pass over the table, or estimated from a sample of a large table."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause
from sqlalchemy.sql.visitors import replacement_traverse

from console.core.backend import Count
from console.core.budget import charge, hold_limit
from console.core.faults import ReadTooLong
from console.core.item import Condition
from console.core.query import Filter
from console.sql.database import Binds, BoundStatement, Database, Row
from console.sql.layout import Layout, Predicate, Segment
from console.sql.values import ExactText
from console.sql.where import Where

LARGE = 500_000
"""Rows from which a table without an index is sampled: reading all of it takes longer than people should wait for a
figure that a sample gives as well."""
_SAMPLE = 30_000
"""Rows of a sample. A condition of 1 % of the table is then found within 6 %."""
_PROBES, _SQLITE_PROBES = 500, 100
"""How many rows one statement looks for. SQLite needs no round trip, and its writers may wait for each statement."""
_PROBE_TIME = 0.05
"""Seconds. With a rollback journal a reader of SQLite keeps the writers waiting."""
_SIZE_IS_GOOD_FOR = timedelta(minutes=10)
_SHORT_CAP = 10_000

Once = Callable[[Hashable, Callable[[Binds], Any]], BoundStatement | None]
"""Builds a statement once and keeps it."""


class Part(NamedTuple):
    """The segments of one source with the same roles: one pass reads them together."""

    source: FromClause
    segments: tuple[Segment, ...]


class _Table(NamedTuple):
    """A table that a sample can be taken of."""

    name: str
    rows: int


class ConditionCounter:
    """Counts the items of one backend by condition, with one statement."""

    def __init__(self, database: Database, layout: Layout, where: Where, once: Once) -> None:
        self._database = database
        self._layout = layout
        self._where = where
        self._once = once
        self._too_long_at: datetime | None = None
        """When a count was given up, because writers would have had to wait."""
        self._sizes: dict[str, tuple[datetime, int | None]] = {}

    def counts(self, filter: Filter, now: datetime, cap: int | None) -> Mapping[Condition, Count]:
        tables = None if cap is None else self._large_tables(now)
        if tables is not None:
            return self._estimated(filter, now, tables)
        if cap is None or hold_limit() is None:
            return self._counted(filter, now, cap)
        return self._counted_shortly(filter, now, cap)

    def _counted_shortly(self, filter: Filter, now: datetime, cap: int) -> Mapping[Condition, Count]:
        """Fewer rows or a sample, where counting all of them keeps writers waiting, and nobody has asked for it."""
        if self._too_long_at is None or not timedelta(0) <= now - self._too_long_at < _SIZE_IS_GOOD_FOR:
            began = perf_counter()
            try:
                return self._counted(filter, now, cap)
            except ReadTooLong:
                charge(perf_counter() - began)  # a statement that was given up reports nothing
                self._too_long_at = now
        if self._layout.segments_are_indexed:
            return self._counted(filter, now, min(cap, _SHORT_CAP))
        tables = self._tables(now)
        return self._counted(filter, now, cap) if tables is None else self._estimated(filter, now, tables)

    def _counted(self, filter: Filter, now: datetime, cap: int | None) -> Mapping[Condition, Count]:
        wanted = filter.conditions()
        if self._layout.segments_are_indexed:
            totals = self._by_index(filter, wanted, now, cap)
        else:
            totals = self._in_one_pass(filter, now)
        return {
            condition: Count(min(totals[condition], cap), False)
            if cap is not None and totals[condition] > cap
            else Count(totals[condition])
            for condition in wanted
        }

    # -- exact -----------------------------------------------------------------------------------

    def _by_index(
        self, filter: Filter, wanted: frozenset[Condition], now: datetime, cap: int | None
    ) -> Counter[Condition]:
        statement = self._once(("counts", filter, cap), partial(self._by_index_statement, filter, wanted, cap))
        totals: Counter[Condition] = Counter()
        if statement is not None:
            for condition, found in self._database.read(statement, now):
                totals[Condition(condition)] += found
        return totals

    def _by_index_statement(self, filter: Filter, wanted: frozenset[Condition], cap: int | None, binds: Binds) -> Any:
        selects = []
        for segment in self._layout.segments:
            for condition in segment.conditions:
                if condition not in wanted:
                    continue
                where = [*_belongs(segment, condition, binds), *self._where.predicates(filter, segment.roles, binds)]
                rows: Any = sa.select(sa.literal_column("1").label("one")).select_from(segment.source).where(*where)
                if cap is not None:
                    rows = rows.limit(sa.literal_column(str(cap + 1)))
                name: Any = sa.literal_column(f"'{condition.value}'").label("condition")
                selects.append(sa.select(name, sa.func.count()).select_from(rows.subquery()))
        return sa.union_all(*selects) if selects else None

    def _in_one_pass(self, filter: Filter, now: datetime) -> Counter[Condition]:
        totals: Counter[Condition] = Counter()
        statement = self._once(("counts", filter), partial(self._one_pass_statement, filter))
        if statement is not None:
            for row in self._database.read(statement, now):
                totals.update(_by_condition(filter, row))
        return totals

    def _one_pass_statement(self, filter: Filter, binds: Binds) -> Any:
        """One row for each part. A table without the index is read once, not once for each condition."""
        wanted = filter.conditions()
        selects = []
        for part in _parts(self._layout.segments, wanted):
            own = [sa.and_(sa.true(), *_base(segment)) for segment in part.segments]
            where = [sa.or_(*own), *self._where.predicates(filter, part.segments[0].roles, binds)]
            hits = self._hits(filter, part, [], binds)
            selects.append(sa.select(sa.func.count(), *hits).select_from(part.source).where(*where))
        if not selects:
            return None
        return selects[0] if len(selects) == 1 else sa.union_all(*selects)

    def _hits(self, filter: Filter, part: Part, also: Sequence[Predicate], binds: Binds) -> Iterator[Any]:
        """How many rows have each wanted condition, in the order of `_ordered`."""
        for condition in _ordered(filter):
            cases = [
                sa.and_(sa.true(), *_belongs(segment, condition, binds), *also)
                for segment in part.segments
                if condition in segment.conditions
            ]
            # Not a sum: MariaDB adds up decimals.
            hit = sa.case((sa.or_(*cases), sa.literal_column("1"))) if cases else sa.null()
            yield sa.func.count(hit)

    # -- estimates -------------------------------------------------------------------------------

    def is_costly(self, now: datetime) -> bool:
        """Whether a question over all rows reads a large table without an index."""
        return self._large_tables(now) is not None

    def _large_tables(self, now: datetime) -> Mapping[int, _Table] | None:
        """The tables of all sources, if one of them is large and has no index for the conditions."""
        tables = None if self._layout.segments_are_indexed else self._tables(now)
        return tables if tables is not None and any(table.rows >= LARGE for table in tables.values()) else None

    def _tables(self, now: datetime) -> Mapping[int, _Table] | None:
        """The tables of all sources, if each of them can be sampled."""
        tables: dict[int, _Table] = {}
        for segment in self._layout.segments:
            name = None if isinstance(segment.roles.key[0].type, ExactText) else _table_name(segment.source)
            rows = None if name is None else self._size(name, now)
            if name is None or rows is None:
                return None
            tables[id(segment.source)] = _Table(name, rows)
        return tables

    def _size(self, table: str, now: datetime) -> int | None:
        known = self._sizes.get(table)
        if known is None or not timedelta(0) <= now - known[0] < _SIZE_IS_GOOD_FOR:
            known = self._sizes[table] = (now, self._database.estimated_rows(table))
        return known[1]

    def _estimated(self, filter: Filter, now: datetime, tables: Mapping[int, _Table]) -> Mapping[Condition, Count]:
        sample = self._sampled if self._database.dialect.name == "postgresql" else self._probed
        totals: Counter[Condition] = Counter()
        for number, part in enumerate(_parts(self._layout.segments, filter.conditions())):
            table = tables[id(part.source)]
            found, scale = sample(filter, now, number, part, table)
            for condition, hits in found.items():
                totals[condition] += round(hits * scale)
        return {
            condition: Count(_rounded(totals[condition]), exact=False, estimated=True) for condition in _ordered(filter)
        }

    def _sampled(
        self, filter: Filter, now: datetime, number: int, part: Part, table: _Table
    ) -> tuple[Counter[Condition], float]:
        """PostgreSQL: some pages of the table, chosen at random."""
        percent = f"{min(100.0, 100.0 * _SAMPLE / table.rows):.2g}"

        def build(binds: Binds) -> Any:
            assert isinstance(part.source, sa.TableClause | sa.Alias)
            base = part.source.element if isinstance(part.source, sa.Alias) else part.source
            # Under the name that expressions written as text use.
            sampled = base.tablesample(sa.func.system(sa.literal_column(percent)), name=part.source.name)
            select = self._sample_select(filter, part, binds).select_from(part.source)

            def replaced(element: Any, **_: Any) -> Any:
                if element is part.source:
                    return sampled
                own = isinstance(element, sa.ColumnClause) and element.table is part.source
                return sampled.c[element.name] if own else None

            return replacement_traverse(select, {}, replaced)

        statement = self._once(("sample", filter, number, percent), build)
        assert statement is not None
        (row,) = self._database.read(statement, now)
        return _by_condition(filter, row), table.rows / row[0] if row[0] else 0.0

    def _probed(
        self, filter: Filter, now: datetime, number: int, part: Part, table: _Table
    ) -> tuple[Counter[Condition], float]:
        """SQLite: rows at random rowids; MySQL: at random keys, where those are numbers. Every number of the range is a
        probe, whether there is a row or not."""
        quote = self._database.dialect.identifier_preparer.quote_identifier
        is_sqlite = self._database.dialect.name == "sqlite"
        size = _SQLITE_PROBES if is_sqlite else _PROBES
        column = "rowid" if is_sqlite else quote(part.segments[0].roles.key[0].name)
        rowid: Any = sa.literal_column(f"{quote(str(getattr(part.source, 'name', table.name)))}.{column}")

        def build(binds: Binds) -> Any:
            probes = [binds.given(f"probe{n}") for n in range(size)]
            return self._sample_select(filter, part, binds).select_from(part.source).where(rowid.in_(probes))

        statement = self._once(("sample", filter, number), build)
        assert statement is not None
        quoted = ".".join(map(quote, table.name.split(".")))
        ends = f"SELECT (SELECT min({column}) FROM {quoted}), (SELECT max({column}) FROM {quoted})"  # noqa: S608
        ((first, last),) = self._database.fetch(ends, ())  # in one SELECT, SQLite would read the whole table for both
        found: Counter[Condition] = Counter()
        if first is None:
            return found, 0.0  # it was emptied since its size was read
        probed = 0
        end = perf_counter() + _PROBE_TIME
        while not probed or (probed < _SAMPLE and perf_counter() < end):
            given = {f"probe{n}": random.randint(first, last) for n in range(size)}
            (row,) = self._database.read(statement, now, given)
            found.update(_by_condition(filter, row))
            probed += len(set(given.values()))
        return found, (last - first + 1) / probed

    def _sample_select(self, filter: Filter, part: Part, binds: Binds) -> Any:
        also = list(self._where.predicates(filter, part.segments[0].roles, binds))
        return sa.select(sa.func.count(), *self._hits(filter, part, also, binds))


def _parts(segments: Sequence[Segment], wanted: frozenset[Condition]) -> list[Part]:
    by_source: dict[tuple[int, int], list[Segment]] = {}
    for segment in segments:
        if not wanted.isdisjoint(segment.conditions):
            by_source.setdefault((id(segment.source), id(segment.roles)), []).append(segment)
    return [Part(same[0].source, tuple(same)) for same in by_source.values()]


def _base(segment: Segment) -> list[Predicate]:
    return [] if segment.base_filter is None else [segment.base_filter]


def _belongs(segment: Segment, condition: Condition, binds: Binds) -> list[Predicate]:
    residual = segment.conditions[condition](binds)
    return [*_base(segment), *([] if residual is None else [residual])]


def _ordered(filter: Filter) -> list[Condition]:
    wanted = filter.conditions()
    return [condition for condition in Condition if condition in wanted]


def _by_condition(filter: Filter, row: Row) -> Counter[Condition]:
    return Counter(dict(zip(_ordered(filter), map(int, row[1:]), strict=True)))


def _table_name(source: FromClause) -> str | None:
    """`schema.table` if the source is one table or an alias of one."""
    table = source.element if isinstance(source, sa.Alias) else source
    if not isinstance(table, sa.TableClause):
        return None
    return f"{table.schema}.{table.name}" if table.schema else table.name


def _rounded(value: int) -> int:
    """Two digits: more would claim what a sample cannot know."""
    digits = max(len(str(value)) - 2, 0)
    return round(value, -digits)
