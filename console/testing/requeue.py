"""What a backend that requeues items promises.

Each promise is checked twice: with the smallest operation that the abilities allow (no flags) and with the largest.
The result of a write is read from the store itself, never through the backend.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product

from console.core.backend import (
    GONE,
    Action,
    Attempts,
    Change,
    Flag,
    Image,
    Operation,
    Outcome,
    OutcomeKind,
    Requeues,
    UndoKind,
)
from console.core.capabilities import NamesColumns, offered_actions, offered_switches
from console.core.faults import BackendFault, ReadOnlyRefused
from console.core.item import Condition, ItemKey
from console.core.ports import Never
from console.core.query import NATURAL, Filter
from console.core.reconcile import counted_executions
from console.core.recovery import Result, result_of
from console.testing.clock import StopFlag
from console.testing.harness import ALL, QUICK_ROWS, ContractBroken, Harness, Suite, require
from console.testing.requeue_world import WHO, RequeueWorld, in_units, name_of, unit_of

_HOSTILE = (
    ("no such",), (), ("a", "b"), ("\udcff",), ("",), ("x" * 5000,), ("\0",), ("1; DROP TABLE",),
    ("9" * 40,), ("../x",), ("a/b/../c",),
)
"""Keys that no item has."""


# --- drafts -----------------------------------------------------------------------------------------------


def _drafts_cover_the_selection(world: RequeueWorld) -> None:
    """A filter gives a draft for exactly the items it lists, in the same order, items of one unit together."""
    filters = (ALL, Filter(), Filter.parse("attempts>1 condition:*"), Filter.parse("error~timeout"))
    for filter, sort in world.combinations(filters, world.orders()):
        listed = [str(item.key) for item in world.listed(filter, sort)]
        drafts = world.drafts(filter, sort=sort)
        found, expected = [draft.key for draft in drafts], in_units(drafts, listed)
        where = next((f"{a} for {b}" for a, b in zip(found, expected, strict=False) if a != b), "the end")
        about = f"drafts of {str(filter)!r} by {str(sort) or 'its own order'!r}"
        require(found == expected, f"{about}: {len(found)} for {len(expected)} listed, the first odd one: {where}")
    whole = world.drafts()
    world.backend.check(world.clock)
    require(world.drafts() == whole, "check() changed the drafts")
    stopped = StopFlag()
    stopped.set()
    batches = world.requeues.drafts(ALL, NATURAL, world.operation, world.now, stopped)
    some = [draft for batch in batches for draft in batch]
    require(not some, "drafts came although a stop was requested")


def _drafts_cover_a_cause(world: RequeueWorld) -> None:
    """A `cause:` term of a filter selects exactly the items of that cause, or all others."""
    causes = sorted({item.signature for item in world.items if item.signature is not None})[:3]
    for (cause, without), sort in world.combinations([*product(causes, (False, True))], world.orders()):
        text = f"condition:* {'-' if without else ''}cause:{cause}"
        listed = world.listed(ALL, sort)
        expected = [str(item.key) for item in listed if (item.signature == cause) != without]
        drafts = world.drafts(Filter.parse(text), sort=sort)
        found = [draft.key for draft in drafts]
        require(found == in_units(drafts, expected), f"drafts of {text!r} by {str(sort) or 'its own order'!r}:",
                set(found) ^ set(expected))


def _drafts_cover_the_keys(world: RequeueWorld) -> None:
    """Keys give a draft for each existing item, once, items of one unit together."""
    shown = {str(item.key): item for item in world.items}
    chosen = [item.key for item in world.items[::-3]]
    nothing = [ItemKey(world.backend.name, parts) for parts in _HOSTILE]
    drafts = world.drafts([*nothing[:5], *chosen, *nothing[5:]])
    found = [draft.key for draft in drafts]
    require(sorted(found) == sorted(map(str, chosen)), "drafts of keys:", set(found) ^ set(map(str, chosen)))
    require(in_units(drafts, found) == found, "items of one unit are not together")
    require(not world.drafts(nothing) and not world.drafts([]), "drafts came for keys that do not exist")
    for draft in drafts:
        item = shown[draft.key]
        require(draft.condition == item.condition, f"{draft.key} is {item.condition}, drafted as {draft.condition}")
        require(draft.signature == item.signature, f"{draft.key} is drafted with another signature")
    alone = [draft for draft in world.drafts([item.key for item in world.items]) if draft.skipped is None]
    whole = [draft for draft in world.drafts() if draft.skipped is None]
    require(sorted(d.key for d in alone) == sorted(d.key for d in whole), "a filter and keys skip different items")


def _skipped_items_say_why(world: RequeueWorld) -> None:
    """Running, done and unknown items are skipped, and every skipped item has a reason."""
    for draft in world.drafts():
        if draft.skipped is not None:
            require(bool(draft.skipped.text.strip()), f"{draft.key} is skipped without a reason")
        still = draft.condition in (Condition.RUNNING, Condition.DONE, Condition.UNKNOWN)
        require(not still or draft.skipped is not None, f"{draft.key} is {draft.condition} and not skipped")
    world.changes()


def _abilities_are_the_limit(world: RequeueWorld) -> None:
    """Attempts that the abilities do not have skip everything; other flags change nothing; drafts write nothing."""
    before = world.harness.fingerprint()
    for attempts in frozenset(Attempts) - world.abilities.attempts:
        drafts = world.drafts(operation=Operation(attempts=attempts, flags=world.operation.flags))
        open_ones = [draft.key for draft in drafts if draft.skipped is None]
        require(not open_ones, f"attempts {attempts} is not among its abilities, but {open_ones[:2]} are not skipped")
    plain = world.drafts()
    for flag in {*Flag, "no_such_switch"} - world.abilities.flags:
        operation = Operation(attempts=world.operation.attempts, flags=world.operation.flags | {flag})
        require(
            world.drafts(operation=operation) == plain, f"{flag} is not among its abilities, but changes the drafts"
        )
    actions, switches = offered_actions([world.backend]), set(offered_switches([world.backend])) - set(Flag)
    require(actions.keys() <= world.abilities.actions, "an offered action is not among the abilities:", list(actions))
    require(switches <= world.abilities.flags, "an offered switch is not among the abilities:", switches)
    require(world.harness.fingerprint() == before, "drafts() changed the store")


# --- images -----------------------------------------------------------------------------------------------


def _images_hold_no_error_or_payload(world: RequeueWorld) -> None:
    """A plan contains neither error text nor payload."""
    errors = {str(item.key): item.error for item in world.items}
    after = {str(key): json.dumps(change.after) for change in world.changes() for key in change.keys}
    for draft in world.drafts():
        texts = (json.dumps(draft.before), after.get(draft.key, ""))
        for secret in ((errors[draft.key] or "")[:200], world.store.payload):
            leaked = len(secret) > 5 and any(json.dumps(secret)[1:-1] in text or secret in text for text in texts)
            require(not leaked, f"the image of {draft.key} contains {secret[:40]!r}")


def _images_survive_storage(world: RequeueWorld) -> None:
    """A before-image is what images() shows, and both images survive being stored as JSON; after() is pure."""
    changes, seen = world.changes(), world.harness.fingerprint()
    for change, image in zip(changes, world.images(changes), strict=True):
        require(image == change.before, f"{name_of(change)}: drafted as {change.before}, images() says {image}")
        require(change.after != change.before, f"{name_of(change)}: before and after are equal")
        for planned in (change.before, change.after):
            text = json.dumps(planned)
            require(tuple(json.loads(text)) == planned, f"{name_of(change)}: {text} changes when it is stored")
        _require_named(world, change)
    for change in reversed(changes):
        again = world.complete(change._replace(after=()))
        require(again == change, f"{name_of(change)}: after() is not pure: {again.after}, then {change.after}")
    require(world.harness.fingerprint() == seen, "images() or after() changed the store")


def _require_named(world: RequeueWorld, change: Change) -> None:
    """Require that a backend which names its columns shows what changes, with the same names before and after."""
    if not isinstance(world.backend, NamesColumns) or change.after == GONE:
        return
    shown = [[world.backend.columns_of(key, image) for image in (change.before, change.after)] for key in change.keys]
    for before, after in shown:
        require(list(before) == list(after), f"{name_of(change)}: columns {list(before)}, then {list(after)}")
    require(any(before != after for before, after in shown), f"{name_of(change)}: columns_of() shows no change")


# --- the write --------------------------------------------------------------------------------------------


def _writes_are_exact(world: RequeueWorld) -> None:
    """The planned units become what `after` says, and no other row changes."""
    drafts, before = world.drafts(), world.store.rows()
    chosen = world.changes(drafts)[::2]
    world.write_all(chosen)
    require(world.images(chosen) == world.written(chosen), "the stored rows are not the after-images")
    units = {change.unit or str(change.keys[0]) for change in chosen}
    may = {ItemKey.parse(draft.key) for draft in drafts if unit_of(draft) in units}
    must = {key for change in chosen for key in change.keys}
    changed = world.changed_since(before)
    require(changed <= may, f"rows outside the plan have changed: {sorted(map(str, changed - may))[:3]}")
    require(must <= changed, f"rows are reported as written and are not: {sorted(map(str, must - changed))[:3]}")
    require(not world.compare_and_set([]), "outcomes came for no changes")


def _items_run_again(world: RequeueWorld) -> None:
    """A requeued item will be taken by its own system, or the plan warned that nobody can tell.

    Otherwise it should have been skipped. The backend says so, and the store's `takes` agrees.
    """
    drafts = world.drafts()
    changes, warned = world.changes(drafts), {draft.key for draft in drafts if draft.warning is not None}
    world.write_all(changes)
    keys = [key for change in changes for key in change.keys]
    found = world.backend.items(keys, world.now)
    require(found.keys() == set(keys), "a requeued item is gone")
    for key, item in found.items():
        again = item.verdict.will_run_again
        promised = again is True or (again is None and str(key) in warned)
        require(promised, f"{key} was requeued, but: {item.condition}, {item.verdict.why}")
        require(item.condition is not Condition.RUNNING, f"{key} was requeued and is shown as running")
        ignored = again is True and world.store.takes is not None and not world.store.takes(key)
        require(not ignored, f"{key} was requeued and is said to run again, but its system ignores it")


def _executions_are_noticed(world: RequeueWorld) -> None:
    """An item that was requeued has not run yet; once it was executed, it has recovered or failed again."""
    if world.operation.action != Action.REQUEUE:
        return
    changes = world.changes()
    world.write_all(changes)
    keys = [key for change in changes for key in change.keys]
    times = {key: item.executed_at for key, item in world.backend.items(keys, world.now).items()}
    keys = [key for key in keys if (at := times.get(key)) is None or at <= world.now]  # others are from odd clocks
    written = {key: counted_executions(world.requeues, key, change.after) for change in changes for key in change.keys}
    if world.abilities.execution_counter is not None:
        keys = [key for key in keys if written[key] is not None]  # a counter that is no number proves nothing
    expected = dict.fromkeys(keys, Result.NOT_RUN_YET)
    if execute := world.store.execute:
        world.clock.tick()
        for number, key in enumerate(keys):
            if number % 3:
                execute(key, None if number % 3 == 1 else "ERR_AGAIN: it failed again")
                expected[key] = Result.RECOVERED if number % 3 == 1 else Result.FAILED_AGAIN
    found = world.backend.items(keys, world.clock.now())
    for key, result in expected.items():
        gone = key not in found and world.abilities.deletes_finished is not None
        seen = Result.RECOVERED if gone else result_of(found.get(key), world.now, written[key])
        require(seen is result, f"{key}: {seen.label}, but in truth {result.label}")


def _changed_rows_are_not_touched(world: RequeueWorld) -> None:
    """A unit that differs from `before` is not touched and reported; outcomes have the order of the changes."""
    changes = world.changes()
    random.Random(3).shuffle(changes)
    touched, gone = changes[::3], changes[1::5]
    touched = [change for change in touched if change not in gone]
    for change in touched:
        world.store.touch(change.keys[0])
    for change in gone:
        world.store.remove(change.keys[-1])
    before = world.store.rows()
    outcomes = dict(zip(map(name_of, changes), world.compare_and_set(changes), strict=True))
    changed = world.changed_since(before)
    for change in changes:
        kind, detail = outcomes[name_of(change)]
        left = change in touched or change in gone
        expected = OutcomeKind.CHANGED_SINCE if left else OutcomeKind.APPLIED
        require(kind is expected, f"{name_of(change)}: {kind} {detail}")
        require(not left or bool(detail), f"{name_of(change)} changed since the plan, but the outcome has no reason")
        require(not left or changed.isdisjoint(change.keys), f"{name_of(change)} changed since and was written")
    require(all(image is None for image in world.images(gone)), "images() finds units that are gone")
    for change, image in zip(touched, world.images(touched), strict=True):
        require(image not in (None, change.after), f"{name_of(change)} was changed by its system, shown as {image}")


def _a_second_write_changes_nothing(world: RequeueWorld) -> None:
    """The same change a second time is reported as changed since the plan, in one call and in two."""
    changes = world.changes()
    one, rest = changes[0], changes[1:]
    kinds = sorted(outcome.kind for outcome in world.compare_and_set([one, one]))
    require(kinds == [OutcomeKind.APPLIED, OutcomeKind.CHANGED_SINCE], f"the same change twice in one call: {kinds}")
    world.write_all(rest)
    before = world.store.rows()
    for change, outcome in zip(changes, world.compare_and_set(changes), strict=True):
        require(outcome.kind is OutcomeKind.CHANGED_SINCE, f"{name_of(change)} a second time: {outcome}")
    require(not world.changed_since(before), "the second call changed the store")


def _undo_restores(world: RequeueWorld) -> None:
    """An exact undo restores the rows. A compensating one brings the items back to their former condition."""
    kind = world.abilities.undo_of(world.operation.action)
    able = Action.UNDO in world.abilities.actions
    kinds = {world.abilities.undo_of(action) for action in (Action.REQUEUE, Action.DISCARD)}
    require(able == (kinds != {UndoKind.NONE}), f"undo is {', '.join(kinds)}, and among its actions: {able}")
    if kind is UndoKind.NONE:
        return
    changes, before = world.changes(), world.store.rows()
    shown = world.backend.items([key for change in changes for key in change.keys], world.now)
    world.write_all(changes)
    operation = Operation(Action.UNDO)
    backwards = [Change(change.unit, change.keys, change.after, change.before) for change in changes]
    if kind is UndoKind.COMPENSATING:
        world.now = world.clock.tick()
        backwards = [world.complete(change, operation) for change in backwards]
    for change, outcome in zip(backwards, world.compare_and_set(backwards, operation), strict=True):
        require(outcome.kind is OutcomeKind.APPLIED, f"undo of {name_of(change)}: {outcome}")
    if kind is UndoKind.EXACT:
        require(
            world.images(changes) == [change.before for change in changes], "an exact undo did not restore every image"
        )
        kept = sorted(map(str, world.changed_since(before)))
        require(not kept, f"an exact undo did not restore {kept[:3]}")
    for key, item in world.backend.items(list(shown), world.now).items():
        was = shown[key]
        # The time limit of a running item counts from a compensating undo on.
        starts_anew = kind is UndoKind.COMPENSATING and was.condition is Condition.STUCK
        as_before = item.condition == was.condition or (starts_anew and item.condition is Condition.RUNNING)
        require(as_before, f"{key} was {was.condition}, after the undo it is {item.condition}")
        require(item.attempts == was.attempts, f"{key} had {was.attempts} attempts, after the undo {item.attempts}")


def _missing_items_are_reported(world: RequeueWorld) -> None:
    """A change of an item that does not exist is reported, has no image, raises nothing and writes nothing."""
    real, before = world.changes()[0], world.store.rows()
    for parts in _HOSTILE:
        made_up = real._replace(keys=(ItemKey(world.backend.name, parts),), unit="")
        made_up = made_up._replace(before=_renamed(made_up.before, real), after=_renamed(made_up.after, real))
        try:
            (image,), (outcome,) = world.images([made_up]), world.compare_and_set([made_up])
        except BackendFault:
            continue
        except ContractBroken:
            raise
        except Exception as error:  # the promise is about every other exception
            raise ContractBroken(f"{type(error).__name__} escapes for the key {parts}: {error}") from error
        require(image is None, f"images() of {parts} finds {image}")
        require(outcome.kind is OutcomeKind.CHANGED_SINCE, f"a change of {parts}: {outcome}")
    require(not world.changed_since(before), "a change of an item that does not exist changed the store")


def _renamed(image: Image, real: Change) -> Image:
    """The image without the names of the real item, so that a backend cannot find it by them."""
    names = set(real.keys[0].parts)
    return tuple(
        ["nobody", *part[1:]] if isinstance(part, list) and part and part[0] in names else part for part in image
    )


# --- read-only, and several threads -----------------------------------------------------------------------


def _read_only_refuses(world: RequeueWorld) -> None:
    """A backend that was opened read-only gives the same drafts, refuses every write and changes nothing."""
    changes, before = world.changes(), world.harness.fingerprint()
    opened = world.store.read_only()
    require(isinstance(opened, Requeues), "a backend opened read-only is not a Requeues")
    assert isinstance(opened, Requeues)
    try:
        batches = opened.drafts(ALL, NATURAL, world.operation, world.now, Never())
        require([d for batch in batches for d in batch] == world.drafts(), "drafts() differs in read-only mode")
        require(list(opened.images(changes)) == world.images(changes), "images() differs in read-only mode")
        for operation in (world.operation, Operation(Action.UNDO)):
            try:
                opened.compare_and_set(changes, operation, WHO)
            except ReadOnlyRefused:
                continue
            raise ContractBroken("a write in read-only mode does not raise ReadOnlyRefused")
    finally:
        opened.close()
    require(world.harness.fingerprint() == before, "a refused write changed the store")


def _threads_do_not_collide(world: RequeueWorld) -> None:
    """Of several threads with the same plan, only one writes each unit; reading works meanwhile."""
    changes, before = world.changes(), world.store.rows()
    won: list[list[str]] = [[] for _ in range(4)]
    failed: list[BaseException] = []

    def write(number: int) -> None:
        mine = list(changes)
        random.Random(number).shuffle(mine)
        for part in _parts(mine, 7):
            outcomes = _patiently(lambda part=part: world.compare_and_set(part))  # type: ignore[misc]
            won[number] += [name_of(c) for c, o in zip(part, outcomes, strict=True) if o.kind is OutcomeKind.APPLIED]

    def read() -> None:
        for _ in range(5):
            found = len(world.drafts())
            complete = found == world.total or world.deletes
            require(complete, f"drafts() has {found} of {world.total} items while others write")

    def guarded(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001  shown by the thread that waits
            failed.append(error)

    acts: list[Callable[[], None]] = [*(lambda n=n: write(n) for n in range(4)), read]
    threads = [threading.Thread(target=guarded, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failed:
        raise error
    wins = [name for names in won for name in names]
    require(len(wins) == len(set(wins)), "several threads have changed the same unit")
    changed = world.changed_since(before)
    written = {name_of(change) for change in changes if not changed.isdisjoint(change.keys)}
    require(
        written == set(wins), "the outcomes of the threads and the stored rows differ:", sorted(written ^ set(wins))[:3]
    )


def _parts(changes: list[Change], size: int) -> Iterator[list[Change]]:
    for start in range(0, len(changes), size):
        yield changes[start : start + size]


def _patiently(act: Callable[[], list[Outcome]]) -> list[Outcome]:
    """Try again after a BackendFault, as core does: such a call has written nothing."""
    for _ in range(20):
        try:
            return act()
        except BackendFault:
            continue
    return act()


REQUEUE_PROMISES: Mapping[str, Callable[[RequeueWorld], None]] = {
    promise.__name__.removeprefix("_"): promise
    for promise in (
        _drafts_cover_the_selection,
        _drafts_cover_a_cause,
        _drafts_cover_the_keys,
        _skipped_items_say_why,
        _abilities_are_the_limit,
        _images_hold_no_error_or_payload,
        _images_survive_storage,
        _writes_are_exact,
        _items_run_again,
        _executions_are_noticed,
        _changed_rows_are_not_touched,
        _a_second_write_changes_nothing,
        _undo_restores,
        _missing_items_are_reported,
        _read_only_refuses,
        _threads_do_not_collide,
    )
}
"""Every promise about requeuing, by name."""


WRITES = frozenset(
    {
        "writes_are_exact",
        "items_run_again",
        "executions_are_noticed",
        "changed_rows_are_not_touched",
        "a_second_write_changes_nothing",
        "undo_restores",
        "missing_items_are_reported",
        "threads_do_not_collide",
    }
)
"""Promises that change the store, so that each one needs its own."""
_ENOUGH = 12
"""With fewer items to requeue, every row is written."""


class RequeueSuite(Suite[RequeueWorld]):
    """Checks what a backend promises about requeuing, with the smallest and with the largest operation."""

    _every: int | None = None
    """It writes every n-th row; None until that is known."""

    def check(self, name: str) -> None:
        """Check the promise of this name. Raises ContractBroken."""
        for largest in (False, True):
            build = partial(self._world, largest=largest)
            self.run(REQUEUE_PROMISES[name], build, None if name in WRITES else largest)

    def _world(self, *, largest: bool) -> RequeueWorld:
        if self._every is None:
            self._every = 1 if self.thorough or not self._are_few_rows_enough() else QUICK_ROWS
        return RequeueWorld(self.make, largest=largest, thorough=self.thorough, every=self._every)

    def _are_few_rows_enough(self) -> bool:
        """Whether enough items can be requeued when only some of the rows are written."""
        world = RequeueWorld(self.make, largest=False, every=QUICK_ROWS)
        try:
            return sum(draft.skipped is None for draft in world.drafts()) >= _ENOUGH
        finally:
            world.backend.close()


def exercise_requeue(make: Callable[[], Harness], *promises: str, thorough: bool = False) -> None:
    """Check some promises of a backend, or all; `make` opens an empty one each time. Raises ContractBroken."""
    with RequeueSuite(make, thorough=thorough) as suite:
        for name in promises or REQUEUE_PROMISES:
            suite.check(name)
