"""What a backend that discards items promises: the promises of a requeue, and that no discarded item runs again.

Each promise is checked for every way to discard that the backend has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial

from console.core.backend import GONE, Abilities, Action, Operation, Requeues, UndoKind
from console.core.capabilities import DISCARD_AS, offered_switches
from console.core.item import Condition
from console.testing.harness import Harness, Suite, require
from console.testing.requeue import REQUEUE_PROMISES, WRITES
from console.testing.requeue_world import RequeueWorld, name_of

_NEVER = frozenset({Condition.WAITING, Condition.RUNNING, Condition.DONE, Condition.CANCELLED, Condition.UNKNOWN})
_OVER = frozenset({Condition.DONE, Condition.CANCELLED, Condition.FAILED, Condition.TERMINAL})


def operations(backend: Requeues) -> list[Operation]:
    """Every way to discard. The last one has the other switches of a discard turned on, too."""
    own = [spec for spec in offered_switches([backend]).values() if Action.DISCARD in spec.actions]
    kinds = [{spec.id} for spec in own if spec.id.startswith(DISCARD_AS)] or [set()]
    kinds[-1] |= {spec.id for spec in own if not spec.id.startswith(DISCARD_AS) and not spec.adds_items}
    return [Operation(Action.DISCARD, flags=frozenset(flags)) for flags in kinds]


def _a_discard_is_declared(world: RequeueWorld) -> None:
    """The abilities say that there is a discard, what it deletes and what its undo means."""
    abilities, discard = world.abilities, world.abilities.discard
    require(Action.DISCARD in abilities.actions, "its abilities describe a discard that is not among its actions")
    require(discard is not None, "a discard is among its actions, but its abilities do not describe it")
    assert discard is not None
    same = discard.undo in (abilities.undo, UndoKind.NONE) or abilities.undo is UndoKind.NONE
    require(same, f"the undo of a discard is {discard.undo}, that of a requeue is {abilities.undo}")
    require(not discard.deletes or discard.undo is UndoKind.NONE, "a deleted item cannot be restored")
    deleted = [name_of(change) for change in world.changes() if change.after == GONE]
    require(discard.deletes or not deleted, "a discard would delete without saying so:", deleted[:3])
    require(bool(deleted) or not discard.deletes, "a discard is said to delete, but it would delete nothing")


def _only_open_items_are_discarded(world: RequeueWorld) -> None:
    """Items that have not failed are skipped; terminal ones too, unless the abilities say that they are taken."""
    takes_terminal = world.abilities.discard is not None and world.abilities.discard.takes_terminal
    for draft in world.drafts():
        condition = Condition(draft.condition)
        if draft.skipped is not None:
            continue
        require(condition not in _NEVER, f"{draft.key} is {condition} and would be discarded")
        allowed = condition is not Condition.TERMINAL or takes_terminal
        require(allowed, f"{draft.key} is terminal and would be discarded")


def _discarded_items_never_run(world: RequeueWorld) -> None:
    """A discarded item is over: its system will not run it again, and it cannot be discarded a second time."""
    changes = world.changes()
    world.write_all(changes)
    keys = [key for change in changes for key in change.keys]
    found = world.backend.items(keys, world.now)
    left = {key for change in changes if change.after != GONE for key in change.keys}
    require(found.keys() == left, "other items are gone than those that a discard deletes:", found.keys() ^ left)
    for key, item in found.items():
        require(item.verdict.will_run_again is False, f"{key} was discarded, but may run again: {item.verdict.why}")
        require(item.condition in _OVER, f"{key} was discarded and is {item.condition}: {item.verdict.why}")
    if takes := world.store.takes:
        taken = [str(key) for key in keys if takes(key)]
        require(not taken, "discarded items are said not to run again, but their system takes them:", taken[:3])
    again = [draft.key for draft in world.drafts(keys) if draft.skipped is None]
    # Where a discard deletes some items, one that was only given up can be deleted in a second step.
    require(not again or world.deletes, "discarded items would be discarded again:", again[:3])


_SHARED = (
    "drafts_cover_the_keys",
    "skipped_items_say_why",
    "images_hold_no_error_or_payload",
    "images_survive_storage",
    "writes_are_exact",
    "changed_rows_are_not_touched",
    "a_second_write_changes_nothing",
    "undo_restores",
    "missing_items_are_reported",
    "read_only_refuses",
    "threads_do_not_collide",
)
_OWN = (_a_discard_is_declared, _only_open_items_are_discarded, _discarded_items_never_run)
DISCARD_PROMISES: Mapping[str, Callable[[RequeueWorld], None]] = {
    **{promise.__name__.removeprefix("_"): promise for promise in _OWN},
    **{name: REQUEUE_PROMISES[name] for name in _SHARED},
}
"""Every promise about discarding, by name."""
_WRITES = WRITES | {"discarded_items_never_run"}


class DiscardSuite(Suite[RequeueWorld]):
    """Checks what a backend promises about discarding."""

    def check(self, name: str) -> None:
        """Check the promise of this name. Raises ContractBroken."""
        for number, operation in enumerate(self._operations):
            build = partial(RequeueWorld, self.make, largest=bool(number), thorough=self.thorough, operation=operation)
            self.run(DISCARD_PROMISES[name], build, None if name in _WRITES else operation)

    @cached_property
    def _operations(self) -> list[Operation]:
        backend = self.make().backend
        try:
            require(isinstance(backend, Requeues), f"{backend.plugin} cannot discard items: it is not a Requeues")
            assert isinstance(backend, Requeues)
            require(_discards(backend.abilities), f"{backend.plugin} has no discard")
            return operations(backend)
        finally:
            backend.close()


def _discards(abilities: Abilities) -> bool:
    return Action.DISCARD in abilities.actions or abilities.discard is not None


def exercise_discard(make: Callable[[], Harness], *promises: str, thorough: bool = False) -> None:
    """Check some promises of a backend, or all; `make` opens an empty one each time. Raises ContractBroken."""
    with DiscardSuite(make, thorough=thorough) as suite:
        for name in promises or DISCARD_PROMISES:
            suite.check(name)
