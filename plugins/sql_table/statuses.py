"""What finds the rows of a native status: a column's values as index ranges, or ordered predicates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from console.core.faults import BackendFault
from console.sql.layout import Expression, Predicate
from plugins.sql_table.attaching import Attached, Found
from plugins.sql_table.vocabulary import PARTS, Mapped, Native

_TEXTUAL = re.compile("CHAR|CLOB|TEXT", re.I)
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


def bound(value: Any) -> Expression:
    """A value of the mapping, of no declared type: an enum takes it as well as text does."""
    return sa.bindparam(None, value, type_=sa.types.NullType(), unique=True)


class Statuses:
    """The native status of one mapping as shown, what each value means, and what finds its rows."""

    def __init__(self, attached: Attached) -> None:
        self._attached = attached
        self._mapping = attached.mapping
        self._sqlite = attached.sqlite
        self.stored: dict[Native, Mapped] = {}
        """Native value, as the column holds it → what it means; nothing where the status is told by cases."""
        self.shown, self.meanings, self.leads = self._read()

    def by_value(self) -> list[tuple[Mapped, Predicate]]:
        """Each native value as an index range of its own."""
        column = self._exactly(self._attached.column(self._mapping.status.column or "").expression)
        return [(part, column == bound(value)) for value, part in self.stored.items()]

    def _exactly(self, column: Expression) -> Expression:
        """Compared to the letter, whatever collation a column of SQLite has: a status is what is shown."""
        return sa.collate(column, "BINARY") if self._sqlite else column

    @cached_property
    def indexed(self) -> bool:
        """Whether an index finds the rows of a status."""
        column = self._mapping.status.column
        if column is None or column not in self._attached.table.columns or _awkward(self._attached.table.shown):
            return False
        return self._attached.database.has_index(self._attached.table.shown, (column,))

    def _read(self) -> tuple[Expression, dict[Any, Mapped], dict[Mapped | None, Predicate | None]]:
        """The native status as shown, what each means, and what finds the rows of each meaning."""
        status = self._mapping.status
        if status.cases:
            return self._cases()
        if status.column is not None:
            found = self._attached.column(status.column, "status", "column")
        else:
            found = self._attached.expression(cast("str", status.expression), "status", "expression")
        labels = found.column.labels
        known = {
            value: part for value, part in status.values.items()
            if self._attached.options.preset is None or labels is None or value in labels  # of another version
        }
        self.stored = meanings = self._meanings(known, found)
        column = self._exactly(found.expression)
        leads: dict[Mapped | None, Predicate | None] = {
            part: _any_of(column, [value for value, meant in meanings.items() if meant == part])
            for part in PARTS if part in meanings.values()
        }
        leads[None] = self._strange(found, meanings)
        shown = found.expression if self._sqlite or found.type == "text" else sa.cast(found.expression, sa.Text)
        texts = {text_of(value): part for value, part in meanings.items()}
        return shown, (dict(meanings) if self._sqlite else cast("dict[Any, Mapped]", texts)), leads

    def _meanings(self, known: Mapping[Native, Mapped], found: Found) -> dict[Native, Mapped]:
        """By the value as the column holds it, which a text and a number of the mapping may share."""
        written: dict[Native, Native] = {}
        meanings: dict[Native, Mapped] = {}
        for value, part in known.items():
            held = self._fitting(value, found)
            first = written.setdefault(held if self._sqlite else text_of(held), value)
            if first != value:
                told = f"{first!r} and {value!r} are one value of a column of type {found.type}"
                raise self._attached.wrong(told, "status", fix="Keep one of them.")
            meanings[held] = part
        return meanings

    def _fitting(self, value: Native, found: Found) -> Native:
        """The value as the column holds it, or why it cannot."""
        if not self._sqlite:
            self._attached.require_fit(value, found.column, "status")
            return value
        if _TEXTUAL.search(found.type):
            return text_of(value)
        of_numbers = found.type and "BLOB" not in found.type.upper()
        written = isinstance(value, str) and of_numbers and _WHOLE.fullmatch(value)
        return int(value) if written or isinstance(value, bool) else value

    def _strange(self, found: Found, meanings: Mapping[Native, Mapped]) -> Predicate | None:
        """Rows whose status nobody mapped; None where there can be none."""
        column, labels = self._exactly(found.expression), found.column.labels
        if labels is not None:
            others = [label for label in labels if label not in meanings]
            unmapped = [] if found.column.not_null else [column.is_(None)]
            return sa.or_(*unmapped, *([_any_of(column, others)] if others else [])) if unmapped or others else None
        ordered = self._in_column_order(found, meanings)
        if ordered is None:
            return _outside(column, list(meanings))
        return self._few_in_sqlite(found, ordered) if self._sqlite else _ranges(column, ordered, found)

    def _in_column_order(self, found: Found, meanings: Mapping[Native, Mapped]) -> list[Any] | None:
        """The values as the column itself orders them; None where that is not one order, or not known."""
        values: list[Any] = list(meanings)
        if len({isinstance(value, str) for value in values}) > 1 or found.type == "boolean":
            return None
        if self._sqlite or not isinstance(values[0], str):
            return sorted(values)
        status = self._mapping.status.column
        if status is None or not self.indexed:
            return None
        # Under the column's own collation, which may order texts otherwise than Python does.
        known = sa.select(sa.func.unnest(sa.bindparam("v", type_=ARRAY(sa.Text()))).label("v"))
        stored = sa.cast(found.expression, sa.Text).label("v")
        none = sa.select(stored).select_from(self._attached.main).where(sa.false())
        both = sa.union_all(none, known).subquery()
        asked = sa.select(both.c.v).order_by(both.c.v)
        try:
            rows = self._attached.database.fetch(
                str(asked.compile(dialect=self._attached.database.dialect)), {"v": values}
            )
        except BackendFault:
            return None
        return [value for (value,) in rows]

    def _few_in_sqlite(self, found: Found, known: list[Any]) -> Predicate:
        """Ranges an index finds at once; found first, because SQLite would rather walk all rows in their order."""
        if not (self.indexed and self._attached.table.is_table):
            return _ranges(self._exactly(found.expression), known, found)
        strange = self._attached.main.element.alias("strange").c
        column = self._exactly(strange[self._mapping.status.column])
        chosen = sa.select(strange.rowid).where(_ranges(column, known, found))
        return self._attached.main.c.rowid.in_(chosen)  # type: ignore[no-any-return]

    def _cases(self) -> tuple[Expression, dict[Any, Mapped], dict[Mapped | None, Predicate | None]]:
        cases = self._mapping.status.cases
        holds = [self._attached.predicate(case.when, "status", "cases", n, "when") for n, case in enumerate(cases)]
        shown = sa.case(*((held, bound(case.shown)) for held, case in zip(holds, cases, strict=True)))
        first = [
            sa.and_(held, *(_fails(earlier) for earlier in holds[:n])) for n, held in enumerate(holds)
        ]
        leads: dict[Mapped | None, Predicate | None] = {}
        for part in PARTS:
            if mine := [held for held, case in zip(first, cases, strict=True) if case.condition == part]:
                leads[part] = sa.or_(*mine)
        leads[None] = sa.and_(*map(_fails, holds))
        return sa.cast(shown, sa.Text), {case.shown: case.condition for case in cases}, leads


def _awkward(name: str) -> bool:
    """Names the rest of the SQL machinery, which joins schema and table by a dot, could misread."""
    return name.count(".") > 1


def text_of(value: Native) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _any_of(column: Expression, values: list[Any]) -> Predicate:
    if len(values) == 1:
        return column == bound(values[0])
    return column.in_([bound(value) for value in values])


def _outside(column: Expression, values: list[Any]) -> Predicate:
    return sa.or_(column.is_(None), column.not_in([bound(value) for value in values]))


def _ranges(column: Expression, ordered: list[Any], found: Found) -> Predicate:
    """Values that are none of these, as ranges: an index finds at once that there are none. "Is NULL" of a column
    that never is would keep SQLite from taking the ranges by the index."""
    between = [sa.and_(column > bound(low), column < bound(high)) for low, high in pairwise(ordered)]
    nothing = [] if found.column.not_null else [column.is_(None)]
    return sa.or_(*nothing, column < bound(ordered[0]), *between, column > bound(ordered[-1]))


def _fails(held: Predicate) -> Predicate:
    return sa.not_(sa.func.coalesce(held, sa.false()))
