"""Stored values of any type: a loosely typed database may hold anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from console.core.excerpt import GAP, HALF, LIMIT
from console.core.text import DETAIL_LIMIT

_LEADING_INTEGER = re.compile(r"[ \t-\r]*([+-]?[0-9]+)")
_LARGEST = 2**63 - 1


def whole_number(raw: Any) -> int:
    """A value as SQLite's CAST AS INTEGER reads it; negative numbers become zero."""
    if isinstance(raw, int):
        return max(raw, 0)
    if isinstance(raw, float):
        return _LARGEST if raw >= _LARGEST else int(max(raw, 0.0)) if raw == raw else 0
    if isinstance(raw, bytes):
        raw = raw.decode("utf-8", "replace")
    if isinstance(raw, str) and (found := _LEADING_INTEGER.match(raw)):
        return min(max(int(found[1][:400]), 0), _LARGEST)
    return 0


def text(raw: Any) -> str:
    """Any stored value as text."""
    if isinstance(raw, str):
        return raw
    if raw is None:
        return ""
    return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else str(raw)


def plain(value: Any) -> Any:
    """A stored value as JSON can hold it, so that a before-image is the same after it was written and read."""
    if isinstance(value, date):
        if isinstance(value, datetime) and value.tzinfo is not None:
            with suppress(OverflowError):  # at the ends of the calendar
                value = value.astimezone(UTC)  # whatever the session's time zone is
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def storable(image: Sequence[Any]) -> bool:
    """Whether JSON can hold this image exactly: no bytes, and no text that is not Unicode."""
    for value in image:
        if isinstance(value, str):
            if not is_unicode(value):
                return False
        elif value is not None and not isinstance(value, int | float):
            return False
    return True


def castable(kind: str) -> str:
    """A column's type for a cast: in PostgreSQL `character` and `bit` without a length hold one character or bit."""
    element = kind.removesuffix("[]")
    return {"character": "bpchar", "bit": "varbit"}.get(element, element) + kind[len(element) :]


def converted(parameters: Any, convert: Callable[[str], str]) -> Any:
    """The same parameters with every text converted."""

    def each(value: Any) -> Any:
        return convert(value) if isinstance(value, str) else value

    if isinstance(parameters, Mapping):
        return {name: each(value) for name, value in parameters.items()}
    return tuple(map(each, parameters))


def as_bytes(text: str) -> bytes:
    """The stored bytes of a text that was decoded leniently."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, which no decoder produced
        return text.encode("utf-8", "surrogatepass")


def is_unicode(text: str) -> bool:
    """Whether a driver can encode this text. Text that was decoded leniently may contain surrogates."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


class ExactText(sa.Text):
    """Text in MySQL, where the collation of a column usually ignores case and blanks at the end.

    The column is compared as it is, which an index serves, and also as cast text, which our connections compare by
    its bytes.
    """

    cache_ok = True

    class Comparator(sa.Text.Comparator[str]):
        """Makes comparisons exact."""

        def operate(self, op: Any, *other: Any, **options: Any) -> ColumnElement[Any]:
            exact = sa.cast(self.expr, sa.Text)
            if op in (operators.eq, operators.in_op):
                return sa.and_(super().operate(op, *other, **options), op(exact, *other, **options))
            if op in (operators.ne, operators.not_in_op):
                return op(exact, *other, **options)  # type: ignore[no-any-return]
            return super().operate(op, *other, **options)

    comparator_factory = Comparator


class _FirstCharacters(FunctionElement[Any]):
    """The beginning of a text: the text and the number of characters."""

    name = "first_characters"
    inherit_cache = True


@compiles(_FirstCharacters)
def _with_substr(element: _FirstCharacters, compiler: SQLCompiler, **options: Any) -> str:
    text, count = (compiler.process(clause, **options) for clause in element.clauses)
    return f"substr({text}, 1, {count})"


@compiles(_FirstCharacters, "sqlite")
def _past_a_nul(element: _FirstCharacters, compiler: SQLCompiler, **options: Any) -> str:
    """SQLite's substr ends a text at a NUL, but not a blob. Where there is one, bytes are counted."""
    text, count = (compiler.process(clause, **options) for clause in element.clauses)
    in_bytes = f"CAST(substr(CAST({text} AS BLOB), 1, {count}) AS TEXT)"
    return f"CASE WHEN instr({text}, char(0)) > 0 THEN {in_bytes} ELSE substr({text}, 1, {count}) END"


def first_characters(column: ColumnElement[Any], characters: int = DETAIL_LIMIT) -> ColumnElement[Any]:
    """The beginning of a text, so that a huge value is never fetched as a whole."""
    return _FirstCharacters(column, sa.literal_column(str(characters)))


