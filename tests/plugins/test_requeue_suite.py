"""The requeue suite finds each way in which a careless backend breaks a promise."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from console.core.advice import Notice
from console.core.backend import (
    APPLIED,
    Attempts,
    Authority,
    Change,
    DiscardAbility,
    Draft,
    Finding,
    Image,
    Operation,
    Outcome,
    OutcomeKind,
    UndoKind,
)
from console.core.item import Condition, Item, ItemKey
from console.core.ports import Clock, Stop
from console.core.query import Field, Filter, Sort
from console.testing import REQUEUE_PROMISES, ContractBroken, MemoryQueue, exercise_requeue
from tests.plugins.memory_queue import harness

TICKS = itertools.count()


class Cuts(MemoryQueue):
    """A list that is cut without a word."""

    def drafts(self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop) -> Iterator[Sequence[Draft]]:
        for batch in super().drafts(wanted, sort, operation, now, stop):
            yield batch[:20]


class Loses(MemoryQueue):
    """Whoever has looked at it can no longer plan."""

    looked = False

    def check(self, clock: Clock) -> Sequence[Finding]:
        self.looked = True
        return super().check(clock)

    def drafts(self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop) -> Iterator[Sequence[Draft]]:
        yield from () if self.looked else super().drafts(wanted, sort, operation, now, stop)


class Guesses(MemoryQueue):
    """Keys of nothing find something."""

    def drafts(self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop) -> Iterator[Sequence[Draft]]:
        yield from super().drafts(wanted if isinstance(wanted, Filter) else [*wanted, ItemKey(self.name, (next(iter(self.rows)),))], sort, operation, now, stop)


class TakesRunning(MemoryQueue):
    def skip(self, item: Item, operation: Operation) -> Notice | None:
        return None if item.condition is Condition.RUNNING else super().skip(item, operation)


class Silent(MemoryQueue):
    def skip(self, item: Item, operation: Operation) -> Notice | None:
        return Notice("") if super().skip(item, operation) else None


class AnyAttempts(MemoryQueue):
    abilities = replace(MemoryQueue.abilities, attempts=frozenset({Attempts.KEEP}))


class AnyFlag(MemoryQueue):
    abilities = replace(MemoryQueue.abilities, flags=frozenset())


class Tells(MemoryQueue):
    """The error is in the plan."""

    def draft(self, item: Item, operation: Operation) -> Draft:
        found = super().draft(item, operation)
        return found._replace(before=(*(self.image(item.key) or ()), item.error))


class Impure(MemoryQueue):
    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return super().after(change, operation, at + timedelta(seconds=next(TICKS)), due)


class Spreads(MemoryQueue):
    """One more row than was asked for."""

    def put(self, change: Change) -> None:
        super().put(change)
        next(row for id, row in self.rows.items() if id != change.keys[0].parts[0])["attempts"] = next(TICKS)


class Pretends(MemoryQueue):
    def put(self, change: Change) -> None:
        """Nothing is written."""


class Parks(MemoryQueue):
    """Requeues into a status that no worker takes."""

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return ("failed", *super().after(change, operation, at, due)[1:])


class Misjudges(MemoryQueue):
    """Requeues into a status that no worker takes, and takes it for ready."""

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return ("queued", *super().after(change, operation, at, due)[1:])

    def _item(self, id: str, now: datetime) -> Item:
        row = self.rows[id]
        if row["status"] != "queued":
            return super()._item(id, now)
        return MemoryQueue(self.name, {id: {**row, "status": "ready"}}, self.policy, self.clock)._item(id, now)


class Naive(MemoryQueue):
    """Writes whatever is there."""

    def write(self, change: Change) -> Outcome:
        if self.image(change.keys[0]) is None:
            return Outcome(OutcomeKind.CHANGED_SINCE, "changed since the plan")
        self.put(change)
        return APPLIED


class Forgets(MemoryQueue):
    """Undo leaves the new time."""

    def put(self, change: Change) -> None:
        kept = self.rows[change.keys[0].parts[0]]["updated"]
        super().put(change)
        if change.after[0] != "ready":
            self.rows[change.keys[0].parts[0]]["updated"] = kept


class NoUndo(MemoryQueue):
    abilities = replace(MemoryQueue.abilities, undo=UndoKind.NONE, discard=DiscardAbility(UndoKind.NONE))


class Trusts(MemoryQueue):
    def image(self, key: ItemKey) -> Image | None:
        return super().image(ItemKey(key.backend, (key.parts[0],)))


class Obliges(MemoryQueue):
    """Read-only in name."""

    def compare_and_set(self, changes: Sequence[Change], operation: Operation, authority: Authority) -> Sequence[Outcome]:
        return [self.write(change) for change in changes]


class Races(MemoryQueue):
    """Compares, then sets, with time between."""

    def compare_and_set(self, changes: Sequence[Change], operation: Operation, authority: Authority) -> Sequence[Outcome]:
        return [self.write(change) for change in changes]

    def put(self, change: Change) -> None:
        time.sleep(0.001)
        super().put(change)


class Mixes(MemoryQueue):
    """All causes are one to it."""

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        asked = wanted.without(Field.CAUSE) if isinstance(wanted, Filter) else wanted
        return super().drafts(asked, sort, operation, now, stop)


class Unnoticed(MemoryQueue):
    """Its rows show no time of execution, and it does not say that the counter proves one."""

    abilities = replace(MemoryQueue.abilities, execution_counter=None)


class Premature(MemoryQueue):
    """Whenever it is read, it has just been executed."""

    abilities = replace(MemoryQueue.abilities, execution_counter=None)

    def items(self, keys: Sequence[ItemKey], now: datetime) -> dict[ItemKey, Item]:
        return {key: item._replace(executed_at=now) for key, item in super().items(keys, now).items()}


CARELESS: dict[type[MemoryQueue], str] = {
    Cuts: "drafts_cover_the_selection", Loses: "drafts_cover_the_selection", Mixes: "drafts_cover_a_cause", Guesses: "drafts_cover_the_keys", TakesRunning: "skipped_items_say_why",
    Silent: "skipped_items_say_why", AnyAttempts: "abilities_are_the_limit", AnyFlag: "abilities_are_the_limit",
    Tells: "images_hold_no_error_or_payload", Impure: "images_survive_storage",
    Spreads: "writes_are_exact", Pretends: "writes_are_exact",
    Parks: "items_run_again", Unnoticed: "executions_are_noticed", Premature: "executions_are_noticed", Naive: "changed_rows_are_not_touched", Forgets: "undo_restores",
    NoUndo: "undo_restores", Trusts: "missing_items_are_reported", Obliges: "read_only_refuses", Races: "threads_do_not_collide",
}


@pytest.mark.parametrize(("kind", "promise"), [*CARELESS.items(), (Misjudges, "items_run_again"), (Naive, "a_second_write_changes_nothing")])
def test_carelessness_is_found(kind: type[MemoryQueue], promise: str) -> None:
    with pytest.raises(ContractBroken):
        exercise_requeue(lambda: harness(kind), promise, thorough=True)


def test_every_promise_can_be_broken() -> None:
    assert {*CARELESS.values(), "a_second_write_changes_nothing"} == set(REQUEUE_PROMISES)
