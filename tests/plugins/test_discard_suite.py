"""The discard suite finds each way in which a careless backend breaks a promise."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from console.core.backend import GONE, Action, Change, DiscardAbility, Draft, Image, Operation, UndoKind
from console.core.item import Condition, Item
from console.testing import DISCARD_PROMISES, ContractBroken, MemoryQueue, exercise_discard
from tests.plugins.memory_queue import Deletes, harness
from tests.plugins.test_requeue_suite import (
    Forgets,
    Guesses,
    Impure,
    Naive,
    Obliges,
    Pretends,
    Races,
    Spreads,
    Tells,
    Trusts,
)


class Undeclared(MemoryQueue):
    abilities = replace(MemoryQueue.abilities, actions=frozenset({Action.REQUEUE, Action.UNDO}))


class Undescribed(MemoryQueue):
    abilities = replace(MemoryQueue.abilities, discard=None)


class DeletesUnannounced(Deletes):
    """The plan would not say that it deletes."""

    abilities = MemoryQueue.abilities


class RestoresDeleted(Deletes):
    """Promises an undo of what is deleted."""

    abilities = replace(Deletes.abilities, discard=DiscardAbility(deletes=True, takes_terminal=True))


class OtherUndo(MemoryQueue):
    """Core could not tell which undo an undone item needs."""

    abilities = replace(MemoryQueue.abilities, discard=DiscardAbility(UndoKind.COMPENSATING))


class TakesRunning(MemoryQueue):
    def draft(self, item: Item, operation: Operation) -> Draft:
        found = super().draft(item, operation)
        return found._replace(skipped=None) if item.condition is Condition.RUNNING else found


class TakesTerminal(MemoryQueue):
    """Terminal items are taken, and the abilities do not say so."""

    def draft(self, item: Item, operation: Operation) -> Draft:
        found = super().draft(item, operation)
        return found._replace(skipped=None) if item.condition is Condition.TERMINAL else found


class Silent(MemoryQueue):
    def draft(self, item: Item, operation: Operation) -> Draft:
        found = super().draft(item, operation)
        return found if found.skipped is None else found._replace(skipped=found.skipped._replace(text=" "))


class Postpones(MemoryQueue):
    """A discarded item runs again, only later."""

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return ("ready", change.before[1], (due + timedelta(days=3650)).isoformat(), at.isoformat())


class OnlyShows(MemoryQueue):
    """A discarded item is ready and marked, and only this backend knows the mark."""

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return ("ready", *super().after(change, operation, at, due)[1:])

    def put(self, change: Change) -> None:
        super().put(change)
        self.rows[change.keys[0].parts[0]]["mark"] = True

    def _item(self, id: str, now: datetime) -> Item:
        row = self.rows[id]
        if "mark" not in row:
            return super()._item(id, now)
        return MemoryQueue(self.name, {id: {**row, "status": "cancelled"}}, self.policy, self.clock)._item(id, now)


class LeavesFailed(MemoryQueue):
    """A discarded item still waits for a person, who could discard it again."""

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return ("failed", 1, *super().after(change, operation, at, due)[2:])


class DeletesToo(MemoryQueue):
    """Cancels the item, and deletes it afterwards."""

    def put(self, change: Change) -> None:
        del self.rows[change.keys[0].parts[0]]


CARELESS: tuple[tuple[type[MemoryQueue], str], ...] = (
    (Undeclared, "a_discard_is_declared"),
    (Undescribed, "a_discard_is_declared"),
    (DeletesUnannounced, "a_discard_is_declared"),
    (RestoresDeleted, "a_discard_is_declared"),
    (OtherUndo, "a_discard_is_declared"),
    (TakesRunning, "only_open_items_are_discarded"),
    (TakesTerminal, "only_open_items_are_discarded"),
    (Postpones, "discarded_items_never_run"),
    (OnlyShows, "discarded_items_never_run"),
    (LeavesFailed, "discarded_items_never_run"),
    (Guesses, "drafts_cover_the_keys"),
    (Silent, "skipped_items_say_why"),
    (Tells, "images_hold_no_error_or_payload"),
    (Impure, "images_survive_storage"),
    (Spreads, "writes_are_exact"),
    (Pretends, "writes_are_exact"),
    (DeletesToo, "writes_are_exact"),
    (Naive, "changed_rows_are_not_touched"),
    (Naive, "a_second_write_changes_nothing"),
    (Forgets, "undo_restores"),
    (Trusts, "missing_items_are_reported"),
    (Obliges, "read_only_refuses"),
    (Races, "threads_do_not_collide"),
)


@pytest.mark.parametrize(("kind", "promise"), CARELESS)
def test_carelessness_is_found(kind: type[MemoryQueue], promise: str) -> None:
    with pytest.raises(ContractBroken):
        exercise_discard(lambda: harness(kind), promise, thorough=True)


def test_every_promise_can_be_broken() -> None:
    assert {promise for _, promise in CARELESS} == set(DISCARD_PROMISES)


@pytest.mark.parametrize("promise", DISCARD_PROMISES)
@pytest.mark.parametrize("kind", [MemoryQueue, Deletes])
def test_a_careful_queue_keeps_every_promise(kind: type[MemoryQueue], promise: str) -> None:
    exercise_discard(lambda: harness(kind), promise)


def test_the_image_of_a_deleted_item_is_empty() -> None:
    backend = harness(Deletes).backend
    assert isinstance(backend, Deletes)
    change = Change("", (), ("failed", 1, None, None), ())
    assert backend.after(change, Operation(Action.DISCARD), backend.now(), backend.now()) == GONE
