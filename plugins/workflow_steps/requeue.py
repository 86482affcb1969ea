"""Resetting steps by their own system's rules: what may be reset, what it makes of a step and its task, why not.

An image is `(task state, task sort key, step, step, …)`; a step is `[uuid, state, sort key, attempts, in_process,
processed, processed_at, backoff, updated_at]`. The task's part is NULL where the task need not be woken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from console.core.backend import Abilities, Action, Budget, Change, Draft, Flag, Image, Order, UndoKind, image_text
from console.core.item import Condition, ItemKey, Verdict
from console.core.policy import RetryPolicy, judge
from console.core.signature import signature_of
from console.core.text import duration
from console.sql.database import Row
from console.sql.times import IsoText, Naive
from console.sql.values import plain, storable, text
from plugins.workflow_steps.rows import WIDTH, Native, StepRows, native

ABILITIES = Abilities(
    actions=frozenset({Action.REQUEUE, Action.UNDO}),
    budgets=frozenset(Budget),
    undo=UndoKind.COMPENSATING,
    stores_due_time=False,
    guard=("to_state", "sort_key", "attempts", "in_process", "processed", "updated_at"),
    flags=frozenset({Flag.ALLOW_UNRECOVERABLE, Flag.WAKE_TASK}),
)
LOOKED_AT = {
    "pending": None,
    "waiting_for_dependencies": timedelta(minutes=60),
    "waiting_for_retry": timedelta(minutes=30),
}
"""The task states the orchestrator looks at, and how old they may be."""
_OVER = frozenset({"complete", "cancelled", "resolved_manually"})
_ASLEEP = frozenset({"blocked_by_failures", "error"})
_STRANGE = "holds a value by which a write could not be guarded"
_WOKEN = "its task is woken: a transition to waiting_for_retry is added"
_BLOCKED = {
    Condition.WAITING: "has not failed: it waits for its first run",
    Condition.RETRYING: "is not in error: its own orchestrator takes it when it is due",
    Condition.RUNNING: "is running within its limit",
    Condition.STUCK: "is not in error: only a step in error can be reset",
    Condition.DONE: "is done",
    Condition.CANCELLED: "was cancelled",
    Condition.UNKNOWN: "has a state this plugin has no rule for",
}


Decision = tuple[str | None, str | None, bool]


class Planned(NamedTuple):
    """A step with what a plan needs to know besides."""

    step: Native
    task: str
    task_state: str
    task_since: Any
    waits_for: str | None


class Requeue:
    """The drafts and after-images."""

    def __init__(self, backend: str, policy: RetryPolicy, time: Naive | IsoText, rows: StepRows) -> None:
        self._backend = backend
        self._policy = policy
        self._time = time
        self._rows = rows

    # -- what may be done ------------------------------------------------------------------------

    def decide(
        self, planned: Planned, verdict: Verdict, order: Order, now: datetime
    ) -> Decision:
        """Why it is blocked, if it is; what to be warned of; and whether its task must be woken."""
        if blocked := _BLOCKED.get(verdict.condition) or self._spent(planned.step, verdict, order):
            return blocked, None, False
        blocked, wake = self._task(planned, order, now)
        waits = f"would wait for {planned.waits_for}" if planned.waits_for else None
        warnings = [warning for warning in (_WOKEN if wake else None, waits) if warning]
        return blocked, "; ".join(warnings) or None, wake

    def _spent(self, step: Native, verdict: Verdict, order: Order) -> str | None:
        if text(step.state) != "error":
            return "is not in error: only a step in error can be reset"
        if verdict.recoverable is False and Flag.ALLOW_UNRECOVERABLE not in order.flags:
            return "its error is not recoverable; allow it with --allow-unrecoverable"
        if order.budget is Budget.KEEP and not self._rows.eligible(step):
            reason = verdict.why if verdict.recoverable is not False else "no attempt is left"
            return f"{reason}: its own orchestrator would not take it; use budget fresh"
        return None

    def _task(self, planned: Planned, order: Order, now: datetime) -> tuple[str | None, bool]:
        state = planned.task_state
        if state in _OVER:
            return f"its task is {state}", False
        limit = LOOKED_AT.get(state)
        since = self._time.decode(planned.task_since)
        if state in LOOKED_AT and (limit is None or since is None or now - since <= limit):
            return None, False
        if state in LOOKED_AT:
            why = f"its task has been {state} for over {duration(limit or timedelta(0))}"
        else:
            why = f"its task is {state}"
        if state not in LOOKED_AT and state not in _ASLEEP:
            return f"{why}, which its orchestrator does not look at; try again when the task is at rest", False
        if Flag.WAKE_TASK in order.flags:
            return None, True
        return f"{why}, which its orchestrator does not look at; wake it with --wake-task", False

    # -- drafts ----------------------------------------------------------------------------------

    def planned(self, row: Row) -> Planned:
        task, state, since, waits = row[WIDTH : WIDTH + 4]
        return Planned(native(row), text(task), "pending" if state is None else text(state), since, waits)

    def units(self, batches: Iterable[Sequence[Row]], order: Order) -> Iterator[list[list[Planned]]]:
        """Steps one by one; with the flag that wakes tasks, all steps of a task together."""
        if Flag.WAKE_TASK not in order.flags:
            for batch in batches:
                if batch:
                    yield [[self.planned(row)] for row in batch]
            return
        by_task: dict[str, list[Planned]] = {}
        for batch in batches:
            for planned in map(self.planned, batch):
                by_task.setdefault(planned.task, []).append(planned)
        if by_task:
            yield list(by_task.values())

    def drafts(
        self, unit: list[Planned], images: dict[str, list[Any]], tasks: dict[str, tuple[Any, Any]], order: Order,
        now: datetime,
    ) -> Iterator[Draft]:
        judged = [judge(self._rows.facts(one.step), self._policy, now) for one in unit]
        decided = [
            _unless_changed(
                one, images.get(text(one.step.uuid)), tasks.get(one.task), self.decide(one, verdict, order, now)
            )
            for one, verdict in zip(unit, judged, strict=True)
        ]
        wake = any(wakes for blocked, _, wakes in decided if blocked is None)
        chosen = [
            images[text(one.step.uuid)]
            for one, (blocked, _, _) in zip(unit, decided, strict=True)
            if blocked is None
        ]
        image = (*(tasks.get(unit[0].task, (None, None)) if wake else (None, None)), *chosen)
        name = unit[0].task if Flag.WAKE_TASK in order.flags else ""
        for one, verdict, (blocked, warning, _) in zip(unit, judged, decided, strict=True):
            id = text(one.step.uuid)
            signature = signature_of(text(one.step.error)) if one.step.error else None
            key = str(ItemKey(self._backend, (id,)))
            yield Draft(key, name or id, image_text(image), verdict.condition, signature, blocked, warning)

    # -- after-images ----------------------------------------------------------------------------

    def after(self, change: Change, order: Order, at: datetime) -> Image:
        """One more transition of every step that is meant, and of the task where it must be woken."""
        moment = plain(self._time.encode(at))
        meant = {key.parts[0] for key in change.keys}
        state, sort_key, *steps = change.before
        if order.action is Action.UNDO:
            original = {step[0]: step for step in change.after[2:]}
            after = [_undone(step, original[step[0]], moment) if step[0] in meant else step for step in steps]
            return (*((None, None) if state is None else (change.after[0], sort_key + 1)), *after)
        fresh = order.budget is Budget.FRESH
        after = [_reset(step, fresh, moment) if step[0] in meant else step for step in steps]
        return (*((None, None) if state is None else ("waiting_for_retry", sort_key + 1)), *after)


def _unless_changed(
    one: Planned, image: Sequence[Any] | None, task: tuple[Any, Any] | None, decision: Decision
) -> Decision:
    """What was decided, if the step, and the task it wakes, are still what was judged when their images are read."""
    blocked, _, wakes = decision
    if blocked is not None:
        return decision
    if image is not None and not storable(image):
        return _STRANGE, None, False
    step = one.step
    judged = (step.state, step.attempts, step.in_process, step.processed, step.backoff, step.updated_at)
    same = image is not None and [*map(plain, judged)] == [image[1], *image[3:6], *image[7:]]
    if same and not (wakes and (task is None or text(task[0]) != one.task_state)):
        return decision
    return "changed while the plan was made", None, False


def _reset(step: Sequence[Any], fresh: bool, moment: Any) -> list[Any]:
    id, _state, sort_key, attempts, *_ = step
    return [id, "pending", sort_key + 1, 0 if fresh else attempts, False, False, None, None, moment]


def _undone(step: Sequence[Any], original: Sequence[Any], moment: Any) -> list[Any]:
    """The step as it was, by a new transition: the first one stays in the history."""
    return [step[0], original[1], step[2] + 1, *original[3:8], moment]
