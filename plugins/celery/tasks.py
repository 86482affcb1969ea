"""Celery results → items.

| status | condition |
|---|---|
| FAILURE | terminal |
| RETRY | retrying; Celery does not store when |
| STARTED, RECEIVED | running (Celery stores them only with `task_track_started`) |
| PENDING | waiting |
| SUCCESS | done |
| REVOKED, REJECTED, IGNORED | cancelled |
| any other | unknown: a status of the application |

The name of a task, its arguments and its retries are there only if `result_extended` is on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from console.core.excerpt import excerpt
from console.core.item import Attempt, Condition, Item, ItemKey, Verdict
from console.core.policy import RetryPolicy
from console.keyed.redis_server import text

CONDITIONS = {
    "FAILURE": Condition.TERMINAL, "RETRY": Condition.RETRYING, "STARTED": Condition.RUNNING,
    "RECEIVED": Condition.RUNNING, "PENDING": Condition.WAITING, "SUCCESS": Condition.DONE,
    "REVOKED": Condition.CANCELLED, "REJECTED": Condition.CANCELLED, "IGNORED": Condition.CANCELLED,
}
_WHY = {
    Condition.TERMINAL: "failed, and Celery does not run it again",
    Condition.RETRYING: "Celery has published another try; it does not store when that runs",
    Condition.RUNNING: "running",
    Condition.WAITING: "not run yet",
    Condition.DONE: "finished",
    Condition.CANCELLED: "revoked",
}
_NOT_SHOWN = frozenset({"result", "traceback", "args", "kwargs"})


@dataclass(frozen=True)
class CeleryTask:
    """One result as it was read."""

    id: str
    raw: bytes
    life: int
    """Milliseconds until Redis deletes it; negative if it does not."""

    @cached_property
    def fields(self) -> dict[str, Any]:
        try:
            found = json.loads(self.raw)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def text(self, name: str) -> str:
        value = self.fields.get(name)
        return value if isinstance(value, str) else "" if value is None else json.dumps(value)

    @property
    def condition(self) -> Condition:
        return CONDITIONS.get(self.text("status"), Condition.UNKNOWN)

    @property
    def finished(self) -> datetime | None:
        try:
            at = datetime.fromisoformat(self.text("date_done"))
        except ValueError:
            return None
        try:
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        except OverflowError:
            return None

    @cached_property
    def error(self) -> str | None:
        """The traceback, or the exception if no traceback is kept."""
        if self.condition not in (Condition.TERMINAL, Condition.RETRYING, Condition.UNKNOWN):
            return None
        result = self.fields.get("result")
        raised = ""
        if isinstance(result, dict) and "exc_type" in result:
            message = result.get("exc_message")
            parts = message if isinstance(message, list) else [message]
            raised = f"{result['exc_type']}: {' '.join(str(part) for part in parts)}"
        return self.text("traceback") or raised or None

    @property
    def attempts(self) -> int:
        retries = self.fields.get("retries")
        if type(retries) is int and 0 <= retries < 2**31:
            return retries + (self.condition is not Condition.WAITING)
        return 0 if self.condition is Condition.WAITING else 1


class CeleryRows:
    """Makes items of one backend."""

    def __init__(self, backend: str, policy: RetryPolicy) -> None:
        self._backend = backend
        self._policy = policy

    def item(self, task: CeleryTask, now: datetime) -> Item:
        error = task.error
        shown = None if error is None else excerpt(error)
        at = task.finished
        notes = () if task.fields else ("its result is not JSON: only the JSON serializer can be read",)
        expires = None if task.life < 0 else now + timedelta(milliseconds=task.life)
        return Item(
            ItemKey(self._backend, (task.id,)),
            task.text("name"),
            task.text("status"),
            task.attempts,
            self._policy.max_attempts,
            self._verdict(task, shown),
            shown,
            None,
            at,
            now,
            at,
            notes,
            # To the minute: what is left of its life is read a moment later each time.
            None if expires is None else expires.replace(second=0, microsecond=0),
        )

    def _verdict(self, task: CeleryTask, error: str | None) -> Verdict:
        pattern = self._policy.hopeless(error)
        recoverable = None if not error else pattern is None
        condition = task.condition
        if condition is Condition.UNKNOWN:
            return Verdict(condition, f"unknown status {task.text('status')!r}", recoverable=recoverable)
        why = _WHY[condition]
        if condition is Condition.TERMINAL and pattern is not None:
            why = f"unrecoverable error (matches {pattern!r})"
        again = None if condition is Condition.RETRYING else condition is Condition.WAITING
        return Verdict(condition, why, None, again, recoverable)


def attempts_of(task: CeleryTask) -> tuple[Attempt, ...]:
    if not task.attempts:
        return ()
    return (Attempt(task.attempts, task.finished, task.text("status").lower(), task.error),)


def native(task: CeleryTask) -> tuple[tuple[str, str | None], ...]:
    shown = tuple(
        (name, None if value is None else task.text(name))
        for name, value in task.fields.items()
        if name not in _NOT_SHOWN
    )
    return shown or (("result", text(task.raw)[:10_000]),)
