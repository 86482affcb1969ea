"""Writes a proposed mapping as YAML, with the reason for each guess as a comment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from console.sql.sqlite import SqliteDatabase
from plugins.sql_table.inference import TableGuess, is_number, literal_default
from plugins.sql_table.mapping_types import MEANINGS, ConditionKey

if TYPE_CHECKING:
    from console.sql.open_database import AnyDatabase

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
    """A value as YAML, quoted where necessary."""
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else json.dumps(value, ensure_ascii=True)
    return json.dumps(value)


def mapping_yaml(database: AnyDatabase, found: TableGuess) -> str:
    """The mapping as YAML text."""
    lines = [*_table(found), *_status(found), *_parts(database, found), *_requeue(found), *_discard(found)]
    lines += [_line("", reason) for reason in found.ignored]
    return "\n".join(lines) + "\n"


def comment(text: str) -> str:
    """A comment line. Whatever a name contains, it stays on its line."""
    return f"# {text if text.isprintable() else repr(text)[1:-1]}\n"


def _line(text: str, reason: str = "") -> str:
    if not reason:
        return text
    shown = comment(reason).rstrip("\n")
    return f"{text:<{_COMMENT}}  {shown}" if text else shown


def _table(found: TableGuess) -> Iterator[str]:
    table = found.table
    if table.schema is not None:
        yield _line(f"schema: {scalar(table.schema)}")
    yield _line(f"table: {scalar(table.name)}")
    if not table.unique:
        yield _line(f"key: {scalar(next(iter(table.columns)))}", "wrong: the table has no unique index; name its key")
        return
    fewest = min(table.unique, key=lambda columns: (len(list(columns)), sorted(columns)))
    key = sorted(fewest, key=list(table.columns).index)
    written = scalar(key[0]) if len(key) == 1 else f"[{', '.join(map(scalar, key))}]"
    yield _line(f"key: {written}", "unique in this database")


# --- status -------------------------------------------------------------------------------------------------


def _status(found: TableGuess) -> Iterator[str]:
    status = found.parts.get("status")
    if status is None or not (found.statuses or found.unknown):
        yield from _cases(found)
        return
    yield "status:"
    yield _line(f"  column: {scalar(status.column)}", status.reason)
    for part in MEANINGS:
        if values := [value for value, meant in found.statuses.items() if meant == part]:
            yield _line(f"  {part}: [{', '.join(map(scalar, values))}]", "by its name")
    if found.unknown:
        numbers = all(isinstance(value, int) for value in found.unknown)
        what = "numbers say nothing about their meaning" if numbers else "these words are not known"
        yield _line("", f"not mapped, shown as unknown: {what}. Map the values whose meaning you know:")
        yield from (_line("", f"  {scalar(value)}: {why}") for value, why in found.unknown.items())


def _cases(found: TableGuess) -> Iterator[str]:
    """Without a status column, the status follows from the columns that have a value."""
    columns = {part: found.parts[part].column for part in ("failed", "done", "error", "since") if part in found.parts}
    yield _line("status:", "no status column: the first case that is true decides")
    yield "  cases:" if columns or found.given_up or not found.unknown_flags else "  cases: []"
    for column, word in found.given_up.items():
        yield _case(word, "cancelled", _has_value(found, column))
    if name := columns.get("failed"):
        yield _case("terminal", "terminal", f"job.{_sql(name)} IS NOT NULL")
    if name := columns.get("done"):
        yield _case("done", "done", _has_value(found, name))
    if name := columns.get("since"):
        yield _case("running", "running", f"job.{_sql(name)} IS NOT NULL")
    if (name := columns.get("error")) and "failed" not in columns:
        yield _case("failed", "failed", f"job.{_sql(name)} IS NOT NULL")
    if found.unknown_flags:
        todo = "Add a case for each meaning you know"
        yield _line("", f"all others are shown as unknown; {_unknown_flags(found)}. {todo}")
    else:
        yield _case("queued", "ready", "1 = 1")


def _unknown_flags(found: TableGuess) -> str:
    return f"nothing is known about {', '.join(found.unknown_flags)}"


def _case(name: str, condition: ConditionKey, when: str) -> str:
    return f"    - {{name: {name}, condition: {condition}, when: {json.dumps(when)}}}"


def _has_value(found: TableGuess, name: str) -> str:
    """True for a flag that is set, a number that is not 0, or a time."""
    column = found.table.columns[name]
    if "bool" in column.type.lower():
        return f"job.{_sql(name)}"
    return f"job.{_sql(name)} <> 0" if is_number(column) else f"job.{_sql(name)} IS NOT NULL"


def _sql(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


# --- the other parts ----------------------------------------------------------------------------------------


def _parts(database: AnyDatabase, found: TableGuess) -> Iterator[str]:
    for part in _SIMPLE:
        if guess := found.parts.get(part):
            if part == "max_attempts" and "retr" in guess.column.lower():
                written = json.dumps(f"job.{_sql(guess.column)} + 1")
                yield _line(f"{part}: {{expression: {written}}}", "the first execution is no retry")
            else:
                yield _line(f"{part}: {scalar(guess.column)}", guess.reason)
    if guess := found.parts.get("references"):
        yield _line(f"references: [{scalar(guess.column)}]", guess.reason)
    if guess := found.parts.get("error"):
        yield _line(*_error(database, found, guess.column, guess.reason))
    if found.times is not None:
        yield _line(f"times: {found.times}", _TIMES[found.times])
    if "since" in found.parts:
        yield _line("stuck_after: 1h", "a guess: how long may one run take?")
    for part in ("attempts", "error", "next_run"):
        if part not in found.parts:
            yield _line("", f"{part}: no matching column found")


def _error(database: AnyDatabase, found: TableGuess, column: str, reason: str) -> tuple[str, str]:
    type = found.table.columns[column].type
    if type == "jsonb[]":
        return f"error: {{column: {scalar(column)}, as: json_array, message: [error]}}", f"{reason}; an array of JSON"
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
    return f"error: {{column: {scalar(column)}, as: json, message: [{message}]}}", f"{reason}; it contains JSON"


# --- requeue ------------------------------------------------------------------------------------------------


def _requeue(found: TableGuess) -> Iterator[str]:
    """What a requeue would write, if that is known; otherwise the choices, as comments."""
    if found.is_no_queue:
        yield _line("", f"requeue: no proposal; {found.is_no_queue}")
        return
    if found.counts_down:
        todo = "Add what its own system writes to run an item again"
        yield _line("", f"requeue: no proposal; {found.counts_down}. {todo}")
        return
    status, failed = found.parts.get("status"), found.parts.get("failed")
    sets: dict[str, str] = {}
    reason = ""
    if status is not None and (found.statuses or found.unknown):
        if found.new_status is None:
            yield from _open_requeue(found, status.column)
            return
        value, reason = found.new_status
        sets[status.column] = scalar(value)
    elif found.unknown_flags:
        todo = "Add what its own system writes to run an item again"
        yield _line("", f"requeue: no proposal; {_unknown_flags(found)}. {todo}")
        return
    elif failed is not None:
        sets[failed.column] = "null"
    else:
        yield _line("", "requeue: no proposal; add what its own system writes to run an item again")
        return
    yield _line("requeue:", "check this carefully: Retriage writes it")
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
    for n, (column, value) in enumerate(sets.items()):
        yield _line(f"    {scalar(column)}: {value}", "" if n else reason)
    for column in found.claims:
        if column not in sets:
            yield _line("", f"   {scalar(column)}: null  if its workers take only rows where it is empty")
    if status is not None and found.given_up:
        yield "  skip:"
        for name, word in found.given_up.items():
            yield f"    - {{when: {json.dumps(_has_value(found, name))}, why: {json.dumps(f'It was {word}.')}}}"
    yield "  attempts:"
    if attempts is None:
        yield _line("    keep: {effect: last_try}", "no column counts attempts")
        return
    yield f"    reset: {{effect: reset, set: {{{scalar(attempts.column)}: 0}}}}"
    yield _line("", "   keep: {effect: last_try}  only if its workers take an item that has no attempts left")


def _discard(found: TableGuess) -> Iterator[str]:
    """What a discard would write, if a status is known to mean cancelled and a requeue is proposed."""
    status = found.parts.get("status")
    if found.is_no_queue or found.counts_down or status is None or found.new_status is None:
        return
    cancelled = [value for value, meant in found.statuses.items() if meant == "cancelled"]
    if not cancelled:
        yield _line("", "discard: no proposal; no status is known to mean cancelled")
        return
    chosen = next((value for value in cancelled if "cancel" in str(value).lower()), cancelled[0])
    sets = {status.column: scalar(chosen)}
    if "updated" in found.parts:
        sets[found.parts["updated"].column] = "{time: now}"
    yield _line("discard:", "check this, too: its system must never run such an item again")
    yield f"  set: {{{', '.join(f'{scalar(column)}: {value}' for column, value in sets.items())}}}"


def _open_requeue(found: TableGuess, column: str) -> Iterator[str]:
    """The status of new rows is not known, and any other one could do harm."""
    ready = [value for value, meant in found.statuses.items() if meant == "ready"] or list(found.unknown)
    default = literal_default(found.table.columns[column])
    hint = "" if default is None else f" {scalar(default)} is the column's default."
    yield _line("", f"requeue: which status does its system give to new rows?{hint} Choose it and remove the # signs:")
    name, choices = scalar(column), " or ".join(map(scalar, ready)) or "…"
    effect = "attempts: {keep: {effect: last_try}}"
    yield _line("", f"requeue: {{guard: [{name}], set: {{{name}: {choices}}}, {effect}}}")
