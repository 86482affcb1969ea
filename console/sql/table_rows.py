"""Rows of a declared queue table → facts → items. Whatever a row holds, an item comes out and names what is odd."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from console.core.item import Attempt, Condition, Item, ItemKey, Verdict
from console.core.policy import Facts, Phase, RetryPolicy, judge
from console.core.prediction import Prediction
from console.sql.conditions import LONGEST_TIME_LIMIT
from console.sql.database import Row
from console.sql.layout import Expression
from console.sql.table import Column, Meaning, QueueTable, StoredRow, phase_of
from console.sql.times import Naive, TimeStyle
from console.sql.values import cut_text, cut_value, excerpt_of, text, whole_number

_REMEMBERED = 1_000
"""How many different failures are remembered with their verdicts: most rows fail like many others."""

_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_TIMES = ("due", "created", "updated", "since", "executed", "expires")


WIDTH = len(StoredRow._fields)


def row_columns(table: QueueTable, *, sqlite: bool) -> tuple[Expression, ...]:
    """What to select for a `StoredRow`: the key's columns and then one column for each other field.

    Long texts are cut. In SQLite every column can hold one.
    """

    def read(column: Column | None) -> Expression:
        return sa.null() if column is None else cut_value(expression(column)) if sqlite else expression(column)

    expression = table.expression
    stored = StoredRow(
        type=cut_text(expression(table.type), sqlite=sqlite),
        status=read(table.status),
        attempts=read(table.attempts),
        max_attempts=read(table.max_attempts),
        due=read(table.due),
        time_limit=read(table.time_limit),
        error=excerpt_of(expression(table.error)),
        created=read(table.created),
        updated=read(table.updated),
        since=read(table.since),
        executed=read(table.executed),
        recorded=read(table.recorded),
        stuck=table.or_null(table.stuck),
        held=table.or_null(table.held),
        expires=read(table.expires),
    )
    return (*(table.expression(key) for key in table.keys), *stored[1:])


class TableRows:
    """Makes items from rows, by one declaration and policy."""

    def __init__(self, backend: str, table: QueueTable, policy: RetryPolicy, time: TimeStyle) -> None:
        self._backend = backend
        self._table = table
        self._policy = policy
        self._decode = time.decode
        self._some_due = time.encode(_ANY_TIME)
        self._ambiguous = time.ambiguous if isinstance(time, Naive) else None
        self._key_columns = len(table.keys)
        self._times = [(role, StoredRow._fields.index(role)) for role in _TIMES if getattr(table, role) is not None]
        self._judge_failed = lru_cache(maxsize=_REMEMBERED, typed=True)(self._judge_alike)
        clocked = policy.max_age is not None or policy.retries_failed
        failed = (status for status, meaning in table.statuses.items() if phase_of(meaning) is Phase.FAILED)
        self._timeless = frozenset(() if clocked else failed)
        aged = () if policy.max_age is None else ("created",)
        optional = ("max_attempts", "due", "time_limit", "updated", "since", *aged)
        declared = [name for name in optional if getattr(table, name) is not None]
        if table.predict is not None:
            declared.append("type")
        self.judged_columns = ("key", "status", "attempts", "error", *declared)
        """The columns that a verdict depends on, and the key."""

    def stored(self, row: Row) -> StoredRow:
        """A row that was selected by `row_columns`, by name. Further columns are ignored."""
        count = self._key_columns
        if count == 1:
            return StoredRow._make(row[:WIDTH])
        return StoredRow._make((tuple(row[:count]), *row[count : count + WIDTH - 1]))

    def facts(self, row: StoredRow) -> Facts:
        meaning = self.meaning(row.status)
        phase = phase_of(meaning)
        due, ignored = self.schedule(row) if phase is Phase.READY else (None, None)
        running = phase is Phase.RUNNING
        if running:
            ignored = self.once_ready(row).why or None
        return Facts(
            phase,
            text(row.status),
            _counted(meaning, whole_number(row.attempts)),
            max_attempts=None if row.max_attempts is None else whole_number(row.max_attempts),
            error=None if row.error is None else text(row.error),
            due_at=due,
            since=self._decode(row.updated if self._table.since is None else row.since) if running else None,
            time_limit=self._time_limit(row.time_limit) if running else None,
            stuck_note=self._table.stuck_note(row) if running and self._table.stuck_note else None,
            born_at=self._decode(row.created),
            marker=f"its system gave up on it: {text(row.status)}" if meaning is Condition.TERMINAL else None,
            stuck=text(row.stuck) if running and row.stuck is not None else None,
            reclaimed=self._table.reclaims,
            ignored=ignored,
        )

    def once_ready(self, row: StoredRow) -> Prediction:
        """What its system would do with a row that is made ready."""
        if self._table.predict is None:
            return Prediction(True)
        return self._table.predict(row._replace(due=self._some_due))

    def _time_limit(self, raw: Any) -> timedelta | None:
        if raw is None:
            return None
        own = timedelta(seconds=min(whole_number(raw), LONGEST_TIME_LIMIT))
        return own + (self._policy.stuck_after or timedelta(0)) if self._table.has_grace else own

    def meaning(self, status: Any) -> Meaning:
        try:
            return self._table.statuses.get(status, Phase.UNKNOWN)
        except TypeError:  # a list or an object, which an expression can return
            return Phase.UNKNOWN

    def schedule(self, row: StoredRow) -> tuple[datetime | None, str | None]:
        """When its system takes a ready row, and why it does not."""
        if self._table.predict is not None:
            predicted = self._table.predict(row)
            return predicted.at.earliest if predicted.at else None, predicted.why or None
        due = self._decode(row.due)
        if due is not None or self._table.due is None or (row.due is None and not self._table.needs_due):
            return due, None
        return due, f"{_name(self._table.due, 'its due time')} is {'NULL' if row.due is None else 'not a time'}"

    def is_timeless(self, status: Any) -> bool:
        """Whether a verdict depends on no clock: the row has failed, and neither an age nor a backoff counts.

        It then depends on nothing but status, attempts, max_attempts and error.
        """
        try:
            return status in self._timeless
        except TypeError:  # a list or an object, which an expression can return
            return False

    def judged(self, row: StoredRow, now: datetime) -> tuple[Facts, Verdict]:
        """The verdict, and the facts that it depends on."""
        if self.is_timeless(row.status):
            return self._judge_failed(row.status, row.attempts, row.max_attempts, row.error)
        facts = self.facts(row)
        return facts, judge(facts, self._policy, now)

    def _judge_alike(self, status: Any, attempts: Any, max_attempts: Any, error: Any) -> tuple[Facts, Verdict]:
        facts = self.facts(StoredRow(status=status, attempts=attempts, max_attempts=max_attempts, error=error))
        return facts, judge(facts, self._policy, _ANY_TIME)

    def key(self, row: StoredRow) -> ItemKey:
        if self._key_columns == 1:
            return ItemKey(self._backend, (text(row.key),))
        return ItemKey(self._backend, tuple(map(text, row.key)))

    def read(self, row: Row, now: datetime) -> Item:
        stored = self.stored(row)
        return self.item(stored, *self.judged(stored, now), now)

    def item(self, stored: StoredRow, facts: Facts, verdict: Verdict, now: datetime) -> Item:
        times = {role: self._decode(stored[index]) for role, index in self._times}
        limit = self._policy.max_attempts if facts.max_attempts is None else facts.max_attempts
        attempts = whole_number(stored.attempts)
        return Item(
            self.key(stored), text(stored.type), facts.native_status, attempts, limit, verdict, facts.error,
            times.get("created"), times.get("updated"), now, self._executed(facts, times),
            self._notes(stored, times, attempts), times.get("expires"),
        )

    def _executed(self, facts: Facts, times: dict[str, datetime | None]) -> datetime | None:
        """When the item was last executed."""
        if self._table.executed is not None:
            return times["executed"]
        return times.get("updated") if facts.attempts else None

    def _notes(self, row: StoredRow, times: dict[str, datetime | None], attempts: int) -> tuple[str, ...]:
        """What is odd about a row: values in time columns that are no times, a counter that is no number."""
        notes: list[str] = []
        for role, index in self._times:
            raw = row[index]
            if times[role] is None and raw is not None:
                notes.append(f"{self._name(role)} is not a time: {text(raw)[:60]!r}")
            elif self._ambiguous is not None and self._ambiguous(raw):
                repeated = "is in the hour that the clock repeats; it may be one hour later than shown"
                notes.append(f"{self._name(role)} {repeated}")
        if type(row.attempts) is not int or row.attempts < 0:
            shown = "NULL" if row.attempts is None else repr(row.attempts)[:60]
            notes.append(f"{self._name('attempts')} is {shown}, read as {attempts}")
        if row.error and type(row.recorded) is int and 0 < row.recorded < attempts:
            notes.append(f"the error is of attempt {row.recorded}")
        return tuple(notes)

    def _name(self, role: str) -> str:
        return _name(getattr(self._table, role), role)


def _name(column: Column | None, role: str) -> str:
    """A column's name; for an expression, what it means."""
    return column if isinstance(column, str) else role


def _counted(meaning: Meaning, attempts: int) -> int:
    """The attempts that count: a status that means waiting or retrying overrides the counter."""
    if meaning is Condition.WAITING:
        return 0
    return max(attempts, 1) if meaning is Condition.RETRYING else attempts


def last_attempts(
    item: Item, error: str | None, finished: datetime | None, recorded: Any = None
) -> tuple[Attempt, ...]:
    """The attempts that one row keeps: the last one, and before it the one that the error belongs to.

    `recorded` is the number of the latter; a system that does not store it records every attempt.
    """
    number = recorded if type(recorded) is int and recorded > 0 else item.attempts
    if number <= 0:
        return ()
    began = item.executed_at
    if number != item.attempts:
        found = [Attempt(number, finished, "failed" if error else "done", error)]
        if item.attempts > number:
            found.append(Attempt(item.attempts, began, item.native_status.lower()))
        return tuple(found)
    took = finished - began if began and finished and finished >= began else None
    outcome = "failed" if error else item.native_status.lower()
    return (Attempt(item.attempts, began or finished, outcome, error, took),)
