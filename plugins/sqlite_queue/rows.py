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

from datetime import datetime
from typing import Any

from console.core.item import Item, ItemKey, Verdict
from console.core.policy import Facts, Phase, RetryPolicy, judge
from console.sql.database import Row
from console.sql.times import IsoText
from console.sql.values import text, whole_number
from plugins import _contract_queue as contract

PHASES = {"PENDING": Phase.READY, "RUNNING": Phase.RUNNING, "DONE": Phase.DONE, "FAILED": Phase.FAILED}

_ALIKE = 1_000

_Judged = tuple[str, int, Verdict, str | None]
"""Native status, attempts, verdict, error: all of an item that a failed task shares with those that fail alike."""


class AsyncTaskRows:
    """Rows of `async_tasks`."""

    width = 8
    born, unjudged = 6, (1,)
    """The column an age is counted from, and those no verdict is made of."""
    alike = (2, 3, 5)
    """What the verdict on a failed task depends on, its status first."""
    image = (2, 3, 4, 7)
    """status, attempts, next_run_at, updated_at."""

    def __init__(self, backend: str, policy: RetryPolicy, time: IsoText) -> None:
        self._backend = backend
        self._policy = policy
        self._decode = time.decode
        self._given_up: dict[tuple[Any, Any], _Judged] = {}

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

    def read(self, row: Row, now: datetime) -> Item:
        id, type, status, attempts, next_run_at, error, created_at, updated_at = row
        decode = self._decode
        created, updated, due = decode(created_at), decode(updated_at), decode(next_run_at)
        told = self._given_up.get((attempts, error)) if status == "FAILED" else None
        native_status, tried, verdict, shown = told or self._judged(row, now)
        notes: tuple[str, ...] = ()
        if tried is not attempts or created is None or updated is None or due is None:
            notes = contract.odd(
                attempts, ("next_run_at", next_run_at, due), ("created_at", created_at, created),
                ("updated_at", updated_at, updated),
            )
        return Item(
            ItemKey(self._backend, (text(id),)), text(type), native_status, tried, self._policy.max_attempts, verdict,
            shown, created, updated, now, updated if tried else None, notes,
        )

    def _judged(self, row: Row, now: datetime) -> _Judged:
        """A task that has failed is judged without a clock unless there is a `max_age`, and most fail alike."""
        facts = self.facts(row)
        judged = facts.native_status, facts.attempts, judge(facts, self._policy, now), facts.error
        if facts.phase is Phase.FAILED and self._policy.max_age is None:
            if len(self._given_up) >= _ALIKE:
                self._given_up.clear()
            self._given_up[row[3], row[5]] = judged
        return judged


class ContractTaskRows(contract.ContractTaskRows):
    """Rows of `tasks` joined with `results`."""

    born, unjudged = 9, (1, 11)
    alike = (2, 3, 4, 7, 8)
    image = (2, 3, 5, contract.ContractTaskRows.width, 10)
    """status, attempts, eta, schedule (which is read beside the row), updated_at."""

    def __init__(self, backend: str, policy: RetryPolicy, time: IsoText) -> None:
        super().__init__(backend, policy, time.decode)