def excerpt_sql(text: str, dialect: str) -> str:
    """`console.core.excerpt.excerpt` in SQL. Short texts, which are nearly all, are recognised by their stored size."""
    gap = GAP.replace("\n", "")
    if dialect == "sqlite":
        gap, blob = f"char(10) || '{gap}'", f"CAST({text} AS BLOB)"
        # SQLite's text functions end at a NUL, but not those for blobs. Where there is one, bytes are counted.
        return (
            f"CASE WHEN length({blob}) <= {LIMIT} THEN {text} WHEN instr({text}, char(0)) > 0"
            f" THEN CAST(substr({blob}, 1, {HALF}) AS TEXT) || {gap} || CAST(substr({blob}, -{HALF}) AS TEXT)"
            f" WHEN length({text}) <= {LIMIT} THEN {text}"
            f" ELSE substr({text}, 1, {HALF}) || {gap} || substr({text}, -{HALF}) END"
        )
    if dialect == "mysql":
        return (
            f"CASE WHEN char_length({text}) <= {LIMIT} THEN {text}"
            f" ELSE concat(left({text}, {HALF}), '\n{gap}', right({text}, {HALF})) END"
        )
    return (
        f"CASE WHEN octet_length({text}) <= {LIMIT} OR length({text}) <= {LIMIT} THEN {text}"
        f" ELSE left({text}, {HALF}) || chr(10) || '{gap}' || right({text}, {HALF}) END"
    )


class _Excerpt(FunctionElement[Any]):
    """The beginning and the end of a text."""

    name = "excerpt"
    inherit_cache = True


@compiles(_Excerpt)
def _compile_excerpt(element: _Excerpt, compiler: SQLCompiler, **options: Any) -> str:
    (text,) = (compiler.process(clause, **options) for clause in element.clauses)
    return excerpt_sql(text, compiler.dialect.name)


def excerpt_of(error: ColumnElement[Any]) -> ColumnElement[Any]:
    """An error as lists show it, so that a huge one is never fetched as a whole."""
    return _Excerpt(error)


TYPE_LIMIT = 1_000
"""How many characters are read of a text that is shown but never compared."""
LARGEST_OWN_VALUE = 64 * 1024
"""The most bytes of a value that a plan keeps and compares."""
_SMALLEST_COMPRESSED = 200
"""Bytes that PostgreSQL stores. It compresses a value that is too large to no fewer, whichever method it uses."""


def cut_text(column: ColumnElement[Any], *, sqlite: bool) -> ColumnElement[Any]:
    """A column of any type as it is listed: the beginning of it if it is a long text."""
    if not sqlite:
        return first_characters(sa.cast(column, sa.Text), TYPE_LIMIT)
    return cut_value(column)


def cut_value(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A column of SQLite, which may hold a long text whatever its type is: as it is, or the beginning of it."""
    size = sa.func.length(sa.cast(column, sa.LargeBinary))  # the length of a text would end at a NUL
    limit: ColumnElement[Any] = sa.literal_column(str(TYPE_LIMIT))
    return sa.case((size > limit, first_characters(column, TYPE_LIMIT)), else_=column)


def own_key(key: ColumnElement[Any]) -> ColumnElement[Any]:
    """A key of SQLite as a plan reads it: the beginning of one that is too large, whose item is skipped."""
    beginning = first_characters(key, TYPE_LIMIT).concat(sa.literal_column("'…'"))
    return sa.type_coerce(sa.case((is_too_large(key), beginning), else_=key), key.type)


class _IsTooLarge(FunctionElement[Any]):
    """Whether a value has more bytes than a plan keeps."""

    name = "is_too_large"
    type = sa.Boolean()
    inherit_cache = True


@compiles(_IsTooLarge)
def _compile_is_too_large(element: _IsTooLarge, compiler: SQLCompiler, **options: Any) -> str:
    (value,) = (compiler.process(clause, **options) for clause in element.clauses)
    match compiler.dialect.name:
        case "sqlite":  # where the length of a text would end at a NUL
            return f"length(CAST({value} AS BLOB)) > {LARGEST_OWN_VALUE}"
        case "postgresql":
            stored = f"pg_column_size({value}) > {_SMALLEST_COMPRESSED}"
            return f"({stored} AND octet_length(CAST({value} AS TEXT)) > {LARGEST_OWN_VALUE})"
        case _:
            return f"octet_length({value}) > {LARGEST_OWN_VALUE}"


def is_too_large(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Whether a value is too large for a plan. It is not fetched to find out."""
    return _IsTooLarge(column)


def native_columns(columns: Iterable[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    """Every column as text, cut to the length that the detail view shows."""
    return [first_characters(sa.cast(column, sa.Text)).label(f"native_{n}") for n, column in enumerate(columns)]


def native_values(names: Iterable[str], values: Iterable[Any]) -> tuple[tuple[str, str | None], ...]:
    """The names and texts of the native columns, as `Detail` shows them."""
    return tuple((name, None if raw is None else text(raw)) for name, raw in zip(names, values, strict=True))
