"""Guesses what the columns and native statuses of a table mean, each with a reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from console.sql.sqlite import SqliteDatabase
from plugins.sql_table.mapping_types import ConditionKey
from plugins.sql_table.tables import Column, Table, quoted

if TYPE_CHECKING:
    from plugins.sql_table.tables import AnyDatabase

NAMES: Mapping[str, tuple[str, ...]] = {
    "status": ("status", "state", "job_status", "task_status", "job_state", "phase", "stage"),
    "attempts": (
        "attempts", "attempt", "tries", "try_count", "retries", "retry_count", "attempt_count", "num_attempts",
        "retry_number", "error_count", "failure_count", "failures",
    ),
    "max_attempts": (
        "max_attempts", "max_retries", "max_tries", "attempt_limit", "retry_limit", "attempts_limit", "max_attempt",
    ),
    "next_run": (
        "next_run_at", "next_attempt_at", "next_retry_at", "next_try_at", "retry_at", "run_at", "scheduled_at",
        "scheduled_for", "available_at", "visible_at", "not_before", "due_at", "run_after", "start_after", "eta",
        "next_run", "due",
    ),
    "error": (
        "last_error", "error", "error_message", "error_text", "exception", "last_exception", "failure_reason",
        "failure", "err", "reason", "last_failure", "error_details",
    ),
    "created": ("created_at", "inserted_at", "enqueued_at", "queued_at", "created_on", "created", "ctime", "added_at"),
    "updated": (
        "updated_at", "modified_at", "changed_at", "last_modified", "updated_on", "updated", "modified", "mtime",
    ),
    "since": ("started_at", "locked_at", "claimed_at", "picked_at", "began_at", "attempted_at", "last_attempt_at"),
    "type": (
        "type", "kind", "job_type", "task_type", "event_type", "job_class", "class_name", "task_name", "job_name",
        "worker", "task", "handler", "action", "topic", "name",
    ),
    "references": ("queue", "queue_name", "channel"),
    "failed": ("failed_at", "dead_at", "discarded_at", "gave_up_at", "expired_at"),
    "done": ("finished_at", "completed_at", "processed_at", "succeeded_at", "done_at", "sent_at", "done", "processed"),
}
"""Usual column names for each key of the mapping, the likeliest first."""

WORDS: tuple[tuple[ConditionKey, str], ...] = (
    ("retrying", r"retry|retrying|retryable|waiting_for_retry|backoff"),
    ("terminal", r"dead|discarded|exhausted|gave_up|poison(ed)?|buried|expired|permanent(ly)?_failed"),
    ("failed", r"fail(ed|ure)?|error(ed)?|err|rejected|bounced|crashed"),
    ("running", r"running|processing|in_progress|working|active|doing|started|executing|locked|claimed|sending|busy"),
    ("done", r"done|success(ful)?|succeeded|completed?|finished|ok|sent|processed|delivered|resolved"),
    ("cancelled", r"cancel+ed|aborted|revoked|dropped|skipped|ignored"),
    ("ready", r"pending|queued|new|waiting|ready|available|created|todo|enqueued|scheduled"),
)
_TIMES = ("next_run", "created", "updated", "since")
_NUMBERS = re.compile("INT|NUM|REAL|DOUBLE|SERIAL", re.I)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LARGEST_SECONDS = 100_000_000_000
_MOST_VALUES = 30
_RECORDS = re.compile(r"(^|_)(results?|sent|logs?|history|archived?|audit|outcomes?|completed)$")
_DEFAULT = re.compile(r"'([^']*)'(?:::.*)?|\(?(-?\d+)\)?(?:::.*)?")


@dataclass(frozen=True, slots=True)
class ColumnGuess:
    """The column that probably has a meaning, and the reason."""

    column: str
    reason: str


@dataclass(slots=True)
class TableGuess:
    """All guesses about one table."""

    table: Table
    parts: dict[str, ColumnGuess] = field(default_factory=dict)
    statuses: dict[Any, ConditionKey] = field(default_factory=dict)
    """Native value → its meaning, by its name."""
    unknown: dict[Any, str] = field(default_factory=dict)
    """Native value without a known name → what its rows show."""
    new_status: tuple[Any, str] | None = None
    """The status of new rows, which a requeue writes, and how it is known."""
    times: str | None = None
    ignored: list[str] = field(default_factory=list)
    """Columns with a fitting name that cannot be used, and why."""

    @property
    def score(self) -> int:
        """How likely the table is a queue."""
        worth = {"status": 3, "attempts": 3, "next_run": 2, "error": 2, "failed": 2, "max_attempts": 1, "since": 1}
        return sum(worth.get(part, 0) for part in self.parts) - (4 if self.is_no_queue else 0)

    @property
    def is_no_queue(self) -> str:
        """Why nothing in this table waits to be run; empty if something may."""
        if _RECORDS.search(plain(self.table.name)):
            return "by its name, this table records what was done"
        if self.statuses and not self.unknown and not {"ready", "retrying", "running"} & {*self.statuses.values()}:
            return "no status means that something waits to be run; this looks like a table of results"
        return ""


def guess_columns(database: AnyDatabase, table: Table) -> TableGuess:
    """Guess from names, types and a few rows."""
    found = TableGuess(table)
    taken: set[str] = set()
    for part, names in NAMES.items():
        if chosen := _by_name(table, part, names, taken):
            found.parts[part] = chosen
            taken.add(chosen.column)
    _times(database, found)
    if status := found.parts.get("status"):
        _statuses(database, found, status.column)
        found.new_status = _new_status(database, found, status.column)
    return found


def plain(name: str) -> str:
    """A name in lower case with its words joined by underscores, for comparison."""
    return re.sub(r"[^a-z0-9]+", "_", _CAMEL.sub("_", name).lower()).strip("_")


def _by_name(table: Table, part: str, names: Sequence[str], taken: set[str]) -> ColumnGuess | None:
    known = {plain(column): column for column in table.columns if column not in taken}
    for name in names:
        if name in known and _may_be(part, table.columns[known[name]]):
            return ColumnGuess(known[name], "by its name")
    for column in known:
        ends = next((name for name in names[:4] if column.endswith(f"_{name}")), None)
        if ends and _may_be(part, table.columns[known[column]]):
            return ColumnGuess(known[column], f"its name ends in {ends}")
    return None


def _may_be(part: str, column: Column) -> bool:
    type = column.type.lower()
    if part in ("attempts", "max_attempts"):
        return "int" in type or type in ("", "numeric", "number")
    if part in (*_TIMES, "failed"):
        return "bool" not in type and "json" not in type
    if part in ("error", "type"):
        return "bool" not in type and "timestamp" not in type
    return True


# --- times --------------------------------------------------------------------------------------------------


def _times(database: AnyDatabase, found: TableGuess) -> None:
    """Determine how the table stores times; ignore columns that store them differently."""
    named = [part for part in _TIMES if part in found.parts]
    kinds = {part: _time_kind(database, found.table, found.parts[part].column) for part in named}
    usable = [kind for kind in kinds.values() if kind is not None]
    chosen = max(dict.fromkeys(usable), key=usable.count) if usable else None
    for part, kind in kinds.items():
        if kind != chosen:
            guessed = found.parts.pop(part)
            found.ignored.append(f"{part}: {guessed.column} has a fitting name but stores times differently")
    found.times = None if chosen == "timestamp" else chosen


def _time_kind(database: AnyDatabase, table: Table, column: str) -> str | None:
    type = table.columns[column].type
    if type.startswith("timestamp") and not isinstance(database, SqliteDatabase):
        return "timestamp"
    value = _first(database, table, column)
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return "epoch_ms" if value > _LARGEST_SECONDS else "epoch"
    if not isinstance(database, SqliteDatabase):
        return "epoch" if value is None and _NUMBERS.search(type) else None
    if value is None:
        return "epoch" if _NUMBERS.search(type) else "timestamp"
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d", value):
        return None
    return "datetime" if re.fullmatch(r"[\d-]+ [\d:]+", value) else "timestamp"


def _first(database: AnyDatabase, table: Table, column: str) -> Any:
    name = database.dialect.identifier_preparer.quote_identifier(column)
    rows = database.fetch(
        f"SELECT {name} FROM {quoted(database, table.schema, table.name)} WHERE {name} IS NOT NULL LIMIT 1",  # noqa: S608
        () if isinstance(database, SqliteDatabase) else {},
    )
    return rows[0][0] if rows else None


# --- statuses -----------------------------------------------------------------------------------------------


def _statuses(database: AnyDatabase, found: TableGuess, column: str) -> None:
    """Sort the native values by their names. What has no known name is not guessed at."""
    values = found.table.columns[column].labels or _distinct(database, found.table, column)
    for value in values:
        word = plain(value) if isinstance(value, str) else ""
        meant = next((part for part, pattern in WORDS if re.fullmatch(pattern, word)), None)
        if meant is not None:
            found.statuses[value] = meant
        elif isinstance(value, str | int):
            found.unknown[value] = _evidence(database, found, column, value)


def _distinct(database: AnyDatabase, table: Table, column: str) -> list[Any]:
    name = database.dialect.identifier_preparer.quote_identifier(column)
    rows = database.fetch(
        f"SELECT DISTINCT {name} FROM {quoted(database, table.schema, table.name)}"  # noqa: S608
        f" WHERE {name} IS NOT NULL ORDER BY {name} LIMIT {_MOST_VALUES}",
        () if isinstance(database, SqliteDatabase) else {},
    )
    return [value for (value,) in rows]


def _counted(database: AnyDatabase, found: TableGuess, column: str, value: Any, *counts: str) -> tuple[int, ...]:
    """The number of rows with this value, and more counts over them."""
    quote, sqlite = database.dialect.identifier_preparer.quote_identifier, isinstance(database, SqliteDatabase)
    listed = ", ".join(["count(*)", *counts])
    (row,) = database.fetch(
        f"SELECT {listed} FROM {quoted(database, found.table.schema, found.table.name)}"  # noqa: S608
        f" WHERE {quote(column)} = {'?' if sqlite else '%(value)s'}", (value,) if sqlite else {"value": value},
    )
    return row


def _evidence(database: AnyDatabase, found: TableGuess, column: str, value: Any) -> str:
    """What the other columns of its rows show, for the person who knows the meaning."""
    quote = database.dialect.identifier_preparer.quote_identifier
    signs = [found.parts[part].column for part in ("error", "failed", "done", "since") if part in found.parts]
    total, *counts = _counted(database, found, column, value, *(f"count({quote(name)})" for name in signs))
    shown = [f"{count} with {name}" for name, count in zip(signs, counts, strict=True) if count]
    return ", ".join([f"{total} rows", *shown])


def _new_status(database: AnyDatabase, found: TableGuess, column: str) -> tuple[Any, str] | None:
    """The status that its system gives to new rows, and how that is known; None if it is not known."""
    default = found.table.columns[column].default
    literal = _DEFAULT.fullmatch(default.strip()) if default else None
    ready = [value for value, meant in found.statuses.items() if meant == "ready"]
    if literal is not None:
        given = [value for value in ready if str(value) == (literal[1] or literal[2])]
        return (given[0], "the column's default") if given else None
    if attempts := found.parts.get("attempts"):
        counter = database.dialect.identifier_preparer.quote_identifier(attempts.column)
        none_yet = f"count(CASE WHEN {counter} = 0 THEN 1 END)"
        fresh = [value for value in ready if _counted(database, found, column, value, none_yet)[1]]
        if len(fresh) == 1:
            return fresh[0], "the status of rows without attempts"
    return None
