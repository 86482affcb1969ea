"""The queues themselves: enqueue, claim, complete, fail, reclaim, and the loop a worker runs.

Every transition is one guarded UPDATE inside `BEGIN IMMEDIATE`, so a read that decides and the write that
follows cannot be separated by another process. The queue, not the worker, decides delays.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from console.core.backend import Throughput
from console.core.faults import BackendBusy
from console.core.handlers import as_json, as_text
from console.core.policy import RetryPolicy
from console.core.ports import Clock
from console.sql.database import Row, Writer
from console.sql.sqlite import SqliteDatabase
from console.sql.times import IsoText
from console.sql.values import whole_number
from plugins import _contract_queue as contract
from plugins._contract_queue import Claimed

T = TypeVar("T")

_PATIENCE = 60
"""How often a busy database is asked again before a worker gives up: minutes, not seconds."""


class _Queue:
    def __init__(self, database: SqliteDatabase, policy: RetryPolicy, clock: Clock) -> None:
        self._database = database
        self._policy = policy
        self._clock = clock
        self._time = IsoText()

    def _now(self, ahead: timedelta = timedelta(0)) -> str:
        return self._time.encode(self._clock.now() + ahead)

    def _transact(self, body: Callable[[Writer], T]) -> T:
        """A worker waits its turn: being locked out for a while is not an error."""
        for _ in range(_PATIENCE):
            try:
                with self._database.writing() as writer:
                    return body(writer)
            except BackendBusy:
                continue
        raise BackendBusy("other writers have held its lock for minutes", where=self._database.place)


class AsyncTaskQueue(_Queue):
    """The analysis queue over `async_tasks`."""

    def __init__(
        self,
        database: SqliteDatabase,
        policy: RetryPolicy,
        clock: Clock,
        types: Sequence[str] = ("ANALYZE_EXECUTED",),
        runs: Throughput | None = None,
    ) -> None:
        """Without `runs` the worker never pauses."""
        super().__init__(database, policy, clock)
        self._types = json.dumps(list(types))
        self._runs = runs
        self._found: list[str] = []
        self._next_run: datetime | None = None

    def enqueue(self, type: str, entity_id: str, *, delay: timedelta = timedelta(0)) -> str:
        id = str(uuid.uuid4())
        self._transact(
            lambda writer: writer.execute(
                "INSERT INTO async_tasks (task_id, task_type, entity_id, status, attempts, next_run_at,"
                " created_at, updated_at) VALUES (?, ?, ?, 'PENDING', 0, ?, ?, ?)",
                (id, type, entity_id, self._now(delay), self._now(), self._now()),
            )
        )
        return id

    def claim(self) -> Claimed | None:
        """The next task of this run. A run looks for due tasks once, the longest due first."""
        while True:
            if not self._found and not self._look():
                return None
            if (claimed := self._claim(self._found.pop(0))) is not None:
                return claimed

    def _look(self) -> bool:
        """Begin a run if it is time; returns whether there are due tasks."""
        now, runs = self._clock.now(), self._runs
        if runs is not None:
            if self._next_run is not None and now < self._next_run:
                return False
            self._next_run = now + runs.every
        found = self._transact(
            lambda writer: writer.execute(
                "SELECT task_id FROM async_tasks WHERE status = 'PENDING' AND next_run_at <= ?"
                " AND task_type IN (SELECT value FROM json_each(?)) ORDER BY next_run_at LIMIT ?",
                (self._now(), self._types, 1 if runs is None else runs.items),
            )
        )
        self._found = [id for (id,) in found]
        return bool(found)

    def _claim(self, id: str) -> Claimed | None:
        now = self._now()
        rows = self._transact(
            lambda writer: writer.execute(
                "UPDATE async_tasks SET status = 'RUNNING', attempts = coalesce(attempts, 0) + 1, updated_at = ?"
                " WHERE task_id = ? AND status = 'PENDING' AND next_run_at <= ?"
                " RETURNING task_id, task_type, entity_id, attempts",
                (now, id, now),
            )
        )
        if not rows:
            return None
        id, type, entity_id, attempts = rows[0]
        return Claimed(id, type or "", {"entity_id": entity_id}, attempts)

    def complete(self, task: Claimed, result: object = None) -> bool:  # noqa: ARG002  this queue keeps no results
        return bool(
            self._transact(
                lambda writer: writer.execute(
                    "UPDATE async_tasks SET status = 'DONE', last_error = NULL, updated_at = ?"
                    " WHERE task_id = ? AND status = 'RUNNING' AND attempts = ? RETURNING task_id",
                    (self._now(), task.id, task.attempts),
                )
            )
        )

    def fail(self, task: Claimed, error: str) -> bool:
        """One failure, one decision: rescheduled by the queue's delays, or FAILED."""
        delay = self._delay(task.attempts)
        return self._transact(lambda writer: self._settle(writer, task.id, task.attempts, as_text(error), delay))

    def _delay(self, attempts: int) -> timedelta | None:
        limit = self._policy.max_attempts
        if limit is not None and attempts >= limit:
            return None
        bounds = self._policy.delay_after(attempts)
        return bounds[0] if bounds else timedelta(0)

    def _settle(self, writer: Writer, id: str, attempts: Any, error: str | None, delay: timedelta | None) -> bool:
        status = "FAILED" if delay is None else "PENDING"
        return bool(
            writer.execute(
                "UPDATE async_tasks SET status = ?, next_run_at = coalesce(?, next_run_at),"
                " last_error = coalesce(?, last_error), updated_at = ?"
                " WHERE task_id = ? AND status = 'RUNNING' AND attempts IS ? RETURNING task_id",
                (status, None if delay is None else self._now(delay), error, self._now(), id, attempts),
            )
        )

    def reclaim(self) -> int:
        """Tasks whose worker went away: due at once while attempts are left, else FAILED."""
        if self._policy.stuck_after is None:
            return 0
        overdue = self._now(-self._policy.stuck_after)

        def reclaim(writer: Writer) -> int:
            stuck = writer.execute(
                "SELECT task_id, attempts FROM async_tasks WHERE status = 'RUNNING' AND updated_at < ?",
                (overdue,),
            )
            return sum(self._reclaim_one(writer, id, attempts) for id, attempts in stuck)

        return self._transact(reclaim)

    def _reclaim_one(self, writer: Writer, id: str, attempts: Any) -> bool:
        used_up = self._policy.max_attempts is not None and whole_number(attempts) >= self._policy.max_attempts
        return self._settle(writer, id, attempts, None, None if used_up else timedelta(0))


