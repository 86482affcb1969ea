"""The queue itself: enqueue, claim by rename, complete, fail with the queue's own delay.

A claim is one atomic rename, so it has one winner; the attempt is counted in the content the winner then
writes. A decision takes the task by a private rename first, so that one failure schedules one retry.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from console.core import handlers
from console.core.backend import Outcome, OutcomeKind
from console.core.policy import RetryPolicy
from console.core.ports import Clock
from console.core.query import Sort, SortField
from console.sql.times import IsoText
from console.sql.values import text, whole_number
from plugins import _contract_queue as contract
from plugins._contract_queue import Claimed
from plugins.file_queue.folder import RESULT, Folder, State, Unusable, file_name, new_name, new_token
from plugins.file_queue.index import Index
from plugins.file_queue.moves import Fields, NotTaken, as_json, finish, place, take
from plugins.file_queue.rows import Task, TaskRows, parse_object

_CANDIDATES = 256
"""How many due tasks one look at the folder is good for."""


class FileTaskQueue:
    """The contract queue over a folder."""

    def __init__(self, base: Path, policy: RetryPolicy, clock: Clock, chance: random.Random | None = None) -> None:
        self._policy = policy
        self._clock = clock
        self._chance = chance or random.Random()
        self._time = IsoText()
        self._index = Index(base, TaskRows("engine", policy))
        self._candidates: Iterator[str] = iter(())

    def _now(self, ahead: timedelta = timedelta(0)) -> str:
        return self._time.encode(self._clock.now() + ahead)

    def enqueue(
        self,
        func_path: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        max_retries: int = 3,
        timeout: int | None = None,
        delay: timedelta | None = None,
    ) -> str:
        id = str(uuid.uuid4())
        now = self._now()
        fields: Fields = {
            "id": id,
            "func_path": func_path,
            "args": list(args),
            "kwargs": dict(kwargs or {}),
            "status": "PENDING",
            "schedule": {"eta": None if delay is None else self._now(delay), "interval": None},
            "max_retries": max_retries,
            "timeout": timeout,
            "attempts": 0,
            "created_at": now,
            "updated_at": now,
            "last_attempt_at": None,
        }
        with Folder(self._index.queue) as queue:
            queue.replace_content(file_name(id, State.TASK), as_json(fields), new_name(id, new_token()))
            queue.sync()
        return id

    # -- claiming --------------------------------------------------------------------------------

    def claim(self) -> Claimed | None:
        with Folder(self._index.queue) as queue:
            for _ in range(2):
                for id in self._candidates:
                    if (claimed := self._claim(queue, id)) is not None:
                        return claimed
                self._candidates = iter(self._due())
        return None

    def _due(self) -> list[str]:
        """The tasks that are due, the longest waiting first."""
        now = self._clock.now()
        self._index.forget()
        found = [
            task
            for task, _ in self._index.snapshot().walk(Sort(SortField.CREATED, False), None, False)
            if task.state is State.TASK and _is_due(task, now)
        ]
        found.sort(key=lambda task: (task.due_at is not None, task.due_at or now))
        return [task.id for task in found[:_CANDIDATES]]

    def _claim(self, queue: Folder, id: str) -> Claimed | None:
        running = file_name(id, State.RUNNING)
        with queue.locked():
            try:
                queue.rename(file_name(id, State.TASK), running)
            except FileNotFoundError:
                return None
            try:
                fields = parse_object(queue.read(running))
            except (Unusable, FileNotFoundError):
                return None
            if fields.get("status") != "PENDING" or not self._has_come(fields):
                self._return(queue, id)
                return None
            attempts = whole_number(fields.get("attempts")) + 1
            now = self._now()
            fields.update(status="RUNNING", attempts=attempts, updated_at=now, last_attempt_at=now)
            queue.replace_content(running, as_json(fields), new_name(id, new_token()))
            queue.sync()
        payload = {"args": json.dumps(fields.get("args")), "kwargs": json.dumps(fields.get("kwargs"))}
        return Claimed(id, text(fields.get("func_path")), payload, attempts)

    def _has_come(self, fields: Fields) -> bool:
        schedule = fields.get("schedule")
        eta = schedule.get("eta") if isinstance(schedule, dict) else None
        if eta is None:
            return True
        due = self._time.decode(eta)
        return due is not None and due <= self._clock.now()

    def _return(self, queue: Folder, id: str) -> None:
        """It changed between the look and the claim: it gets its name back, unless that is taken."""
        try:
            queue.link(file_name(id, State.RUNNING), file_name(id, State.TASK))
        except FileExistsError:
            return
        queue.remove(file_name(id, State.RUNNING))

    # -- deciding --------------------------------------------------------------------------------

    def complete(self, task: Claimed, result: object = None) -> bool:
        return self._decide(task, None, handlers.as_json(result))

    def fail(self, task: Claimed, error: str) -> bool:
        """The predicate is on the counter after the claim: with max_retries 3 the third failure is final."""
        return self._decide(task, error, None)

    def _decide(self, task: Claimed, error: str | None, result: str | None) -> bool:
        def unlike(fields: Fields) -> Outcome | None:
            mine = fields.get("status") == "RUNNING" and fields.get("attempts") == task.attempts
            return None if mine else Outcome(OutcomeKind.CONFLICTED, "no longer this worker's")

        with Folder(self._index.queue) as queue, queue.locked():
            try:
                taken = take(queue, task.id, State.RUNNING, unlike)
                fields, state = self._decided(taken.fields, task.attempts, error)
                self._record(task, fields, error, result)
                place(queue, taken, state, fields)
            except (FileNotFoundError, NotTaken):
                return False
            finish(queue, [taken])
        return True

    def _decided(self, fields: Fields, attempts: int, error: str | None) -> tuple[Fields, State]:
        decided = {**fields, "updated_at": self._now()}
        if error is None:
            return {**decided, "status": "SUCCESS"}, State.DONE
        own = fields.get("max_retries")
        limit = self._policy.max_attempts if own is None else whole_number(own)
        if limit is not None and not contract.may_retry(attempts, limit):
            return {**decided, "status": "FAILED"}, State.DONE
        schedule = fields.get("schedule")
        kept = schedule if isinstance(schedule, dict) else {}
        eta = self._now(contract.retry_delay(self._policy, attempts, self._chance))
        return {**decided, "status": "PENDING", "schedule": {**kept, "eta": eta}}, State.TASK

    def _record(self, task: Claimed, fields: Fields, error: str | None, result: str | None) -> None:
        told: Fields = {
            "task_id": task.id,
            "status": fields["status"],
            "result": result,
            "error": error,
            "finished_at": fields["updated_at"],
            "attempts": task.attempts,
            "last_attempt_at": fields.get("last_attempt_at"),
        }
        with Folder(self._index.results) as results:
            results.replace_content(f"{task.id}{RESULT}", as_json(told), f".{task.id}.{new_token()}.tmp")
            results.sync()

    def reclaim(self) -> int:
        """This queue has no rule for abandoned tasks: they stay .running until a person hands them back."""
        return 0


def _is_due(task: Task, now: Any) -> bool:
    if task.problem is not None or task.facts.ignored is not None:
        return False
    return task.facts.due_at is None or task.facts.due_at <= now
