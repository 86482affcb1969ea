"""Finds out what an intent did: computes its changes again and compares them with the rows as they are now.

An after-image is a pure function of the before-image, the plan, the position and the time stored in the intent. So an
intent without an outcome can be settled by reading its rows again, and an override can be undone exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, groupby
from typing import NamedTuple, TypeVar

from console.core.backend import (
    GONE,
    Action,
    Change,
    Image,
    Operation,
    OutcomeKind,
    ProvesWrites,
    Requeues,
    UndoKind,
)
from console.core.capabilities import NamesColumns
from console.core.confirm import Confirmation, Origin, Who
from console.core.faults import (
    BackendFault,
    LeaseLost,
    NoSuchOverride,
    NoSuchPlan,
    OverrideRunning,
    PlanAltered,
    PlanStale,
    TrailBroken,
)
from console.core.item import ItemKey
from console.core.override import INTERRUPTED, NOT_APPLIED, Intent, ItemOutcome, Override, OverrideState
from console.core.pace import Canary, Now
from console.core.plan import BackendPart, Digests, Plan, PlanRow
from console.core.plan_checks import require_plan_of, require_unaltered
from console.core.ports import Clock, Trail
from console.core.recovery import Requeued

T = TypeVar("T")
NOT_KNOWN = "The outcome of its last items is not known yet."


class Units(NamedTuple):
    """Planned rows as the changes that are written: one change for the rows of each unit."""

    changes: list[Change]
    sizes: list[int]
    """How many rows each change covers."""

    def per_row(self, values: Sequence[T]) -> list[T]:
        """One value for each change, repeated for each of its rows."""
        if len(values) != len(self.changes):
            raise ValueError(f"{len(values)} values for {len(self.changes)} changes")
        return [value for value, size in zip(values, self.sizes, strict=True) for _ in range(size)]


def units_of(plan: Plan, part: BackendPart, backend: Requeues, rows: Sequence[PlanRow], at: datetime) -> Units:
    """Rows → changes with their after-images, computed with the stored clock `at`."""
    # Neighbours with one unit are changed together, if they were read together: only one image is compared and set.
    units = [list(same) for _, same in groupby(rows, key=lambda row: (row.unit or row.key, row.before))]
    name, sizes = part.backend, list(map(len, units))
    keys = [tuple([ItemKey.known(name, row.key) for row in unit]) for unit in units]
    firsts = [unit[0] for unit in units]
    if plan.operation.action == Action.UNDO:
        return Units([_undoing(plan.operation, backend, *pair, at) for pair in zip(firsts, keys, strict=True)], sizes)
    dues = _dues(plan, part, backend, [row.ordinal for row in firsts], at)
    changes = []
    for row, own, due in zip(firsts, keys, dues, strict=True):
        before = row.before or ()
        after = backend.after(Change(row.unit, own, before, ()), plan.operation, at, due)
        changes.append(Change(row.unit, own, before, after))
    return Units(changes, sizes)


def requeued_item(
    plan: Plan, part: BackendPart, backend: Requeues, row: PlanRow, at: datetime, gone_at: datetime | None = None
) -> Requeued:
    """One item of a plan that was requeued at `at`, to be followed."""
    key = ItemKey.known(part.backend, row.key)
    before = counted_executions(backend, key, row.before or ())
    return Requeued(row.ordinal, key, at, _written_attempts(plan, part, backend, row, key, at), before, gone_at)


def _written_attempts(
    plan: Plan, part: BackendPart, backend: Requeues, row: PlanRow, key: ItemKey, at: datetime
) -> int | None:
    """The attempt counter that a requeue has left in a row; None if it does not prove executions."""
    if backend.abilities.execution_counter is None:
        return None
    change, (due,) = Change(row.unit, (key,), row.before or (), ()), _dues(plan, part, backend, [row.ordinal], at)
    return counted_executions(backend, key, backend.after(change, plan.operation, at, due))


def counted_executions(backend: Requeues, key: ItemKey, image: Image) -> int | None:
    """The execution counter in an image; None if the backend has none, or holds something else there."""
    counter = backend.abilities.execution_counter
    if counter is None or not isinstance(backend, NamesColumns):
        return None
    value = backend.columns_of(key, image).get(counter)
    if value is None:
        return 0
    return max(value, 0) if type(value) is int else None


def _dues(plan: Plan, part: BackendPart, backend: Requeues, ordinals: Sequence[int], at: datetime) -> list[datetime]:
    if not backend.abilities.stores_due_time or isinstance(plan.pace, Now | Canary):
        return [at] * len(ordinals)
    first = part.first
    return [at + offset for offset in plan.pace.offsets([n - first for n in ordinals], part.changes, plan.hash)]


def _undoing(operation: Operation, backend: Requeues, row: PlanRow, keys: tuple[ItemKey, ...], at: datetime) -> Change:
    """From what the override wrote back to what was there before; where a backend can only compensate, it decides."""
    written, original = map(tuple, row.before or ())
    change = Change(row.unit, keys, written, original)
    if backend.abilities.undo is not UndoKind.COMPENSATING:
        return change
    return change._replace(after=backend.after(change, operation, at, at))


def foreseen(
    trail: Trail, plan: Plan, backend_of: Callable[[BackendPart], Requeues], most: int
) -> Iterator[tuple[str, Change]]:
    """The first items of a plan with the changes that it would make now."""
    for part in plan.parts:
        if wanted := min(part.changes, most):
            backend = backend_of(part)
            at = backend.now()
            for rows in trail.rows(plan.id, part.first, part.first + wanted - 1):
                units = units_of(plan, part, backend, rows, at)
                yield from zip((row.key for row in rows), units.per_row(units.changes), strict=True)
            most -= wanted


def rows_of(trail: Trail, intent: Intent) -> list[PlanRow]:
    """The plan's rows that an intent names."""
    batches = (trail.rows(intent.plan_id, first, last) for first, last in intent.ranges)
    return list(chain.from_iterable(chain.from_iterable(batches)))