class ContractQueue(_Queue):
    """The contract queue over `tasks` and `results`."""

    def __init__(
        self, database: SqliteDatabase, policy: RetryPolicy, clock: Clock, chance: random.Random | None = None
    ) -> None:
        super().__init__(database, policy, clock)
        self._chance = chance or random.Random()

    def enqueue(
        self,
        func_path: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        max_retries: int = 3,
        timeout: int | None = None,
        delay: timedelta | None = None,
        interval: timedelta | None = None,
    ) -> str:
        id = str(uuid.uuid4())
        eta = None if delay is None else self._now(delay)
        self._transact(
            lambda writer: writer.execute(
                "INSERT INTO tasks (id, func_path, args, kwargs, status, schedule, eta, max_retries, timeout,"
                " attempts, created_at, updated_at, error) VALUES (?, ?, ?, ?, 'PENDING', ?, ?, ?, ?, 0, ?, ?, 'null')",
                (
                    id,
                    func_path,
                    json.dumps(list(args)),
                    json.dumps(dict(kwargs or {})),
                    json.dumps({"eta": eta, "interval": contract.stored_interval(interval)}),
                    eta,
                    max_retries,
                    timeout,
                    self._now(),
                    self._now(),
                ),
            )
        )
        return id

    def claim(self) -> Claimed | None:
        now = self._now()
        rows = self._transact(
            lambda writer: writer.execute(
                "UPDATE tasks SET status = 'RUNNING', attempts = coalesce(attempts, 0) + 1,"
                " updated_at = ?, last_attempt_at = ?"
                " WHERE id = (SELECT id FROM tasks WHERE status = 'PENDING' AND (eta IS NULL OR eta <= ?)"
                "             ORDER BY eta, created_at LIMIT 1)"
                " AND status = 'PENDING' RETURNING id, func_path, args, kwargs, attempts",
                (now, now, now),
            )
        )
        if not rows:
            return None
        id, func_path, args, kwargs, attempts = rows[0]
        return Claimed(id, func_path or "", {"args": args, "kwargs": kwargs}, attempts)

    def complete(self, task: Claimed, result: object = None) -> bool:
        def complete(writer: Writer) -> bool:
            won = writer.execute(
                "UPDATE tasks SET status = 'SUCCESS', updated_at = ?"
                " WHERE id = ? AND status = 'RUNNING' AND attempts = ? RETURNING last_attempt_at, schedule",
                (self._now(), task.id, task.attempts),
            )
            if won:
                self._record(writer, task, "SUCCESS", as_json(result), None, won[0])
                self._repeat(writer, task.id, won[0][1])
            return bool(won)

        return self._transact(complete)

    def _repeat(self, writer: Writer, id: str, schedule: Any) -> None:
        """Enqueue the next execution of a recurring task, as a task of its own."""
        interval = contract.interval_of(contract.parsed_schedule(schedule))
        if interval is None:
            return
        now, eta = self._now(), self._now(interval)
        writer.execute(
            "INSERT INTO tasks (id, func_path, args, kwargs, status, schedule, eta, max_retries, timeout, attempts,"
            " created_at, updated_at, error)"
            " SELECT ?, func_path, args, kwargs, 'PENDING', ?, ?, coalesce(max_retries, 3), timeout, 0, ?, ?, 'null'"
            " FROM tasks WHERE id = ?",
            (str(uuid.uuid4()), contract.with_eta(schedule, eta), eta, now, now, id),
        )

    def fail(self, task: Claimed, error: str) -> bool:
        """Record a failure. The queue's delays decide whether it runs again."""

        def fail(writer: Writer) -> bool:
            rows = writer.execute(
                "SELECT max_retries, schedule FROM tasks WHERE id = ? AND status = 'RUNNING' AND attempts = ?",
                (task.id, task.attempts),
            )
            if not rows:
                return False
            delay = contract.delay_after_failure(self._policy, task.attempts, rows[0][0], self._chance)
            eta = None if delay is None else self._now(delay)
            won = writer.execute(
                "UPDATE tasks SET status = ?, eta = coalesce(?, eta), schedule = coalesce(?, schedule), updated_at = ?"
                " WHERE id = ? AND status = 'RUNNING' AND attempts = ? RETURNING last_attempt_at",
                (
                    "FAILED" if eta is None else "PENDING",
                    eta,
                    None if eta is None else contract.with_eta(rows[0][1], eta),
                    self._now(),
                    task.id,
                    task.attempts,
                ),
            )
            self._record(writer, task, "FAILED", None, as_text(error), won[0])
            return True

        return self._transact(fail)

    def _record(
        self, writer: Writer, task: Claimed, status: str, result: str | None, error: str | None, won: Row
    ) -> None:
        writer.execute(
            "INSERT OR REPLACE INTO results (task_id, status, result, error, finished_at, attempts, last_attempt_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (task.id, status, result, error, self._now(), task.attempts, won[0]),
        )

    def reclaim(self) -> int:
        """This queue has no rule for abandoned tasks: they stay RUNNING until a person requeues them."""
        return 0
