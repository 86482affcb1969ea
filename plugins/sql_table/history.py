"""Past attempts, from a table of attempts or from an array in the row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from console.core.item import Attempt, ItemKey
from console.sql.database import Binds, BoundStatement
from console.sql.keys import is_key
from console.sql.times import Aware, IsoText, TimeStyle, zone_named
from console.sql.values import text, whole_number
from plugins.sql_table.layout import MappedLayout
from plugins.sql_table.mapping import History
from plugins.sql_table.resolved import ResolvedMapping
from plugins.sql_table.stored_times import kind_of
from plugins.sql_table.tables import find_table

_MOST = 200


def past_attempts(resolved: ResolvedMapping, layout: MappedLayout, key: ItemKey, now: datetime) -> tuple[Attempt, ...]:
    """All recorded attempts, the latest last; empty if the mapping has no history."""
    history = resolved.mapping.history
    if history is None:
        return ()
    if history.column is not None:
        return tuple(_in_array(resolved, layout, history, key, now))
    return tuple(_in_table(resolved, layout, history, key, now))


def require_history(resolved: ResolvedMapping) -> None:
    """Raise WrongSchema unless the history's table and columns exist."""
    history = resolved.mapping.history
    if history is None:
        return
    if history.column is not None:
        resolved.column(history.column, "history", "column")
        return
    assert history.table is not None
    table = find_table(resolved.database, history.schema_ or resolved.mapping.schema_, history.table)
    if table is None:
        raise resolved.fault(f"there is no table {history.table!r}", "history", "table")
    wanted = {"at": history.at, "outcome": history.outcome, "error": history.error, "number": history.number}
    named = [*((key, name) for key, name in wanted.items() if name), *(("match", name) for name in history.match)]
    for key, name in named:
        if name not in table.columns:
            fix = f"It has {', '.join(table.columns)}."
            raise resolved.fault(f"table {table.full_name!r} has no column {name!r}", "history", key, fix=fix)
    for ours in history.match.values():
        resolved.column(ours, "history", "match")


def _key_is(resolved: ResolvedMapping, layout: MappedLayout, key: ItemKey, binds: Binds) -> Any:
    return is_key(layout.roles, key.parts, binds, resolved.sqlite)


def _read(resolved: ResolvedMapping, select: Any, binds: Binds, now: datetime) -> list[tuple[Any, ...]]:
    return resolved.database.read(BoundStatement(select, binds), now)


def _in_array(
    resolved: ResolvedMapping, layout: MappedLayout, history: History, key: ItemKey, now: datetime
) -> Iterator[Attempt]:
    binds = Binds()
    column = resolved.column(history.column or "", "history", "column")
    stored: Any = column.expression
    if column.type.endswith("[]"):
        stored = sa.func.array_to_json(stored)
    select = sa.select(sa.cast(stored, sa.Text)).select_from(resolved.source)
    rows = _read(resolved, select.where(_key_is(resolved, layout, key, binds)), binds, now)
    try:
        found = json.loads(rows[0][0]) if rows and rows[0][0] else []
    except (ValueError, TypeError, RecursionError):
        return
    decode = IsoText(zone_named(resolved.mapping.time_zone)).decode
    for entry in found[-_MOST:] if isinstance(found, list) else []:
        if isinstance(entry, dict):
            yield Attempt(
                whole_number(entry.get(history.number)) if history.number in entry else None,
                decode(entry.get(history.at)),
                text(entry.get(history.outcome)) if history.outcome else "failed",
                text(entry.get(history.error)) if history.error in entry else None,
            )


def _in_table(
    resolved: ResolvedMapping, layout: MappedLayout, history: History, key: ItemKey, now: datetime
) -> Iterator[Attempt]:
    assert history.table is not None
    table = find_table(resolved.database, history.schema_ or resolved.mapping.schema_, history.table)
    if table is None:
        return
    binds = Binds()
    past = sa.table(table.name, *(sa.column(name) for name in table.columns), schema=table.schema).alias("past")
    names = (history.at, history.outcome, history.error, history.number)
    listed: list[Any] = [sa.null() if name is None else past.c[name] for name in names]
    if history.error is not None:
        listed[2] = sa.cast(past.c[history.error], sa.Text)
    if history.outcome is not None:
        listed[1] = sa.cast(past.c[history.outcome], sa.Text)
    matched = sa.and_(*(past.c[theirs] == resolved.column(ours).expression for theirs, ours in history.match.items()))
    select = (
        sa.select(*(column.label(f"h{n}") for n, column in enumerate(listed)))
        .select_from(resolved.source.join(past, matched))
        .where(_key_is(resolved, layout, key, binds))
        .order_by(past.c[history.at])
        .limit(sa.literal_column(str(_MOST)))
    )
    style = _style(resolved, table.columns[history.at].type)
    for at, outcome, error, number in _read(resolved, select, binds, now):
        result = text(outcome) if outcome is not None else "failed" if error else "ran"
        message = None if error is None else text(error)
        yield Attempt(None if number is None else whole_number(number), style.decode(at), result, message)


def _style(resolved: ResolvedMapping, type: str) -> TimeStyle:
    zone = zone_named(resolved.mapping.time_zone)
    try:
        return kind_of(type, resolved.mapping.times, zone, sqlite=resolved.sqlite).style
    except ValueError:
        return Aware()
