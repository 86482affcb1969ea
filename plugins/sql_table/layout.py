"""How a mapped table is read: an expression for each column of an item, and a predicate for each condition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from console.core.item import Condition, Verdict
from console.core.policy import Facts, Phase, RetryPolicy
from console.sql.conditions import ConditionPredicates, fact_columns, whole_number
from console.sql.database import Binds, Row
from console.sql.layout import Expression, Layout, Predicate, Residual, Roles, Segment
from console.sql.table import Meaning, QueueTable, StoredRow, phase_of
from console.sql.table_rows import TableRows, row_columns
from console.sql.times import TimeStyle, zone_named
from console.sql.values import is_unicode, text
from console.sql.where import Where
from plugins.sql_table.error_text import error_text
from plugins.sql_table.mapping import Source, TableMapping
from plugins.sql_table.prediction import predict
from plugins.sql_table.resolved import ResolvedColumn, ResolvedMapping
from plugins.sql_table.statuses import Statuses
from plugins.sql_table.stored_times import TimeKind, common, kind_of

_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
_NUMERIC = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*", re.I | re.A)
"""Text that a numeric column of SQLite converts to a number; other text stays text."""
_TEXTUAL = re.compile("CHAR|CLOB|TEXT", re.I)
_ZERO: Expression = sa.literal_column("0")
_TIMES = ("next_run", "created", "updated", "since", "executed", "expires")


def is_integer(found: ResolvedColumn, *, sqlite: bool) -> bool:
    return "INT" in found.type.upper() if sqlite else found.type in _INTEGERS


@dataclass(frozen=True, slots=True)
class Times:
    """The time columns of a mapping, converted to a common style."""

    style: TimeStyle
    parts: Mapping[str, Expression]
    kinds: Mapping[str, TimeKind]


def times_of(resolved: ResolvedMapping) -> Times:
    mapping, sqlite = resolved.mapping, resolved.sqlite
    zone = zone_named(mapping.time_zone, resolved.options.where("time_zone"))
    found: dict[str, ResolvedColumn] = {}
    kinds: dict[str, TimeKind] = {}
    for part in _TIMES:
        source: Source | None = getattr(mapping, part)
        if source is None:
            continue
        found[part] = resolved.lookup(source, part)
        try:
            kinds[part] = kind_of(found[part].type, mapping.times, zone, sqlite=sqlite)
        except ValueError as problem:
            raise resolved.fault(str(problem), part) from None
    try:
        style, brought = common(kinds.values(), zone, sqlite=sqlite)
    except ValueError as problem:
        raise resolved.fault(str(problem), "time_zone") from None
    return Times(style, {part: brought(kinds[part], one.expression) for part, one in found.items()}, kinds)


class MappedRows(TableRows):
    """Makes items from mapped rows."""

    def judged(self, row: StoredRow, now: datetime) -> tuple[Facts, Verdict]:
        facts, verdict = super().judged(row, now)
        if row.held is None or facts.phase is not Phase.READY:
            return facts, verdict
        return facts, predict(facts, text(row.held)).apply(verdict)._replace(next_retry=None)

    def _executed(self, facts: Facts, times: dict[str, datetime | None]) -> datetime | None:
        """Unknown while an item runs: `updated` is not when an earlier attempt was made."""
        return None if facts.phase is Phase.RUNNING else super()._executed(facts, times)


def own_policy(mapping: TableMapping) -> RetryPolicy:
    """The policy that a mapping sets for every row."""
    limit = mapping.max_attempts
    constant = None if limit is None else limit.constant
    own = limit is not None and constant is None
    return RetryPolicy(max_attempts=constant, stuck_after=mapping.stuck_after, items_have_limits=own)


class MappedLayout:
    """The expressions and the layout of one mapping."""

    def __init__(self, backend: str, resolved: ResolvedMapping, policy: RetryPolicy) -> None:
        self._backend = backend
        self._resolved = resolved
        self._mapping = resolved.mapping
        self._policy = policy
        self._sqlite = resolved.sqlite
        self._postgres = not resolved.sqlite and not resolved.mysql
        self.keys = resolved.key_columns()
        self._declared = [
            int if is_integer(found, sqlite=True) else str if _TEXTUAL.search(found.type) else object
            for found in self.keys
        ]
        self.times = times_of(resolved)
        self._where = Where(backend, resolved.database.dialect, self.times.style, policy)
        self.statuses = Statuses(resolved)
        self.indexed = self.statuses.indexed
        self.error = error_text(resolved, self._mapping.error)
        self.declaration = self._declare()
        self.roles = self._all_roles()
        facts = fact_columns(self.declaration, sqlite=self._sqlite)
        self._predicates = ConditionPredicates(facts, policy, self._where, self.times.style)
        self.rows = MappedRows(backend, self.declaration, policy, self.times.style)

    # -- numbers ---------------------------------------------------------------------------------

    def _number(self, part: str) -> Expression | None:
        source = getattr(self._mapping, part)
        if source is None:
            return None
        if getattr(source, "constant", None) is not None:
            return sa.literal_column(str(source.constant))
        found = self._resolved.lookup(source, part)
        if not self._sqlite and found.type not in _INTEGERS:
            raise self._resolved.fault(f"is {found.type}, not an integer", part)
        if self._resolved.mysql:  # an unsigned number, mixed with a signed one, would become a decimal
            return sa.cast(found.expression, sa.BigInteger)
        return found.expression

    # -- the layout ------------------------------------------------------------------------------

    def _declare(self) -> QueueTable:
        """The mapping as a declared table."""
        times, attempts, due, zero = self.times.parts, self._number("attempts"), self._mapping.next_run, _ZERO
        source = self._mapping.type
        named = sa.null() if source is None else self._resolved.lookup(source, "type").expression
        return QueueTable(
            table=self._resolved.main,
            source=self._resolved.source,
            key=self._mapping.keys,
            type=sa.collate(sa.cast(named, sa.Text), "C") if self._postgres else sa.cast(named, sa.Text),
            status=self.statuses.native,
            statuses=self.statuses.meanings,
            attempts=zero if attempts is None else sa.func.coalesce(attempts, zero),
            error=self.error,
            max_attempts=self._number("max_attempts"),
            due=times.get("next_run"),
            needs_due=due is not None and due.when_null == "never",
            created=times.get("created"),
            updated=times.get("updated"),
            since=times.get("since"),
            executed=times.get("executed", times.get("updated")),
            expires=times.get("expires"),
            reclaims=self._mapping.reclaims,
            stuck=self._resolved.reason(self._mapping.stuck, "stuck"),
            held=self._resolved.reason(self._mapping.held, "held"),
            references=tuple(
                sa.cast(self._resolved.column(name, "references", n).expression, sa.Text)
                for n, name in enumerate(self._mapping.references)
            ),
        )

    def _all_roles(self) -> Roles:
        table, times = self.declaration, self.times.parts
        keys = tuple(map(table.expression, table.keys))
        ready = [each for meaning, each in self._base_filters() if phase_of(meaning) is Phase.READY]
        not_held = [] if table.held is None else [table.expression(table.held).is_(None)]
        due = times.get("next_run")
        return Roles(
            key=keys,
            tiebreaker=(self._resolved.main.c.rowid,) if self._sqlite and self._resolved.table.is_table else keys,
            row=row_columns(table, sqlite=self._sqlite),
            type=table.expression(table.type),
            status=self.statuses.native,
            attempts=whole_number(table.expression(table.attempts), sqlite=self._sqlite),
            error=self.error,
            created=times.get("created"),
            updated=times.get("updated"),
            next=None if due is None else sa.case((sa.and_(sa.or_(sa.false(), *ready), *not_held), due)),
            references=tuple(map(table.expression, table.references)),
            native_key=self._native_key(),
            expires=times.get("expires"),
        )

    def _native_key(self) -> Any:
        kinds = [_key_kind(found, sqlite=self._sqlite) for found in self.keys]
        if self._resolved.mysql:
            kinds = ["text" if kind == "uuid" else kind for kind in kinds]
        if self._sqlite and "loose integer" not in kinds:
            return None
        return partial(_native, kinds)

    def stored(self, parts: tuple[str, ...]) -> tuple[Any, ...]:
        """The parts of a valid key with the types of their columns."""
        return parts if self.roles.native_key is None else self.roles.native_key(parts) or parts

    def has_declared_types(self, key: Row) -> bool:
        """Whether a write finds this SQLite row by its key. A column may contain values of another type."""
        return all(map(isinstance, key, self._declared))

    def fits(self, parts: tuple[str, ...]) -> bool:
        """Whether a row can have this key."""
        if len(parts) != len(self.keys) or not all(is_unicode(part) and "\0" not in part for part in parts):
            return False
        return self.roles.native_key is None or self.roles.native_key(parts) is not None

    def _base_filters(self) -> list[tuple[Meaning, Predicate]]:
        return [(meaning, found) for meaning, found in self.statuses.base_filters.items() if found is not None]

    def build(self) -> Layout:
        base_filters = self._base_filters()
        natural = self._natural()
        return Layout(
            tuple(self._segments(base_filters)),
            self.rows.read,
            self.times.style,
            natural=lambda _: natural,
            nullable=frozenset({"updated", "created", "next", "type", "id", "natural"}),
            segments_are_indexed=self.indexed or self._status_from_joins,
        )

    @property
    def _status_from_joins(self) -> bool:
        """Whether the status depends on joined tables, whose indexes then find the rows of each status."""
        return bool(self._mapping.status.cases and self._mapping.joins)

    def _segments(self, base_filters: list[tuple[Meaning, Predicate]]) -> Iterable[Segment]:
        if self._mapping.status.cases and not self._status_from_joins:
            return [Segment(self._resolved.source, None, self.roles, self._united(base_filters))]
        return self._by_value(base_filters) if self.indexed else self._by_meaning(base_filters)

    def _by_meaning(self, base_filters: list[tuple[Meaning, Predicate]]) -> Iterable[Segment]:
        for meaning, base_filter in base_filters:
            conditions, is_unknown = self._predicates.of(meaning), meaning is Phase.UNKNOWN
            yield Segment(self._resolved.source, base_filter, self.roles, conditions, scattered=is_unknown)

    def _by_value(self, base_filters: list[tuple[Meaning, Predicate]]) -> Iterable[Segment]:
        """One segment per native value, because each is an index range."""
        for meaning, base_filter in self.statuses.by_value():
            yield Segment(self._resolved.source, base_filter, self.roles, self._predicates.of(meaning))
        yield from self._by_meaning([one for one in base_filters if one[0] is Phase.UNKNOWN])

    def _natural(self) -> Expression | None:
        """The due time, if the index on the status also contains it; otherwise rows are ordered by key."""
        status, due = self._mapping.status.column, self._mapping.next_run
        if not self.indexed or status is None or due is None or due.column not in self._resolved.table.columns:
            return None
        assert due.column is not None
        served = self._resolved.database.has_index(self._resolved.table.full_name, (status, due.column))
        return self._resolved.column(due.column).expression if served else None

    def _united(self, base_filters: list[tuple[Meaning, Predicate]]) -> dict[Condition, Residual]:
        """All cases as one segment.

        A predicate may depend on locks outside the row. With one segment, a list of everything contains every row even
        if a lock changes while the list is read.
        """
        found: dict[Condition, list[tuple[Predicate, Residual]]] = {}
        for meaning, base_filter in base_filters:
            for condition, residual in self._predicates.of(meaning).items():
                found.setdefault(condition, []).append((base_filter, residual))

        def any_of(several: list[tuple[Predicate, Residual]], binds: Binds) -> Predicate:
            made = [(base_filter, residual(binds)) for base_filter, residual in several]
            return sa.or_(*(base_filter if rest is None else sa.and_(base_filter, rest) for base_filter, rest in made))

        return {condition: partial(any_of, several) for condition, several in found.items()}


def _key_kind(found: ResolvedColumn, *, sqlite: bool) -> str:
    if is_integer(found, sqlite=sqlite):
        return "loose integer" if sqlite else "integer"
    return "uuid" if found.type == "uuid" and not sqlite else "text"


def _native(kinds: list[str], parts: tuple[str, ...]) -> tuple[Any, ...] | None:
    """The parts of a key with the types of their columns; None if no row can have this key."""
    values: list[Any] = []
    for kind, part in zip(kinds, parts, strict=True):
        if kind == "loose integer" and not _NUMERIC.fullmatch(part):
            values.append(part)
        elif kind in ("integer", "loose integer"):
            if not _WHOLE.fullmatch(part) or not -(2**63) <= int(part) < 2**63:
                return None
            values.append(int(part))
        elif kind == "uuid":
            try:
                found = UUID(part)
            except ValueError:
                return None
            if str(found) != part:
                return None
            values.append(found)
        else:
            values.append(part)
    return tuple(values)


