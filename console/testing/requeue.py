"""What a backend that hands items back promises about it.

Each promise is checked in a world of its own, twice: with the smallest order the backend's abilities name (no
flags) and with the largest. What a write did is seen in the store itself, never through the backend.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping

from console.core.backend import (
    Action,
    Budget,
    Change,
    Flag,
    Image,
    Order,
    Outcome,
    OutcomeKind,
    Requeues,
    UndoKind,
    image_text,
)
from console.core.faults import BackendFault, ReadOnlyRefused
from console.core.item import Condition, ItemKey
from console.core.ports import Never
from console.core.query import NATURAL, Filter
from console.testing.clock import Flag as Raised
from console.testing.desk import WHO, Desk, in_units, name_of, unit_of
from console.testing.harness import ALL, ContractBroken, Harness, require

_HOSTILE = (
    ("no such",), (), ("a", "b"), ("\udcff",), ("",), ("x" * 5000,), ("\0",), ("1; DROP TABLE",),
    ("9" * 40,), ("../x",), ("a/b/../c",),
)
"""Parts of keys that lead to nothing."""


# --- drafts -----------------------------------------------------------------------------------------------


def _drafts_cover_the_selection(desk: Desk) -> None:
    """A filter gives exactly what it lists, in the list's order, units together."""
    for filter in (ALL, Filter(), Filter.parse("attempts>1 condition:*"), Filter.parse("error~timeout")):
        for sort in desk.orders():
            listed = [str(item.key) for item in desk.listed(filter, sort)]
            drafts = desk.drafts(filter, sort=sort)
            found, expected = [draft.key for draft in drafts], in_units(drafts, listed)
            where = next((f"{a} for {b}" for a, b in zip(found, expected, strict=False) if a != b), "the end")
            about = f"drafts of {str(filter)!r} by {str(sort) or 'its own order'!r}"
            require(found == expected, f"{about}: {len(found)} for {len(expected)} listed, the first odd one: {where}")
    whole = desk.drafts()
    desk.backend.check(desk.clock)
    require(desk.drafts() == whole, "a check only looks: the drafts after it are those before it")
    stopped = Raised()
    stopped.set()
    some = [draft for batch in desk.requeues.drafts(ALL, NATURAL, desk.order, desk.now, stopped) for draft in batch]
    require(not some, "a selection that is stopped at once gives nothing")


def _drafts_cover_a_cause(desk: Desk) -> None:
    """A filter's `signature:` terms are heard too: exactly the items of that cause, or all others."""
    for sort in desk.orders():
        listed = desk.listed(ALL, sort)
        causes = sorted({item.signature for item in listed if item.signature is not None})
        for cause in causes[:3]:
            for without in (False, True):
                text = f"condition:* {'-' if without else ''}signature:{cause}"
                expected = [str(item.key) for item in listed if (item.signature == cause) != without]
                drafts = desk.drafts(Filter.parse(text), sort=sort)
                found = [draft.key for draft in drafts]
                require(found == in_units(drafts, expected), f"drafts of {text!r} by {str(sort) or 'its own order'!r}:",
                        set(found) ^ set(expected))


def _drafts_cover_the_keys(desk: Desk) -> None:
    """Keys give exactly those that exist, each once, units together, as they are listed."""
    shown = {str(item.key): item for item in desk.items}
    chosen = [item.key for item in desk.items[::-3]]
    nothing = [ItemKey(desk.backend.name, parts) for parts in _HOSTILE]
    drafts = desk.drafts([*nothing[:5], *chosen, *nothing[5:]])
    found = [draft.key for draft in drafts]
    require(sorted(found) == sorted(map(str, chosen)), "drafts of keys:", set(found) ^ set(map(str, chosen)))
    require(in_units(drafts, found) == found, "items of one unit come together")
    require(not desk.drafts(nothing) and not desk.drafts([]), "keys of nothing give nothing")
    for draft in drafts:
        item = shown[draft.key]
        require(draft.condition == item.condition, f"{draft.key} is {item.condition}, drafted as {draft.condition}")
        require(draft.signature == item.signature, f"{draft.key} is drafted with another signature")
    alone = [draft for draft in desk.drafts([item.key for item in desk.items]) if draft.blocked is None]
    whole = [draft for draft in desk.drafts() if draft.blocked is None]
    require(sorted(d.key for d in alone) == sorted(d.key for d in whole), "keys and a filter block the same items")


