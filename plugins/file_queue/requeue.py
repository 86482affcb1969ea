"""Requeues task files by the queue's rules."""

from __future__ import annotations

from datetime import datetime

from console.core import requeue_rules
from console.core.advice import Notice
from console.core.backend import (
    Abilities,
    Action,
    Attempts,
    Change,
    Draft,
    Image,
    Operation,
    UndoKind,
)
from console.core.item import Condition, ItemKey, Verdict
from console.core.policy import RetryPolicy
from console.core.prediction import Prediction
from console.core.requeue_rules import Decision, not_taken
from console.core.signature import signature_of
from plugins import _contract_queue as contract
from plugins.file_queue.folder import State
from plugins.file_queue.prediction import Blocker, predict_task
from plugins.file_queue.rows import Task, TaskImage, TaskRows

ABILITIES = Abilities(
    actions=frozenset({Action.REQUEUE, Action.UNDO}),
    attempts=frozenset(Attempts),
    undo=UndoKind.EXACT,
    stores_due_time=True,
    guard=("name", "status", "attempts", "updated_at", "created_at"),
    flags=contract.FLAGS,
)
_NOT_GUARDABLE = Notice("A field is missing or has a value that a plan cannot keep, so the write could not be guarded.")


class TaskPlanner:
    """Makes the drafts and after-images of one queue."""

    def __init__(self, backend: str, policy: RetryPolicy, rows: TaskRows) -> None:
        self._backend = backend
        self._policy = policy
        self._rows = rows
        self._time = rows.time

    def draft(self, task: Task, operation: Operation, now: datetime, blocker: Blocker | None = None) -> Draft:
        """`blocker` is the first file that blocks the queue and is not requeued by the same plan."""
        key = str(ItemKey(self._backend, (task.id,)))
        signature = signature_of(task.facts.error) if task.facts.error else None
        if task.problem is not None:
            why = Notice(f"Cannot be requeued: {task.problem}.")
            return Draft(key, "", None, Condition.UNKNOWN, signature, why)
        verdict = self._rows.verdict(task, now)
        skipped, warning = self._decide(task, verdict, operation, now)
        if skipped is None and (predicted := self._once_requeued(task, now, blocker)).runs is not True:
            skipped = not_taken(predicted)
        if task.image is None:
            return Draft(key, "", None, verdict.condition, signature, skipped or _NOT_GUARDABLE)
        return Draft(key, "", task.image, verdict.condition, signature, skipped, warning)

    def _once_requeued(self, task: Task, now: datetime, blocker: Blocker | None) -> Prediction:
        return predict_task(self._time.encode(now), task.facts.born_at, blocker)

    def _decide(self, task: Task, verdict: Verdict, operation: Operation, now: datetime) -> Decision:
        if task.is_stuck_in_line:  # nobody holds it, and its attempt has failed
            failed = verdict._replace(condition=Condition.FAILED)
            return requeue_rules.decide(task.facts, failed, operation, self._policy, now)
        return contract.decide(task.facts, verdict, operation, self._policy, now)

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        """Pending and due. The result file is kept until a worker overwrites it."""
        before = TaskImage(*change.before)
        return TaskImage(
            State.TASK.value,
            "PENDING",
            0 if operation.attempts is Attempts.RESET else before.attempts,
            {**before.schedule, "eta": self._time.encode(due)},
            self._time.encode(at),
            before.created_at,
        )
