"""How a mapped table is read: the expressions that play each part, and one predicate per condition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from console.core.item import Condition
from console.core.policy import Phase, RetryPolicy
from console.sql.database import Row
from console.sql.layout import Expression, Layout, Predicate, Residual, Roles, Segment, everything
from console.sql.statement import Binds, is_unicode
from console.sql.times import TimeStyle, zone_named
from console.sql.where import Where, head_of
from plugins.sql_table.attaching import Attached, Found
from plugins.sql_table.mapping import Source
from plugins.sql_table.rows import PHASES, MappedRows
from plugins.sql_table.statuses import Statuses
from plugins.sql_table.stored_times import TimeKind, common, kind_of
from plugins.sql_table.texts import error_text
from plugins.sql_table.vocabulary import Mapped

_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
_NUMERIC = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*", re.I | re.A)
"""What a column of numbers in SQLite takes for one; other text stays text there."""
_TEXTUAL = re.compile("CHAR|CLOB|TEXT", re.I)
_TIMES = ("next_run", "created", "updated", "since", "executed")


def is_integer(found: Found, *, sqlite: bool) -> bool:
    return "INT" in found.type.upper() if sqlite else found.type in _INTEGERS


@dataclass(frozen=True, slots=True)
class Times:
    """The time columns of a mapping, brought to one style."""

    style: TimeStyle
    parts: Mapping[str, Expression]
    kinds: Mapping[str, TimeKind]


def times_of(attached: Attached) -> Times:
    mapping, sqlite = attached.mapping, attached.sqlite
    zone = zone_named(mapping.time_zone, attached.options.where("time_zone"))
    found: dict[str, Found] = {}
    kinds: dict[str, TimeKind] = {}
    for part in _TIMES:
        source: Source | None = getattr(mapping, part)
        if source is None:
            continue
        found[part] = attached.found(source, part)
        try:
            kinds[part] = kind_of(found[part].type, mapping.times, zone, sqlite=sqlite)
        except ValueError as problem:
            raise attached.wrong(str(problem), part) from None
    style, brought = common(kinds.values(), zone, sqlite=sqlite)
    return Times(style, {part: brought(kinds[part], one.expression) for part, one in found.items()}, kinds)


class Reading:
    """The expressions of one mapping, and its layout."""

    def __init__(self, backend: str, attached: Attached, policy: RetryPolicy) -> None:
        self._backend = backend
        self._attached = attached
        self._mapping = attached.mapping
        self._policy = policy
        self._sqlite = attached.sqlite
        self.keys = attached.key_columns()
        self._declared = [
            int if is_integer(found, sqlite=True) else str if _TEXTUAL.search(found.type) else object
            for found in self.keys
        ]
        self.times = times_of(attached)
        self._where = Where(backend, attached.database.dialect, self.times.style, policy)
        self._statuses = Statuses(attached)
        self.indexed = self._statuses.indexed
        self.error = error_text(attached, self._mapping.error)
        self._raw_attempts = self._number("attempts")
        self._raw_limit = self._number("max_attempts")
        self.roles = self._all_roles()
        self.rows = MappedRows(
            backend, len(self.keys), self._statuses.meanings, policy, self.times.style,
            null_is_never=self._mapping.next_run is not None and self._mapping.next_run.when_null == "never",
        )

    # -- numbers ---------------------------------------------------------------------------------

    def _number(self, part: str) -> Expression | None:
        source = getattr(self._mapping, part)
        if source is None:
            return None
        if getattr(source, "constant", None) is not None:
            return sa.literal_column(str(source.constant))
        found = self._attached.found(source, part)
        if not self._sqlite and found.type not in _INTEGERS:
            raise self._attached.wrong(f"is {found.type}, not a whole number", part)
        return found.expression

    def _counter(self, raw: Expression | None) -> Expression:
        """A counter as `whole_number` reads it."""
        zero: Expression = sa.literal_column("0")
        if raw is None:
            return zero
        if self._sqlite:
            return sa.func.max(sa.func.coalesce(sa.cast(raw, sa.Integer), zero), zero)
        number = sa.cast(raw, sa.BigInteger)
        return sa.case((number > zero, number), else_=zero)

    # -- conditions ------------------------------------------------------------------------------

    def _conditions(self, part: Mapped | None) -> dict[Condition, Residual]:
        none_yet = self.roles.attempts <= sa.literal_column("0")
        match part:
            case None:
                return {Condition.UNKNOWN: everything}
            case "ready":
                return {Condition.WAITING: lambda _: none_yet, Condition.RETRYING: lambda _: sa.not_(none_yet)}
            case "running":
                return {Condition.STUCK: self._stuck, Condition.RUNNING: lambda binds: sa.not_(self._stuck(binds))}
            case "failed":
                return {Condition.TERMINAL: self._over, Condition.FAILED: lambda binds: sa.not_(self._over(binds))}
            case _:
                return {Condition(part): everything}

    def _stuck(self, binds: Binds) -> Predicate:
        began = self.times.parts.get("since", self.times.parts.get("updated"))
        if self._policy.stuck_after is None or began is None:
            return sa.false()
        old = binds.from_now(self.times.style.bound, -self._policy.stuck_after)
        return sa.func.coalesce(self.times.style.compared(began) < old, sa.false())

    def _over(self, binds: Binds) -> Predicate:
        return sa.func.coalesce(sa.or_(sa.false(), *self._ends(binds)), sa.false())

    def _ends(self, binds: Binds) -> Iterable[Predicate]:
        attempts = self.roles.attempts
        if self._policy.unrecoverable:
            yield sa.func.coalesce(self._where.hopeless(self.error, binds), sa.false())
        limits: list[Expression] = []
        if self._raw_limit is not None:
            limits.append(sa.case((self._raw_limit.is_not(None), self._counter(self._raw_limit))))
        if self._policy.max_attempts is not None:
            limits.append(sa.literal_column(str(self._policy.max_attempts)))
        if limits:
            limit = sa.func.coalesce(*limits) if len(limits) > 1 else limits[0]
            yield sa.func.coalesce(attempts >= limit, sa.false())
        if not self._policy.retryable:
            yield attempts >= sa.literal_column("1")
        if self._policy.max_age is not None and (born := self.times.parts.get("created")) is not None:
            old = binds.from_now(self.times.style.bound, -self._policy.max_age)
            yield sa.func.coalesce(self.times.style.compared(born) <= old, sa.false())

    # -- the layout ------------------------------------------------------------------------------

    def _all_roles(self) -> Roles:
        parts, main = self.times.parts, self._attached.main
        nothing: Expression = sa.null()
        keys = tuple(one.expression for one in self.keys)
        source = self._mapping.type
        named = nothing if source is None else self._attached.found(source, "type").expression
        type = sa.cast(named, sa.Text) if self._sqlite else sa.collate(sa.cast(named, sa.Text), "C")
        updated = parts.get("updated", nothing)
        leads = [(part, lead) for part, lead in self._statuses.leads.items() if part is not None and lead is not None]
        ready = [lead for part, lead in leads if PHASES[part] is Phase.READY]
        next_run = parts.get("next_run")
        attempts = nothing if self._raw_attempts is None else self._raw_attempts
        return Roles(
            key=keys,
            tie=(main.c.rowid,) if self._sqlite and self._attached.table.is_table else keys,
            row=(
                *keys, self._statuses.shown, type, attempts, nothing if self._raw_limit is None else self._raw_limit,
                nothing if next_run is None else next_run, head_of(self.error), parts.get("created", nothing), updated,
                parts.get("since", updated), parts.get("executed", updated),
            ),
            type=type,
            status=self._statuses.shown,
            attempts=self._counter(self._raw_attempts),
            error=self.error,
            created=parts.get("created"),
            updated=parts.get("updated"),
            next=None if next_run is None else sa.case((sa.or_(sa.false(), *ready), next_run)),
            references=tuple(
                sa.cast(self._attached.column(name, "references", n).expression, sa.Text)
                for n, name in enumerate(self._mapping.references)
            ),
            native_key=self._native_key(),
        )

    def _native_key(self) -> Any:
        kinds = [_key_kind(found, sqlite=self._sqlite) for found in self.keys]
        if self._sqlite and "loose integer" not in kinds:
            return None
        return partial(_native, kinds)

    def stored(self, parts: tuple[str, ...]) -> tuple[Any, ...]:
        """The parts of a key that fits, as their columns hold them."""
        return parts if self.roles.native_key is None else self.roles.native_key(parts) or parts

    def held_as_declared(self, key: Row) -> bool:
        """Whether a write can find a row of SQLite by its key: a column may hold what is not of its type."""
        return all(map(isinstance, key, self._declared))

    def fits(self, parts: tuple[str, ...]) -> bool:
        """Whether a row could have this key at all."""
        if len(parts) != len(self.keys) or not all(is_unicode(part) and "\0" not in part for part in parts):
            return False
        return self.roles.native_key is None or self.roles.native_key(parts) is not None

    def layout(self) -> Layout:
        leads = [(part, lead) for part, lead in self._statuses.leads.items() if lead is not None]
        natural = self._natural()
        return Layout(
            tuple(self._segments(leads)),
            self.rows.read,
            self.times.style,
            natural=lambda _: natural,
            nullable=frozenset({"updated", "created", "next", "type", "id", "natural"}),
            leads_are_indexed=self.indexed or self._told_by_joins,
        )

    @property
    def _told_by_joins(self) -> bool:
        """Where the status is which other table holds a row, that table's index finds the rows of each."""
        return bool(self._mapping.status.cases and self._mapping.joins)

    def _segments(self, leads: list[tuple[Mapped | None, Predicate]]) -> Iterable[Segment]:
        if self._mapping.status.cases and not self._told_by_joins:
            return [Segment(self._attached.source, None, self.roles, self._united(leads))]
        return self._by_value(leads) if self.indexed else self._by_part(leads)

    def _by_part(self, leads: list[tuple[Mapped | None, Predicate]]) -> Iterable[Segment]:
        for part, lead in leads:
            yield Segment(self._attached.source, lead, self.roles, self._conditions(part), scattered=part is None)

    def _by_value(self, leads: list[tuple[Mapped | None, Predicate]]) -> Iterable[Segment]:
        """Each native value is an index range of its own."""
        for part, lead in self._statuses.by_value():
            yield Segment(self._attached.source, lead, self.roles, self._conditions(part))
        yield from self._by_part([(part, lead) for part, lead in leads if part is None])

    def _natural(self) -> Expression | None:
        """The time to run at, where the same index that finds a status has it in order; else the key."""
        status, due = self._mapping.status.column, self._mapping.next_run
        if not self.indexed or status is None or due is None or due.column not in self._attached.table.columns:
            return None
        assert due.column is not None
        served = self._attached.database.has_index(self._attached.table.shown, (status, due.column))
        return self._attached.column(due.column).expression if served else None

    def _united(self, leads: list[tuple[Mapped | None, Predicate]]) -> dict[Condition, Residual]:
        """All cases as one segment: a predicate may look outside of the row, at locks that come and go, and whoever
        asks for everything must get every row whatever they do in the meantime."""
        found: dict[Condition, list[tuple[Predicate, Residual]]] = {}
        for part, lead in leads:
            for condition, residual in self._conditions(part).items():
                found.setdefault(condition, []).append((lead, residual))

        def any_of(several: list[tuple[Predicate, Residual]], binds: Binds) -> Predicate:
            made = [(lead, residual(binds)) for lead, residual in several]
            return sa.or_(*(lead if rest is None else sa.and_(lead, rest) for lead, rest in made))

        return {condition: partial(any_of, several) for condition, several in found.items()}


def _key_kind(found: Found, *, sqlite: bool) -> str:
    if is_integer(found, sqlite=sqlite):
        return "loose integer" if sqlite else "integer"
    return "uuid" if found.type == "uuid" and not sqlite else "text"


def _native(kinds: list[str], parts: tuple[str, ...]) -> tuple[Any, ...] | None:
    """The parts of a key as their columns hold them; None for what can be none."""
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