def _blocked_ones_say_why(desk: Desk) -> None:
    """Nothing running within its limit, and nothing done, is handed back; whatever is blocked says why."""
    for draft in desk.drafts():
        if draft.blocked is not None:
            require(bool(draft.blocked.strip()), f"{draft.key} is blocked without a reason")
        still = draft.condition in (Condition.RUNNING, Condition.DONE, Condition.UNKNOWN)
        require(not still or draft.blocked is not None, f"{draft.key} is {draft.condition} and not blocked")
    desk.changes()


def _abilities_are_the_limit(desk: Desk) -> None:
    """A budget the backend has not is refused; a flag it has not unblocks nothing; drafting writes nothing."""
    before = desk.harness.fingerprint()
    for budget in frozenset(Budget) - desk.abilities.budgets:
        drafts = desk.drafts(order=Order(budget=budget, flags=desk.order.flags))
        open_ones = [draft.key for draft in drafts if draft.blocked is None]
        require(not open_ones, f"budget {budget} is not among its abilities, but {open_ones[:2]} are not blocked")
    plain = desk.drafts()
    for flag in frozenset(Flag) - desk.abilities.flags:
        order = Order(budget=desk.order.budget, flags=desk.order.flags | {flag})
        require(desk.drafts(order=order) == plain, f"{flag} is not among its abilities, but changes the drafts")
    require(desk.harness.fingerprint() == before, "drafting leaves no trace in the store")


# --- images -----------------------------------------------------------------------------------------------


def _images_hold_no_evidence(desk: Desk) -> None:
    """Neither error text nor payload is in a plan."""
    errors = {str(item.key): item.error for item in desk.items}
    after = {str(key): image_text(change.after) for change in desk.changes() for key in change.keys}
    for draft in desk.drafts():
        texts = (draft.before, after.get(draft.key, ""))
        for secret in ((errors[draft.key] or "")[:200], desk.store.payload):
            told = len(secret) > 5 and any(json.dumps(secret)[1:-1] in text or secret in text for text in texts)
            require(not told, f"the image of {draft.key} contains {secret[:40]!r}")


def _images_come_back(desk: Desk) -> None:
    """A before-image is what images() shows, also after a journey through text; an after-image is pure."""
    changes, seen = desk.changes(), desk.harness.fingerprint()
    for change, image in zip(changes, desk.images(changes), strict=True):
        require(image == change.before, f"{name_of(change)}: drafted as {change.before}, images() says {image}")
        require(change.after != change.before, f"{name_of(change)}: a change to what it is already")
        text = image_text(change.after)
        require(tuple(json.loads(text)) == change.after, f"{name_of(change)}: after-image {text} reads back otherwise")
    for change in reversed(changes):
        again = desk.complete(change._replace(after=()))
        require(again == change, f"{name_of(change)}: after() is not pure: {again.after}, then {change.after}")
    one_by_one, at_once = desk.afters(changes)
    require(one_by_one == at_once, "afters() is not what after() says of each:", at_once)
    require(desk.harness.fingerprint() == seen, "images() and after() leave no trace in the store")


# --- the write --------------------------------------------------------------------------------------------


def _swap_is_exact(desk: Desk) -> None:
    """What is written is the plan: the units asked for become what `after` says, and no other row changes."""
    drafts, before = desk.drafts(), desk.store.rows()
    chosen = desk.changes(drafts)[::2]
    desk.swap_all(chosen)
    require(desk.images(chosen) == [change.after for change in chosen], "what was written is the after-image")
    units = {change.unit or str(change.keys[0]) for change in chosen}
    may = {ItemKey.parse(draft.key) for draft in drafts if unit_of(draft) in units}
    must = {key for change in chosen for key in change.keys}
    changed = desk.changed_since(before)
    require(changed <= may, f"rows that were not asked for have changed: {sorted(map(str, changed - may))[:3]}")
    require(must <= changed, f"rows are reported as changed and are not: {sorted(map(str, must - changed))[:3]}")
    require(not desk.swap([]), "nothing to change has no outcomes")


