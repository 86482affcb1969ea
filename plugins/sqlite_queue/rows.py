"""Native rows of both dialects → facts → items. Whatever a row holds, an item comes out and says what is odd.

| native status | condition |
|---|---|
| PENDING, attempts 0 | waiting, even with an old error (after a fresh requeue) |
| PENDING, attempts > 0 | retrying at `next_run_at` / `eta` |
| RUNNING | running; stuck when `updated_at` is older than the limit |
| FAILED | terminal when attempts are used up, the error is not recoverable or it is too old; else failed |
| DONE, SUCCESS | done |
| CANCELLED | cancelled (dialect `tasks`) |
| anything else | unknown, shown as it is |
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from console.core.item import Item, ItemKey
from console.core.policy import Facts, Phase, RetryPolicy, judge
from console.sql.database import Row
from console.sql.times import IsoText
from plugins._contract_queue import PHASES as CONTRACT_PHASES
from plugins._contract_queue import evidence

PHASES = {"PENDING": Phase.READY, "RUNNING": Phase.RUNNING, "DONE": Phase.DONE, "FAILED": Phase.FAILED}

LONGEST_TIMEOUT = 10**10
_LEADING_INTEGER = re.compile(r"[ \t-\r]*([+-]?[0-9]+)")
_LARGEST = 2**63 - 1


def whole_number(raw: Any) -> int:
    """What SQLite's CAST AS INTEGER makes of a value, below zero read as zero."""
    if isinstance(raw, int):
        return max(raw, 0)
    if isinstance(raw, float):
        return _LARGEST if raw >= _LARGEST else int(max(raw, 0.0)) if raw == raw else 0
    if isinstance(raw, bytes):
        raw = raw.decode("utf-8", "replace")
    if isinstance(raw, str) and (found := _LEADING_INTEGER.match(raw)):
        return min(max(int(found[1][:400]), 0), _LARGEST)
    return 0


def text(raw: Any) -> str:
    """Any stored value as text."""
    if isinstance(raw, str):
        return raw
    if raw is None:
        return ""
    return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else str(raw)


class AsyncTaskRows:
    """Rows of `async_tasks`."""

    width = 8

    def __init__(self, backend: str, policy: RetryPolicy, time: IsoText) -> None:
        self._backend = backend
        self._policy = policy
        self._decode = time.decode

    def facts(self, row: Row) -> Facts:
        _id, _type, status, attempts, next_run_at, error, created_at, updated_at = row
        phase = PHASES.get(status, Phase.UNKNOWN)
        due = self._decode(next_run_at) if phase is Phase.READY else None
        return Facts(
            phase,
            text(status),
            whole_number(attempts),
            error=None if error is None else text(error),
            due_at=due,
            since=self._decode(updated_at) if phase is Phase.RUNNING else None,
            born_at=self._decode(created_at),
            reclaimed=True,
            ignored="next_run_at is not a time" if due is None and phase is Phase.READY else None,
        )

    def timeless(self, row: Row) -> Row | None:
        """What the verdict on a failed task depends on; None where it also depends on the clock."""
        return (row[3], row[5]) if row[2] == "FAILED" else None

    def image_of(self, row: Row, updated_at: Any) -> Row:
        """status, attempts, next_run_at, updated_at."""
        return (row[2], row[3], row[4], updated_at)

    def read(self, row: Row, now: datetime) -> Item:
        facts = self.facts(row)
        id, type, _status, attempts, next_run_at, _error, created_at, updated_at = row
        updated = self._decode(updated_at)
        return Item(
            ItemKey(self._backend, (text(id),)),
            text(type),
            facts.native_status,
            facts.attempts,
            self._policy.max_attempts,
            judge(facts, self._policy, now),
            facts.error,
            facts.born_at,
            updated,
            now,
            updated if facts.attempts else None,
            _odd(
                attempts,
                ("next_run_at", next_run_at, facts.due_at or self._decode(next_run_at)),
                ("created_at", created_at, facts.born_at),
                ("updated_at", updated_at, updated),
            ),
        )


class ContractTaskRows:
    """Rows of `tasks` joined with `results`."""

    width = 12

    def __init__(self, backend: str, policy: RetryPolicy, time: IsoText) -> None:
        self._backend = backend
        self._policy = policy
        self._decode = time.decode

    def facts(self, row: Row) -> Facts:
        (
            _id,
            _func,
            status,
            attempts,
            max_retries,
            eta,
            timeout,
            error,
            own_error,
            created_at,
            updated_at,
            _last,
        ) = row
        phase = CONTRACT_PHASES.get(status, Phase.UNKNOWN)
        due = self._decode(eta) if phase is Phase.READY else None
        lost = phase is Phase.READY and eta is not None and due is None
        return Facts(
            phase,
            text(status),
            whole_number(attempts),
            max_attempts=None if max_retries is None else whole_number(max_retries),
            error=evidence(None if error is None else text(error), None if own_error is None else text(own_error)),
            due_at=due,
            since=self._decode(updated_at) if phase is Phase.RUNNING else None,
            time_limit=timedelta(seconds=min(whole_number(timeout), LONGEST_TIMEOUT))
            if phase is Phase.RUNNING and timeout is not None
            else None,
            born_at=self._decode(created_at),
            ignored="eta is not a time" if lost else None,
        )

    def timeless(self, row: Row) -> Row | None:
        """What the verdict on a failed task depends on; None where it also depends on the clock."""
        return (row[3], row[4], row[7], row[8]) if row[2] == "FAILED" else None

    def image_of(self, row: Row, schedule: Any) -> Row:
        """status, attempts, eta, schedule, updated_at."""
        return (row[2], row[3], row[5], schedule, row[10])

    def read(self, row: Row, now: datetime) -> Item:
        facts = self.facts(row)
        id, func, _status, attempts, _limit, eta, _time, _error, _own, created_at, updated_at, last = row
        updated, executed = self._decode(updated_at), self._decode(last)
        limit = self._policy.max_attempts if facts.max_attempts is None else facts.max_attempts
        return Item(
            ItemKey(self._backend, (text(id),)),
            text(func),
            facts.native_status,
            facts.attempts,
            limit,
            judge(facts, self._policy, now),
            facts.error,
            facts.born_at,
            updated,
            now,
            executed,
            _odd(
                attempts,
                ("eta", eta, facts.due_at or self._decode(eta)),
                ("created_at", created_at, facts.born_at),
                ("updated_at", updated_at, updated),
                ("last_attempt_at", last, executed),
            ),
        )


def _odd(attempts: Any, *times: tuple[str, Any, datetime | None]) -> tuple[str, ...]:
    notes = [
        f"{name} is not a time: {text(raw)[:60]!r}"
        for name, raw, at in times
        if at is None and raw is not None
    ]
    if type(attempts) is not int or attempts < 0:
        shown = "NULL" if attempts is None else repr(attempts)[:60]
        notes.append(f"attempts is {shown}, read as {whole_number(attempts)}")
    return tuple(notes)
