"""A first mapping for a table nobody described, as YAML with the reason for every guess beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from console.sql.sqlite import SqliteDatabase
from plugins.sql_table.guessing import Guesses
from plugins.sql_table.vocabulary import PARTS, Mapped

if TYPE_CHECKING:
    from plugins.sql_table.tables import AnyDatabase

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_SIMPLE = ("type", "attempts", "max_attempts", "next_run", "created", "updated", "since")
_MESSAGES = ("message", "msg", "error", "reason", "detail")
_TIMES = {
    "epoch": "the times are seconds since 1970", "epoch_ms": "the times are milliseconds since 1970",
    "datetime": "the times are text as SQLite's datetime() writes it",
}
_COMMENT = 46


def scalar(value: Any) -> str:
    """A value as YAML, which may be a name out of somebody's database."""
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else json.dumps(value, ensure_ascii=True)
    return json.dumps(value)


def sketch(database: AnyDatabase, found: Guesses) -> str:
    """The mapping as text."""
    lines = [*_table(found), *_status(found), *_parts(database, found), *_requeue(found)]
    lines += [_line("", reason) for reason in found.left_out]
    return "\n".join(lines) + "\n"


def _line(text: str, reason: str = "") -> str:
    if not reason:
        return text
    shown = reason if reason.isprintable() else repr(reason)[1:-1]
    return f"{text:<{_COMMENT}}  # {shown}" if text else f"# {shown}"


def _table(found: Guesses) -> Iterator[str]:
    table = found.table
    if table.schema is not None:
        yield _line(f"schema: {scalar(table.schema)}")
    yield _line(f"table: {scalar(table.name)}")
    if not table.unique:
        yield _line(f"key: {scalar(next(iter(table.columns)))}", "no unique index: this cannot be right, name the key")
        return
    fewest = min(table.unique, key=lambda columns: (len(list(columns)), sorted(columns)))
    key = sorted(fewest, key=list(table.columns).index)
    written = scalar(key[0]) if len(key) == 1 else f"[{', '.join(map(scalar, key))}]"
    yield _line(f"key: {written}", "unique in this database")


# --- status -------------------------------------------------------------------------------------------------


def _status(found: Guesses) -> Iterator[str]:
    status = found.parts.get("status")
    if status is None or not found.statuses:
        yield from _cases(found)
        return
    yield "status:"
    yield _line(f"  column: {scalar(status.column)}", status.reason)
    for part in PARTS:
        values = [(value, why) for value, (meant, why) in found.statuses.items() if meant == part]
        if values:
            reasons = "; ".join(dict.fromkeys(why for _, why in values))
            yield _line(f"  {part}: [{', '.join(scalar(value) for value, _ in values)}]", reasons)
    labels = found.table.columns[status.column].labels or ()
    if strange := [label for label in labels if label not in found.statuses]:
        yield _line("", f"not mapped, so shown as unknown: {', '.join(map(json.dumps, strange))}")


def _cases(found: Guesses) -> Iterator[str]:
    """No column holds a status: it is told by which times and texts are there."""
    told = {part: found.parts[part].column for part in ("failed", "done", "error", "since") if part in found.parts}
    yield _line("status:", "no status column: told by what is there, the first that holds")
    yield "  cases:"
    if name := told.get("failed"):
        yield _case("terminal", "terminal", f"job.{_sql(name)} IS NOT NULL")
    if name := told.get("done"):
        yield _case("done", "done", _is_there(found, name))
    if name := told.get("since"):
        yield _case("running", "running", f"job.{_sql(name)} IS NOT NULL")
    if (name := told.get("error")) and "failed" not in told:
        yield _case("failed", "failed", f"job.{_sql(name)} IS NOT NULL")
    yield _case("queued", "ready", "1 = 1")


def _case(name: str, condition: Mapped, when: str) -> str:
    return f"    - {{name: {name}, condition: {condition}, when: {json.dumps(when)}}}"