def _items_run_again(desk: Desk) -> None:
    """What was handed back is taken by its own system, or it was blocked before."""
    changes = desk.changes()
    desk.swap_all(changes)
    keys = [key for change in changes for key in change.keys]
    found = desk.backend.items(keys, desk.now)
    require(found.keys() == set(keys), "what was handed back is still there")
    for key, item in found.items():
        require(item.verdict.will_run_again, f"{key} was handed back, but: {item.condition}, {item.verdict.why}")
        require(item.condition is not Condition.RUNNING, f"{key} was handed back and is shown as running")


def _changed_rows_conflict(desk: Desk) -> None:
    """A unit that is not as `before` says is left alone and told; outcomes come in the order of the changes."""
    changes = desk.changes()
    random.Random(3).shuffle(changes)
    touched, gone = changes[::3], changes[1::5]
    touched = [change for change in touched if change not in gone]
    for change in touched:
        desk.store.touch(change.keys[0])
    for change in gone:
        desk.store.remove(change.keys[-1])
    before = desk.store.rows()
    outcomes = dict(zip(map(name_of, changes), desk.swap(changes), strict=True))
    changed = desk.changed_since(before)
    for change in changes:
        kind, detail = outcomes[name_of(change)]
        left = change in touched or change in gone
        expected = OutcomeKind.CONFLICTED if left else OutcomeKind.CHANGED
        require(kind is expected, f"{name_of(change)}: {kind} {detail}")
        require(not left or bool(detail), f"{name_of(change)} is conflicted without a reason")
        require(not left or changed.isdisjoint(change.keys), f"{name_of(change)} is conflicted and was written")
    require(all(image is None for image in desk.images(gone)), "images() of what is gone are None")
    for change, image in zip(touched, desk.images(touched), strict=True):
        require(image not in (None, change.after), f"{name_of(change)} was changed by its system, shown as {image}")


def _twice_is_once(desk: Desk) -> None:
    """The same change again conflicts, in a second call and in the same one."""
    changes = desk.changes()
    one, rest = changes[0], changes[1:]
    kinds = sorted(outcome.kind for outcome in desk.swap([one, one]))
    require(kinds == [OutcomeKind.CHANGED, OutcomeKind.CONFLICTED], f"the same change twice in one call: {kinds}")
    desk.swap_all(rest)
    before = desk.store.rows()
    for change, outcome in zip(changes, desk.swap(changes), strict=True):
        require(outcome.kind is OutcomeKind.CONFLICTED, f"{name_of(change)} a second time: {outcome}")
    require(not desk.changed_since(before), "a second time nothing is written")


def _undo_is_as_it_says(desk: Desk) -> None:
    """Exact: the very rows are back. Compensating: the items are in their former condition, by one more step."""
    kind = desk.abilities.undo
    able = Action.UNDO in desk.abilities.actions
    require(able == (kind is not UndoKind.NONE), f"undo is {kind}, and among its actions: {able}")
    if kind is UndoKind.NONE:
        return
    changes, before = desk.changes(), desk.store.rows()
    shown = desk.backend.items([key for change in changes for key in change.keys], desk.now)
    desk.swap_all(changes)
    order = Order(Action.UNDO)
    backwards = [Change(change.unit, change.keys, change.after, change.before) for change in changes]
    if kind is UndoKind.COMPENSATING:
        desk.now = desk.clock.tick()
        backwards = [desk.complete(change, order) for change in backwards]
    for change, outcome in zip(backwards, desk.swap(backwards, order), strict=True):
        require(outcome.kind is OutcomeKind.CHANGED, f"undo of {name_of(change)}: {outcome}")
    if kind is UndoKind.EXACT:
        require(desk.images(changes) == [change.before for change in changes], "an exact undo restores every image")
        kept = sorted(map(str, desk.changed_since(before)))
        require(not kept, f"an exact undo restores the very rows, but not {kept[:3]}")
    for key, item in desk.backend.items(list(shown), desk.now).items():
        was = shown[key]
        require((item.condition, item.attempts) == (was.condition, was.attempts),
                f"{key} was {was.condition} after {was.attempts}, undone it is {item.condition} after {item.attempts}")


