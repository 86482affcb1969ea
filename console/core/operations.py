"""The only way to write: make a plan, confirm and apply it, resume, stop, undo.

A backend is written only by a frozen plan that a named person has confirmed with a reason, and with a durable record
before and after every write. Both front ends use this module.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from console.core.access import AccessRules, changes_in
from console.core.advice import Advice, Step
from console.core.backend import (
    Action,
    Authority,
    Backend,
    Change,
    Operation,
    OutcomeKind,
    Requeues,
)
from console.core.budget import ReadingBudget
from console.core.confirm import Confirmation, ConfirmationForm, Limits, Origin, Who, recorded
from console.core.events import EventKind, Listener, OverrideEvent
from console.core.executor import Ended, Executor, Progress, StoppedBySignal
from console.core.faults import (
    BackendFault,
    Fault,
    LeaseLost,
    NotConfirmed,
    NotPermitted,
    PlanAltered,
    PlanStale,
    ReadOnlyRefused,
    Refused,
    TrailBroken,
    TrailLost,
    TrailUnavailable,
    Unreachable,
)
from console.core.override import (
    NOT_APPLIED,
    Override,
    OverrideState,
    Request,
    outcome_summary,
)
from console.core.pace import Canary, Now, Pace
from console.core.plan import BackendPart, Plan, Selection
from console.core.plan_checks import altered, recorded_plan, require_plan_of, require_unaltered, require_unexpired
from console.core.planner import NOT_ATTACHED, Planner, deletes_items
from console.core.ports import Clock, Never, Stop, Trail
from console.core.proposals import Proposal, require_approved, require_may_approve
from console.core.reconcile import NOT_KNOWN, Reconciler, foreseen
from console.core.recovery import ItemResult, Result
from console.core.session import NOBODY, NOWHERE
from console.core.text import instant
from console.core.undo import UndoPlanner
from console.core.watch import OverrideWatch, WatchProgress

Watcher = Callable[[Progress], None]
_REFUSALS = (Refused, PlanAltered, NotPermitted)
_ALTERED_MEANWHILE = "Its plan was altered in the trail while it was applied. The rest of it was not touched."
NO_RULES = AccessRules()
_NAP = 0.5
_CAUSES_RECORDED = 50


def _unseen(_progress: WatchProgress) -> None:
    return


def _unwatched(_progress: Progress) -> None:
    return


class Operations:
    """What an operator can do to the backends, and the rules for it."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        trail: Trail,
        clock: Clock,
        *,
        limits: Limits | None = None,
        read_only: bool = False,
        read_only_backends: frozenset[str] = frozenset(),
        who: Who = NOBODY,
        origin: Origin = NOWHERE,
        owner: str = "",
        rules: AccessRules = NO_RULES,
        reach: Callable[[str], None] = lambda _point: None,
        budgets: Mapping[str, ReadingBudget] | None = None,
        steady: Callable[[], float] = monotonic,
    ) -> None:
        self.backends = backends
        self.trail = trail
        self.limits = limits or Limits()
        self.read_only = read_only
        self._read_only_backends = read_only_backends
        self._clock = clock
        self._who, self._origin = who, origin
        self.rules = rules
        self._owner = owner or secrets.token_hex(8)
        self._reconciler = Reconciler(trail, clock, self._owner, self.writable_backend)
        self._reach = reach
        self.budgets = {name: ReadingBudget() for name in backends} | dict(budgets or {})
        """The reading budget of each backend, which everything in this process shares."""
        self._steady = steady
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Have `listener` called when an override ends, stops or is taken over, and when a watch ends."""
        self._listeners.append(listener)

    def _tell(self, kind: EventKind, override_id: str, text: str, *, bad: bool = False) -> None:
        for listener in self._listeners:
            listener(OverrideEvent(kind, override_id, text, bad))

    def _budget_of(self, backend: str) -> ReadingBudget:
        return self.budgets.setdefault(backend, ReadingBudget())

    # -- propose ---------------------------------------------------------------------------------

    def propose(
        self, selection: Selection, operation: Operation, pace: Pace | None = None, stop: Stop | None = None
    ) -> Plan:
        """Make a plan. In read-only mode it is only a preview: it is not stored and cannot be applied."""
        trail = None if self.read_only else self.trail
        planner = Planner(
            self.backends, trail, self._clock, self.limits.max_items, stop or Never(), self._read_only_backends
        )
        with self.recording_refusals(action=str(operation.action), selection=str(selection)):
            return planner.propose(selection, operation, pace or Now())

    def foreseen(self, plan: Plan, most: int) -> Iterator[tuple[str, Change]]:
        """How the first items of a plan would change if it were applied now."""
        return foreseen(self.trail, plan, self.writable_backend, most)

    def undo(self, override_id: str, stop: Stop | None = None) -> Plan:
        """Make a plan that undoes an override, for the items that are still exactly as it left them."""
        self.require_writable()
        with self.recording_refusals(action=str(Action.UNDO), override=override_id):
            planner = UndoPlanner(self.trail, self._clock, self.writable_backend, self._read_only_backends)
            return planner.propose(override_id, stop or Never())

    # -- watch -----------------------------------------------------------------------------------

    def results(self, override_id: str) -> Iterator[Sequence[ItemResult]]:
        """The results of the items that an override requeued, read now, in batches. Writes nothing."""
        return self.watch(override_id).read_all()

    def watch(self, override_id: str) -> OverrideWatch:
        """A watch of an override, of which nothing was read yet. Reads and writes nothing but the trail."""
        return OverrideWatch(
            self.trail, self._clock, override_id, self.writable_backend, self._budget_of, self.limits.watch_for,
            self._steady,
        )

    def follow(
        self, watch: OverrideWatch, stop: Stop | None = None, show: Callable[[WatchProgress], None] = _unseen
    ) -> WatchProgress:
        """Look again and again until the watch is over, then record the result, once. Returns what is known at the end.

        Runs in a thread of its own; `stop` ends it early. Another process may watch the same override.
        """
        stop = stop or Never()
        while True:
            progress = watch.look()
            show(progress)
            if progress.over:
                self._record_result(watch)
                return progress
            left = max(watch.wait(), _NAP)
            while left > 0 and not stop.requested and not watch.has_news:
                self._clock.sleep(min(left, _NAP))
                left -= _NAP
            if stop.requested:
                return progress

    def _record_result(self, watch: OverrideWatch) -> None:
        """Record the result of a watch that is over, unless another process has."""
        progress, override_id = watch.progress, watch.override.override_id
        if self.read_only or not progress.total:
            return
        body = {
            **recorded(self._who, self._origin),
            "override_id": override_id,
            "plan_hash": watch.plan.hash,
            "results": progress.counts.record(),
            "same_cause": progress.counts.same_cause,
            "causes": dict(progress.counts.failed_with[:_CAUSES_RECORDED]),
            "complete": progress.complete,
        }
        if self.trail.add_result(override_id, watch.items, body, self._clock.now()):
            failed = progress.counts.counts[Result.FAILED_AGAIN]
            text = f"Override {override_id}: {progress.summary()}"
            self._tell(EventKind.WATCH_ENDED, override_id, text, bad=bool(failed))

    # -- confirm and carry out -------------------------------------------------------------------

    def record_plan(self, plan: Plan) -> None:
        """Record a plan, so that `recorded_plan` can find it and nobody can exchange it."""
        self.require_writable()
        self.trail.record_plan(plan, self._who, self._origin, self._clock.now())

    def recorded_plan(self, plan_id: str) -> Plan:
        """A plan by its id or hash, to be confirmed. `PlanAltered` unless it is the one that was recorded."""
        self.require_writable()
        with self.recording_refusals(plan_id=plan_id):
            return recorded_plan(self.trail, plan_id)

    def carry_out(
        self, shown: Plan, confirmation: Confirmation, stop: Stop | None = None, watch: Watcher = _unwatched, *,
        proposal: Proposal | None = None, detached: bool = False,
    ) -> Override:
        """Apply the plan that the person has seen. Items that have changed since are left alone and reported.

        With a proposal, this is its approval. A detached override is only queued: a runner carries it out.
        """
        self.require_writable()
        facts = {"plan_id": shown.id, "plan_hash": shown.hash, "action": str(shown.operation.action)}
        given = {"reason": confirmation.reason, **recorded(confirmation.who, confirmation.origin)}
        with self.recording_refusals(Fault, **facts, **given):
            plan = self.trail.plan(shown.id)
            if (plan.hash, plan.expires_at) != (shown.hash, shown.expires_at):
                raise altered(shown.id)
            digests = require_unaltered(self.trail, plan)
            self._require_confirmed(plan, confirmation, proposal)
            self._require_allowed(plan, confirmation, proposal)
            backends = self._written(plan)
            override_id = f"o{secrets.token_hex(5)}"
            self.trail.begin(
                override_id, plan, confirmation, self._owner, self._clock.now(),
                rules=self.rules, proposal=proposal, detached=detached,
            )
        if detached:
            return self.trail.override(override_id)
        authority = _authority(confirmation, override_id)
        with self.trail.holding(plan.id, digests):
            return self._carry(plan, backends, override_id, authority, bytearray(plan.changes), stop or Never(), watch)

    def _require_allowed(self, plan: Plan, confirmation: Confirmation, proposal: Proposal | None) -> None:
        """Require that the rules of the config let this person apply the plan, alone or as an approver."""
        who, action, changes = confirmation.who, str(plan.operation.action), changes_in(plan)
        if proposal is None:
            self.rules.require(who, action, changes)
            self.rules.require_no_approval(plan)
            return
        require_may_approve(self.rules, proposal, who, confirmation.origin)

    def _require_confirmed(self, plan: Plan, confirmation: Confirmation, proposal: Proposal | None) -> None:
        end = plan.expires_at if proposal is None else proposal.expires_at
        require_unexpired(self.trail, end, self._clock.now())
        form = ConfirmationForm(plan, self.limits)
        if (fault := form.problem(confirmation.reason, confirmation.count)) is not None:
            if proposal is not None and isinstance(fault, NotConfirmed):  # the number is all that is missing
                fault.advice = Advice(Step.CONFIRM, str(plan.changes))
            raise fault

    @contextmanager
    def recording_refusals(
        self, refusals: type[Fault] | tuple[type[Fault], ...] = _REFUSALS, **facts: Any
    ) -> Iterator[None]:
        """Record what is refused. In read-only mode nothing is recorded, and a trail that fails cannot record it."""
        try:
            yield
        except (TrailUnavailable, TrailBroken, ReadOnlyRefused):
            raise
        except Fault as fault:
            if not self.read_only and isinstance(fault, refusals):
                why = {"why": type(fault).__name__, "detail": fault.detail}
                body = {**recorded(self._who, self._origin), **facts, **why}
                with suppress(TrailUnavailable, TrailBroken):
                    self.trail.refuse(body, self._clock.now())
            raise

    def _carry(
        self,
        plan: Plan,
        backends: Sequence[tuple[BackendPart, Requeues]],
        override_id: str,
        authority: Authority,
        done: bytearray,
        stop: Stop,
        watch: Watcher,
        counts: Mapping[str, int] | None = None,
        *,
        new_canary: bool = False,
        as_runner: bool = False,
    ) -> Override:
        progress = Progress(override_id, plan.changes)
        for kind, count in (counts or {}).items():
            if kind != NOT_APPLIED:
                progress.counts[OutcomeKind(kind)] += count
        executor = Executor(
            self.trail,
            self._clock,
            stop,
            self.limits,
            plan,
            override_id,
            self._owner,
            authority,
            done=done,
            progress=progress,
            watch=watch,
            reach=self._reach,
            budget_of=self._budget_of,
            new_canary=new_canary,
        )
        try:
            self._run(executor, backends, override_id, progress, as_runner)
        except (TrailUnavailable, TrailBroken) as fault:
            raise _interrupted(fault, plan, progress, executor.unrecorded) from fault
        except PlanAltered:
            fix = f"{_on_record(plan, progress)} Make a new plan for the rest."
            what = f"{plan.id}, while {override_id} applied it"
            raise PlanAltered(what, fix=fix, advice=Advice(Step.VERIFY_TRAIL)) from None
        except LeaseLost:
            taken = f"Override {override_id} was taken over by another process."
            self._tell(EventKind.TAKEN_OVER, override_id, taken, bad=True)
            raise
        override = self.trail.override(override_id)
        ended = EventKind.FINISHED if override.state is OverrideState.FINISHED else EventKind.STOPPED
        self._tell(ended, override_id, end_sentence(override), bad=ended is EventKind.STOPPED)
        return override

    def _run(
        self, executor: Executor, backends: Sequence[tuple[BackendPart, Requeues]], override_id: str,
        progress: Progress, as_runner: bool,
    ) -> None:
        """Apply each backend's part in turn, and record how it ended."""
        try:
            for part, backend in backends:
                executor.carry(part, backend)
        except Ended as end:
            if as_runner and isinstance(end, StoppedBySignal):  # another runner, or this one later, goes on
                self._mark(override_id, OverrideState.QUEUED, "")
            else:
                self._mark(override_id, end.state, end.note)
        except BackendFault as fault:
            self._mark(override_id, OverrideState.STOPPED, str(fault))
        except PlanAltered:
            self._mark(override_id, OverrideState.STOPPED, _ALTERED_MEANWHILE)
            raise
        else:
            self._mark(override_id, OverrideState.FINISHED, _last_note(progress, executor))

    def _mark(self, override_id: str, state: OverrideState, note: str) -> None:
        """Set the state, only while this process has the lease: another process may have taken over the override."""
        self.trail.mark(override_id, state, note, self._clock.now(), owner=self._owner)

    # -- resume and settle -----------------------------------------------------------------------

    def resume_form(self, override_id: str, count: int | None = None) -> ConfirmationForm | None:
        """What has to be asked before an override is resumed; None if nothing.

        One with a canary is confirmed again when it had stopped, for whatever reason: its canary may have failed.
        A number that is given without being asked for is checked too.
        """
        override = self.trail.override(override_id)
        plan = self.trail.plan(override.plan_id)
        left = plan.changes - sum(override.counts.values())
        needed = override.state is OverrideState.STOPPED and isinstance(plan.pace, Canary)
        if not left or not (needed or count is not None):
            return None
        return ConfirmationForm(plan, self.limits, changes=left, resumes=True)

    def resume(
        self,
        override_id: str,
        who: Who,
        origin: Origin,
        stop: Stop | None = None,
        watch: Watcher = _unwatched,
        *,
        count: int | None = None,
        as_runner: bool = False,
    ) -> Override:
        """Settle unresolved intents, then continue with the first item that has no outcome.

        One that had stopped begins with a new canary and needs the `count` of the items that are left, see
        `resume_form`. A runner continues what somebody else has confirmed, and is not asked again: it takes only what
        stopped with its process or terminal. When it is stopped itself, the override is queued again.
        """
        self.require_writable()
        override = self.trail.override(override_id)
        if override.state.over:
            raise PlanStale(f"Override {override.override_id} is finished", fix="There is nothing to resume.")
        form = None if as_runner else self.resume_form(override.override_id, count)
        if form is not None and (fault := form.problem(override.reason, count)) is not None:
            raise fault
        plan = self.trail.plan(override.plan_id)
        digests = require_unaltered(self.trail, plan)
        require_plan_of(self.trail, plan, override)
        backends = self._written(plan)
        with self.recording_refusals(override=override.override_id):
            require_approved(self.trail, self.rules, plan, override)
            if not as_runner:
                self.rules.require(who, str(plan.operation.action), changes_in(plan))
        confirmation = Confirmation(who, origin, override.reason, plan.changes, override.ticket)
        with self.trail.holding(plan.id, digests):
            return self._continue(plan, backends, override, confirmation, stop or Never(), watch, as_runner=as_runner)

    def _continue(
        self,
        plan: Plan,
        backends: Sequence[tuple[BackendPart, Requeues]],
        override: Override,
        confirmation: Confirmation,
        stop: Stop,
        watch: Watcher,
        *,
        as_runner: bool,
    ) -> Override:
        self.trail.take_over(override.override_id, self._owner, self._clock.now(), confirmation)
        try:
            self._reconciler.settle_override(plan, override.override_id)
        except BackendFault as fault:
            state = OverrideState.QUEUED if as_runner else OverrideState.STOPPED
            self._mark(override.override_id, state, f"{fault}. {NOT_KNOWN}")
            return self.trail.override(override.override_id)
        done, counts = self._done(plan, override.override_id), self.trail.override(override.override_id).counts
        authority = _authority(confirmation, override.override_id)
        stopped = override.state is OverrideState.STOPPED
        return self._carry(
            plan, backends, override.override_id, authority, done, stop, watch, counts, new_canary=stopped,
            as_runner=as_runner,
        )

    def settle_unresolved(self, who: Who, origin: Origin) -> list[Override]:
        """Settle every intent without an outcome whose process is gone: read its items again and record what happened.

        Called at start. An intent that cannot be settled now (its backend does not answer or is not configured, or
        another override runs there) stays unresolved. That is not a fault: the start goes on.
        """
        self.require_writable()
        return self._reconciler.settle_abandoned(who, origin)

    def _done(self, plan: Plan, override_id: str) -> bytearray:
        done = bytearray(plan.changes)
        for batch in self.trail.outcomes(override_id):
            for outcome in batch:
                done[outcome.ordinal] |= outcome.outcome != NOT_APPLIED
        return done

    # -- from another process --------------------------------------------------------------------

    def stop(self, override_id: str) -> None:
        """Ask a running override to stop after the current chunk. It can be resumed."""
        self._ask(override_id, Request.STOP)

    def pause(self, override_id: str) -> None:
        self._ask(override_id, Request.PAUSE)

    def proceed(self, override_id: str) -> None:
        """Ask a paused override to continue."""
        self._ask(override_id, Request.CONTINUE)

    def _ask(self, override_id: str, request: Request) -> None:
        self.require_writable()
        with self.recording_refusals(override=override_id, request=request.value):
            self.trail.ask(self.trail.override(override_id).override_id, request, self._who, self._origin)

    # -- rules -----------------------------------------------------------------------------------

    def require_writable(self) -> None:
        """Refuse in read-only mode. Read-only connections are the second safeguard."""
        if self.read_only:
            raise ReadOnlyRefused(advice=Advice(Step.ALLOW_WRITES))

    def _written(self, plan: Plan) -> list[tuple[BackendPart, Requeues]]:
        """The backends in which something changes. The others are not needed and need not be attached."""
        written = [part for part in plan.parts if part.changes]
        for part in written:
            if part.backend in self._read_only_backends:
                raise ReadOnlyRefused("the config says so for this backend", where=part.backend)
        found = [(part, self.writable_backend(part)) for part in written]
        if plan.operation.action == Action.DISCARD:
            for part, backend in found:
                self._require_same_discard(part, backend)
        return found

    def _require_same_discard(self, part: BackendPart, backend: Requeues) -> None:
        """Require that a discard still does what the plan said: its rule may have changed in the config."""
        if Action.DISCARD not in backend.abilities.actions or deletes_items(backend.abilities) != part.deletes:
            raise PlanStale("What a discard does here has changed", where=part.backend, fix="Make a new plan.")

    def writable_backend(self, part: BackendPart) -> Requeues:
        """The backend of a part of a plan. Raises a fault unless it is attached, the same one, and can be changed."""
        backend = self.backends.get(part.backend)
        if backend is None:
            raise Unreachable(NOT_ATTACHED, where=part.backend)
        if backend.place != part.place:
            raise PlanStale(
                f"The plan was made for {part.place}, but this backend is now {backend.place}",
                where=part.backend,
                fix="Make a new plan.",
            )
        if not isinstance(backend, Requeues):
            raise PlanStale("This backend cannot be changed any more", where=part.backend)
        return backend