def _is_there(found: Guesses, name: str) -> str:
    boolean = "bool" in found.table.columns[name].type.lower()
    return f"job.{_sql(name)}" if boolean else f"job.{_sql(name)} IS NOT NULL"


def _sql(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


# --- the other parts ----------------------------------------------------------------------------------------


def _parts(database: AnyDatabase, found: Guesses) -> Iterator[str]:
    for part in _SIMPLE:
        if guess := found.parts.get(part):
            yield _line(f"{part}: {scalar(guess.column)}", guess.reason)
    if guess := found.parts.get("references"):
        yield _line(f"references: [{scalar(guess.column)}]", guess.reason)
    if guess := found.parts.get("error"):
        yield _line(*_error(database, found, guess.column, guess.reason))
    if found.times is not None:
        yield _line(f"times: {found.times}", _TIMES[found.times])
    if "since" in found.parts:
        yield _line("stuck_after: 1h", "a guess: how long may one run?")
    for part in ("attempts", "error", "next_run"):
        if part not in found.parts:
            yield _line("", f"{part}: no column looks like it")


def _error(database: AnyDatabase, found: Guesses, column: str, reason: str) -> tuple[str, str]:
    type = found.table.columns[column].type
    if type == "jsonb[]":
        return f"error: {{column: {scalar(column)}, as: jsonb_array, message: [error]}}", f"{reason}; an array of JSON"
    if type not in ("json", "jsonb"):
        return f"error: {scalar(column)}", reason
    assert not isinstance(database, SqliteDatabase)
    quote = database.dialect.identifier_preparer.quote_identifier
    name = f'{quote(found.table.schema)}.{quote(found.table.name)}' if found.table.schema else quote(found.table.name)
    rows = database.fetch(
        f"SELECT {quote(column)}::jsonb FROM {name} WHERE {quote(column)} IS NOT NULL LIMIT 1", {}  # noqa: S608
    )
    keys = rows[0][0] if rows and isinstance(rows[0][0], dict) else {}
    message = next((key for key in _MESSAGES if key in keys), "message")
    return f"error: {{column: {scalar(column)}, as: json, message: [{message}]}}", f"{reason}; it holds JSON"


# --- requeue ------------------------------------------------------------------------------------------------


def _requeue(found: Guesses) -> Iterator[str]:
    """What a requeue would write, where that can be guessed at all."""
    ready = [value for value, (meant, _) in found.statuses.items() if meant == "ready"]
    status, failed = found.parts.get("status"), found.parts.get("failed")
    sets: dict[str, str] = {}
    if status is not None and found.statuses:
        if not ready:
            yield _line("", "requeue: none proposed, because no status looks like ready")
            return
        sets[status.column] = scalar(ready[0])
    elif failed is not None:
        sets[failed.column] = "null"
    else:
        yield _line("", "requeue: none proposed: say what its own system does to run one again")
        return
    yield _line("requeue:", "read this twice: it is what Retriage writes")
    attempts, updated = found.parts.get("attempts"), found.parts.get("updated")
    guard = [guess.column for guess in (status, failed, attempts, updated) if guess is not None]
    yield f"  guard: [{', '.join(map(scalar, guard))}]"
    if "next_run" in found.parts:
        sets[found.parts["next_run"].column] = "{time: due}"
    if "updated" in found.parts:
        sets[found.parts["updated"].column] = "{time: now}"
    if "since" in found.parts and status is None:
        sets[found.parts["since"].column] = "null"
    yield "  set:"
    yield from (f"    {scalar(column)}: {value}" for column, value in sets.items())
    yield "  budgets:"
    yield _line("    keep: {effect: last_try}", "is the counter kept, and one more try allowed?")
    if attempts is not None:
        yield f"    fresh: {{effect: reset, set: {{{scalar(attempts.column)}: 0}}}}"