def changed_by(trail: Trail, intent: Intent) -> Iterator[int]:
    """The ordinals that an intent has changed. Another one may name them too: that of a process that was suspended, or
    of the one that took over from it."""
    for batch in trail.item_outcomes(intent.concluded) if intent.concluded is not None else ():
        yield from (one.ordinal for one in batch if one.outcome == OutcomeKind.APPLIED)


def requeued_at(trail: Trail, override_id: str, first: int, last: int) -> dict[int, datetime]:
    """The items with these ordinals that an override has changed so far, and when by the backend's clock."""
    return {
        ordinal: intent.at for intent in trail.intents(override_id) for ordinal in changed_by(trail, intent)
        if first <= ordinal <= last
    }


def final_outcomes(trail: Trail, override_id: str) -> list[ItemOutcome]:
    """The last outcome of each item: after an interruption, an item that was not written has another one later."""
    found: dict[int, ItemOutcome] = {}
    for batch in trail.outcomes(override_id):
        found.update((item.ordinal, item) for item in batch)
    return list(found.values())


def settle(
    plan: Plan, part: BackendPart, backend: Requeues, rows: Sequence[PlanRow], at: datetime, override_id: str
) -> list[ItemOutcome]:
    """The outcomes of rows: not applied if they are as before, applied if they have the after-image, else unknown."""
    units = units_of(plan, part, backend, rows, at)
    images = backend.images(units.changes)
    settled = [_settled(change, now) for change, now in zip(units.changes, images, strict=True)]
    if isinstance(backend, ProvesWrites):
        open_ones = [n for n, (outcome, _) in enumerate(settled) if outcome != OutcomeKind.APPLIED]
        asked = [units.changes[n] for n in open_ones]
        written = backend.were_written(asked, at, override_id) if asked else ()
        for n, proven in zip(open_ones, written, strict=True):
            if proven:
                settled[n] = OutcomeKind.APPLIED.value, "found by reading again: written, and changed since"
            elif proven is False and settled[n][0] == OutcomeKind.UNKNOWN:
                settled[n] = OutcomeKind.CHANGED_SINCE.value, "found by reading again: not written, but changed since"
    return [ItemOutcome(row.ordinal, row.key, *what) for row, what in zip(rows, units.per_row(settled), strict=True)]


