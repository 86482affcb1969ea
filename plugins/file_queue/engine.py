"""The queue itself: enqueue, claim, complete and fail.

A claim is one atomic rename, so only one worker can win it; the winner then counts the attempt in the file. Completing
or failing a task first renames its file to a private name, so that one failure schedules exactly one retry.
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
from console.core.policy import Phase, RetryPolicy
from console.core.ports import Clock
from console.core.query import Sort, SortField
from console.sql.times import IsoText
from console.sql.values import text, whole_number
from plugins import _contract_queue as contract
from plugins._contract_queue import Claimed
from plugins.file_queue.folder import RESULT, Folder, State, UnreadableFile, file_name, new_name, new_token
from plugins.file_queue.index import Index
from plugins.file_queue.moves import Fields, NotMoved, as_json, claim, finish, publish
from plugins.file_queue.rows import Task, TaskRows, parse_object

_CANDIDATES = 256
"""How many due tasks are remembered from one listing of the folder."""


class FileTaskQueue:
    """The contract queue, stored in a folder."""

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
        interval: timedelta | None = None,
    ) -> str:
        eta = None if delay is None else self._now(delay)
        fields: Fields = {
            "func_path": func_path,
            "args": list(args),
            "kwargs": dict(kwargs or {}),
            "schedule": {"eta": eta, "interval": contract.stored_interval(interval)},
            "max_retries": max_retries,
            "timeout": timeout,
        }
        with Folder(self._index.queue) as queue:
            return self._write_task(queue, fields)

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
        """The ids of due tasks, the longest waiting first."""
        now = self._clock.now()
        self._index.forget()
        # The snapshot knows which tasks are behind a file at which a worker stops.
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
            except (UnreadableFile, FileNotFoundError):
                return None
            if fields.get("status") != "PENDING" or not self._is_time(fields):
                self._unclaim(queue, id)
                return None
            attempts = whole_number(fields.get("attempts")) + 1
            now = self._now()
            fields.update(status="RUNNING", attempts=attempts, updated_at=now, last_attempt_at=now)
            queue.replace_content(running, as_json(fields), new_name(id, new_token()))
            queue.sync()
        payload = {"args": json.dumps(fields.get("args")), "kwargs": json.dumps(fields.get("kwargs"))}
        return Claimed(id, text(fields.get("func_path")), payload, attempts)

    def _is_time(self, fields: Fields) -> bool:
        schedule = fields.get("schedule")
        eta = schedule.get("eta") if isinstance(schedule, dict) else None
        if eta is None:
            return True
        due = self._time.decode(eta)
        return due is not None and due <= self._clock.now()

    def _unclaim(self, queue: Folder, id: str) -> None:
        """Rename a task back that changed before the claim, unless its name is taken."""
        try:
            queue.link(file_name(id, State.RUNNING), file_name(id, State.TASK))
        except FileExistsError:
            return
        queue.remove(file_name(id, State.RUNNING))

    # -- completing and failing ------------------------------------------------------------------

    def complete(self, task: Claimed, result: object = None) -> bool:
        return self._finish(task, None, json.loads(handlers.as_json(result)))

    def fail(self, task: Claimed, error: str) -> bool:
        """Record a failure. The queue's delays decide whether it runs again."""
        return self._finish(task, error, None)

    def _finish(self, task: Claimed, error: str | None, result: object) -> bool:
        def difference(fields: Fields) -> Outcome | None:
            mine = fields.get("status") == "RUNNING" and fields.get("attempts") == task.attempts
            return None if mine else Outcome(OutcomeKind.CHANGED_SINCE, "claimed by another worker since")

        with Folder(self._index.queue) as queue, queue.locked():
            try:
                claimed = claim(queue, task.id, State.RUNNING, difference)
                fields, state = self._outcome(claimed.fields, task.attempts, error)
                self._write_result(task, fields, error, result)
                if error is None:
                    self._repeat(queue, fields)
                publish(queue, claimed, state, fields)
            except (FileNotFoundError, NotMoved):
                return False
            finish(queue, [claimed])
        return True

    def _repeat(self, queue: Folder, fields: Fields) -> None:
        """Enqueue the next execution of a recurring task, as a task of its own."""
        interval = contract.interval_of(fields.get("schedule"))
        if interval is not None:
            schedule = {**fields["schedule"], "eta": self._now(interval)}
            self._write_task(queue, {**fields, "schedule": schedule})

    def _write_task(self, queue: Folder, fields: Fields) -> str:
        """Write a new task with these fields."""
        id, now = str(uuid.uuid4()), self._now()
        new = {"id": id, "status": "PENDING", "attempts": 0, "created_at": now, "updated_at": now}
        content = as_json({**fields, **new, "last_attempt_at": None})
        queue.replace_content(file_name(id, State.TASK), content, new_name(id, new_token()))
        queue.sync()
        return id

    def _outcome(self, fields: Fields, attempts: int, error: str | None) -> tuple[Fields, State]:
        """The content and state of a task after this attempt. A success changes only the name of the file."""
        if error is None:
            return fields, State.DONE
        finished = {**fields, "updated_at": self._now()}
        delay = contract.delay_after_failure(self._policy, attempts, fields.get("max_retries"), self._chance)
        if delay is None:
            return {**finished, "status": "FAILED"}, State.DONE
        schedule = fields.get("schedule")
        kept = schedule if isinstance(schedule, dict) else {}
        return {**finished, "status": "PENDING", "schedule": {**kept, "eta": self._now(delay)}}, State.TASK

    def _write_result(self, task: Claimed, fields: Fields, error: str | None, result: object) -> None:
        content: Fields = {
            "task_id": task.id,
            "status": "SUCCESS" if error is None else "FAILED",
            "result": result,
            "error": error,
            "finished_at": self._now(),
            "attempts": task.attempts,
            "last_attempt_at": fields.get("last_attempt_at"),
        }
        with Folder(self._index.results) as results:
            results.replace_content(f"{task.id}{RESULT}", as_json(content), f".{task.id}.{new_token()}.tmp")
            results.sync()

    def reclaim(self) -> int:
        """Do nothing: in this queue abandoned tasks stay .running until a person requeues them."""
        return 0


def _is_due(task: Task, now: Any) -> bool:
    if task.facts.phase is not Phase.READY or task.problem is not None or task.facts.ignored is not None:
        return False
    return task.facts.due_at is None or task.facts.due_at <= now
