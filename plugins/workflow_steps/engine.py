"""A small orchestrator for the demo, tests and small deployments: it runs ready steps and writes their transitions.

Each cycle takes the tasks with the highest priority that have ready steps and no step in error, runs those steps, and
then moves the task on. A step is ready if it is pending or waiting for its retry, is neither processed nor in process,
has only complete parents, and is eligible and due.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from console.core.faults import Fault
from console.core.handlers import as_json, message_of
from console.core.ports import Clock, Stop
from console.core.query import NATURAL, Filter
from console.sql.database import RowRefused, Writer
from console.sql.values import plain, text, whole_number
from plugins.workflow_steps.image import StepImage, TaskImage
from plugins.workflow_steps.prediction import DETECTION_INTERVAL
from plugins.workflow_steps.rows import FINISHED, StepRow, is_true, step_row
from plugins.workflow_steps.tasks import PREFILTER
from plugins.workflow_steps.writing import Transition

if TYPE_CHECKING:
    from plugins.workflow_steps.backend import WorkflowSteps

_READY = Filter.parse("condition:* status:pending,waiting_for_retry")
_POLL_INTERVAL = 1.0
_ENDED = frozenset({*FINISHED, "cancelled"})
"""The states that a step never leaves."""


class Orchestrator:
    """The loop over one backend's steps."""

    def __init__(
        self, backend: WorkflowSteps, handler: Callable[..., object], clock: Clock, log: Callable[[str], None]
    ) -> None:
        self._backend = backend
        self._handler = handler
        self._clock = clock
        self._log = log
        self.executions = 0
        self._detects_at = datetime.min.replace(tzinfo=UTC)

    def run(self, stop: Stop) -> int:
        while not stop.requested:
            try:
                self.cycle(stop)
                self.detect_stale()
            except Fault as fault:
                self._log(f"error in orchestration: {fault}")
            if not stop.requested:
                self._clock.sleep(_POLL_INTERVAL)
        return self.executions

    def cycle(self, stop: Stop) -> int:
        """Take the next tasks and run their ready steps; returns how many steps."""
        done = 0
        for task, steps in self._next_tasks(self._clock.now(), stop):
            if stop.requested:
                break
            self._move_task(task, "steps_in_process")
            for step in steps:
                if self._move(step, "in_progress", begins=True):
                    done += 1
                    self._execute(step)
            self._move_task(task, self._state_after(task))
        self.executions += done
        return done

    def _next_tasks(self, now: datetime, stop: Stop) -> list[tuple[str, list[StepRow]]]:
        """The tasks to take now, with their ready steps.

        The system looks at a limited number of tasks by priority first, and only then whether they have ready steps.
        """
        batch = self._backend.batch_size
        candidates = [task.uuid for task in self._backend.attached.tasks.polled(now)[: batch * PREFILTER]]
        ready: dict[str, list[StepRow]] = {}
        for rows in self._backend.reader.walk(_READY, NATURAL, None, now, stop):
            for step in map(step_row, rows):
                if self._is_ready(step, now):
                    ready.setdefault(text(step.task), []).append(step)
        return [(task, ready[task]) for task in candidates if task in ready][:batch]

    def _is_ready(self, step: StepRow, now: datetime) -> bool:
        if is_true(step.in_process) or is_true(step.processed) or step.waits_for or step.failed_siblings:
            return False
        rows = self._backend.attached.rows
        due = rows.next_retry(step)
        return rows.eligible(step) and (due is None or due <= now)

    def _state_after(self, task: str) -> str:
        """The state of a task whose steps have just run."""
        states = self._backend.attached.guard.states(task)
        if "error" in states:
            return "blocked_by_failures"
        if states <= set(FINISHED):
            return "complete"
        return "waiting_for_retry" if "waiting_for_retry" in states else "waiting_for_dependencies"

    def detect_stale(self) -> None:
        """Move tasks that wait for too long, or are too old, to error and to the dead letter queue."""
        now = self._clock.now()
        if not self._backend.tables.has_dead_letters or now < self._detects_at:
            return
        self._detects_at = now + DETECTION_INTERVAL
        for task in self._backend.attached.tasks.stale(now):
            self._log(f"task {task.uuid} is stale: {task.state.state}")
            with self._backend.database.writing() as writer:
                at = plain(self._backend.time.encode(now))
                self._backend.attached.guard.add_dead_letter(writer, task.uuid, task.state.state, at)
            self._move_task(task.uuid, "error")

    def _execute(self, step: StepRow) -> None:
        name = text(step.name)
        try:
            result = self._handler(name, {"id": text(step.uuid), "task": text(step.task)})
        except Exception as error:  # noqa: BLE001  any exception of the handler is a failure of this step
            message = message_of(error)
            self._log(f"step {name} {text(step.uuid)} failed: {message}")
            self._move(step, "error", {"error": {"message": message, "type": type(error).__name__}})
            tried = step._replace(attempts=whole_number(step.attempts) + 1)
            if self._backend.attached.rows.eligible(tried):
                self._move(step, "waiting_for_retry")
        else:
            self._log(f"step {name} {text(step.uuid)} complete")
            self._move(step, "complete", {"result": result})

    # -- transitions -----------------------------------------------------------------------------

    def _move(self, step: StepRow, state: str, results: object = None, *, begins: bool = False) -> bool:
        """Write one transition and the step's columns in one transaction; returns False if the step changed before."""
        guard, id = self._backend.attached.guard, text(step.uuid)
        at = plain(self._backend.time.encode(self._clock.now()))
        with self._backend.database.writing() as writer:
            found = guard.steps([id], writer.execute).get(id)
            if found is None or found.state in _ENDED or (begins and found.state != text(step.state)):
                return False
            try:
                self._set(writer, id, found, state, results, at)
                move = Transition(id, found.state, state, (found.sort_key or 0) + 1, at)
                guard.transit(writer, "workflow_step", [move], "{}")
            except RowRefused as refused:
                self._log(f"step {id} was not moved: {refused}")
                return False
        return True

    def _set(self, writer: Writer, id: str, found: StepImage, state: str, results: object, at: Any) -> None:
        """Write the step's columns for its new state."""
        working, done = state == "in_progress", state == "complete"
        values: dict[str, Any] = {"in_process": working, "processed": done, "updated_at": at}
        if working:
            values |= {"attempts": whole_number(found.attempts) + 1, "last_attempted_at": at}
        if done:
            values["processed_at"] = at
        if results is not None:
            values["results"] = as_json(results)
        self._backend.attached.guard.assign(writer, id, values)

    def _move_task(self, task: str, state: str) -> None:
        guard = self._backend.attached.guard
        at = plain(self._backend.time.encode(self._clock.now()))
        with self._backend.database.writing() as writer:
            found = guard.tasks([task], writer.execute).get(task, TaskImage(None, 0))
            if found.state == state:
                return
            try:
                with writer.savepoint():
                    move = Transition(task, found.state, state, found.sort_key + 1, at)
                    guard.transit(writer, "task", [move], "{}")
            except RowRefused as refused:  # another orchestrator moved it first
                self._log(f"task {task} was not moved: {refused}")
