"""Handing task files back by the queue's rules: what may be done, and what it makes of a file."""

from __future__ import annotations

from datetime import datetime

from console.core.backend import (
    Abilities,
    Action,
    Budget,
    Change,
    Draft,
    Flag,
    Image,
    Order,
    UndoKind,
    image_text,
)
from console.core.item import Condition, ItemKey
from console.core.policy import RetryPolicy, judge
from console.core.signature import signature_of
from plugins._contract_queue import decide
from plugins.file_queue.folder import State
from plugins.file_queue.rows import Task, TaskRows

ABILITIES = Abilities(
    actions=frozenset({Action.REQUEUE, Action.UNDO}),
    budgets=frozenset(Budget),
    undo=UndoKind.EXACT,
    stores_due_time=True,
    guard=("name", "status", "attempts", "updated_at"),
    flags=frozenset({Flag.ALLOW_UNRECOVERABLE}),
)
_STRANGE = "lacks a key or holds a value by which a write could not be guarded"


class Requeue:
    """The drafts and after-images of one queue."""

    def __init__(self, backend: str, policy: RetryPolicy, rows: TaskRows) -> None:
        self._backend = backend
        self._policy = policy
        self._time = rows.time

    def draft(self, task: Task, order: Order, now: datetime) -> Draft:
        key = str(ItemKey(self._backend, (task.id,)))
        signature = signature_of(task.facts.error) if task.facts.error else None
        if task.problem is not None:
            return Draft(key, "", "null", Condition.UNKNOWN, signature, f"cannot be handed back: {task.problem}")
        verdict = judge(task.facts, self._policy, now)
        blocked, warning = decide(task.facts, verdict, order, self._policy, now)
        if task.image is None:
            return Draft(key, "", "null", verdict.condition, signature, blocked or _STRANGE)
        return Draft(key, "", image_text(task.image), verdict.condition, signature, blocked, warning)

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        """PENDING at the release time; the result file stays as evidence until a worker overwrites it."""
        _, _, attempts, schedule, _ = change.before
        when = {**schedule, "eta": self._time.encode(due)}
        kept = 0 if order.budget is Budget.FRESH else attempts
        return (str(State.TASK), "PENDING", kept, when, self._time.encode(at))
