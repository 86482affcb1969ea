"""Overrides that this console carries out. They go on when their screen is left, and end when the console does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from console.core.desk import Desk
from console.core.faults import Fault
from console.ui.words import here

if TYPE_CHECKING:
    from console.core.operations import Operations, Watcher
    from console.core.override import Override, Progress
    from console.core.plan import Confirmation, Plan
    from console.core.ports import Stop


class _Asked:
    """A Stop that the console raises when it quits, and the process when it is told to end."""

    def __init__(self, outer: Stop) -> None:
        self._outer = outer
        self.raised = False

    @property
    def requested(self) -> bool:
        return self.raised or self._outer.requested


@dataclass(slots=True)
class Run:
    """One override, as it is seen from here. Only its own thread writes it; readers take what is there."""

    plan: Plan
    began: datetime
    progress: Progress | None = None
    override: Override | None = None
    fault: Exception | None = None
    clock: float = field(default_factory=monotonic)
    ended: float | None = None
    resumed_from: int = 0

    @property
    def over(self) -> bool:
        return self.ended is not None

    @property
    def op_id(self) -> str | None:
        return self.progress.op_id if self.progress else self.override.op_id if self.override else None

    @property
    def rate(self) -> float:
        """Items per second so far."""
        spent = (self.ended or monotonic()) - self.clock
        return 0.0 if self.progress is None or spent <= 0 else (self.progress.done - self.resumed_from) / spent


class Runs:
    """Writes are never daemons: the thread that writes also records, and is waited for."""

    def __init__(self, desk: Desk, changed: Callable[[], None]) -> None:
        self._desk = desk
        self._changed = changed
        self._stop = _Asked(desk.stop)
        self._threads: list[Thread] = []
        self.latest: Run | None = None

    @property
    def running(self) -> bool:
        return self.latest is not None and not self.latest.over

    def carry_out(self, plan: Plan, confirmation: Confirmation) -> None:
        self._begin(plan, lambda operations, watch: operations.carry_out(plan.id, confirmation, self._stop, watch))

    def resume(self, plan: Plan, op_id: str, done: int) -> None:
        who, whence = self._desk.who, self._desk.whence
        self._begin(plan, lambda operations, watch: operations.resume(op_id, who, whence, self._stop, watch), done)

    def _begin(self, plan: Plan, work: Callable[[Operations, Watcher], Override], done: int = 0) -> None:
        operations = self._desk.operations
        assert operations is not None
        assert not self.running
        run = self.latest = Run(plan, self._desk.clock.now(), resumed_from=done)

        def watch(progress: Progress) -> None:
            run.progress = replace(progress, counts=dict(progress.counts))
            self._changed()

        def carry() -> None:
            try:
                run.override = work(operations, watch)
            except Exception as error:  # noqa: BLE001 - shown on the run's screen, whatever it is
                run.fault = error
            finally:
                run.ended = monotonic()
                self._changed()

        thread = Thread(target=carry, name="override")
        self._threads.append(thread)
        thread.start()
        self._changed()

    def finish(self) -> None:
        """Let the chunk that is being written end, and be recorded."""
        self._stop.raised = True
        for thread in self._threads:
            thread.join()


def fault_text(error: Exception) -> str:
    return here(str(error)) if isinstance(error, Fault) else f"a fault in Retriage itself: {type(error).__name__}"
