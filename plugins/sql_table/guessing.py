"""Which column probably plays which part, and why; which native status probably means what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from console.sql.sqlite import SqliteDatabase
from plugins.sql_table.tables import Column, Table, quoted
from plugins.sql_table.vocabulary import Mapped

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
"""What columns that play a part are usually called, the likeliest first."""

WORDS: tuple[tuple[Mapped, str], ...] = (
    ("retrying", r"retry|retrying|retryable|waiting_for_retry|backoff"),
    ("terminal", r"dead|discarded|exhausted|gave_up|poison(ed)?|buried|expired|permanent(ly)?_failed"),
    ("failed", r"fail(ed|ure)?|error(ed)?|err|rejected|bounced|crashed"),
    ("running", r"running|processing|in_progress|working|active|doing|started|executing|locked|claimed|sending|busy"),
    ("done", r"done|success(ful)?|succeeded|completed?|finished|ok|sent|processed|delivered|resolved"),
    ("cancelled", r"cancel+ed|aborted|revoked|dropped|skipped|ignored"),
    ("ready", r"pending|queued|new|waiting|ready|available|created|todo|enqueued|scheduled|open|idle|init(ial)?"),
)
_TIMES = ("next_run", "created", "updated", "since")
_NUMBERS = re.compile("INT|NUM|REAL|DOUBLE|SERIAL", re.I)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LARGEST_SECONDS = 100_000_000_000
_MOST_VALUES = 30


@dataclass(frozen=True, slots=True)
class Guess:
    """A part, the column that is thought to play it, and the reason."""

    column: str
    reason: str


@dataclass(slots=True)
class Guesses:
    """Everything that is thought of one table."""

    table: Table
    parts: dict[str, Guess] = field(default_factory=dict)
    statuses: dict[Any, tuple[Mapped, str]] = field(default_factory=dict)
    """Native value → what it probably means, and why."""
    times: str | None = None
    left_out: list[str] = field(default_factory=list)

    @property
    def score(self) -> int:
        """How much the table looks like a queue."""
        worth = {"status": 3, "attempts": 3, "next_run": 2, "error": 2, "failed": 2, "max_attempts": 1, "since": 1}
        return sum(worth.get(part, 0) for part in self.parts)


def guess(database: AnyDatabase, table: Table) -> Guesses:
    """Look at names, types and a few rows."""
    found = Guesses(table)
    taken: set[str] = set()
    for part, names in NAMES.items():
        if chosen := _by_name(table, part, names, taken):
            found.parts[part] = chosen
            taken.add(chosen.column)
    _times(database, found)
    if status := found.parts.get("status"):
        found.statuses = dict(_statuses(database, found, status.column))
    return found


def plain(name: str) -> str:
    """A name as it is compared: in lower case, its words joined by underscores."""
    return re.sub(r"[^a-z0-9]+", "_", _CAMEL.sub("_", name).lower()).strip("_")


def _by_name(table: Table, part: str, names: Sequence[str], taken: set[str]) -> Guess | None:
    known = {plain(column): column for column in table.columns if column not in taken}
    for name in names:
        if name in known and _may_be(part, table.columns[known[name]]):
            return Guess(known[name], "by its name")
    for column in known:
        ends = next((name for name in names[:4] if column.endswith(f"_{name}")), None)
        if ends and _may_be(part, table.columns[known[column]]):
            return Guess(known[column], f"its name ends in {ends}")
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


def _times(database: AnyDatabase, found: Guesses) -> None:
    """How times are stored; columns that store them otherwise are left out."""
    named = [part for part in _TIMES if part in found.parts]
    kinds = {part: _time_kind(database, found.table, found.parts[part].column) for part in named}
    usable = [kind for kind in kinds.values() if kind is not None]
    chosen = max(dict.fromkeys(usable), key=usable.count) if usable else None
    for part, kind in kinds.items():
        if kind != chosen:
            guessed = found.parts.pop(part)
            found.left_out.append(f"{part}: {guessed.column} is named so, but holds no time like the others")
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


def _statuses(database: AnyDatabase, found: Guesses, column: str) -> Iterator[tuple[Any, tuple[Mapped, str]]]:
    labels = found.table.columns[column].labels
    values: list[Any] = list(labels) if labels else _distinct(database, found.table, column)
    for value in values:
        word = plain(value) if isinstance(value, str) else ""
        meant = next((part for part, pattern in WORDS if re.fullmatch(pattern, word)), None)
        if meant is not None:
            yield value, (meant, "by the word")
        elif isinstance(value, str | int) and not labels:
            yield value, _by_rows(database, found, column, value)


def _distinct(database: AnyDatabase, table: Table, column: str) -> list[Any]:
    name = database.dialect.identifier_preparer.quote_identifier(column)
    rows = database.fetch(
        f"SELECT DISTINCT {name} FROM {quoted(database, table.schema, table.name)}"  # noqa: S608
        f" WHERE {name} IS NOT NULL ORDER BY {name} LIMIT {_MOST_VALUES}",
        () if isinstance(database, SqliteDatabase) else {},
    )
    return [value for (value,) in rows]


def _by_rows(database: AnyDatabase, found: Guesses, column: str, value: Any) -> tuple[Mapped, str]:
    """What a status nobody would guess by its word goes with."""
    quote = database.dialect.identifier_preparer.quote_identifier
    sqlite = isinstance(database, SqliteDatabase)
    told = [(part, found.parts[part].column) for part in ("error", "failed", "done", "since") if part in found.parts]
    counted = "".join(f", count({quote(name)})" for _, name in told)
    rows = database.fetch(
        f"SELECT count(*){counted} FROM {quoted(database, found.table.schema, found.table.name)}"  # noqa: S608
        f" WHERE {quote(column)} = {'?' if sqlite else '%(value)s'}", (value,) if sqlite else {"value": value},
    )
    total, *counts = rows[0]
    meanings: Mapping[str, Mapped] = {"error": "failed", "failed": "failed", "done": "done", "since": "running"}
    for (part, name), count in zip(told, counts, strict=True):
        if total and count * 2 > total:
            return meanings[part], f"most of its rows have {name!r}"
    return "ready", "nothing says that it was run"
