"""Native rows → facts → items, by what the mapping says a native status means.

| mapped as | condition |
|---|---|
| ready | waiting before the first attempt, retrying after it |
| waiting, retrying | as they say |
| running | running; stuck once `stuck_after` has passed since it began |
| failed | terminal when attempts are used up, the error is not recoverable or it is too old; else failed |
| terminal | terminal: its own system gave up on it |
| done, cancelled | as they say |
| anything else | unknown, shown as it is |
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from console.core.item import Item, ItemKey
from console.core.policy import Facts, Phase, RetryPolicy, judge
from console.sql.database import Row
from console.sql.times import Naive, TimeStyle
from console.sql.values import text, whole_number
from plugins.sql_table.vocabulary import Mapped

PHASES: Mapping[Mapped, Phase] = {
    "ready": Phase.READY, "waiting": Phase.READY, "retrying": Phase.READY, "running": Phase.RUNNING,
    "failed": Phase.FAILED, "terminal": Phase.FAILED, "done": Phase.DONE, "cancelled": Phase.CANCELLED,
}
_TIMES = ("next_run", "created", "updated", "since", "executed")


class Native(NamedTuple):
    """One row as the mapping reads it, after the columns of its key."""

    status: Any
    type: Any
    attempts: Any
    max_attempts: Any
    next_run: Any
    error: Any
    created: Any
    updated: Any
    since: Any
    executed: Any


WIDTH = len(Native._fields)


class MappedRows:
    """Reads the rows of one mapping."""

    def __init__(
        self, backend: str, keys: int, meanings: Mapping[Any, Mapped], policy: RetryPolicy, time: TimeStyle,
        *, null_is_never: bool,
    ) -> None:
        self._backend = backend
        self._keys = keys
        self._meanings = meanings
        self._policy = policy
        self._decode = time.decode
        self._ambiguous = time.ambiguous if isinstance(time, Naive) else lambda _: False
        self._null_is_never = null_is_never

    def native(self, row: Row) -> Native:
        return Native._make(row[self._keys : self._keys + WIDTH])

    def key(self, row: Row) -> ItemKey:
        return ItemKey(self._backend, tuple(map(text, row[: self._keys])))

    def meaning(self, status: Any) -> Mapped | None:
        try:
            return self._meanings.get(status)
        except TypeError:  # a list or an object that came out of an expression
            return None

    def facts(self, row: Native) -> Facts:
        meaning = self.meaning(row.status)
        phase = Phase.UNKNOWN if meaning is None else PHASES[meaning]
        attempts = whole_number(row.attempts)
        due = self._decode(row.next_run) if phase is Phase.READY else None
        return Facts(
            phase,
            text(row.status),
            _counted(meaning, attempts),
            max_attempts=None if row.max_attempts is None else whole_number(row.max_attempts),
            error=None if row.error is None else text(row.error),
            due_at=due,
            since=self._decode(row.since),
            born_at=self._decode(row.created),
            marker=f"its own system gave up on it: {text(row.status)}" if meaning == "terminal" else None,
            ignored=self._ignored(row, due) if phase is Phase.READY else None,
        )

    def _ignored(self, row: Native, due: datetime | None) -> str | None:
        if row.next_run is None:
            return "it has no time to run at" if self._null_is_never else None
        return "its time to run at is not a time" if due is None else None

    def read(self, row: Row, now: datetime) -> Item:
        native = self.native(row)
        facts = self.facts(native)
        limit = self._policy.max_attempts if facts.max_attempts is None else facts.max_attempts
        updated = self._decode(native.updated)
        executed = self._decode(native.executed)
        return Item(
            self.key(row),
            text(native.type),
            facts.native_status,
            whole_number(native.attempts),
            limit,
            judge(facts, self._policy, now),
            facts.error,
            facts.born_at,
            updated,
            now,
            None if facts.phase is Phase.RUNNING else executed,
            self._notes(native),
        )

    def _notes(self, row: Native) -> tuple[str, ...]:
        notes = []
        if row.attempts is not None and (type(row.attempts) is not int or row.attempts < 0):
            notes.append(f"attempts is {text(row.attempts)[:60]!r}, read as {whole_number(row.attempts)}")
        for name in _TIMES:
            raw = getattr(row, name)
            if raw is not None and self._decode(raw) is None:
                notes.append(f"{name} is not a time: {text(raw)[:60]!r}")
            elif self._ambiguous(raw):
                notes.append(f"{name} lies in the hour the clock repeats: it may be an hour later than shown")
        return tuple(notes)


def _counted(meaning: Mapped | None, attempts: int) -> int:
    """A status that says by itself whether there was an attempt beats the counter."""
    if meaning == "waiting":
        return 0
    return max(attempts, 1) if meaning == "retrying" else attempts
