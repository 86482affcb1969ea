"""What became of an intent: computed again from what was stored, compared with what is there now.

The after-image is a pure function of before-image, plan, position and the clock stored in the intent, so an
intent whose outcome was never recorded can be settled by re-reading, and an override can be undone exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import reduce
from itertools import accumulate, chain
from operator import add, ne
from typing import Any, NamedTuple, TypeVar

from console.core.backend import Abilities, Action, Change, Image, OutcomeKind, Requeues, UndoKind
from console.core.changes import Changes, SoleKeys, afters_of
from console.core.item import ItemKey
from console.core.override import NOT_APPLIED, Intent, ItemOutcome
from console.core.packing import PlanRows
from console.core.plan import Plan, Share
from console.core.ports import Book
from console.core.release import Canary, Now

T = TypeVar("T")


class Units(NamedTuple):
    """Planned rows as what is written: one change for the rows of each unit."""

    changes: Changes
    numbers: Sequence[int]
    """Of each row, which change is its."""

    def per_row(self, told: Sequence[T]) -> Sequence[T]:
        """What is said of each change, said of each of its rows."""
        if len(told) != len(self.changes):
            raise ValueError(f"{len(told)} were told of {len(self.changes)} changes")
        return told if len(told) == len(self.numbers) else [told[n] for n in self.numbers]


def units_of(plan: Plan, share: Share, backend: Requeues, rows: PlanRows, at: datetime) -> Units:
    """Rows → changes with their after-images, as they are at the stored clock `at`."""
    numbers = _numbers(rows)
    alone = not numbers or numbers[-1] == len(numbers) - 1
    first = rows if alone else rows.only([a != b for a, b in zip(numbers, (-1, *numbers), strict=False)])
    keys = SoleKeys(share.backend, rows.keys) if alone else _keys(share, rows, numbers)
    images = json.loads(f"[{','.join(first.befores)}]")
    if plan.order.action is Action.UNDO:
        return Units(_undoing(plan, backend, Changes(first.units, keys, *_both(images)), at), numbers)
    changes = Changes(first.units, keys, list(map(tuple, images)), [()] * len(images))
    dues = _dues(plan, share, backend, first.ordinals, at)
    return Units(changes.to(afters_of(backend, changes, plan.order, at, dues)), numbers)


def _numbers(rows: PlanRows) -> Sequence[int]:
    """Neighbours with one unit are changed together, if they were read together: only one image is compared and set."""
    texts = rows.units if all(rows.units) else [unit or key for unit, key in zip(rows.units, rows.keys, strict=True)]
    if len(set(texts)) == len(texts):  # each row is a unit of its own, as in most systems
        return range(len(texts))
    whole = list(zip(texts, rows.befores, strict=True))
    return list(accumulate(map(ne, whole[1:], whole), initial=0))


def _keys(share: Share, rows: PlanRows, numbers: Sequence[int]) -> list[tuple[ItemKey, ...]]:
    keys: list[list[ItemKey]] = [[] for _ in range(numbers[-1] + 1)]
    for number, key in zip(numbers, rows.keys, strict=True):
        keys[number].append(ItemKey.known(share.backend, key))
    return list(map(tuple, keys))


def _dues(plan: Plan, share: Share, backend: Requeues, ordinals: Sequence[int], at: datetime) -> list[datetime]:
    if not backend.abilities.stores_due_time or isinstance(plan.release, Now | Canary):
        return [at] * len(ordinals)
    first = share.first
    return [at + offset for offset in plan.release.offsets([n - first for n in ordinals], share.changes, plan.hash)]


def _both(images: list[Any]) -> tuple[list[Image], list[Image]]:
    """What an undo's rows hold: what was written, and what was there before."""
    return [tuple(written) for written, _ in images], [tuple(original) for _, original in images]


def _undoing(plan: Plan, backend: Requeues, changes: Changes, at: datetime) -> Changes:
    """Back from what was written to what was there; or to what the backend makes of it, where it only compensates."""
    if backend.abilities.undo is UndoKind.EXACT:
        return changes
    return changes.to(afters_of(backend, changes, plan.order, at, [at] * len(changes)))


def foreseen(
    book: Book, plan: Plan, backend_of: Callable[[Share], Requeues], most: int
) -> Iterator[tuple[str, Change]]:
    """The first items of a plan as they are, and as they would be were it carried out now."""
    for share in plan.shares:
        if wanted := min(share.changes, most):
            backend = backend_of(share)
            at = backend.now()
            for rows in book.rows(plan.id, share.first, share.first + wanted - 1):
                units = units_of(plan, share, backend, rows, at)
                yield from zip(rows.keys, units.per_row(units.changes), strict=True)
            most -= wanted


def rows_of(book: Book, intent: Intent) -> PlanRows:
    """The plan's rows an intent speaks of."""
    batches = (book.rows(intent.plan_id, first, last) for first, last in intent.ranges)
    return reduce(add, chain.from_iterable(batches), PlanRows())


def handed_back(book: Book, op_id: str, first: int, last: int) -> Iterator[tuple[str, datetime]]:
    """What an override has changed so far among these ordinals, and by which clock."""
    intents = list(reversed(book.intents(op_id)))
    for batch in book.outcomes(op_id):
        for ordinal, key, outcome, _ in batch:
            if first <= ordinal <= last and outcome == OutcomeKind.CHANGED:
                yield key, next(i.at for i in intents if any(a <= ordinal <= b for a, b in i.ranges))


def settle(plan: Plan, share: Share, backend: Requeues, rows: PlanRows, at: datetime) -> list[ItemOutcome]:
    """Before-image intact: not applied. After-image: applied. Anything else: indeterminate, never redone."""
    units = units_of(plan, share, backend, rows, at)
    images = backend.images(units.changes)
    settled = [_settled(change, now) for change, now in zip(units.changes, images, strict=True)]
    return [
        ItemOutcome(ordinal, key, *what)
        for ordinal, key, what in zip(rows.ordinals, rows.keys, units.per_row(settled), strict=True)
    ]


def _settled(change: Change, now: Image | None) -> tuple[str, str]:
    if now is None:
        return OutcomeKind.INDETERMINATE.value, "settled by re-reading: no longer there"
    if now == change.after:
        return OutcomeKind.CHANGED.value, "settled by re-reading"
    if now == change.before:
        return NOT_APPLIED, "settled by re-reading"
    return OutcomeKind.INDETERMINATE.value, "settled by re-reading: changed by its own system since"


def undo_kind(abilities: Abilities) -> str:
    """What the plan says undoing will do, before it is confirmed."""
    return {
        UndoKind.EXACT: "restores exactly what was there",
        UndoKind.COMPENSATING: "adds a compensating change; the first one stays in the history",
        UndoKind.NONE: "cannot be undone",
    }[abilities.undo]
