"""The overrides this console carries out. They continue when their screen is left, and stop when the console ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from console.core.session import Session

if TYPE_CHECKING:
    from console.core.confirm import Confirmation
    from console.core.executor import Progress
    from console.core.operations import Operations, Watcher
    from console.core.override import Override
    from console.core.plan import Plan
    from console.core.ports import Stop


class _StopAtExit:
    """A Stop that is requested when the console quits or the process is asked to end."""

    def __init__(self, process_stop: Stop) -> None:
        self._process_stop = process_stop
        self.raised = False

    @property
    def requested(self) -> bool:
        return self.raised or self._process_stop.requested


@dataclass(slots=True)
class LiveOverride:
    """One override while it is carried out, and its result afterwards. Only its own thread writes to it."""

    plan: Plan
    began: datetime
    progress: Progress | None = None
    override: Override | None = None
    fault: Exception | None = None
    began_clock: float = field(default_factory=monotonic)
    ended_clock: float | None = None
    resumed_from: int = 0

    @property
    def over(self) -> bool:
        return self.ended_clock is not None

    @property
    def override_id(self) -> str | None:
        return self.progress.override_id if self.progress else self.override.override_id if self.override else None

    @property
    def rate(self) -> float:
        """Items per second so far."""
        spent = (self.ended_clock or monotonic()) - self.began_clock
        return 0.0 if self.progress is None or spent <= 0 else (self.progress.done - self.resumed_from) / spent


class LiveOverrides:
    """Runs one override at a time in a thread that is waited for at exit: the thread that writes also records."""

    def __init__(self, session: Session, changed: Callable[[], None]) -> None:
        self._session = session
        self._changed = changed
        self._stop = _StopAtExit(session.stop)
        self._threads: list[Thread] = []
        self.latest: LiveOverride | None = None

    @property
    def running(self) -> bool:
        return self.latest is not None and not self.latest.over

    def carry_out(self, plan: Plan, confirmation: Confirmation) -> None:
        self._begin(plan, lambda operations, watch: operations.carry_out(plan, confirmation, self._stop, watch))

    def resume(self, plan: Plan, override_id: str, done: int) -> None:
        who, origin = self._session.who, self._session.origin
        stop = self._stop
        self._begin(plan, lambda operations, watch: operations.resume(override_id, who, origin, stop, watch), done)

    def _begin(self, plan: Plan, work: Callable[[Operations, Watcher], Override], done: int = 0) -> None:
        operations = self._session.operations
        assert operations is not None
        assert not self.running
        live = self.latest = LiveOverride(plan, self._session.clock.now(), resumed_from=done)

        def watch(progress: Progress) -> None:
            live.progress = replace(progress, counts=dict(progress.counts))
            self._changed()

        def carry_out() -> None:
            try:
                live.override = work(operations, watch)
            except Exception as error:  # noqa: BLE001 - whatever it is, the override's screen shows it
                live.fault = error
            finally:
                live.ended_clock = monotonic()
                self._changed()

        thread = Thread(target=carry_out, name="override")
        self._threads.append(thread)
        thread.start()
        self._changed()

    def finish(self) -> None:
        """Stop after the chunk that is being written, once it is recorded."""
        self._stop.raised = True
        for thread in self._threads:
            thread.join()
