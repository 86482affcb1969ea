"""The attempts a system keeps: in a table beside its jobs, or in an array in the row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from console.core.item import Attempt, ItemKey
from console.sql.statement import Binds, Prepared
from console.sql.times import Aware, IsoText, TimeStyle, zone_named
from console.sql.values import text, whole_number
from console.sql.where import is_key
from plugins.sql_table.attaching import Attached
from plugins.sql_table.mapping import History
from plugins.sql_table.reading import Reading
from plugins.sql_table.stored_times import kind_of
from plugins.sql_table.tables import look_at

_MOST = 200


def past_attempts(attached: Attached, reading: Reading, key: ItemKey, now: datetime) -> tuple[Attempt, ...]:
    """Every attempt that is kept, the latest last; nothing where the mapping names no history."""
    history = attached.mapping.history
    if history is None:
        return ()
    if history.column is not None:
        return tuple(_in_array(attached, reading, history, key, now))
    return tuple(_in_table(attached, reading, history, key, now))


def require_history(attached: Attached) -> None:
    """The history's table and columns exist."""
    history = attached.mapping.history
    if history is None:
        return
    if history.column is not None:
        attached.column(history.column, "history", "column")
        return
    assert history.table is not None
    table = look_at(attached.database, history.schema_ or attached.mapping.schema_, history.table)
    if table is None:
        raise attached.wrong(f"there is no table {history.table!r}", "history", "table")
    wanted = {"at": history.at, "outcome": history.outcome, "error": history.error, "number": history.number}
    named = [*((key, name) for key, name in wanted.items() if name), *(("match", name) for name in history.match)]
    for key, name in named:
        if name not in table.columns:
            fix = f"It has {', '.join(table.columns)}."
            raise attached.wrong(f"table {table.shown!r} has no column {name!r}", "history", key, fix=fix)
    for ours in history.match.values():
        attached.column(ours, "history", "match")


def _key_is(attached: Attached, reading: Reading, key: ItemKey, binds: Binds) -> Any:
    return is_key(reading.roles, key.parts, binds, attached.sqlite)


def _read(attached: Attached, select: Any, binds: Binds, now: datetime) -> list[tuple[Any, ...]]:
    return attached.database.read(Prepared(select, binds, attached.database.dialect), now)


def _in_array(
    attached: Attached, reading: Reading, history: History, key: ItemKey, now: datetime
) -> Iterator[Attempt]:
    binds = Binds()
    column = attached.column(history.column or "", "history", "column")
    stored: Any = column.expression
    if column.type.endswith("[]"):
        stored = sa.func.array_to_json(stored)
    select = sa.select(sa.cast(stored, sa.Text)).select_from(attached.source)
    rows = _read(attached, select.where(_key_is(attached, reading, key, binds)), binds, now)
    try:
        found = json.loads(rows[0][0]) if rows and rows[0][0] else []
    except (ValueError, TypeError, RecursionError):
        return
    decode = IsoText(zone_named(attached.mapping.time_zone)).decode
    for entry in found[-_MOST:] if isinstance(found, list) else []:
        if isinstance(entry, dict):
            yield Attempt(
                whole_number(entry.get(history.number)) if history.number in entry else None,
                decode(entry.get(history.at)),
                text(entry.get(history.outcome)) if history.outcome else "failed",
                text(entry.get(history.error)) if history.error in entry else None,
            )


def _in_table(
    attached: Attached, reading: Reading, history: History, key: ItemKey, now: datetime
) -> Iterator[Attempt]:
    assert history.table is not None
    table = look_at(attached.database, history.schema_ or attached.mapping.schema_, history.table)
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
    matched = sa.and_(*(past.c[theirs] == attached.column(ours).expression for theirs, ours in history.match.items()))
    select = (
        sa.select(*(column.label(f"h{n}") for n, column in enumerate(listed)))
        .select_from(attached.source.join(past, matched))
        .where(_key_is(attached, reading, key, binds))
        .order_by(past.c[history.at])
        .limit(sa.literal_column(str(_MOST)))
    )
    style = _style(attached, table.columns[history.at].type)
    for at, outcome, error, number in _read(attached, select, binds, now):
        told = text(outcome) if outcome is not None else "failed" if error else "ran"
        said = None if error is None else text(error)
        yield Attempt(None if number is None else whole_number(number), style.decode(at), told, said)


def _style(attached: Attached, type: str) -> TimeStyle:
    zone = zone_named(attached.mapping.time_zone)
    try:
        return kind_of(type, attached.mapping.times, zone, sqlite=attached.sqlite).style
    except ValueError:
        return Aware()
