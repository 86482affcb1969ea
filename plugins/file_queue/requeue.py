"""Requeues and discards task files by the queue's rules."""

from __future__ import annotations

from datetime import datetime

from console.core import action_rules
from console.core.action_rules import Decision, decide_discard, not_taken
from console.core.advice import Notice
from console.core.backend import (
    Abilities,
    Action,
    Attempts,
    Change,
    DiscardAbility,
    Draft,
    Image,
    Operation,
    UndoKind,
)
from console.core.item import Condition, ItemKey, Verdict
from console.core.override import past_tense
from console.core.policy import RetryPolicy
from console.core.prediction import Prediction
from console.core.signature import signature_of
from plugins import _contract_queue as contract
from plugins.file_queue.folder import State
from plugins.file_queue.prediction import Blocker, predict_task
from plugins.file_queue.rows import Task, TaskImage, TaskRows

ABILITIES = Abilities(
    actions=frozenset({Action.REQUEUE, Action.DISCARD, Action.UNDO}),
    attempts=frozenset(Attempts),
    undo=UndoKind.EXACT,
    stores_due_time=True,
    guard=("name", "status", "attempts", "updated_at", "created_at"),
    flags=contract.FLAGS,
    execution_counter="attempts",
    discard=DiscardAbility(),
)
_NOT_GUARDABLE = Notice("A field is missing or has a value that a plan cannot store, so a write could not be guarded.")


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
            why = Notice(f"Cannot be {past_tense(operation.action)}: {task.problem}.")
            return Draft(key, "", None, Condition.UNKNOWN, signature, why)
        verdict = self._rows.verdict(task, now)
        if operation.discards:
            skipped, warning = self._decide_discard(task, verdict)
        else:
            skipped, warning = self._decide(task, verdict, operation, now)
            if skipped is None and (predicted := self._once_requeued(task, now, blocker)).runs is not True:
                skipped = not_taken(predicted)
        if task.image is None:
            return Draft(key, "", None, verdict.condition, signature, skipped or _NOT_GUARDABLE)
        return Draft(key, "", task.image, verdict.condition, signature, skipped, warning)

    def _once_requeued(self, task: Task, now: datetime, blocker: Blocker | None) -> Prediction:
        return predict_task(self._time.encode(now), task.facts.born_at, blocker)

    def _decide_discard(self, task: Task, verdict: Verdict) -> Decision:
        return Decision() if task.is_stuck_in_line else decide_discard(verdict.condition)  # nobody holds that one

    def _decide(self, task: Task, verdict: Verdict, operation: Operation, now: datetime) -> Decision:
        if task.is_stuck_in_line:  # nobody holds it, and its attempt has failed
            failed = verdict._replace(condition=Condition.FAILED)
            return action_rules.decide(task.facts, failed, operation, self._policy, now)
        return contract.decide(task.facts, verdict, operation, self._policy, now)

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        """Pending and due, or done and cancelled. The result file is kept until a worker overwrites it."""
        before = TaskImage(*change.before)
        if operation.discards:
            updated_at = self._time.encode(at)
            return before._replace(name=State.DONE.value, status=contract.CANCELLED, updated_at=updated_at)
        return TaskImage(
            State.TASK.value,
            "PENDING",
            0 if operation.attempts is Attempts.RESET else before.attempts,
            {**before.schedule, "eta": self._time.encode(due)},
            self._time.encode(at),
            before.created_at,
        )
