"""A world whose backend hands items back, and what the promises about that are checked with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby

from console.core.backend import (
    Authority,
    Budget,
    Change,
    Draft,
    Image,
    Order,
    Outcome,
    OutcomeKind,
    Requeues,
)
from console.core.changes import Changes, afters_of
from console.core.item import ItemKey
from console.core.ports import Never
from console.core.query import NATURAL, Filter, Sort
from console.testing.harness import ALL, Harness, Store, World, require

WHO = Authority("ops", "because", "T-1", "o1")


class Desk(World):
    """A world whose backend hands items back, with one order to give."""

    def __init__(self, make: Callable[[], Harness], largest: bool) -> None:
        super().__init__(make, rounds=2)
        backend, store = self.backend, self.harness.store
        require(isinstance(backend, Requeues), f"{backend.plugin} cannot hand items back: it is not a Requeues")
        require(store is not None, "the harness has no store")
        assert isinstance(backend, Requeues)
        assert store is not None
        self.requeues: Requeues = backend
        self.store: Store = store
        self.abilities = backend.abilities
        least, *_, most = sorted((*self.abilities.budgets, *self.abilities.budgets), key=list(Budget).index)
        self.order = Order(budget=most, flags=self.abilities.flags) if largest else Order(budget=least)

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter = ALL, order: Order | None = None, sort: Sort = NATURAL
    ) -> list[Draft]:
        batches = self.requeues.drafts(wanted, sort, order or self.order, self.now, Never())
        return [draft for batch in batches for draft in batch]

    def changes(self, drafts: Sequence[Draft] | None = None) -> list[Change]:
        """What would be written, as core makes it of drafts: one change for the open items of each unit."""
        asked = self.drafts() if drafts is None else drafts
        found = []
        for _, unit in groupby((draft for draft in asked if draft.blocked is None), key=unit_of):
            same = list(unit)
            keys = tuple(ItemKey.known(self.backend.name, draft.key) for draft in same)
            found.append(self.complete(Change(same[0].unit, keys, image_of(same[0]), ())))
        require(bool(found), "no item of any status can be handed back: the rows of this harness prove nothing")
        return found

    def complete(self, change: Change, order: Order | None = None) -> Change:
        return change._replace(after=self.requeues.after(change, order or self.order, self.now, self.now))

    def afters(self, changes: Sequence[Change]) -> tuple[list[Image], list[Image]]:
        """The after-images of these, each due a second later: asked for one by one, and as core asks for them."""
        dues = [self.now + timedelta(seconds=n) for n in range(len(changes))]
        unknown = Changes.of(changes).to([()] * len(changes))
        after, order = self.requeues.after, self.order
        one_by_one = [after(change, order, self.now, due) for change, due in zip(unknown, dues, strict=True)]
        return one_by_one, list(afters_of(self.requeues, unknown, self.order, self.now, dues))

    def swap(self, changes: Sequence[Change], order: Order | None = None) -> list[Outcome]:
        outcomes = list(self.requeues.swap(changes, order or self.order, WHO))
        require(len(outcomes) == len(changes), f"{len(changes)} changes have {len(outcomes)} outcomes")
        return outcomes

    def swap_all(self, changes: Sequence[Change]) -> None:
        for change, outcome in zip(changes, self.swap(changes), strict=True):
            require(outcome.kind is OutcomeKind.CHANGED, f"{name_of(change)} is as planned, but {outcome}")

    def images(self, changes: Sequence[Change]) -> list[Image | None]:
        images = list(self.requeues.images(changes))
        require(len(images) == len(changes), f"{len(changes)} changes have {len(images)} images")
        return images

    def changed_since(self, before: Mapping[ItemKey, object]) -> set[ItemKey]:
        now = self.store.rows()
        require(now.keys() == before.keys(), "no row comes or goes by a requeue:", now.keys() ^ before.keys())
        return {key for key, row in now.items() if row != before[key]}


def unit_of(draft: Draft) -> str:
    return draft.unit or draft.key


def image_of(draft: Draft) -> Image:
    return tuple(json.loads(draft.before))


def name_of(change: Change) -> str:
    return str(change.keys[0])


def in_units(drafts: Sequence[Draft], order: Sequence[str]) -> list[str]:
    """Keys in this order, those of a unit together where its first one is."""
    named = {draft.key: unit_of(draft) for draft in drafts}
    units: dict[str, list[str]] = {}
    for key in order:
        units.setdefault(named.get(key, key), []).append(key)
    return [key for keys in units.values() for key in keys]
