"""Requeues steps as their system resets them, and plans their discards: which steps, what is written, why others not.

All planned steps of a task are one write, because a task with a step in error runs none of its steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from console.core.action_rules import NO_ATTEMPTS_LEFT, NOT_REQUEUEABLE, NOT_STORABLE, UNRECOVERABLE
from console.core.advice import Advice, Notice, Step
from console.core.backend import (
    Abilities,
    Action,
    Attempts,
    Change,
    DiscardAbility,
    Draft,
    Flag,
    Image,
    Operation,
    UndoKind,
)
from console.core.capabilities import SwitchSpec
from console.core.item import Condition, ItemKey
from console.core.signature import signature_of
from console.core.text import duration
from console.sql.times import IsoText, Naive
from console.sql.values import plain, storable, text
from plugins.workflow_steps import discard
from plugins.workflow_steps.discard import Decision
from plugins.workflow_steps.image import NOT_WOKEN, StepImage, TaskImage, UnitImage, step_ids
from plugins.workflow_steps.prediction import (
    DETECTION_INTERVAL,
    INCLUDE_FAILED,
    READY,
    TASK_LIFETIME,
    WAKE_TASK,
    TaskState,
    predict,
)
from plugins.workflow_steps.rows import StepRow, StepRows
from plugins.workflow_steps.tasks import WaitingTask, priority_of

SWITCHES = (
    SwitchSpec(
        WAKE_TASK, "wake the task", "Wake the task too, where its system would ignore it otherwise.",
        actions=(Action.REQUEUE, Action.DISCARD),
    ),
    SwitchSpec(
        INCLUDE_FAILED, "include failed siblings", "Requeue the other failed steps of the same task, too.",
        adds_items=True,
    ),
    *discard.SWITCHES,
)
ABILITIES = Abilities(
    actions=frozenset({Action.REQUEUE, Action.DISCARD, Action.UNDO}),
    attempts=frozenset(Attempts),
    undo=UndoKind.COMPENSATING,
    stores_due_time=False,
    guard=("to_state", "sort_key", "attempts", "in_process", "processed", "updated_at"),
    flags=frozenset({Flag.INCLUDE_UNRECOVERABLE, *(switch.id for switch in SWITCHES)}),
    execution_counter="attempts",
    discard=DiscardAbility(UndoKind.COMPENSATING, takes_terminal=True),
)
_NOT_IN_ERROR = Notice("Not in error; only a step in error can be reset.")
_CHANGED_MEANWHILE = Notice("Changed while the plan was made.")
_SKIPPED = {**NOT_REQUEUEABLE, Condition.RETRYING: Notice("Already scheduled; runs when due.")}
_WOKEN = "Its task is woken: a transition to waiting_for_retry is added."
_CROWDED = "Its system looks at tasks with a higher priority first, so it may have to wait."
_ADDED = "Included because it is a failed step of the same task."


class Unit(NamedTuple):
    """The steps of one task that a plan selects, and the failed ones of that task."""

    steps: Sequence[StepRow]
    added: Collection[str]
    """The ids of steps that were not selected themselves."""
    failed: Collection[str]
    """The ids of all steps of the task that are in error."""


class StepPlanner:
    """Makes the drafts and after-images of steps."""

    def __init__(self, backend: str, time: Naive | IsoText, rows: StepRows) -> None:
        self._backend = backend
        self._time = time
        self._rows = rows

    # -- what may be done ------------------------------------------------------------------------

    def decide(
        self, unit: Unit, operation: Operation, now: datetime, least_priority: float | None = None
    ) -> list[Decision]:
        """What to do with each step. A step is requeued only if its system would run it then."""
        if operation.discards:
            return self._decide_discard(unit, operation, now)
        decided = [Decision(self._own_reason(step, operation, now)) for step in unit.steps]
        remaining = None
        while remaining != (left := len(set(unit.failed) - _reset_ids(unit, decided))):
            remaining = left  # a step that is skipped stays in error, which may be the reason to skip others
            decided = [
                self._decide(step, unit, remaining, operation, now, least_priority)
                if decision.skipped is None
                else decision
                for step, decision in zip(unit.steps, decided, strict=True)
            ]
        return decided

    def _decide_discard(self, unit: Unit, operation: Operation, now: datetime) -> list[Decision]:
        decided = [Decision(discard.why_not(self._rows.verdict(step, now), operation)) for step in unit.steps]
        remaining = len(set(unit.failed) - _reset_ids(unit, decided))
        return [
            decision
            if decision.skipped is not None
            else discard.consequences(step, self._rows.task_state(step), remaining, operation, now)
            for step, decision in zip(unit.steps, decided, strict=True)
        ]

    def _own_reason(self, step: StepRow, operation: Operation, now: datetime) -> Notice | None:
        """Why a step cannot be requeued, whatever its task is."""
        verdict = self._rows.verdict(step, now)
        if notice := _SKIPPED.get(verdict.condition):
            return notice
        if step.state in READY:
            return None if verdict.condition is Condition.STUCK else NO_ATTEMPTS_LEFT._replace(advice=None)
        if not _in_error(step):
            return _NOT_IN_ERROR
        if verdict.recoverable is False and Flag.INCLUDE_UNRECOVERABLE not in operation.flags:
            return UNRECOVERABLE
        if operation.attempts is Attempts.KEEP and not self._rows.eligible(step):
            return NO_ATTEMPTS_LEFT
        return None

    def _decide(
        self, step: StepRow, unit: Unit, remaining: int, operation: Operation, now: datetime, least: float | None
    ) -> Decision:
        after = self._rows.step_state(_after(step, operation)._replace(state="pending"))
        if operation.attempts is Attempts.KEEP and step.waits_for and unit.failed:
            after = after._replace(may_fail=text(step.waits_for))
        task = self._rows.task_state(step)._replace(failed=remaining)
        prediction = predict(after, task, now)
        wakes = prediction.advice == Advice(Step.TURN_ON, WAKE_TASK) and WAKE_TASK in operation.flags
        if wakes:
            task = task.woken(now)
            prediction = predict(after, task, now)
        if not prediction.runs:
            offered = remaining and _in_error(step) and INCLUDE_FAILED not in operation.flags
            advice = Advice(Step.TURN_ON, INCLUDE_FAILED) if offered else prediction.advice
            return Decision(Notice(prediction.why, advice))
        if not wakes and not _in_error(step):
            return Decision(_NOT_IN_ERROR)  # it was stuck because of steps that are requeued now
        waiting = WaitingTask(text(step.task), task, priority_of(step.priority))
        warnings = (
            _ADDED if text(step.uuid) in unit.added else "",
            _WOKEN if wakes else "",
            _too_old(task, now),
            _CROWDED if least is not None and waiting.computed_priority(now) < least else "",
            f"Would wait for {text(step.waits_for)}." if step.waits_for else "",
        )
        return Decision(None, tuple(filter(None, warnings)), wakes)

    # -- drafts ----------------------------------------------------------------------------------

    def drafts(
        self, unit: Unit, decisions: Sequence[Decision], images: Mapping[str, StepImage],
        tasks: Mapping[str, TaskImage], now: datetime,
    ) -> Iterator[Draft]:
        name = text(unit.steps[0].task)
        decided = [
            _unless_changed(step, images.get(text(step.uuid)), tasks.get(name), decision)
            for step, decision in zip(unit.steps, decisions, strict=True)
        ]
        wakes = any(decision.wakes for decision in decided if decision.skipped is None)
        chosen = tuple(
            images[text(step.uuid)]
            for step, decision in zip(unit.steps, decided, strict=True)
            if decision.skipped is None
        )
        image = UnitImage(tasks[name] if wakes else NOT_WOKEN, chosen).values
        for step, decision in zip(unit.steps, decided, strict=True):
            yield Draft(
                str(ItemKey(self._backend, (text(step.uuid),))),
                name,
                None if decision.skipped else image,
                self._rows.verdict(step, now).condition,
                signature_of(text(step.error)) if step.error else None,
                decision.skipped,
                Notice(" ".join(decision.warnings), decision.advice) if decision.warnings else None,
            )

    # -- after-images ----------------------------------------------------------------------------

    def after(self, change: Change, operation: Operation, at: datetime) -> Image:
        """One more transition for every planned step whose state changes, and for the task if it is woken."""
        moment, planned = plain(self._time.encode(at)), set(step_ids(change))
        before = UnitImage.parse(change.before)
        if operation.action == Action.UNDO:
            original = UnitImage.parse(change.after)
            by_id = {step.uuid: step for step in original.steps}
            changed = {step.uuid: _restored(step, by_id[step.uuid], moment) for step in before.steps}
            state = original.task.state
        elif operation.discards:
            chosen = discard.state_of(operation)
            assert chosen is not None, "without a way to discard, every step is skipped"
            changed = {step.uuid: discard.given_up(step, chosen, moment) for step in before.steps}
            state = "waiting_for_retry"
        else:
            resets = operation.attempts is Attempts.RESET
            changed = {step.uuid: _reset(step, resets, moment) for step in before.steps}
            state = "waiting_for_retry"
        task = TaskImage(state, before.task.sort_key + 1) if before.wakes else NOT_WOKEN
        return UnitImage(task, tuple(changed[s.uuid] if s.uuid in planned else s for s in before.steps)).values


def _reset_ids(unit: Unit, decisions: Sequence[Decision]) -> set[str]:
    """The steps in error that are requeued or given up."""
    pairs = zip(unit.steps, decisions, strict=True)
    return {text(step.uuid) for step, decision in pairs if decision.skipped is None and _in_error(step)}


def _in_error(step: StepRow) -> bool:
    return text(step.state) == "error"


def _after(step: StepRow, operation: Operation) -> StepRow:
    """The step as it will be: reset if it is in error, else unchanged except for its attempts."""
    if operation.attempts is Attempts.RESET:
        step = step._replace(attempts=0)
    return step._replace(in_process=False, processed=False, backoff=None) if _in_error(step) else step


def _too_old(task: TaskState, now: datetime) -> str:
    """Warn that the staleness detector gives the task up for its age."""
    if task.ends_at is None or task.state == "pending":
        return ""
    if task.ends_at <= now:
        return (
            f"Its task is older than {duration(TASK_LIFETIME)}: the staleness detector moves it back to error"
            f" within {duration(DETECTION_INTERVAL)}."
        )
    if task.stale_at is not None and task.ends_at < task.stale_at:
        return f"Its task has {duration(task.ends_at - now)} until the staleness detector moves it to error."
    return ""


def _unless_changed(
    step: StepRow, image: StepImage | None, task: TaskImage | None, decision: Decision
) -> Decision:
    """The decision, unless the step or the task to wake changed between judging it and reading its image."""
    if decision.skipped is not None:
        return decision
    if image is not None and not storable(image):
        return Decision(NOT_STORABLE)
    fields = ("state", "attempts", "in_process", "processed", "backoff", "updated_at")
    same = image is not None and all(plain(getattr(step, name)) == getattr(image, name) for name in fields)
    if same and not (decision.wakes and (task is None or task.state != step.task_state)):
        return decision
    return Decision(_CHANGED_MEANWHILE)


def _reset(step: StepImage, resets: bool, moment: Any) -> StepImage:
    attempts = 0 if resets else step.attempts
    if step.state != "error":  # only its task is woken
        return step._replace(attempts=attempts, updated_at=moment)
    return StepImage(step.uuid, "pending", step.sort_key + 1, attempts, False, False, None, None, moment)


def _restored(step: StepImage, original: StepImage, moment: Any) -> StepImage:
    """The original step, with a new transition if its state changes: the first one stays in the history."""
    moved = step.state != original.state
    return original._replace(sort_key=step.sort_key + 1 if moved else step.sort_key, updated_at=moment)
