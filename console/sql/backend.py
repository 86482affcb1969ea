"""The bases of SQL plugins: `SqlBackend` reads by a layout, `QueueTableBackend` does the rest for one declared table.

`console.sql.table` says how to declare that table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import sqlalchemy as sa

from console.core.backend import (
    COUNT_CAP,
    Abilities,
    Authority,
    Buckets,
    Change,
    Count,
    Draft,
    ErrorBatch,
    Finding,
    Histogram,
    Image,
    Operation,
    Outcome,
    PageRequest,
    Severity,
    Timeline,
    total_of,
)
from console.core.capabilities import FoundQueue
from console.core.faults import NoSuchItem, WrongSchema
from console.core.item import Condition, Detail, Item, ItemKey
from console.core.policy import Phase, PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import COLUMN_SORTS, Field, Filter, Op, Page, Sort, Term
from console.sql.checks import clock_finding, index_finding, privilege_findings, require_columns
from console.sql.conditions import ConditionPredicates, fact_columns, whole_number
from console.sql.database import Database, Row
from console.sql.guarded import SqliteGuard, Target
from console.sql.layout import Expression, Layout, Roles, Segment, outside
from console.sql.reader import Reader
from console.sql.requeue import DraftColumns, RequeuePlanner
from console.sql.row_security import require_visible_rows, restricted_tables, row_security_findings
from console.sql.sqlite import SqliteDatabase
from console.sql.table import QueueTable, StoredRow, names_of, phase_of
from console.sql.table_rows import TableRows, last_attempts, row_columns
from console.sql.times import TimeStyle
from console.sql.values import first_characters, native_values, text
from console.sql.where import Where

if TYPE_CHECKING:
    from console.sql.guarded_postgres import PostgresGuard
    from console.sql.postgres import PostgresDatabase

    AnyDatabase = SqliteDatabase | PostgresDatabase

Columns = tuple[Expression, ...]
T = TypeVar("T")


class SqlBackend(ABC):
    """Reads by a layout. The database is opened at the first read, and again at the next one if that failed."""

    sorts = COLUMN_SORTS

    def __init__(self, name: str, plugin: str, place: str, database: Database, policy: RetryPolicy) -> None:
        self.name = name
        self.plugin = plugin
        self.place = place
        self.policy = policy
        self._database = database
        self._attached: Reader | None = None
        self._restricted: tuple[str, ...] = ()
        self._attaching = RLock()

    @abstractmethod
    def _layout(self) -> Layout:
        """Inspect the tables and describe them. Raises WrongSchema if they are not what the plugin expects."""

    @property
    def _reader(self) -> Reader:
        """The one reader of this backend, made at the first read."""
        if self._attached is None:
            with self._attaching:
                if self._attached is None:
                    layout = self._layout()
                    self._restricted = restricted_tables(self._database, layout)
                    self._attached = Reader(self.name, self._database, layout, self.policy)
        return self._attached

    def _batches(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, columns: Columns | None, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Row]]:
        """The rows that a plan selects, by key or by filter; without `columns`, those of a page."""
        if isinstance(wanted, Filter):
            return self._reader.walk(wanted, sort, columns, now, stop)
        return iter([list(self._reader.rows(wanted, now, columns))])

    @property
    def restricted_tables(self) -> tuple[str, ...]:
        """The tables of which row-level security hides rows from our role."""
        self._reader  # noqa: B018  attaches
        return self._restricted

    @property
    def reader(self) -> Reader:
        """The reader, for a plugin's own engine and checks."""
        return self._reader

    def now(self) -> datetime:
        return self._database.now()

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        found = self._reader.counts(filter, now, cap)
        if self._restricted and not any(count.value for count in found.values()):
            require_visible_rows(self._database, self._restricted)
        return found

    def is_costly(self, now: datetime) -> bool:
        """Whether a histogram or another order reads a large table without an index."""
        return self._reader.is_costly(now)

    def expiring(self, now: datetime, within: timedelta) -> Count | None:
        """How many items its system deletes within this time; None if it deletes none, or if counting is costly."""
        layout = self._reader.layout
        if all(segment.roles.expires is None for segment in layout.segments) or self.is_costly(now):
            return None
        soon = Filter((Term(Field.EXPIRES, Op.BELOW, (within,)),))
        return total_of(self.counts(soon, now).values())

    def orders_by_time(self) -> bool:
        """Whether an index gives the rows of a condition by time. Otherwise they come by key."""
        layout = self._reader.layout
        return layout.segments_are_indexed and layout.natural(layout.segments[0].roles) is not None

    def page(self, request: PageRequest) -> Page:
        found = self._reader.page(request)
        if self._restricted and not found.items and request.after is None:
            require_visible_rows(self._database, self._restricted)
        return found

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        reader = self._reader
        if self._restricted:
            require_visible_rows(self._database, self._restricted)
        return reader.errors(filter, now, stop)

    def histogram(self, timeline: Timeline, filter: Filter, now: datetime, buckets: Buckets) -> Histogram:
        return self._reader.histogram(timeline, filter, now, buckets)

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        return self._reader.items(keys, now)

    def cancel(self) -> None:
        self._database.cancel()

    def close(self) -> None:
        self._database.close()


