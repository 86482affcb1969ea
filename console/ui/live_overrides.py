"""The overrides this console carries out or watches. They continue when their screen is left, and stop when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from console.core.backend import Action
from console.core.faults import Fault
from console.core.session import Session

if TYPE_CHECKING:
    from console.core.canary import CanaryProgress
    from console.core.confirm import Confirmation
    from console.core.events import OverrideEvent
    from console.core.executor import Progress
    from console.core.operations import Operations, Watcher
    from console.core.override import Override
    from console.core.plan import Plan
    from console.core.ports import Stop
    from console.core.proposals import Proposal
    from console.core.recovery import ResultCounts
    from console.core.watch import OverrideWatch, WatchProgress


class _StopAtExit:
    """A Stop that is requested when the console quits or the process is asked to end."""

    def __init__(self, process_stop: Stop) -> None:
        self._process_stop = process_stop
        self.raised = False
        self.terminal_gone = False

    @property
    def requested(self) -> bool:
        return self.raised or self._process_stop.requested



@dataclass(slots=True)
class FollowedOverride:
    """One override while it is carried out, and the results of its items. Only its own threads write to it."""

    plan: Plan | None = None
    override: Override | None = None
    """As the trail has it: from the start if it was opened from there, else when it has ended."""
    progress: Progress | None = None
    """How far it is, if this console carries it out."""
    canary_steps: dict[int, CanaryProgress] = field(default_factory=dict)
    """The last look at each step of its canary, by the number of the step."""
    results: WatchProgress | None = None
    """The results of its items so far."""
    watch: OverrideWatch | None = None
    watched: bool = False
    """Whether a thread was started to watch it."""
    fault: Exception | None = None
    began_clock: float = field(default_factory=monotonic)
    ended_clock: float | None = None
    """When this console stopped carrying it out; None while it does."""
    resumed_from: int = 0

    @property
    def running(self) -> bool:
        """Whether this console carries it out now."""
        return self.ended_clock is None

    @property
    def override_id(self) -> str | None:
        return self.progress.override_id if self.progress else self.override.override_id if self.override else None

    @property
    def rate(self) -> float:
        """Items per second so far."""
        spent = (self.ended_clock or monotonic()) - self.began_clock
        return 0.0 if self.progress is None or spent <= 0 else (self.progress.done - self.resumed_from) / spent


@dataclass(slots=True)
class TypedText:
    """What was typed in a plan that was left, kept for the next one."""

    reason: str = ""
    ticket: str = ""

    def clear(self) -> None:
        self.reason = self.ticket = ""


class LiveOverrides:
    """Carries out one override at a time in a thread that is waited for at exit: the thread that writes also records.

    Every override that was started or looked at here is watched in a thread of its own, until all its items have run
    or the watch time ends.
    """

    def __init__(
        self, session: Session, changed: Callable[[], None], happened: Callable[[OverrideEvent], None]
    ) -> None:
        self._session = session
        self._changed = changed
        self._stop = _StopAtExit(session.stop)
        self._threads: list[Thread] = []
        self._followed: dict[str, FollowedOverride] = {}
        self.latest: FollowedOverride | None = None
        """The one that this console carries out, or the last that it did."""
        self.typed = TypedText()
        if session.operations is not None:
            session.operations.listen(happened)

    @property
    def running(self) -> bool:
        return self.latest is not None and self.latest.running

    def carry_out(self, plan: Plan, confirmation: Confirmation) -> None:
        self._begin(plan, lambda operations, watch: operations.carry_out(plan, confirmation, self._stop, watch))

    def approve(self, plan: Plan, proposal: Proposal, count: int | None, reason: str) -> None:
        """Carry out the plan of a proposal."""
        approvals, stop = self._session.approvals, self._stop
        assert approvals is not None
        self._begin(plan, lambda _, watch: approvals.approve(proposal, count, stop, watch, reason=reason))

    def resume(self, plan: Plan, override_id: str, done: int, count: int | None = None) -> None:
        """Continue an override. `count` confirms how many items are left, where that is asked for."""
        who, origin, stop = self._session.who, self._session.origin, self._stop
        self._followed.pop(override_id, None)
        self._begin(
            plan, lambda operations, watch: operations.resume(override_id, who, origin, stop, watch, count=count), done
        )

    def _begin(self, plan: Plan, work: Callable[[Operations, Watcher], Override], done: int = 0) -> None:
        operations = self._session.operations
        assert operations is not None
        assert not self.running
        followed = self.latest = FollowedOverride(plan, resumed_from=done)

        def watch(progress: Progress) -> None:
            followed.progress = replace(progress, counts=dict(progress.counts))
            if progress.canary is not None:
                followed.canary_steps[progress.canary.step] = progress.canary
            self._watch(followed, operations)
            if followed.watch is not None:
                followed.watch.learn(progress.observed)
                canary = progress.canary if progress.judged_by is not None else None
                followed.watch.reads = canary is None or progress.paused or not canary.reads_all
            self._changed()

        def carry_out() -> None:
            try:
                followed.override = work(operations, watch)
            except Exception as error:  # noqa: BLE001 - whatever it is, the override's screen shows it
                followed.fault = error
            finally:
                followed.ended_clock = monotonic()
                if followed.watch is not None:
                    followed.watch.reads = True
                self._watch(followed, operations)
                self._changed()

        self._start(carry_out, "override")
        self._changed()

    def known(self, override_id: str) -> FollowedOverride | None:
        """An override that is carried out or watched here."""
        return self._followed.get(override_id)

    def of(self, override: Override) -> FollowedOverride:
        """An override of the trail. It is watched from now on, unless its result is on record."""
        known = self._followed.get(override.override_id)
        if known is None:
            known = self._followed[override.override_id] = FollowedOverride(override=override, ended_clock=monotonic())
            if self._session.operations is not None:
                self._watch(known, self._session.operations)
        known.override = override if not known.running else known.override
        return known

    def results_of(self, override: Override) -> ResultCounts | None:
        """The results of its items so far, as far as this console knows them."""
        known = self._followed.get(override.override_id)
        watched = known.results if known is not None else None
        return watched.counts if watched is not None and watched.counts.total else None

    def _watch(self, followed: FollowedOverride, operations: Operations) -> None:
        """Follow its items, unless a thread already does or the result is on record."""
        override_id, override = followed.override_id, followed.override
        if override_id is None or followed.watched:
            return
        self._followed[override_id] = followed
        action = followed.plan.operation.action if followed.plan else override.action if override else ""
        if action != Action.REQUEUE or (override is not None and override.result is not None):
            return  # other items do not run again
        followed.watched = True

        def show(progress: WatchProgress) -> None:
            followed.results = progress
            self._changed()

        def follow() -> None:
            try:
                watch = followed.watch = operations.watch(override_id)
                followed.plan = watch.plan
                followed.results = operations.follow(watch, self._stop, show)
            except Fault as fault:
                followed.fault = followed.fault or fault
            self._changed()

        self._start(follow, "watch")

    def _start(self, work: Callable[[], None], name: str) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = Thread(target=work, name=name)
        self._threads.append(thread)
        thread.start()

    def terminal_gone(self) -> None:
        """Note that the console ends because its terminal is gone."""
        self._stop.terminal_gone = True

    def finish(self) -> None:
        """Stop after the chunk that is being written, once it is recorded."""
        self._stop.raised = True
        for thread in list(self._threads):
            thread.join()
