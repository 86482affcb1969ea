"""Predicts whether the orchestrator runs a step. It takes the steps of a task together, so the task decides, too.

A step in `pending` or `waiting_for_retry` runs if

- it is eligible, due, and marked neither as processed nor as in process;
- all its parents are complete or resolved manually;
- its task has a state that is polled (`POLLED_STATES`), and has not been in it for too long;
- no step of its task is in error: such a task counts as blocked by failures, whatever its state;
- a staleness detector did not move its task to error before. It does so with tasks that wait for too long, and with
  any waiting task that is older than `TASK_LIFETIME`. Tasks that are in the dead letter queue already are left alone.

A prediction assumes that what runs before the step succeeds. Where it depends on more, it says so and is None.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from console.core.advice import Advice, Step
from console.core.item import Window
from console.core.policy import later
from console.core.prediction import Prediction
from console.core.text import duration, instant, plural

READY = ("pending", "waiting_for_retry")
"""The states of steps that the orchestrator runs."""
POLLED_STATES = {
    "pending": None,
    "waiting_for_dependencies": timedelta(minutes=60),
    "waiting_for_retry": timedelta(minutes=30),
}
"""The states of tasks that the orchestrator polls, and how long a task may be in each."""
_SHORTEST_LIMIT = min(filter(None, POLLED_STATES.values()))
WORKING_STATES = ("initializing", "enqueuing_steps", "steps_in_process", "evaluating_results")
"""The states of tasks that an orchestrator has taken."""
TASK_LIFETIME = timedelta(hours=24)
DETECTION_INTERVAL = timedelta(minutes=5)
"""How often the staleness detector looks."""
WAKE_TASK = "wake_task"
INCLUDE_FAILED = "include_failed_siblings"

_OVER = frozenset({"complete", "cancelled", "resolved_manually"})
_ASLEEP = frozenset({"blocked_by_failures", "error"})
_WAKE = Advice(Step.TURN_ON, WAKE_TASK)


class StepState(NamedTuple):
    """What a prediction needs to know of a step."""

    state: str
    eligible: bool = True
    mark: str | None = None
    """`processed` or `in process`, if it is marked so."""
    due: datetime | None = None
    waits_for: str | None = None
    """The names of parents that are not complete."""
    never_completes: str | None = None
    """The name of an ancestor that will not run: cancelled, marked, or without attempts left."""
    may_fail: str | None = None
    """The name of an ancestor that is at work or has failed before."""


class TaskState(NamedTuple):
    """What a prediction needs to know of a step's task."""

    state: str | None
    """None: it has no transition."""
    since: datetime | None = None
    created_at: datetime | None = None
    failed: int = 0
    """How many of its other steps are in error."""
    dead_letter: str | None = None
    """Why it is in the dead letter queue, if it is."""
    has_detector: bool = False

    def woken(self, now: datetime) -> TaskState:
        return self._replace(state="waiting_for_retry", since=now)

    @property
    def ends_at(self) -> datetime | None:
        """When its staleness detector gives it up for its age."""
        if not self.has_detector or self.dead_letter is not None or self.created_at is None:
            return None
        return later(self.created_at, TASK_LIFETIME)

    @property
    def stale_at(self) -> datetime | None:
        """When it has been in its state for too long."""
        limit = POLLED_STATES.get(self.state or "")
        return None if limit is None or self.since is None else later(self.since, limit)


def predict(step: StepState, task: TaskState, now: datetime) -> Prediction:
    """What the orchestrator does with a step in this state."""
    if step.state not in READY:
        return Prediction(False, f"It is {step.state}.")
    if step.mark is not None:
        return Prediction(False, f"It is marked as {step.mark}, so its system ignores it.")
    if not step.eligible:
        return Prediction(False, "No attempts left, so its system ignores it.")
    if (ignored := refused(task, now)) is not None:
        return ignored
    if step.never_completes is not None:
        return Prediction(False, f"It waits for {step.never_completes}, which will not complete.")
    if task.state in WORKING_STATES:
        return Prediction(None, f"Its task is {task.state}, and runs more steps once the current ones end.")
    if step.may_fail is not None:
        return Prediction(None, f"It waits for {step.may_fail}, which may fail.")
    return _in_time(step, task, now)


def refused(task: TaskState, now: datetime) -> Prediction | None:
    """Why the orchestrator does not look at a task, if it does not."""
    if task.state is None:
        return Prediction(False, "Its task has no state, so its system does not find it.")
    dead = "" if task.dead_letter is None else f" and in the dead letter queue ({task.dead_letter})"
    if task.state in _OVER:
        return Prediction(False, f"Its task is {task.state}{dead}.")
    if task.failed:
        others = f"{task.failed} other {plural(task.failed, 'step')}"
        verb = plural(task.failed, "is", "are")
        return Prediction(False, f"{others} of its task {verb} in error, so its system ignores the task.")
    if task.state in WORKING_STATES:
        return None
    if task.state not in POLLED_STATES:
        advice = _WAKE if task.state in _ASLEEP else None
        return Prediction(False, f"Its task is {task.state}{dead}, so its system ignores it.", advice)
    if task.stale_at is not None and task.stale_at < now:
        limit = duration(POLLED_STATES[task.state] or timedelta(0))
        return Prediction(
            False, f"Its task has been {task.state} for over {limit}{dead}, so its system ignores it.", _WAKE
        )
    return None


def _in_time(step: StepState, task: TaskState, now: datetime) -> Prediction:
    """Whether a step of a polled task runs before the task is given up."""
    runs_at = now if step.due is None else max(step.due, now)
    at = None if step.due is None else Window.at(step.due)
    # Another step that runs before moves the task to a state with a limit of its own.
    stale_at = min(filter(None, (task.stale_at, later(now, _SHORTEST_LIMIT))))
    if runs_at >= stale_at:
        return Prediction(None, f"Its task may become stale at {instant(stale_at)}, before it is due.", at=at)
    waits = runs_at > now or step.waits_for is not None
    if waits and task.ends_at is not None and runs_at >= task.ends_at:
        return Prediction(None, f"Its task is over {duration(TASK_LIFETIME)} old, and may be given up before.", at=at)
    return Prediction(True, at=at)