class InspectingBackend(SqlBackend, Generic[T]):
    """A backend that makes more of its tables than a layout, for example a planner and a guard."""

    _tables: T | None = None

    @abstractmethod
    def _inspect(self) -> tuple[Layout, T]:
        """Inspect the tables: how they are read, and everything else that depends on them. Raises WrongSchema."""

    def _layout(self) -> Layout:
        layout, self._tables = self._inspect()
        return layout

    @property
    def attached(self) -> T:
        """What depends on the tables. They are inspected first if that was not done yet."""
        if self._tables is None:
            self._reader  # noqa: B018  attaches
        assert self._tables is not None
        return self._tables


def found_if_it_fits(
    plugin: Any, queue: FoundQueue, deadline: timedelta
) -> list[FoundQueue]:
    """The queue, if the tables behind its URL have the columns that the plugin needs."""
    options = plugin.options.model_validate(dict(queue.options))
    backend = plugin.open(queue.name, options, PolicyOverride(), read_only=True, deadline=deadline)
    try:
        backend.counts(Filter.parse("condition:unknown"), backend.now())
    except WrongSchema:
        return []
    finally:
        backend.close()
    return [queue]


_NULLABLE = frozenset({"updated", "created", "next", "type", "id"})


class QueueTableBackend(SqlBackend):
    """A backend over one declared table. A plugin adds `open`, and overrides what its system does differently."""

    def __init__(
        self, name: str, plugin: str, database: AnyDatabase, table: QueueTable, policy: RetryPolicy, time: TimeStyle
    ) -> None:
        super().__init__(name, plugin, f"{database.place} ({table.table.name})", database, policy)
        self.database = database
        self.time = time
        self.table = table
        self.rows = TableRows(name, table, policy, time)

    @cached_property
    def abilities(self) -> Abilities:
        return self.table.abilities

    @cached_property
    def _planner(self) -> RequeuePlanner:
        rule = self.table.requeue
        assert rule is not None, "its abilities name no action"
        return RequeuePlanner(self.name, self.table, rule, self.policy, self.time, self.rows)

    @property
    def _is_sqlite(self) -> bool:
        return self.database.dialect.name == "sqlite"

    # -- reading -----------------------------------------------------------------------------------

    def _layout(self) -> Layout:
        self.require_schema()
        table, indexed = self.table, self._is_indexed()
        roles, predicates = self._roles(), self._predicates()
        status = table.expression(table.status)
        segments = [
            Segment(table.reads, status == native, roles, predicates.of(meaning))
            for native, meaning in table.statuses.items()
        ]
        other = outside(status, table.statuses)
        segments.append(Segment(table.reads, other, roles, predicates.of(Phase.UNKNOWN), scattered=True))
        operation = table.expression(table.index[-1]) if indexed else None
        never_null = indexed and self._is_never_null(table.index[-1])
        return Layout(
            tuple(segments),
            self.rows.read,
            self.time,
            natural=lambda _: operation,
            nullable=_NULLABLE if never_null else _NULLABLE | {"natural"},
            served=frozenset() if indexed else frozenset({"id"}),
            segments_are_indexed=indexed,
        )

    def require_schema(self) -> None:
        """Raise `WrongSchema` unless the tables have the declared columns."""
        for table in (self.table.table, *self.table.requires):
            require_columns(self.database, table.name, names_of(table))

    def _is_indexed(self) -> bool:
        table = self.table
        return bool(table.index) and self.database.has_index(table.table.name, table.index)

    def _is_never_null(self, column: str) -> bool:
        """Whether the table's own constraint keeps NULLs out, so that pages need not look for them."""
        if not isinstance(self.database, SqliteDatabase):
            return False
        name = self.database.dialect.identifier_preparer.quote_identifier(self.table.table.name)
        rows = self.database.fetch(f"PRAGMA table_info({name})", ())
        return any(found == column and bool(not_null) for _, found, _, not_null, *_ in rows)

    def _roles(self) -> Roles:
        table = self.table
        status, due = table.expression(table.status), table.or_null(table.due)
        ready = [status == native for native, meaning in table.statuses.items() if phase_of(meaning) is Phase.READY]
        key = table.expression(table.keys[0])
        return Roles(
            key=(key,),
            tiebreaker=(key if self._address is None or not self._is_sqlite else self._address,),
            row=row_columns(table, sqlite=self._is_sqlite),
            type=table.expression(table.type),
            status=status,
            attempts=whole_number(table.expression(table.attempts), sqlite=self._is_sqlite),
            error=table.expression(table.error),
            created=None if table.created is None else table.expression(table.created),
            updated=None if table.updated is None else table.expression(table.updated),
            next=None if table.due is None else sa.case((sa.or_(sa.false(), *ready), due)),
            references=tuple(map(table.expression, table.references)),
            expires=None if table.expires is None else table.expression(table.expires),
        )

    def _predicates(self) -> ConditionPredicates:
        where = Where(self.name, self.database.dialect, self.time, self.policy)
        facts = fact_columns(self.table, sqlite=self._is_sqlite)
        return ConditionPredicates(facts, self.policy, where, self.time)

    @cached_property
    def _address(self) -> Expression | None:
        """Where the database finds the row again quickest; None for a table without rowids."""
        if isinstance(self.database, SqliteDatabase):
            return self.table.table.c.rowid if self.database.has_rowid(self.table.table.name) else None
        return sa.cast(self.table.table.c.ctid, sa.Text)

    # -- check -------------------------------------------------------------------------------------

    def check(self, clock: Clock) -> Sequence[Finding]:
        self.require_schema()
        name = self.table.table.name
        return [
            Finding(Severity.OK, "schema", f"table {name} has the expected columns"),
            *([index_finding(self.database, name, self.table.index)] if self.table.index else []),
            *privilege_findings(self.database, [name]),
            *row_security_findings(self),
            *self._guard_findings(),
            clock_finding(self.database, clock),
        ]

    def _guard_findings(self) -> Iterator[Finding]:
        rule = self.table.requeue
        if rule is None:
            return
        if rule.changes_on_every_transition is not None:
            message = f"strong: {rule.changes_on_every_transition} changes on every transition"
            yield Finding(Severity.OK, "guard", message)
            return
        yield Finding(
            Severity.WARNING,
            "guard",
            f"weak: if {', '.join(rule.guard)} changed and changed back, a write would not notice",
            "Requeue while its workers are stopped, or add a column that changes on every transition.",
        )

    # -- requeue -----------------------------------------------------------------------------------

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        columns = self._draft_columns
        batches = self._batches(wanted, sort, columns.expressions, now, stop)
        return self._planner.drafts(columns, batches, operation, now)

    @cached_property
    def _draft_columns(self) -> DraftColumns:
        row = StoredRow(*self._reader.layout.segments[0].roles.row)
        address = sa.null() if self._address is None else self._address
        return self._planner.columns(row, address, sqlite=self._is_sqlite)

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return self._planner.after(change, operation, at, due)

    def compare_and_set(
        self, changes: Sequence[Change], operation: Operation, authority: Authority  # noqa: ARG002
    ) -> Sequence[Outcome]:
        return self._guard.compare_and_set(changes)

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        found = self._guard.images([change.keys[0] for change in changes])
        return [found.get(change.keys[0]) for change in changes]

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:  # noqa: ARG002
        return dict(zip(self.table.image, image, strict=True))

    @cached_property
    def _guard(self) -> SqliteGuard | PostgresGuard:
        table = self.table
        target = Target(table.table.name, table.keys[0], table.image, integer_key=table.integer_key)
        return self.database.guard(target)

    # -- one item ----------------------------------------------------------------------------------

    def item(self, key: ItemKey, now: datetime) -> Detail:
        row, native = self._reader.layout.segments[0].roles.row, self._native_columns
        error = first_characters(self.table.expression(self.table.error)).label("whole_error")
        finished = self.table.or_null(self.table.finished).label("finished")
        rows = list(self._reader.rows([key], now, (*row, error, finished, *native.values())))
        if not rows:
            raise NoSuchItem(str(key))
        stored, rest = rows[0][: len(row)], rows[0][len(row) :]
        item = self.rows.read(stored, now)
        whole = item.error if rest[0] is None else text(rest[0])
        facts = self.rows.facts(StoredRow(*stored))
        return Detail(
            item,
            whole,
            last_attempts(item, whole, self.time.decode(rest[1]), StoredRow(*stored).recorded),
            tuple(schedule_ahead(facts, self.policy, item.verdict, now)),
            native_values(native, rest[2:]),
        )

    @cached_property
    def _native_columns(self) -> Mapping[str, Expression]:
        """Every column of every declared table, cut to what the details of an item show."""
        own = self.table.table
        named = [(name, own.c[name]) for name in names_of(own)]
        named += [(f"{other.name}.{name}", other.c[name]) for other in self.table.requires for name in names_of(other)]
        return {
            name: first_characters(_as_text(column, sqlite=self._is_sqlite)).label(f"n{n}")
            for n, (name, column) in enumerate(named)
        }


def _as_text(column: Any, *, sqlite: bool) -> Expression:
    """A column that `substr` takes; SQLite's takes anything."""
    return column if sqlite else sa.cast(column, sa.Text)
