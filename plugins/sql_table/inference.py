"""Guesses what the columns and native statuses of a table mean, each with a reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from console.core.text import plural
from console.sql.sqlite import SqliteDatabase
from plugins.sql_table.mapping_types import ConditionKey
from plugins.sql_table.tables import Column, Table, quoted

if TYPE_CHECKING:
    from console.sql.open_database import AnyDatabase

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
_OTHER_THING = re.compile(
    r"(allowed|desired|first|initial|last|left|limit|max|maximum|min|old|prev|previous|remaining|target)_"
)
"""Words before a usual name that give it another meaning: `last_failed_at` says nothing about an item's end."""
_COUNTS_DOWN = re.compile(r"(left|remaining)_(attempts|retries|tries)|(attempts?|retr(ies|y)|tries)_(left|remaining)")
_DEFAULT = re.compile(r"'([^']*)'(?:::.*)?|\(?(-?\d+)\)?(?:::.*)?")
_IS_TIME = re.compile(r"(.*_)?(at|on|date|time|timestamp)")
_GIVEN_UP = re.compile(r"(?:is_|was_)?(cancel+ed|deleted|archived|revoked|aborted|removed|withdrawn)(?:_at|_on)?")
_CLAIM = re.compile(
    r"(lock(ed)?|claim(ed)?|reserved|leased?|picked)(_(by|at|until|token|id|owner|expires_at))?|(worker|owner)(_id)?"
)
_FLAG = re.compile(
    r"(is|has|was|should|can)_\w+|(done|processed|failed|dead|locked|paused|held|active|enabled|disabled)"
)


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
    counts_down: str = ""
    """What says that a column holds the attempts that are left, instead of those that were made."""
    times: str | None = None
    given_up: dict[str, str] = field(default_factory=dict)
    """Column → what it means for a row: it was cancelled, deleted or the like, and must never run again."""
    unknown_flags: list[str] = field(default_factory=list)
    """Columns that say yes or no to something that is not known."""
    ignored: list[str] = field(default_factory=list)
    """Columns with a fitting name that cannot be used, and why."""

    @property
    def claims(self) -> list[str]:
        """Columns that probably say which worker has taken a row."""
        return [name for name in self.table.columns if _CLAIM.fullmatch(plain(name))]

    @property
    def score(self) -> int:
        """How likely the table is a queue."""
        worth = {"status": 3, "attempts": 3, "next_run": 2, "error": 2, "failed": 2, "max_attempts": 1, "since": 1}
        return sum(worth.get(part, 0) for part in self.parts) - (4 if self.is_no_queue else 0)

    @property
    def knows_no_status(self) -> bool:
        """Whether there is a status column, and the meaning of none of its values is known."""
        return "status" in self.parts and bool(self.unknown) and not self.statuses

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
    _counter(found)
    _flags(found)
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
        other = part not in ("error", "type") and _OTHER_THING.match(column)
        if ends and not other and _may_be(part, table.columns[known[column]]):
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


def is_number(column: Column) -> bool:
    """Whether a column holds numbers, by its type."""
    return bool(_NUMBERS.search(column.type))


def _flags(found: TableGuess) -> None:
    """Note the columns that set rows aside, and those that could."""
    done = found.parts.get("done")
    if done is not None and not _says_when_set(found.table.columns[done.column], done.column):
        del found.parts["done"]
    used = {guess.column for guess in found.parts.values()}
    for name, column in found.table.columns.items():
        if name in used:
            continue
        word = _GIVEN_UP.fullmatch(plain(name))
        if word and _says_when_set(column, name):
            found.given_up[name] = word[1]
        elif word or "bool" in column.type.lower() or _FLAG.fullmatch(plain(name)):
            found.unknown_flags.append(name)


def _says_when_set(column: Column, name: str) -> bool:
    """Whether it is known which values mean yes: true, any number but 0, or any time."""
    if is_number(column) or _IS_TIME.fullmatch(plain(name)):
        return True
    return any(word in column.type.lower() for word in ("bool", "time", "date"))


# --- times --------------------------------------------------------------------------------------------------


def _times(database: AnyDatabase, found: TableGuess) -> None:
    """Determine how the table stores times; ignore columns that store them differently."""
    named = [part for part in _TIMES if part in found.parts]
    kinds = {part: _time_kind(database, found.table, found.parts[part].column) for part in named}
    usable = [kind for kind in kinds.values() if kind]
    chosen = max(dict.fromkeys(usable), key=usable.count) if usable else "timestamp" if "" in kinds.values() else None
    fitting = {chosen, ""} if chosen in ("timestamp", "datetime") else {chosen}
    for part, kind in kinds.items():
        if kind not in fitting:
            guessed = found.parts.pop(part)
            found.ignored.append(f"{part}: {guessed.column} has a fitting name but stores times differently")
    found.times = None if chosen == "timestamp" else chosen


def _time_kind(database: AnyDatabase, table: Table, column: str) -> str | None:
    """How a column stores times; empty if it has none yet, None if they are not known."""
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
        return "epoch" if _NUMBERS.search(type) else ""
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


def _counter(found: TableGuess) -> None:
    """Note a column that counts down. New rows do not start at 0 there, and 0 means that no attempt is left."""
    guessed = found.parts.get("attempts")
    if guessed is not None:
        default = _DEFAULT.fullmatch((found.table.columns[guessed.column].default or "").strip())
        first = default[2] or default[1] if default else "0"
        if first != "0":
            del found.parts["attempts"]
            found.counts_down = f"{guessed.column} of new rows is {first}, so it may count down"
    elif named := [column for column in found.table.columns if _COUNTS_DOWN.fullmatch(plain(column))]:
        found.counts_down = f"{named[0]} counts down"


# --- statuses -----------------------------------------------------------------------------------------------


def _statuses(database: AnyDatabase, found: TableGuess, column: str) -> None:
    """Sort the native values by their names. What has no known name is not guessed at."""
    values = found.table.columns[column].labels or _distinct(database, found.table, column)
    default = literal_default(found.table.columns[column])
    for value in (values if default is None or default in values else [*values, default]):
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
    return ", ".join([f"{total} {plural(total, 'row')}", *shown])


def literal_default(column: Column) -> str | int | None:
    """The default of a column, if it is a text or a whole number."""
    literal = _DEFAULT.fullmatch(column.default.strip()) if column.default else None
    if literal is None:
        return None
    given = literal[2] if literal[1] is None else literal[1]
    return int(given) if is_number(column) and re.fullmatch(r"-?\d+", given) else given


def _new_status(database: AnyDatabase, found: TableGuess, column: str) -> tuple[Any, str] | None:
    """The status that its system gives to new rows, and how that is known; None if it is not known."""
    default = literal_default(found.table.columns[column])
    ready = [value for value, meant in found.statuses.items() if meant == "ready"]
    if default is not None:
        return (default, "the column's default") if default in ready else None
    if attempts := found.parts.get("attempts"):
        counter = database.dialect.identifier_preparer.quote_identifier(attempts.column)
        none_yet = f"count(CASE WHEN {counter} = 0 THEN 1 END)"
        fresh = [value for value in ready if _counted(database, found, column, value, none_yet)[1]]
        if len(fresh) == 1:
            return fresh[0], "the status of rows without attempts"
    return None
