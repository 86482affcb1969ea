"""The suite for handing items back: a faithful queue passes it, and each way of being careless is found."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from console.core.backend import (
    CHANGED,
    Authority,
    Budget,
    Change,
    Draft,
    Finding,
    Image,
    Order,
    Outcome,
    UndoKind,
    image_text,
)
from console.core.changes import Changes
from console.core.item import Condition, Item, ItemKey
from console.core.ports import Clock, Stop
from console.core.query import Field, Filter, Sort
from console.testing import REQUEUE_PROMISES, ContractBroken, exercise_requeue
from tests.plugins.memory_queue import LEFT, MemoryQueue, harness

TICKS = itertools.count()


class Cuts(MemoryQueue):
    """A list that is cut without a word."""

    def drafts(self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop) -> Iterator[Sequence[Draft]]:
        for batch in super().drafts(wanted, sort, order, now, stop):
            yield batch[:20]


class Loses(MemoryQueue):
    """Whoever has looked at it can no longer plan."""

    looked = False

    def check(self, clock: Clock) -> Sequence[Finding]:
        self.looked = True
        return super().check(clock)

    def drafts(self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop) -> Iterator[Sequence[Draft]]:
        yield from () if self.looked else super().drafts(wanted, sort, order, now, stop)


class Guesses(MemoryQueue):
    """Keys of nothing find something."""

    def drafts(self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop) -> Iterator[Sequence[Draft]]:
        yield from super().drafts(wanted if isinstance(wanted, Filter) else [*wanted, ItemKey(self.name, (next(iter(self.rows)),))], sort, order, now, stop)


class TakesRunning(MemoryQueue):
    def blocked(self, item: Item, order: Order) -> str | None:
        return None if item.condition is Condition.RUNNING else super().blocked(item, order)


class Silent(MemoryQueue):
    def blocked(self, item: Item, order: Order) -> str | None:
        return "" if super().blocked(item, order) else None


class AnyBudget(MemoryQueue):
    abilities = replace(MemoryQueue.abilities, budgets=frozenset({Budget.KEEP}))


class AnyFlag(MemoryQueue):
    abilities = replace(MemoryQueue.abilities, flags=frozenset())


class Tells(MemoryQueue):
    """The error is in the plan."""

    def draft(self, item: Item, order: Order) -> Draft:
        found = super().draft(item, order)
        return found._replace(before=image_text([*(self.image(item.key) or ()), item.error]))


class Impure(MemoryQueue):
    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        return super().after(change, order, at + timedelta(seconds=next(TICKS)), due)


class Muddles(MemoryQueue):
    """Many at once are due in another order."""

    def afters(self, changes: Changes, order: Order, at: datetime, dues: Sequence[datetime]) -> Sequence[Image]:
        return [self.after(change, order, at, due) for change, due in zip(changes, reversed(dues), strict=True)]


class Spreads(MemoryQueue):
    """One more row than was asked for."""

    def put(self, change: Change) -> None:
        super().put(change)
        next(row for id, row in self.rows.items() if id != change.keys[0].parts[0])["attempts"] = next(TICKS)


class Pretends(MemoryQueue):
    def put(self, change: Change) -> None:
        """Nothing is written."""


class Parks(MemoryQueue):
    """Handed back into a status nobody takes."""

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        return ("failed", *super().after(change, order, at, due)[1:])


class Naive(MemoryQueue):
    """Writes whatever is there."""

    def write(self, change: Change) -> Outcome:
        if self.image(change.keys[0]) is None:
            return LEFT
        self.put(change)
        return CHANGED


class Forgets(MemoryQueue):
    """Undo leaves the new time."""

    def put(self, change: Change) -> None:
        kept = self.rows[change.keys[0].parts[0]]["updated"]
        super().put(change)
        if change.after[0] != "ready":
            self.rows[change.keys[0].parts[0]]["updated"] = kept


class NoUndo(MemoryQueue):
    abilities = replace(MemoryQueue.abilities, undo=UndoKind.NONE)


class Trusts(MemoryQueue):
    def image(self, key: ItemKey) -> Image | None:
        return super().image(ItemKey(key.backend, (key.parts[0],)))


class Obliges(MemoryQueue):
    """Read-only in name."""

    def swap(self, changes: Sequence[Change], order: Order, authority: Authority) -> Sequence[Outcome]:
        return [self.write(change) for change in changes]


class Races(MemoryQueue):
    """Compares, then sets, with time between."""

    def swap(self, changes: Sequence[Change], order: Order, authority: Authority) -> Sequence[Outcome]:
        return [self.write(change) for change in changes]

    def put(self, change: Change) -> None:
        time.sleep(0.001)
        super().put(change)


class Mixes(MemoryQueue):
    """All causes are one to it."""

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        asked = wanted.without(Field.SIGNATURE) if isinstance(wanted, Filter) else wanted
        return super().drafts(asked, sort, order, now, stop)


CARELESS: dict[type[MemoryQueue], str] = {
    Cuts: "drafts_cover_the_selection", Loses: "drafts_cover_the_selection", Mixes: "drafts_cover_a_cause", Guesses: "drafts_cover_the_keys", TakesRunning: "blocked_ones_say_why",
    Silent: "blocked_ones_say_why", AnyBudget: "abilities_are_the_limit", AnyFlag: "abilities_are_the_limit",
    Tells: "images_hold_no_evidence", Impure: "images_come_back", Muddles: "images_come_back",
    Spreads: "swap_is_exact", Pretends: "swap_is_exact",
    Parks: "items_run_again", Naive: "changed_rows_conflict", Forgets: "undo_is_as_it_says",
    NoUndo: "undo_is_as_it_says", Trusts: "keys_of_nothing_conflict", Obliges: "read_only_refuses", Races: "threads_share",
}


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_a_faithful_queue_keeps_every_promise(promise: str) -> None:
    exercise_requeue(lambda: harness(MemoryQueue), promise)


@pytest.mark.parametrize(("kind", "promise"), [*CARELESS.items(), (Naive, "twice_is_once")])
def test_carelessness_is_found(kind: type[MemoryQueue], promise: str) -> None:
    with pytest.raises(ContractBroken):
        exercise_requeue(lambda: harness(kind), promise)


def test_every_promise_can_be_broken() -> None:
    assert {*CARELESS.values(), "twice_is_once"} == set(REQUEUE_PROMISES)
