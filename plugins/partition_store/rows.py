"""Partition rows, with what the control table says of them → facts → items.

| native status | condition |
|---|---|
| no row, within the configured range | waiting: implicitly pending |
| pending, attempt_count 0 or NULL | waiting |
| pending, attempt_count > 0 | retrying: handed back, not picked up yet |
| failed, marked terminal here or by `[terminal]` in the error | terminal, unless that was overruled here |
| failed, attempt_count >= max_attempts | terminal |
| failed, logical_date as old as max_age | terminal |
| failed, error not recoverable by the policy | terminal |
| failed otherwise | failed: nothing retries it by itself |
| success | done, also while a reprocessing is requested |
| anything else | unknown, shown as it is |

A paused partition keeps its condition; it says that it is paused and will not run.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from console.core.backend import Image
from console.core.item import Item, ItemKey
from console.core.policy import Facts, Phase, RetryPolicy, judge
from console.core.text import ascii_lower, neutralise
from console.sql.database import Row
from console.sql.times import Aware, IsoText
from console.sql.values import storable, text, whole_number
from plugins.partition_store.sink import Partition

PHASES = {"pending": Phase.READY, "failed": Phase.FAILED, "success": Phase.DONE}
TEXT_MARKER = "[terminal]"
MARKED, OVERRULED, BY_TEXT = "marked", "overruled", "text"

IMAGE = (
    "status",
    "attempt_count",
    "updated_at",
    "current_run_id",
    "terminal",
    "paused",
    "next_run_at",
    "request",
)
"""Of the row: what guards a write. Of the control table: what the actions assign. After these comes a note of who
set the marks, when and why: nothing is compared with it, an undo writes it back."""
STATE_PART = 4
SIGNED = ("terminal", "paused", "request")
SIGNS = tuple(f"{mark}_{what}" for mark in SIGNED for what in ("by", "at", "why"))


def stored(value: Any) -> Any:
    """A stored value as an image keeps it: times as text in UTC, whatever zone the session is in."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    return value.isoformat() if isinstance(value, date) else value


class Native(NamedTuple):
    """One row as read: the state, then the control table's columns, then whether there is a row at all."""

    source: Any
    customer_id: Any
    query_name: Any
    logical_date: Any
    status: Any
    attempt_count: Any
    error: Any
    updated_at: Any
    current_run_id: Any
    terminal: Any
    terminal_by: Any
    terminal_at: Any
    terminal_why: Any
    paused: Any
    paused_by: Any
    paused_at: Any
    paused_why: Any
    next_run_at: Any
    request: Any
    request_by: Any
    request_at: Any
    request_why: Any
    request_error: Any
    explicit: Any

    @property
    def partition(self) -> Partition:
        return Partition(*(text(part) for part in self[:4]))

    @property
    def marked_by_text(self) -> bool:
        return isinstance(self.error, str) and TEXT_MARKER in ascii_lower(self.error)

    @property
    def image(self) -> Image | None:
        """None where a value is something a plan cannot keep."""
        marker = self.terminal or (BY_TEXT if self.marked_by_text else None)
        image = (
            self.status,
            self.attempt_count,
            stored(self.updated_at),
            self.current_run_id,
            marker,
            self.paused,
            stored(self.next_run_at),
            self.request,
        )
        signs = [stored(getattr(self, name)) for name in SIGNS]
        return (*image, signs if any(signs) else None) if storable((*image, *signs)) else None


class PartitionRows:
    """Rows of `partition_state`."""

    def __init__(self, backend: str, policy: RetryPolicy, time: IsoText | Aware) -> None:
        self._backend = backend
        self._policy = policy
        self._decode = time.decode

    def facts(self, row: Native) -> Facts:
        phase = PHASES.get(row.status, Phase.UNKNOWN) if row.explicit else Phase.READY
        return Facts(
            phase,
            text(row.status),
            whole_number(row.attempt_count),
            error=text(row.error) or None,
            due_at=self._decode(row.next_run_at) if phase is Phase.READY else None,
            born_at=_midnight(row.logical_date),
            marker=_marker(row),
            ignored=f"paused by {neutralise(text(row.paused_by), 40)}: {neutralise(text(row.paused_why), 100)}"
            if row.paused
            else None,
        )

    def read(self, row: Row, now: datetime) -> Item:
        native = Native(*row)
        facts = self.facts(native)
        updated = self._decode(native.updated_at)
        return Item(
            ItemKey(self._backend, native.partition),
            text(native.query_name),
            facts.native_status,
            facts.attempts,
            self._policy.max_attempts,
            judge(facts, self._policy, now),
            facts.error,
            facts.born_at,
            updated,
            now,
            updated if facts.attempts else None,
            tuple(self._notes(native, updated)),
        )

    def _notes(self, row: Native, updated: datetime | None) -> list[str]:
        notes = []
        if why := row.partition.invalid:
            notes.append(f"invalid: {why}; no path is ever made of it")
        if not row.explicit:
            notes.append("no row: implicitly pending within the configured range")
        if row.updated_at is not None and updated is None:
            notes.append(f"updated_at is not a time: {text(row.updated_at)[:60]!r}")
        if row.attempt_count is not None and (type(row.attempt_count) is not int or row.attempt_count < 0):
            notes.append(f"attempt_count is {row.attempt_count!r}, read as {whole_number(row.attempt_count)}"[:120])
        if row.paused and PHASES.get(row.status) is not Phase.READY:
            notes.append("paused")
        if row.request == "reprocess":
            notes.append("a reprocessing is requested and not picked up yet")
        if row.request_error:
            notes.append(f"its last reprocessing failed: {neutralise(text(row.request_error), 120)}")
        return notes


def _midnight(day: Any) -> datetime | None:
    """When a day begins in UTC; None for what is no day. SQLite holds days as text, perhaps with a time."""
    if isinstance(day, date):
        return datetime(day.year, day.month, day.day, tzinfo=UTC)
    return _DAYS.decode(day)


_DAYS = IsoText()


def _marker(row: Native) -> str | None:
    if row.terminal == MARKED:
        who, why = neutralise(text(row.terminal_by), 40), neutralise(text(row.terminal_why), 100)
        return f"marked terminal by {who}: {why}"
    if row.terminal != OVERRULED and row.marked_by_text:
        return f"marked terminal: its error says {TEXT_MARKER}"
    return None
