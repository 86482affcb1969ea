"""A small orchestrator for demo, tests and small deployments: takes ready steps, runs them, moves their states.

A step is ready by the system's own predicate: pending or waiting for its retry, not processed or in process, all
parents complete, eligible, its time has come, and its task in a state that is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from console.core.faults import Fault
from console.core.handlers import as_json, message_of
from console.core.ports import Clock, Stop
from console.core.query import NATURAL, Filter
from console.sql.database import RowRefused, Writer
from console.sql.values import plain, text, whole_number
from plugins.workflow_steps.requeue import LOOKED_AT, Planned
from plugins.workflow_steps.rows import held

if TYPE_CHECKING:
    from plugins.workflow_steps.backend import WorkflowSteps

_READY = Filter.parse("condition:waiting,retrying")
_NAP = 1.0


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

    def run(self, stop: Stop) -> int:
        while not stop.requested:
            try:
                self.cycle(stop)
            except Fault as fault:
                self._log(f"error in orchestration: {fault}")
            if not stop.requested:
                self._clock.sleep(_NAP)
        return self.executions

    def cycle(self, stop: Stop) -> int:
        """Run what is ready now; how many there were."""
        done = 0
        for step in list(self._ready(self._clock.now(), stop)):
            if stop.requested:
                break
            if self._move(step, "in_progress", begins=True):
                done += 1
                self._execute(step)
        self.executions += done
        return done

    def _ready(self, now: datetime, stop: Stop) -> Iterator[Planned]:
        known, reader = self._backend.known, self._backend.reader
        columns = (*reader.layout.segments[0].roles.row, *known.steps.outlook())
        for batch in reader.walk(_READY, NATURAL, columns, now, stop):
            for planned in map(known.requeue.planned, batch):
                if self._is_ready(planned, now):
                    yield planned

    def _is_ready(self, planned: Planned, now: datetime) -> bool:
        step = planned.step
        if held(step) or planned.waits_for or planned.task_state not in LOOKED_AT:
            return False
        limit, since = LOOKED_AT[planned.task_state], self._backend.time.decode(planned.task_since)
        if limit is not None and since is not None and now - since > limit:
            return False
        due = self._backend.known.rows.next_retry(step) if whole_number(step.attempts) else None
        return due is None or due <= now

    def _execute(self, planned: Planned) -> None:
        name = text(planned.step.name)
        try:
            result = self._handler(name, {"id": text(planned.step.uuid), "task": planned.task})
        except Exception as error:  # noqa: BLE001  whatever a handler raises is this step's failure
            message = message_of(error)
            self._log(f"step {name} {text(planned.step.uuid)} failed: {message}")
            self._move(planned, "error", {"error": {"message": message, "type": type(error).__name__}})
            tried = planned.step._replace(attempts=whole_number(planned.step.attempts) + 1)
            if self._backend.known.rows.eligible(tried):
                self._move(planned, "waiting_for_retry")
                self._move_task(planned.task, "waiting_for_retry")
            else:
                self._move_task(planned.task, "blocked_by_failures")
        else:
            self._log(f"step {name} {text(planned.step.uuid)} complete")
            self._move(planned, "complete", {"result": result})

    # -- transitions -----------------------------------------------------------------------------

    def _move(self, planned: Planned, state: str, results: object = None, *, begins: bool = False) -> bool:
        """One transition in one transaction, with what it means for the step; False when it is not as it was."""
        guard, id = self._backend.known.guard, text(planned.step.uuid)
        at = plain(self._backend.time.encode(self._clock.now()))
        with self._backend.database.writing() as writer:
            found = guard.steps([id], writer.execute).get(id)
            if found is None or (begins and found[1] != text(planned.step.state)):
                return False
            try:
                self._set(writer, id, found, state, results, at)
                guard.transit(writer, "workflow_step", [(id, found[1], state, (found[2] or 0) + 1, at)], "{}")
            except RowRefused as refused:
                self._log(f"step {id} was not moved: {refused}")
                return False
        return True

    def _set(self, writer: Writer, id: str, found: list[Any], state: str, results: object, at: Any) -> None:
        """What the step's own columns say in its new state."""
        working, done = state == "in_progress", state == "complete"
        values: dict[str, Any] = {"in_process": working, "processed": done, "updated_at": at}
        if working:
            values |= {"attempts": whole_number(found[3]) + 1, "last_attempted_at": at}
        if done:
            values["processed_at"] = at
        if results is not None:
            values["results"] = as_json(results)
        self._backend.known.guard.assign(writer, id, values)

    def _move_task(self, task: str, state: str) -> None:
        guard = self._backend.known.guard
        at = plain(self._backend.time.encode(self._clock.now()))
        with self._backend.database.writing() as writer:
            was, number = guard.tasks([task], writer.execute).get(task, (None, 0))
            if was == state:
                return
            try:
                with writer.savepoint():
                    guard.transit(writer, "task", [(task, was, state, number + 1, at)], "{}")
            except RowRefused as refused:  # another orchestrator moved it first
                self._log(f"task {task} was not moved: {refused}")