def _keys_of_nothing_conflict(desk: Desk) -> None:
    """A change of something that is not there is conflicted, its image None; nothing escapes, nothing is written."""
    real, before = desk.changes()[0], desk.store.rows()
    for parts in _HOSTILE:
        made_up = real._replace(keys=(ItemKey(desk.backend.name, parts),), unit="")
        made_up = made_up._replace(before=_renamed(made_up.before, real), after=_renamed(made_up.after, real))
        try:
            (image,), (outcome,) = desk.images([made_up]), desk.swap([made_up])
        except BackendFault:
            continue
        except ContractBroken:
            raise
        except Exception as error:  # the promise is about every other exception
            raise ContractBroken(f"{type(error).__name__} escapes for the key {parts}: {error}") from error
        require(image is None, f"images() of {parts} finds {image}")
        require(outcome.kind is OutcomeKind.CONFLICTED, f"a change of {parts}: {outcome}")
    require(not desk.changed_since(before), "a change of nothing writes nothing")


def _renamed(image: Image, real: Change) -> Image:
    """An image that names its item inside must not lead there."""
    names = set(real.keys[0].parts)
    return tuple(
        ["nobody", *part[1:]] if isinstance(part, list) and part and part[0] in names else part for part in image
    )


# --- who may, and how many at once ------------------------------------------------------------------------


def _read_only_refuses(desk: Desk) -> None:
    """Opened read-only it drafts the same, refuses every write, and leaves no trace."""
    changes, before = desk.changes(), desk.harness.fingerprint()
    opened = desk.store.read_only()
    require(isinstance(opened, Requeues), "a backend opened read-only has the same capabilities")
    assert isinstance(opened, Requeues)
    try:
        batches = opened.drafts(ALL, NATURAL, desk.order, desk.now, Never())
        require([d for batch in batches for d in batch] == desk.drafts(), "read-only, the same is drafted")
        require(list(opened.images(changes)) == desk.images(changes), "read-only, images() shows the same")
        for order in (desk.order, Order(Action.UNDO)):
            try:
                opened.swap(changes, order, WHO)
            except ReadOnlyRefused:
                continue
            raise ContractBroken("opened read-only, it does not refuse a write with ReadOnlyRefused")
    finally:
        opened.close()
    require(desk.harness.fingerprint() == before, "a refused write leaves no trace in the store")


def _threads_share(desk: Desk) -> None:
    """Several threads with the same plan: each unit is written once, whoever does it, and reads go on."""
    changes, before = desk.changes(), desk.store.rows()
    won: list[list[str]] = [[] for _ in range(4)]
    failed: list[BaseException] = []

    def write(number: int) -> None:
        mine = list(changes)
        random.Random(number).shuffle(mine)
        for part in _parts(mine, 7):
            outcomes = _patiently(lambda part=part: desk.swap(part))  # type: ignore[misc]
            won[number] += [name_of(c) for c, o in zip(part, outcomes, strict=True) if o.kind is OutcomeKind.CHANGED]

    def read() -> None:
        for _ in range(5):
            require(len(desk.drafts()) == desk.total, "a list that is drafted while others write is whole")

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
    changed = desk.changed_since(before)
    written = {name_of(change) for change in changes if not changed.isdisjoint(change.keys)}
    require(written == set(wins), "what threads are told and what is stored differ:", sorted(written ^ set(wins))[:3])


def _parts(changes: list[Change], size: int) -> Iterator[list[Change]]:
    for start in range(0, len(changes), size):
        yield changes[start : start + size]


def _patiently(act: Callable[[], list[Outcome]]) -> list[Outcome]:
    """As core does: what was refused as a whole was not written, and is tried again."""
    for _ in range(20):
        try:
            return act()
        except BackendFault:
            continue
    return act()


REQUEUE_PROMISES: Mapping[str, Callable[[Desk], None]] = {
    promise.__name__.removeprefix("_"): promise
    for promise in (
        _drafts_cover_the_selection, _drafts_cover_a_cause, _drafts_cover_the_keys, _blocked_ones_say_why,
        _abilities_are_the_limit, _images_hold_no_evidence, _images_come_back, _swap_is_exact, _items_run_again,
        _changed_rows_conflict, _twice_is_once, _undo_is_as_it_says, _keys_of_nothing_conflict, _read_only_refuses,
        _threads_share,
    )
}
"""Everything a backend promises about handing items back, by name."""


def exercise_requeue(make: Callable[[], Harness], *promises: str) -> None:
    """Hold a backend to some promises, or to all; `make` gives an empty one each time. Raises ContractBroken."""
    for name in promises or REQUEUE_PROMISES:
        for largest in (False, True):
            desk = Desk(make, largest)
            try:
                REQUEUE_PROMISES[name](desk)
            finally:
                desk.backend.close()
