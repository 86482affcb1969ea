"""The expression that reads an item's error as text."""

from __future__ import annotations

import json
import re
from functools import reduce
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from console.sql.layout import Expression
from plugins.sql_table.mapping import ErrorSource
from plugins.sql_table.resolved import ResolvedColumn, ResolvedMapping

_JSON = frozenset({"json", "jsonb"})
_TEXT = frozenset({"text", "character varying", "character"})
_HAS_INPUT_CHECK = 160_000
"""PostgreSQL 16, the first version with pg_input_is_valid()."""


def error_text(resolved: ResolvedMapping, source: ErrorSource | None) -> Expression:
    """The error as text; NULL if the mapping has none."""
    if source is None:
        return sa.cast(sa.null(), sa.Text)
    found = resolved.lookup(source, "error")
    if resolved.sqlite:
        return _in_sqlite(source, found.expression)
    return _in_mysql(source, found) if resolved.mysql else _in_postgres(resolved, source, found)


def _in_mysql(source: ErrorSource, found: ResolvedColumn) -> Expression:
    column = sa.cast(found.expression, sa.Text)
    if source.as_ == "text":
        return column
    stored: Any = found.expression
    valid = sa.func.json_valid(stored) == sa.literal_column("1")
    if source.as_ == "json_array":
        last = sa.func.concat(_literal("$["), sa.func.json_length(stored) - sa.literal_column("1"), _literal("]"))
        stored = sa.func.json_extract(stored, last)

    def part(name: str) -> Expression:
        value = sa.func.json_extract(stored, _literal(f'$."{name}"'))
        return sa.func.nullif(sa.cast(sa.func.json_unquote(value), sa.Text), _literal("null"))

    message = _joined([part(name) for name in source.message])
    whole = sa.cast(sa.func.json_unquote(stored), sa.Text) if source.as_ == "json_array" else column
    return sa.case((valid, sa.func.coalesce(*message, whole) if message else whole), else_=column)


def _in_sqlite(source: ErrorSource, column: Expression) -> Expression:
    if source.as_ == "text":
        return column
    last = "[#-1]" if source.as_ == "json_array" else ""
    valid = sa.func.json_valid(column) == sa.literal_column("1")

    def part(path: str) -> Expression:
        return sa.cast(sa.func.json_extract(column, _literal(f"${last}{path}")), sa.Text)

    message = _joined([part(f'."{name}"') for name in source.message])
    whole = part("") if last else column
    return sa.case((valid, sa.func.coalesce(*message, whole) if message else whole), else_=column)


def _in_postgres(resolved: ResolvedMapping, source: ErrorSource, found: ResolvedColumn) -> Expression:
    column, kind = found.expression, found.type
    if source.as_ == "text":
        return column if kind == "text" else sa.cast(column, sa.Text)
    if source.as_ == "json_array" and kind == "jsonb[]":
        last: Any = sa.func.array_upper(column, sa.literal_column("1"))
        return _messages(sa.type_coerce(column, ARRAY(JSONB))[last], source)
    if kind in _TEXT:
        return _json_in_text(resolved, source, column)
    if kind not in _JSON:
        raise resolved.fault(f"is {kind}, not JSON", "error")
    return _messages(_last(sa.cast(column, JSONB), source), source)


def _last(value: Any, source: ErrorSource) -> Any:
    return value.op("->")(sa.literal_column("-1")) if source.as_ == "json_array" else value


def _messages(value: Any, source: ErrorSource, whole: Expression | None = None) -> Expression:
    fields = [value.op("->>")(_literal(name)) for name in source.message]
    everything = value.op("#>>")(sa.literal_column("'{}'")) if whole is None else whole
    return sa.func.coalesce(*_joined(fields), everything, type_=sa.Text())


def _literal(text: str) -> Expression:
    doubled = text.replace("'", "''")
    return sa.literal_column(f"'{doubled}'")


def _json_in_text(resolved: ResolvedMapping, source: ErrorSource, column: Expression) -> Expression:
    """Parse valid JSON only: one broken row must not break the list. PostgreSQL can check that since version 16."""
    ((version,),) = resolved.database.fetch("SELECT current_setting('server_version_num')::int", {})
    text = sa.cast(column, sa.Text)
    if version < _HAS_INPUT_CHECK:
        return fields_by_pattern(text, source)
    valid: Any = sa.func.pg_input_is_valid(text, sa.literal_column("'jsonb'"))
    parsed: Any = sa.case((valid, sa.cast(text, JSONB)))
    return _messages(_last(parsed, source), source, text)


def fields_by_pattern(text: Any, source: ErrorSource) -> Expression:
    """The message of a JSON object in a text column, found by patterns that no text breaks. An array stays as it is."""
    if source.as_ != "json" or not source.message:
        return cast("Expression", text)
    fields = []
    for name in source.message:
        key = json.dumps(name, ensure_ascii=False)
        escaped = re.sub(r"([^\w\s])", r"\\\1", key)
        found: Any = sa.func.substring(text, _literal(rf'{escaped}\s*:\s*"((?:[^"\\]|\\.)*)"'))
        for shown, meant in (('\\"', '"'), ("\\n", "\n"), ("\\t", "\t"), ("\\/", "/"), ("\\\\", "\\")):
            found = sa.func.replace(found, _literal(shown), _literal(meant))
        fields.append(found)
    return sa.func.coalesce(*_joined(fields), text, type_=sa.Text())


def _joined(fields: list[Expression]) -> list[Expression]:
    """The non-empty fields, joined by ": "."""
    present = [sa.func.nullif(field, sa.literal_column("''")) for field in fields]
    if not present:
        return []

    def joined(one: Any, other: Any) -> Any:
        both = sa.cast(one, sa.Text).concat(sa.literal_column("': '")).concat(sa.cast(other, sa.Text))
        return sa.func.coalesce(both, one, other)

    return [reduce(joined, present)]
