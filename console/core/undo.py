"""Makes the plan that undoes an override, for the items that are still exactly as it left them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from console.core.advice import Notice
from console.core.backend import Action, Draft, Operation, Requeues, UndoKind
from console.core.faults import PlanStale, TrailUnavailable, Unreachable, UsageFault
from console.core.item import ItemKey
from console.core.override import Intent, Override, past_tense
from console.core.pace import Now
from console.core.plan import BackendPart, Plan, PlanRow
from console.core.plan_checks import require_plan_of, require_unaltered
from console.core.planner import PlanBuilder, read_only_notice
from console.core.ports import Clock, Stop, Trail
from console.core.reconcile import changed_by, rows_of, units_of


class UndoPlanner:
    """Makes one plan from what an override has written."""

    def __init__(
        self, trail: Trail, clock: Clock, backend_of: Callable[[BackendPart], Requeues], read_only: Collection[str] = ()
    ) -> None:
        self._trail = trail
        self._clock = clock
        self._backend_of = backend_of
        self._read_only = read_only
        """The names of backends that must not be changed."""

    def propose(self, override_id: str, stop: Stop) -> Plan:
        override = self._trail.override(override_id)
        plan = self._trail.plan(override.plan_id)
        if plan.operation.action == Action.UNDO:
            raise PlanStale("An undo cannot be undone", fix="Requeue the items instead.")
        digests = require_unaltered(self._trail, plan)
        require_plan_of(self._trail, plan, override)
        builder = PlanBuilder(self._trail)
        try:
            written = [part for part in plan.parts if part.changes]
            with self._trail.holding(plan.id, digests):
                parts = [self._part(builder, plan, override, part, stop) for part in written]
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

    def _part(
        self, builder: PlanBuilder, plan: Plan, override: Override, part: BackendPart, stop: Stop
    ) -> BackendPart:
        first, selected = builder.changes, builder.selected
        drafts = self._drafts_of(plan, part)
        for intent in reversed(self._trail.intents(override.override_id)):
            if intent.backend == part.backend and not stop.requested:
                builder.add(list(drafts(intent)))
        return BackendPart(
            part.backend, part.place, first, builder.selected - selected, builder.changes - first, part.guard
        )

    def _drafts_of(self, plan: Plan, part: BackendPart) -> Callable[[Intent], Iterator[Draft]]:
        """How to draft the undo of an intent. Where the backend cannot be changed, all drafts are skipped."""
        if part.backend in self._read_only:
            return partial(self._skipped, plan, read_only_notice(part.backend))
        try:
            backend = self._backend_of(part)
        except (Unreachable, PlanStale) as fault:
            return partial(self._skipped, plan, Notice(str(fault)))
        return partial(self._drafts, plan, part, backend)

    def _skipped(self, plan: Plan, why: Notice, intent: Intent) -> Iterator[Draft]:
        for row in self._changed(intent):
            yield Draft(row.key, row.unit, None, past_tense(plan.operation.action), None, why)

    def _changed(self, intent: Intent) -> list[PlanRow]:
        """The rows that this intent changed."""
        changed = set(changed_by(self._trail, intent))
        return [row for row in rows_of(self._trail, intent) if row.ordinal in changed] if changed else []

    def _drafts(self, plan: Plan, part: BackendPart, backend: Requeues, intent: Intent) -> Iterator[Draft]:
        rows = self._changed(intent)
        units = units_of(plan, part, backend, rows, intent.at)
        changes, now = units.per_row(units.changes), units.per_row(backend.images(units.changes))
        items = backend.items([ItemKey.known(part.backend, row.key) for row in rows], backend.now())
        signatures = {str(key): item.signature for key, item in items.items()}
        condition = past_tense(plan.operation.action)
        for row, change, image in zip(rows, changes, now, strict=True):
            skipped = None
            if backend.abilities.undo_of(plan.operation.action) is UndoKind.NONE:
                skipped = Notice("Its system has deleted it." if part.deletes else "This backend cannot undo that.")
            elif image != change.after:
                skipped = Notice("Already picked up or changed." if image is not None else "No longer there.")
            signature = signatures.get(row.key)
            yield Draft(row.key, row.unit, (change.after, change.before), condition, signature, skipped)
