"""What became of an intent: computed again from what was stored, compared with what is there now.

The after-image is a pure function of before-image, plan, position and the clock stored in the intent, so an
intent whose outcome was never recorded can be settled by re-reading, and an override can be undone exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from console.core.backend import Abilities, Action, Change, Image, OutcomeKind, Requeues, UndoKind
from console.core.item import ItemKey
from console.core.override import NOT_APPLIED, Intent, ItemOutcome
from console.core.packing import PlanRow
from console.core.plan import Plan, Share
from console.core.ports import Book
from console.core.release import Canary, Now

_new = tuple.__new__


class Unit:
    """The planned rows that one guarded write changes together."""

    __slots__ = ("change", "rows")

    def __init__(self, rows: Sequence[PlanRow], change: Change) -> None:
        self.rows = rows
        self.change = change


def units_of(plan: Plan, share: Share, backend: Requeues, rows: Sequence[PlanRow], at: datetime) -> list[Unit]:
    """Rows → changes with their after-images, as they are at the stored clock `at`."""
    units = _by_unit(rows)
    images = json.loads(f"[{','.join([same[0].before for same in units])}]")
    changes = _undoing if plan.order.action is Action.UNDO else _changes
    return list(map(Unit, units, changes(plan, share, backend, units, images, at)))


def _by_unit(rows: Sequence[PlanRow]) -> list[list[PlanRow]]:
    texts = [row[2] or row[1] for row in rows]
    if len(set(texts)) == len(rows):  # each row is a unit of its own, as in most systems
        return [[row] for row in rows]
    units: list[list[PlanRow]] = []
    last = None
    for row, unit in zip(rows, texts, strict=True):
        if unit == last:
            units[-1].append(row)
        else:
            units.append([row])
            last = unit
    return units


def _changes(
    plan: Plan, share: Share, backend: Requeues, units: list[list[PlanRow]], images: list[Any], at: datetime
) -> Iterator[Change]:
    """A million turns of this are usual: what is the same for all is looked up once."""
    order, release, after = plan.order, plan.release, backend.after
    spread = backend.abilities.stores_due_time and not isinstance(release, Now | Canary)
    offset, first, total, seed = release.offset, share.first, share.changes, plan.hash
    for rows, image in zip(units, images, strict=True):
        ordinal, _, unit, _, _ = rows[0]
        due = at + offset(ordinal - first, total, seed) if spread else at
        keys, before = _keys(share, rows), tuple(image)
        change = _new(Change, (unit, keys, before, ()))
        yield _new(Change, (unit, keys, before, after(change, order, at, due)))


def _undoing(
    plan: Plan, share: Share, backend: Requeues, units: list[list[PlanRow]], images: list[Any], at: datetime
) -> Iterator[Change]:
    """Back from what was written to what was there; or to what the backend makes of it, where it only compensates."""
    for rows, (written, original) in zip(units, images, strict=True):
        change = Change(rows[0].unit, _keys(share, rows), tuple(written), tuple(original))
        exact = backend.abilities.undo is UndoKind.EXACT
        yield change if exact else change._replace(after=backend.after(change, plan.order, at, at))


def _keys(share: Share, rows: list[PlanRow]) -> tuple[ItemKey, ...]:
    return tuple([ItemKey.known(share.backend, row[1]) for row in rows])


def rows_of(book: Book, intent: Intent) -> list[PlanRow]:
    """The plan's rows an intent speaks of."""
    return [row for first, last in intent.ranges for batch in book.rows(intent.plan_id, first, last) for row in batch]


def handed_back(book: Book, op_id: str, first: int, last: int) -> Iterator[tuple[str, datetime]]:
    """What an override has changed so far among these ordinals, and by which clock."""
    intents = list(reversed(book.intents(op_id)))
    for batch in book.outcomes(op_id):
        for ordinal, key, outcome, _ in batch:
            if first <= ordinal <= last and outcome == OutcomeKind.CHANGED:
                yield key, next(i.at for i in intents if any(a <= ordinal <= b for a, b in i.ranges))


def settle(plan: Plan, share: Share, backend: Requeues, rows: Sequence[PlanRow], at: datetime) -> list[ItemOutcome]:
    """Before-image intact: not applied. After-image: applied. Anything else: indeterminate, never redone."""
    units = units_of(plan, share, backend, rows, at)
    images = backend.images([unit.change for unit in units])
    return [
        ItemOutcome(row.ordinal, row.key, *_settled(unit.change, now))
        for unit, now in zip(units, images, strict=True)
        for row in unit.rows
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
