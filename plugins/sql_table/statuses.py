"""The native statuses of a mapping, and the predicates that find their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.operators import is_not

from console.core.faults import BackendFault
from console.core.policy import Phase
from console.sql.layout import Expression, Predicate
from console.sql.table import Meaning
from plugins.sql_table.mapping_types import MEANINGS, Scalar
from plugins.sql_table.resolved import ResolvedColumn, ResolvedMapping, bound

_TEXTUAL = re.compile("CHAR|CLOB|TEXT", re.I)
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class Statuses:
    """The native status of one mapping, the meaning of its values, and the predicates that find their rows."""

    def __init__(self, resolved: ResolvedMapping) -> None:
        self._resolved = resolved
        self._mapping = resolved.mapping
        self._sqlite = resolved.sqlite
        self.stored: dict[Scalar, Meaning] = {}
        """Stored native value → its meaning. Empty if the status is defined by cases."""
        self.native, self.meanings, self.base_filters = self._read()

    def by_value(self) -> list[tuple[Meaning, Predicate]]:
        """The predicate of each native value, which is one index range."""
        column = self._exactly(self._resolved.column(self._mapping.status.column or "").expression)
        return [(part, column == bound(value)) for value, part in self.stored.items()]

    def _exactly(self, column: Expression) -> Expression:
        """The column for exact comparison, even if the SQLite column has a NOCASE collation."""
        return sa.collate(column, "BINARY") if self._sqlite else column

    @cached_property
    def indexed(self) -> bool:
        """Whether an index finds the rows of a status."""
        column = self._mapping.status.column
        table = self._resolved.table
        if column is None or column not in table.columns or _has_extra_dot(table.full_name):
            return False
        return self._resolved.database.has_index(self._resolved.table.full_name, (column,))

    def _read(self) -> tuple[Expression, dict[Any, Meaning], dict[Meaning, Predicate | None]]:
        """The native status, the meaning of each value, and the predicate for each meaning."""
        status = self._mapping.status
        if status.cases:
            return self._cases()
        if status.column is not None:
            found = self._resolved.column(status.column, "status", "column")
        else:
            found = self._resolved.expression(cast("str", status.expression), "status", "expression")
        labels = found.column.labels
        known = {
            value: part for value, part in status.values.items()
            # A preset also lists values that another version of the queue lacks.
            if self._resolved.options.preset is None or labels is None or value in labels
        }
        self.stored = meanings = self._meanings(known, found)
        column = self._exactly(found.expression)
        base_filters: dict[Meaning, Predicate | None] = {
            meaning: _any_of(column, [value for value, mapped in meanings.items() if mapped is meaning])
            for meaning in MEANINGS.values() if meaning in meanings.values()
        }
        base_filters[Phase.UNKNOWN] = self._unmapped(found, meanings)
        native = found.expression if self._sqlite or found.type == "text" else sa.cast(found.expression, sa.Text)
        texts = {text_of(value): part for value, part in meanings.items()}
        return native, (dict(meanings) if self._sqlite else cast("dict[Any, Meaning]", texts)), base_filters

    def _meanings(self, known: Mapping[Scalar, Meaning], found: ResolvedColumn) -> dict[Scalar, Meaning]:
        """Stored value → meaning. A text and a number in the mapping may be the same stored value."""
        written: dict[Scalar, Scalar] = {}
        meanings: dict[Scalar, Meaning] = {}
        for value, part in known.items():
            held = self._fitting(value, found)
            first = written.setdefault(held if self._sqlite else text_of(held), value)
            if first != value:
                problem = f"{first!r} and {value!r} are the same value in a column of type {found.type}"
                raise self._resolved.fault(problem, "status", fix="Keep one of them.")
            meanings[held] = part
        return meanings

    def _fitting(self, value: Scalar, found: ResolvedColumn) -> Scalar:
        """The value as the column stores it; raises WrongSchema if it cannot."""
        if not self._sqlite:
            self._resolved.require_fit(value, found.column, "status")
            return value
        if _TEXTUAL.search(found.type):
            return text_of(value)
        of_numbers = found.type and "BLOB" not in found.type.upper()
        written = isinstance(value, str) and of_numbers and _WHOLE.fullmatch(value)
        return int(value) if written or isinstance(value, bool) else value

    def _unmapped(self, found: ResolvedColumn, meanings: Mapping[Scalar, Meaning]) -> Predicate | None:
        """The predicate for rows with an unmapped status; None if there can be none."""
        if not meanings:
            return sa.true()
        column, labels = self._exactly(found.expression), found.column.labels
        if labels is not None:
            others = [label for label in labels if label not in meanings]
            null = [] if found.column.not_null else [column.is_(None)]
            return sa.or_(*null, *([_any_of(column, others)] if others else [])) if null or others else None
        ordered = self._in_column_order(found, meanings)
        if ordered is None:
            return _outside(column, list(meanings))
        return self._subquery_of_ranges(found, ordered) if self._sqlite else _ranges(column, ordered, found)

    def _in_column_order(self, found: ResolvedColumn, meanings: Mapping[Scalar, Meaning]) -> list[Any] | None:
        """The values in the order of the column; None if they have no common or no known order."""
        values: list[Any] = list(meanings)
        if len({isinstance(value, str) for value in values}) > 1 or found.type == "boolean":
            return None
        if self._sqlite or not isinstance(values[0], str):
            return sorted(values)
        if self._resolved.mysql:
            return None
        status = self._mapping.status.column
        if status is None or not self.indexed:
            return None
        # The column's collation may order text differently from Python.
        known = sa.select(sa.func.unnest(sa.bindparam("v", type_=ARRAY(sa.Text()))).label("v"))
        stored = sa.cast(found.expression, sa.Text).label("v")
        none = sa.select(stored).select_from(self._resolved.main).where(sa.false())
        both = sa.union_all(none, known).subquery()
        asked = sa.select(both.c.v).order_by(both.c.v)
        try:
            rows = self._resolved.database.fetch(
                str(asked.compile(dialect=self._resolved.database.dialect)), {"v": values}
            )
        except BackendFault:
            return None
        return [value for (value,) in rows]

    def _subquery_of_ranges(self, found: ResolvedColumn, known: list[Any]) -> Predicate:
        """The ranges as a subquery; otherwise SQLite reads all rows in order instead of using the index."""
        if not (self.indexed and self._resolved.table.is_table):
            return _ranges(self._exactly(found.expression), known, found)
        other = self._resolved.main.element.alias("other").c
        column = self._exactly(other[self._mapping.status.column])
        chosen = sa.select(other.rowid).where(_ranges(column, known, found))
        return self._resolved.main.c.rowid.in_(chosen)  # type: ignore[no-any-return]

    def _cases(self) -> tuple[Expression, dict[Any, Meaning], dict[Meaning, Predicate | None]]:
        cases = self._mapping.status.cases
        holds = [self._resolved.predicate(case.when, "status", "cases", n, "when") for n, case in enumerate(cases)]
        native = sa.case(*((held, bound(case.native_status)) for held, case in zip(holds, cases, strict=True)))
        first = [
            sa.and_(held, *(_fails(earlier) for earlier in holds[:n])) for n, held in enumerate(holds)
        ]
        base_filters: dict[Meaning, Predicate | None] = {}
        for meaning in MEANINGS.values():
            if mine := [held for held, case in zip(first, cases, strict=True) if case.meaning is meaning]:
                base_filters[meaning] = sa.or_(*mine)
        base_filters[Phase.UNKNOWN] = sa.and_(*map(_fails, holds))
        return sa.cast(native, sa.Text), {case.native_status: case.meaning for case in cases}, base_filters


def _has_extra_dot(name: str) -> bool:
    """Whether console.sql, which separates schema and table by a dot, would misread this name."""
    return name.count(".") > 1


def text_of(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _any_of(column: Expression, values: list[Any]) -> Predicate:
    if len(values) == 1:
        return column == bound(values[0])
    return column.in_([bound(value) for value in values])


def _outside(column: Expression, values: list[Any]) -> Predicate:
    return sa.or_(column.is_(None), column.not_in([bound(value) for value in values]))


def _ranges(column: Expression, ordered: list[Any], found: ResolvedColumn) -> Predicate:
    """All other values as ranges, so that an index finds quickly that there are none. A needless IS NULL would keep
    SQLite from using the index."""
    between = [sa.and_(column > bound(low), column < bound(high)) for low, high in pairwise(ordered)]
    nothing = [] if found.column.not_null else [column.is_(None)]
    return sa.or_(*nothing, column < bound(ordered[0]), *between, column > bound(ordered[-1]))


def _fails(held: Predicate) -> Predicate:
    if isinstance(held, sa.BinaryExpression) and held.operator is is_not:  # it is never NULL
        return sa.not_(held)
    return sa.not_(sa.func.coalesce(held, sa.false()))