def _settled(change: Change, now: Image | None) -> tuple[str, str]:
    if now is None:
        # A deletion leaves no trace: its system may have deleted the item itself, for example because it succeeded.
        by = "; this override or its system deleted it" if change.after == GONE else ""
        return OutcomeKind.UNKNOWN.value, f"found by reading again: no longer there{by}"
    if now == change.after:
        return OutcomeKind.APPLIED.value, "found by reading again"
    if now == change.before:
        return NOT_APPLIED, "found by reading again"
    return OutcomeKind.UNKNOWN.value, "found by reading again: changed by its system since"


class Reconciler:
    """Settles intents that have no outcome: reads their items again, and records what happened to them."""

    def __init__(
        self, trail: Trail, clock: Clock, owner: str, backend_of: Callable[[BackendPart], Requeues]
    ) -> None:
        self._trail = trail
        self._clock = clock
        self._owner = owner
        self._backend_of = backend_of

    def settle_override(self, plan: Plan, override_id: str) -> None:
        """Settle the open intents of an override of which this process has the lease."""
        parts = {part.backend: part for part in plan.parts}
        open_intents = self._trail.open_intents(override_id)
        for intent in open_intents:
            part = parts[intent.backend]
            rows = rows_of(self._trail, intent)
            outcomes = settle(plan, part, self._backend_of(part), rows, intent.at, override_id)
            action = str(plan.operation.action)
            body = {"backend": part.backend, "action": action, "plan_hash": plan.hash, "settled": True}
            with suppress(PlanStale):  # its own process was alive after all, and has recorded the outcome itself
                self._trail.conclude(override_id, self._owner, intent.seq, outcomes, body, self._clock.now())

    def settle_abandoned(self, who: Who, origin: Origin) -> list[Override]:
        """Settle the open intents of every process that is gone. Returns the overrides for which that was possible."""
        unresolved: dict[str, set[str]] = {}
        for intent in self._trail.unresolved():
            unresolved.setdefault(intent.override_id, set()).add(intent.backend)
        return [
            self._trail.override(override_id)
            for override_id, where in unresolved.items()
            if self._take_over_and_settle(override_id, where, who, origin)
        ]

    def _take_over_and_settle(self, override_id: str, where: set[str], who: Who, origin: Origin) -> bool:
        try:
            override = self._trail.override(override_id)
            plan = self._trail.plan(override.plan_id)
            digests = require_unaltered(self._trail, plan)
            require_plan_of(self._trail, plan, override)
            for part in plan.parts:
                if part.backend in where:
                    self._backend_of(part).now()
            confirmation = Confirmation(who, origin, override.reason, plan.changes, override.ticket)
            self._trail.take_over(override_id, self._owner, self._clock.now(), confirmation)
        except (BackendFault, NoSuchOverride, NoSuchPlan, OverrideRunning, PlanAltered, PlanStale, TrailBroken):
            return False
        try:
            settled, note = self._settled_now(plan, digests, override_id)
            self._mark_interrupted(override, note)
        except LeaseLost:  # this process was suspended for so long that another one has taken over
            return False
        return settled

    def _settled_now(self, plan: Plan, digests: Digests, override_id: str) -> tuple[bool, str]:
        """Settle what is open, under the lease. Returns whether that was possible, and the note for the override."""
        try:
            with self._trail.holding(plan.id, digests):
                self.settle_override(plan, override_id)
        except (BackendFault, PlanAltered) as fault:
            return False, f"{fault}. {NOT_KNOWN}"
        return True, "The outcome of its last items is on record."

    def _mark_interrupted(self, before: Override, note: str) -> None:
        """Set the state of an override after its last items were settled. What was confirmed for a runner and not
        stopped waits for one again."""
        interrupted = before.state in (OverrideState.RUNNING, OverrideState.QUEUED)
        state = OverrideState.QUEUED if interrupted and before.detached else OverrideState.STOPPED
        why = f"{INTERRUPTED} {note}" if interrupted else note
        self._trail.mark(before.override_id, state, why, self._clock.now(), owner=self._owner)
