"""A world whose backend can be written, and the helpers that the promises about requeue and discard use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from console.core.backend import (
    GONE,
    Action,
    Attempts,
    Authority,
    Change,
    Draft,
    Image,
    Operation,
    Outcome,
    OutcomeKind,
    Requeues,
)
from console.core.capabilities import offered_switches
from console.core.item import ItemKey
from console.core.override import past_tense
from console.core.ports import Never
from console.core.query import NATURAL, Filter, Sort
from console.testing.harness import ALL, Harness, Store, World, require

WHO = Authority("ops", "because", "T-1", "o1")


class RequeueWorld(World):
    """A world whose backend can requeue, with one operation to try on it."""

    def __init__(
        self, make: Callable[[], Harness], *, largest: bool, thorough: bool = False,
        operation: Operation | None = None, every: int = 1,
    ) -> None:
        """Without an operation, it is the smallest requeue that the abilities allow, or the largest."""
        super().__init__(make, every, rounds=2 if thorough else 1, thorough=thorough)
        self.largest = largest
        backend, store = self.backend, self.harness.store
        require(isinstance(backend, Requeues), f"{backend.plugin} cannot requeue items: it is not a Requeues")
        require(store is not None, "the harness has no store")
        assert isinstance(backend, Requeues)
        assert store is not None
        self.requeues: Requeues = backend
        self.store: Store = store
        self.abilities = backend.abilities
        least, *_, most = sorted((*self.abilities.attempts, *self.abilities.attempts), key=list(Attempts).index)
        adding = {spec.id for spec in offered_switches([backend]).values() if spec.adds_items}
        flags = self.abilities.flags - adding if largest else frozenset[str]()
        self.operation = operation or Operation(attempts=most if largest else least, flags=flags)

    def orders(self) -> list[Sort]:
        """All when thorough; otherwise one half for the smallest operation and the other for the largest."""
        found = super().orders()
        return found if self.thorough else found[self.largest :: 2]

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter = ALL, operation: Operation | None = None, sort: Sort = NATURAL
    ) -> list[Draft]:
        batches = self.requeues.drafts(wanted, sort, operation or self.operation, self.now, Never())
        return [draft for batch in batches for draft in batch]

    def changes(self, drafts: Sequence[Draft] | None = None) -> list[Change]:
        """The changes that core would make from the drafts: one for each unit, without the skipped items."""
        asked = self.drafts() if drafts is None else drafts
        found = []
        for _, unit in groupby((draft for draft in asked if draft.skipped is None), key=unit_of):
            same = list(unit)
            keys = tuple(ItemKey.known(self.backend.name, draft.key) for draft in same)
            found.append(self.complete(Change(same[0].unit, keys, image_of(same[0]), ())))
        done = past_tense(self.operation.action)
        require(bool(found), f"no item of any status can be {done}, so this harness proves nothing")
        return found

    def complete(self, change: Change, operation: Operation | None = None) -> Change:
        return change._replace(after=self.requeues.after(change, operation or self.operation, self.now, self.now))

    def compare_and_set(self, changes: Sequence[Change], operation: Operation | None = None) -> list[Outcome]:
        outcomes = list(self.requeues.compare_and_set(changes, operation or self.operation, WHO))
        require(len(outcomes) == len(changes), f"{len(changes)} changes have {len(outcomes)} outcomes")
        return outcomes

    def write_all(self, changes: Sequence[Change]) -> None:
        for change, outcome in zip(changes, self.compare_and_set(changes), strict=True):
            require(outcome.kind is OutcomeKind.APPLIED, f"{name_of(change)} is as planned, but {outcome}")

    def images(self, changes: Sequence[Change]) -> list[Image | None]:
        images = list(self.requeues.images(changes))
        require(len(images) == len(changes), f"{len(changes)} changes have {len(images)} images")
        return images

    @property
    def deletes(self) -> bool:
        """Whether the operation deletes items."""
        discard = self.abilities.discard
        return self.operation.action == Action.DISCARD and discard is not None and discard.deletes

    def written(self, changes: Sequence[Change]) -> list[Image | None]:
        """What images() shows once these changes are written."""
        return [None if change.after == GONE else change.after for change in changes]

    def changed_since(self, before: Mapping[ItemKey, object]) -> set[ItemKey]:
        """The items whose rows have changed. Only an operation that deletes may remove rows."""
        now = self.store.rows()
        require(now.keys() <= before.keys(), "a write added rows:", now.keys() - before.keys())
        gone = before.keys() - now.keys()
        require(self.deletes or not gone, "a write removed rows:", gone)
        return {key for key, row in now.items() if row != before[key]} | gone


def unit_of(draft: Draft) -> str:
    return draft.unit or draft.key


def image_of(draft: Draft) -> Image:
    require(draft.before is not None, f"{draft.key} is not skipped and has no image")
    return draft.before or ()


def name_of(change: Change) -> str:
    return str(change.keys[0])


def in_units(drafts: Sequence[Draft], keys: Sequence[str]) -> list[str]:
    """The keys in this order, but those of one unit together, at the place of the first."""
    named = {draft.key: unit_of(draft) for draft in drafts}
    units: dict[str, list[str]] = {}
    for key in keys:
        units.setdefault(named.get(key, key), []).append(key)
    return [key for unit in units.values() for key in unit]