def _interrupted(fault: TrailUnavailable | TrailBroken, plan: Plan, progress: Progress, unrecorded: int) -> Fault:
    """The fault of the trail, with what the override has done so far, what is on record, and how to go on."""
    done = _on_record(plan, progress)
    if unrecorded:
        done += f" The outcome of {unrecorded} more items is not on record yet."
    if isinstance(fault, TrailBroken):
        return TrailBroken(fault.detail, where=fault.where, fix=f"{done} {fault.fix}".strip(), advice=fault.advice)
    fix = f"{done} Make the trail writable again. {fault.fix}".strip()
    return TrailLost(fault.detail, where=fault.where, fix=fix, advice=Advice(Step.RESUME, progress.override_id))


def _on_record(plan: Plan, progress: Progress) -> str:
    counts = {kind.value: count for kind, count in progress.counts.items()}
    return f"On record: {outcome_summary(counts, str(plan.operation.action))} of {plan.changes}."


def _last_note(progress: Progress, executor: Executor) -> str:
    """What is worth knowing about a finished override: the canary, or when its last item runs."""
    if executor.last_due is None:
        return progress.note
    due = instant(executor.last_due.replace(microsecond=0))
    return f"The last item runs at {due}. The due times are stored in its system, so this process may end."


def end_sentence(override: Override) -> str:
    """How an override ended, in one line."""
    text = f"Override {override.override_id} {override.state}: {outcome_summary(override.counts, override.action)}"
    return f"{text}. {override.note}" if override.note else text


def _authority(confirmation: Confirmation, override_id: str) -> Authority:
    return Authority(str(confirmation.who), confirmation.reason, confirmation.ticket, override_id)
