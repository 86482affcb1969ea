from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest

from console.core.faults import NoSuchPlan, PlanAltered, PlanStale
from console.core.pace import Canary, Now, Over, Pace, Rate
from console.core.plan import FIRST_SKIPPED, PlanRow
from console.trail.store import TrailStore
from tests.trail.world import START, YES, FrozenClock, begun, make_plan, packed, plan_rows, sealed


def count(trail: TrailStore, table: str) -> int:
    return int(trail._storage.read(lambda reading: reading.all(f"SELECT count(*) FROM {table}"), [(0,)])[0][0])


@pytest.mark.parametrize("pace", [Now(), Over(timedelta(seconds=90, microseconds=7)), Rate(10 / 60), Canary(20)], ids=str)
def test_a_plan_comes_back_as_it_was(trail: TrailStore, pace: Pace) -> None:
    plan = sealed(trail, pace=pace, places=("/a", "/b\udcff"))
    assert trail.plan(plan.id) == plan
    assert list(trail.plan(plan.id).by_condition) == list(plan.by_condition)


def test_rows_are_streamed_in_order_and_only_those_asked_for(trail: TrailStore) -> None:
    rows = plan_rows(10, skipped=3)
    plan = make_plan(rows)
    trail.add_blocks(plan.nonce, packed(*rows[:4]))
    trail.add_blocks(plan.nonce, packed(*rows[4:]))
    trail.seal(plan)
    assert [[row.ordinal for row in batch] for batch in trail.rows(plan.id, 0, 9)] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    assert [row for batch in trail.rows(plan.id, 0, 9) for row in batch] == rows[:10]
    assert [[row.ordinal for row in batch] for batch in trail.rows(plan.id, 2, 4)] == [[2, 3], [4]]
    assert [[row.ordinal for row in batch] for batch in trail.rows(plan.id, 5, 8)] == [[5, 6, 7, 8]]
    assert [row for batch in trail.rows(plan.id, FIRST_SKIPPED, -1) for row in batch] == rows[10:]
    assert [row for batch in trail.rows(plan.id, FIRST_SKIPPED + 1, -1) for row in batch] == rows[11:]
    assert list(trail.rows(plan.id, 10**6, 10**7)) == []


def test_hostile_texts_in_rows_survive(trail: TrailStore) -> None:
    rows = [
        PlanRow(0, "queue/%00", "a\x00b\udcff\x1a", ("\x00",), None),
        PlanRow(FIRST_SKIPPED, "queue/é", "\x1a\ud83d", (), "why\nnot\x1f"),
    ]
    plan = make_plan(rows)
    trail.add_blocks(plan.nonce, packed(*rows))
    trail.seal(plan)
    assert [row for batch in trail.rows(plan.id, FIRST_SKIPPED, 0) for row in batch] == rows[::-1]


def test_a_unique_prefix_is_enough(trail: TrailStore) -> None:
    ids = [sealed(trail).id for _ in range(3)]
    assert all(re.fullmatch("p[0-9a-f]{12}", plan_id) for plan_id in ids)
    assert [trail.plan(plan_id[:11]).id for plan_id in ids] == ids
    with pytest.raises(NoSuchPlan, match="several"):
        trail.plan("p")
    for unknown in ("", "zz", "pz123456", "_1", "%", "\udcff", "p1\x00", "x" * 3000):
        with pytest.raises(NoSuchPlan):
            trail.plan(unknown)


def test_a_plan_that_is_not_sealed_does_not_exist_yet(trail: TrailStore) -> None:
    trail.add_blocks("p1", packed(*plan_rows(3)))
    with pytest.raises(NoSuchPlan):
        trail.plan("p1")


def test_a_sealed_plan_takes_no_more_rows(trail: TrailStore) -> None:
    plan = sealed(trail)
    with pytest.raises(PlanAltered):
        trail.add_blocks(plan.nonce, packed(PlanRow(99, "queue/x", "x", (), None)))
    with pytest.raises(PlanAltered):
        trail.seal(plan)
    assert [row.ordinal for batch in trail.rows(plan.id, 0, 99) for row in batch] == list(range(6))


def test_discarding_forgets_rows_and_plan_but_never_an_applied_one(trail: TrailStore) -> None:
    trail.discard("unknown-plan")
    for n in range(30):
        trail.add_blocks("p1", packed(PlanRow(n, "queue/x", "x", (), None)))
    trail.discard("p1")
    assert (count(trail, "plan"), count(trail, "plan_block")) == (0, 0)
    plan, _ = begun(trail)
    with pytest.raises(PlanStale):
        trail.discard(plan.id)
    assert count(trail, "plan_block") == 1


def test_expired_plans_are_purged_and_applied_ones_kept(trail: TrailStore, clock: FrozenClock) -> None:
    applied, _ = begun(trail)
    unapplied = sealed(trail)
    trail.add_blocks("left-behind", packed(*plan_rows(4)))
    clock.moment = START + timedelta(minutes=30)
    sealed(trail)
    assert trail.plan(unapplied.id) == unapplied
    clock.moment = START + timedelta(days=2)
    newest = sealed(trail, created=clock.moment)
    with pytest.raises(NoSuchPlan):
        trail.plan(unapplied.id)
    assert trail.plan(applied.id) == applied
    assert trail.plan(newest.id) == newest
    assert count(trail, "plan_block") == 2


def test_a_plan_in_the_place_of_another_is_altered(trail: TrailStore) -> None:
    one, other = sealed(trail), sealed(trail)
    copied = "SELECT body, hash FROM plan WHERE id = ?"
    body, digest = trail._storage.read(lambda reading: reading.all(copied, (other.id,)), [()])[0]
    change = "UPDATE plan SET body = ?, hash = ? WHERE id = ?"
    trail._storage.write(lambda writing: writing.run(change, (body, digest, one.id)))
    with pytest.raises(PlanAltered):
        trail.plan(one.id)
    assert trail.plan(other.id) == other


def test_a_plan_is_begun_once_and_only_as_it_was_stored(trail: TrailStore) -> None:
    plan, owner = begun(trail)
    with pytest.raises(PlanStale, match="op1"):
        trail.begin("op2", plan, YES, owner, START)
    other = sealed(trail, places=("/elsewhere",))
    object.__setattr__(other, "hash", "0" * 64)
    with pytest.raises(PlanStale):
        trail.begin("op3", other, YES, owner, START)
    with pytest.raises(PlanStale):
        trail.begin("op4", make_plan(plan_rows(1), places=("/x",)), YES, owner, START)
    assert [override.override_id for override in trail.overrides()] == ["op1"]
    assert json.dumps(trail.override("op1").confirmed["plan_hash"]) == json.dumps(plan.hash)
