"""The only way to write: make a plan, confirm and apply it, resume, stop, undo.

A backend is written only by a frozen plan that a named person has confirmed with a reason, and with a durable record
before and after every write. Both front ends use this module.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from console.core.advice import Advice, Notice, Step
from console.core.backend import (
    Action,
    Authority,
    Backend,
    Change,
    Draft,
    Operation,
    OutcomeKind,
    Requeues,
    UndoKind,
)
from console.core.confirm import Confirmation, ConfirmationForm, Limits, Origin, Who, recorded
from console.core.executor import Ended, Executor, Progress
from console.core.faults import (
    BackendFault,
    Fault,
    NoSuchOverride,
    NoSuchPlan,
    NotPermitted,
    OverrideRunning,
    PlanAltered,
    PlanExpired,
    PlanStale,
    ReadOnlyRefused,
    Refused,
    TrailBroken,
    TrailLost,
    TrailUnavailable,
    Unreachable,
    UsageFault,
)
from console.core.item import ItemKey
from console.core.override import NOT_APPLIED, Intent, Override, OverrideState, Request, outcome_summary
from console.core.pace import Now, Pace
from console.core.plan import FIRST_SKIPPED, BackendPart, Plan, PlanHash, PlanRow, Selection
from console.core.planner import NOT_ATTACHED, PlanBuilder, Planner
from console.core.ports import Clock, Never, Stop, Trail, latest_time
from console.core.reconcile import foreseen, rows_of, settle, units_of
from console.core.recovery import ItemResult, results
from console.core.session import NOBODY, NOWHERE
from console.core.text import duration

Watcher = Callable[[Progress], None]
_REFUSALS = (Refused, PlanAltered, NotPermitted)
_ALTERED = "Make a new plan; do not apply this one."
_VERIFY = Advice(Step.VERIFY_TRAIL)
_HASH_DIGITS = 64
_NOT_KNOWN = "The outcome of its last items is not known yet."


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
        reach: Callable[[str], None] = lambda _point: None,
    ) -> None:
        self.backends = backends
        self.trail = trail
        self.limits = limits or Limits()
        self.read_only = read_only
        self._read_only_backends = read_only_backends
        self._clock = clock
        self._who, self._origin = who, origin
        self._owner = owner or secrets.token_hex(8)
        self._reach = reach

    # -- propose ---------------------------------------------------------------------------------

    def propose(
        self, selection: Selection, operation: Operation, pace: Pace | None = None, stop: Stop | None = None
    ) -> Plan:
        """Make a plan. In read-only mode it is only a preview: it is not stored and cannot be applied."""
        trail = None if self.read_only else self.trail
        planner = Planner(
            self.backends, trail, self._clock, self.limits.max_items, stop or Never(), self._read_only_backends
        )
        with self._recording_refusals(action=str(operation.action), selection=str(selection)):
            return planner.propose(selection, operation, pace or Now())

    def foreseen(self, plan: Plan, most: int) -> Iterator[tuple[str, Change]]:
        """How the first items of a plan would change if it were applied now."""
        return foreseen(self.trail, plan, self._requeues, most)

    def undo(self, override_id: str, stop: Stop | None = None) -> Plan:
        """Make a plan that undoes an override, for the items that are still exactly as it left them."""
        self.require_writable()
        with self._recording_refusals(action=str(Action.UNDO), override=override_id):
            return self._propose_undo(override_id, stop)

    def _propose_undo(self, override_id: str, stop: Stop | None) -> Plan:
        override = self.trail.override(override_id)
        plan = self.trail.plan(override.plan_id)
        if plan.operation.action == Action.UNDO:
            raise PlanStale("An undo cannot be undone", fix="Requeue the items instead.")
        self._require_unaltered(plan)
        self._require_same(plan, override)
        stop = stop or Never()
        builder = PlanBuilder(self.trail, self.limits.max_items)
        try:
            written = [part for part in plan.parts if part.changes]
            parts = [self._undo_part(builder, plan, override, part, stop) for part in written]
            if stop.requested:
                raise UsageFault("Stopped before the plan was complete", fix="Nothing was stored.")
            return builder.seal(
                Operation(Action.UNDO, plan.operation.attempts),
                Now(),
                f"undo of {override.override_id}",
                [part for part in parts if part.selected],
                self._clock.now(),
                override.override_id,
            )
        except TrailUnavailable:
            raise
        except BaseException:
            builder.discard()
            raise

    def _undo_part(
        self, builder: PlanBuilder, plan: Plan, override: Override, part: BackendPart, stop: Stop
    ) -> BackendPart:
        first, selected = builder.changes, builder.selected
        changed = self._changed(plan, override.override_id)
        drafts = self._drafts_of(plan, part, changed)
        # From the last intent back: if an item has several, the last one changed it.
        for intent in reversed(self.trail.intents(override.override_id)):
            if intent.backend == part.backend and not stop.requested:
                builder.add(list(drafts(intent)))
        return BackendPart(
            part.backend,
            part.place,
            first,
            builder.selected - selected,
            builder.changes - first,
            part.guard,
        )

    def _drafts_of(self, plan: Plan, part: BackendPart, changed: bytearray) -> Callable[[Intent], Iterator[Draft]]:
        """How to draft the undo of an intent. If the backend is gone, every draft is skipped with that reason."""
        try:
            backend = self._requeues(part)
        except (Unreachable, PlanStale) as fault:
            why = Notice(str(fault))
            return lambda intent: (
                Draft(row.key, row.unit, None, "requeued", None, why) for row in self._left(intent, changed)
            )
        return lambda intent: self._undo_drafts(plan, part, backend, intent, changed)

    def _left(self, intent: Intent, changed: bytearray) -> list[PlanRow]:
        """The rows that this intent changed and no later one; each is returned once."""
        rows = [row for row in rows_of(self.trail, intent) if changed[row.ordinal]]
        for row in rows:
            changed[row.ordinal] = 0
        return rows

    def _undo_drafts(
        self, plan: Plan, part: BackendPart, backend: Requeues, intent: Intent, changed: bytearray
    ) -> Iterator[Draft]:
        rows = self._left(intent, changed)
        units = units_of(plan, part, backend, rows, intent.at)
        changes, now = units.per_row(units.changes), units.per_row(backend.images(units.changes))
        items = backend.items([ItemKey.known(part.backend, row.key) for row in rows], backend.now())
        signatures = {str(key): item.signature for key, item in items.items()}
        for row, change, image in zip(rows, changes, now, strict=True):
            skipped = None
            if backend.abilities.undo is UndoKind.NONE:
                skipped = Notice("This backend cannot undo.")
            elif image != change.after:
                skipped = Notice("Already picked up or changed." if image is not None else "No longer there.")
            signature = signatures.get(row.key)
            yield Draft(row.key, row.unit, (change.after, change.before), "requeued", signature, skipped)

    def results(self, override_id: str) -> Iterator[Sequence[ItemResult]]:
        """What became of the items that an override changed, as they are now, in batches. Writes nothing."""
        override = self.trail.override(override_id)
        plan = self.trail.plan(override.plan_id)
        return results(self.trail, override, plan, self._requeues)

    def _changed(self, plan: Plan, override_id: str) -> bytearray:
        changed = bytearray(plan.changes)
        for batch in self.trail.outcomes(override_id):
            for outcome in batch:
                changed[outcome.ordinal] |= outcome.outcome == OutcomeKind.APPLIED
        return changed

    # -- confirm and carry out -------------------------------------------------------------------

    def record_plan(self, plan: Plan) -> None:
        """Record a plan, so that `recorded_plan` can find it and nobody can exchange it."""
        self.require_writable()
        self.trail.record_plan(plan, self._who, self._origin, self._clock.now())

    def recorded_plan(self, plan_id: str) -> Plan:
        """A plan by its id or hash, to be confirmed. `PlanAltered` unless it is the one that was recorded."""
        self.require_writable()
        with self._recording_refusals(plan_id=plan_id):
            return self._recorded_plan(plan_id)

    def _recorded_plan(self, plan_id: str) -> Plan:
        whole = _is_hash(plan_id)
        plan = self.trail.plan(Plan.id_of(plan_id) if whole else plan_id)
        recorded = self.trail.planned(plan.id)
        if recorded is None:
            raise NoSuchPlan(f"{plan.id} is a draft that was never recorded", fix="Make a new plan.")
        shown = plan_id if whole else plan.hash
        if recorded != (shown, plan.expires_at) or shown != plan.hash:
            raise PlanAltered(plan.id, fix=_ALTERED, advice=_VERIFY)
        return plan

    def carry_out(
        self, shown: Plan, confirmation: Confirmation, stop: Stop | None = None, watch: Watcher = _unwatched
    ) -> Override:
        """Apply the plan that the person has seen. Items that have changed since are left alone and reported."""
        self.require_writable()
        facts = {"plan_id": shown.id, "plan_hash": shown.hash, "action": str(shown.operation.action)}
        given = {"reason": confirmation.reason, **recorded(confirmation.who, confirmation.origin)}
        with self._recording_refusals(Fault, **facts, **given):
            plan = self.trail.plan(shown.id)
            if (plan.hash, plan.expires_at) != (shown.hash, shown.expires_at):
                raise PlanAltered(shown.id, fix=_ALTERED, advice=_VERIFY)
            self._require_unaltered(plan)
            self._require_confirmed(plan, confirmation)
            backends = self._written(plan)
            override_id = f"o{secrets.token_hex(5)}"
            self.trail.begin(override_id, plan, confirmation, self._owner, self._clock.now())
        authority = _authority(confirmation, override_id)
        return self._carry(plan, backends, override_id, authority, bytearray(plan.changes), stop or Never(), watch)

    def _require_unaltered(self, plan: Plan) -> None:
        hash = PlanHash()
        for first, last in ((0, plan.changes - 1), (FIRST_SKIPPED, -1)):
            for block in self.trail.blocks(plan.id, first, last):
                hash.add(block)
        if hash.seal(plan) != plan.hash:
            raise PlanAltered(plan.id, fix=_ALTERED, advice=_VERIFY)

    def _require_same(self, plan: Plan, override: Override) -> None:
        """Require that the override has the plan that was confirmed. The plan comes from a table that could be edited;
        the confirmation is a record."""
        if plan.hash != self.trail.confirmed_hash(override.override_id):
            what = f"{override.override_id} was confirmed for another plan than {plan.id}"
            raise PlanAltered(what, fix=_ALTERED, advice=_VERIFY)

    def _require_confirmed(self, plan: Plan, confirmation: Confirmation) -> None:
        self._require_unexpired(plan)
        form = ConfirmationForm(plan, self.limits)
        if (fault := form.problem(confirmation.reason, confirmation.count)) is not None:
            raise fault

    def _require_unexpired(self, plan: Plan) -> None:
        """Require that the plan is not too old, by the last record too: this machine's clock may have been set back."""
        expired, now = f"The plan expired at {plan.expires_at:%H:%M:%S}Z", self._clock.now()
        if now >= plan.expires_at:
            raise PlanExpired(expired, fix="Make a new plan.")
        for last in self.trail.newest(limit=1):
            latest = latest_time(last.at, last.body)
            if latest >= plan.expires_at:
                clock = f"this machine's clock is {duration(latest - now)} behind the trail's last record"
                raise PlanExpired(f"{expired}, and {clock}", fix="Set the clock, then make a new plan.")

    @contextmanager
    def _recording_refusals(
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
    ) -> Override:
        progress = Progress(override_id, plan.changes)
        for kind, count in (counts or {}).items():
            if kind != NOT_APPLIED:
                progress.counts[OutcomeKind(kind)] += count
        carrier = Executor(
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
        )
        try:
            self._run(carrier, backends, override_id, progress)
        except (TrailUnavailable, TrailBroken) as fault:
            raise _interrupted(fault, plan, progress, carrier.unrecorded) from fault
        return self.trail.override(override_id)

    def _run(
        self, carrier: Executor, backends: Sequence[tuple[BackendPart, Requeues]], override_id: str, progress: Progress
    ) -> None:
        """Apply each backend's part in turn, and record how it ended."""
        try:
            for part, backend in backends:
                carrier.carry(part, backend)
        except Ended as end:
            self._mark(override_id, end.state, end.note)
        except BackendFault as fault:
            self._mark(override_id, OverrideState.STOPPED, str(fault))
        else:
            self._mark(override_id, OverrideState.FINISHED, progress.note)

    def _mark(self, override_id: str, state: OverrideState, note: str) -> None:
        """Set the state, only while this process has the lease: another process may have taken over the override."""
        self.trail.mark(override_id, state, note, self._clock.now(), owner=self._owner)

    # -- resume and settle -----------------------------------------------------------------------

    def resume(
        self, override_id: str, who: Who, origin: Origin, stop: Stop | None = None, watch: Watcher = _unwatched
    ) -> Override:
        """Settle unresolved intents, then continue with the first item that has no outcome."""
        self.require_writable()
        override = self.trail.override(override_id)
        if override.state.over:
            raise PlanStale(f"Override {override.override_id} is finished", fix="There is nothing to resume.")
        plan = self.trail.plan(override.plan_id)
        self._require_unaltered(plan)
        self._require_same(plan, override)
        backends = self._written(plan)
        confirmation = Confirmation(who, origin, override.reason, plan.changes, override.ticket)
        self.trail.take_over(override.override_id, self._owner, self._clock.now(), confirmation)
        try:
            self._settle(plan, override.override_id)
        except BackendFault as fault:
            self._mark(override.override_id, OverrideState.STOPPED, f"{fault}. {_NOT_KNOWN}")
            return self.trail.override(override.override_id)
        done, counts = self._done(plan, override.override_id), self.trail.override(override.override_id).counts
        authority = _authority(confirmation, override.override_id)
        return self._carry(plan, backends, override.override_id, authority, done, stop or Never(), watch, counts)

    def settle_unresolved(self, who: Who, origin: Origin) -> list[Override]:
        """Settle every intent without an outcome whose process is gone: read its items again and record what happened.

        Called at start. An intent that cannot be settled now (its backend does not answer or is not configured, or
        another override runs there) stays unresolved. That is not a fault: the start goes on.
        """
        self.require_writable()
        unresolved: dict[str, set[str]] = {}
        for intent in self.trail.unresolved():
            unresolved.setdefault(intent.override_id, set()).add(intent.backend)
        return [
            self.trail.override(override_id)
            for override_id, where in unresolved.items()
            if self._settled(override_id, where, who, origin)
        ]

    def _settled(self, override_id: str, where: set[str], who: Who, origin: Origin) -> bool:
        try:
            override = self.trail.override(override_id)
            plan = self.trail.plan(override.plan_id)
            self._require_unaltered(plan)
            self._require_same(plan, override)
            for part in plan.parts:
                if part.backend in where:
                    self._requeues(part).now()
            confirmation = Confirmation(who, origin, override.reason, plan.changes, override.ticket)
            self.trail.take_over(override_id, self._owner, self._clock.now(), confirmation)
        except (BackendFault, NoSuchOverride, NoSuchPlan, OverrideRunning, PlanAltered, PlanStale, TrailBroken):
            return False
        try:
            self._settle(plan, override_id)
        except BackendFault as fault:
            self._mark(override_id, OverrideState.STOPPED, f"Interrupted. {fault}. {_NOT_KNOWN}")
            return False
        self._mark(override_id, OverrideState.STOPPED, "Interrupted. The outcome of its last items is on record.")
        return True

    def _settle(self, plan: Plan, override_id: str) -> None:
        parts = {part.backend: part for part in plan.parts}
        open_intents = self.trail.open_intents(override_id)
        for intent in open_intents:
            part = parts[intent.backend]
            rows = rows_of(self.trail, intent)
            outcomes = settle(plan, part, self._requeues(part), rows, intent.at)
            body = {"backend": part.backend, "plan_hash": plan.hash, "settled": True}
            with suppress(PlanStale):  # its own process was alive after all, and has recorded the outcome itself
                self.trail.conclude(override_id, self._owner, intent.seq, outcomes, body, self._clock.now())

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
        with self._recording_refusals(override=override_id, request=request.value):
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
        return [(part, self._requeues(part)) for part in written]

    def _requeues(self, part: BackendPart) -> Requeues:
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
            raise Refused("This backend cannot be changed", where=part.backend)
        return backend


def _interrupted(fault: TrailUnavailable | TrailBroken, plan: Plan, progress: Progress, unrecorded: int) -> Fault:
    """The fault of the trail, with what the override has done so far, what is on record, and how to go on."""
    counts = {kind.value: count for kind, count in progress.counts.items()}
    done = f"On record: {outcome_summary(counts, str(plan.operation.action))} of {plan.changes}."
    if unrecorded:
        done += f" The outcome of {unrecorded} more items is not on record yet."
    if isinstance(fault, TrailBroken):
        return TrailBroken(fault.detail, where=fault.where, fix=f"{done} {fault.fix}".strip(), advice=fault.advice)
    fix = f"{done} Make the trail writable again. {fault.fix}".strip()
    return TrailLost(fault.detail, where=fault.where, fix=fix, advice=Advice(Step.RESUME, progress.override_id))


def _is_hash(text: str) -> bool:
    return len(text) == _HASH_DIGITS and all(char in "0123456789abcdef" for char in text)


def _authority(confirmation: Confirmation, override_id: str) -> Authority:
    return Authority(str(confirmation.who), confirmation.reason, confirmation.ticket, override_id)
