"""Where an error stands, as one text expression."""

from __future__ import annotations

from functools import reduce
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from console.sql.layout import Expression
from plugins.sql_table.attaching import Attached, Found
from plugins.sql_table.mapping import ErrorSource

_JSON = frozenset({"json", "jsonb"})
_TEXT = frozenset({"text", "character varying", "character"})
_TELLS_JSON = 160_000


def error_text(attached: Attached, source: ErrorSource | None) -> Expression:
    """The error as text; NULL where the mapping has none."""
    if source is None:
        return sa.cast(sa.null(), sa.Text)
    found = attached.found(source, "error")
    if attached.sqlite:
        return _in_sqlite(source, found.expression)
    return _in_postgres(attached, source, found)


def _in_sqlite(source: ErrorSource, column: Expression) -> Expression:
    if source.as_ == "text":
        return column
    if source.as_ == "jsonb_array":
        return sa.null()
    last = "[#-1]" if source.as_ == "json_array" else ""
    valid = sa.func.json_valid(column) == sa.literal_column("1")

    def part(path: str) -> Expression:
        return sa.cast(sa.func.json_extract(column, _literal(f"${last}{path}")), sa.Text)

    said = _said([part(f'."{name}"') for name in source.message])
    whole = part("") if last else column
    return sa.case((valid, sa.func.coalesce(*said, whole) if said else whole), else_=column)


def _in_postgres(attached: Attached, source: ErrorSource, found: Found) -> Expression:
    column, kind = found.expression, found.type
    if source.as_ == "text":
        return column if kind == "text" else sa.cast(column, sa.Text)
    if source.as_ == "jsonb_array":
        if kind != "jsonb[]":
            raise attached.wrong(f"is {kind}, not jsonb[]", "error")
        last: Any = sa.func.array_upper(column, sa.literal_column("1"))
        return _messages(sa.type_coerce(column, ARRAY(JSONB))[last], source)
    if kind in _TEXT:
        return _json_in_text(attached, source, column)
    if kind not in _JSON:
        raise attached.wrong(f"is {kind}, which holds no JSON", "error")
    return _messages(_last(sa.cast(column, JSONB), source), source)


def _last(value: Any, source: ErrorSource) -> Any:
    return value.op("->")(sa.literal_column("-1")) if source.as_ == "json_array" else value


def _messages(value: Any, source: ErrorSource, whole: Expression | None = None) -> Expression:
    fields = [value.op("->>")(_literal(name)) for name in source.message]
    everything = value.op("#>>")(sa.literal_column("'{}'")) if whole is None else whole
    return sa.func.coalesce(*_said(fields), everything, type_=sa.Text())


def _literal(text: str) -> Expression:
    doubled = text.replace("'", "''")
    return sa.literal_column(f"'{doubled}'")


def _json_in_text(attached: Attached, source: ErrorSource, column: Expression) -> Expression:
    """A broken row must not break the list: before PostgreSQL 16 nothing tells JSON apart without an error."""
    ((version,),) = attached.database.fetch("SELECT current_setting('server_version_num')::int", {})
    text = sa.cast(column, sa.Text)
    if version < _TELLS_JSON:
        return text
    valid: Any = sa.func.pg_input_is_valid(text, sa.literal_column("'jsonb'"))
    parsed: Any = sa.case((valid, sa.cast(text, JSONB)))
    return _messages(_last(parsed, source), source, text)


def _said(fields: list[Expression]) -> list[Expression]:
    """The fields joined by ": ", where they are there and say something."""
    told = [sa.func.nullif(field, sa.literal_column("''")) for field in fields]
    if not told:
        return []

    def joined(one: Any, other: Any) -> Any:
        both = sa.cast(one, sa.Text).concat(sa.literal_column("': '")).concat(sa.cast(other, sa.Text))
        return sa.func.coalesce(both, one, other)

    return [reduce(joined, told)]
