from __future__ import annotations

import json
from datetime import timedelta

import pytest

from console.core.faults import NoSuchPlan, PlanAltered, PlanStale
from console.core.packing import FIRST_BLOCKED, PlanRow
from console.core.release import Canary, Now, Over, Rate, Release
from console.trail.store import TrailBook
from tests.trail.world import START, YES, FrozenClock, begun, make_plan, packed, plan_rows, sealed


def count(book: TrailBook, table: str) -> int:
    return int(book._storage.read(lambda reading: reading.all(f"SELECT count(*) FROM {table}"), [(0,)])[0][0])


@pytest.mark.parametrize("release", [Now(), Over(timedelta(seconds=90, microseconds=7)), Rate(10 / 60), Canary(20)], ids=str)
def test_a_plan_comes_back_as_it_was(book: TrailBook, release: Release) -> None:
    plan = sealed(book, release=release, places=("/a", "/b\udcff"))
    assert book.plan(plan.id) == plan
    assert list(book.plan(plan.id).by_condition) == list(plan.by_condition)


def test_rows_are_streamed_in_order_and_only_those_asked_for(book: TrailBook) -> None:
    rows = plan_rows(10, blocked=3)
    plan = make_plan(rows)
    book.add_blocks(plan.id, packed(*rows[:4]))
    book.add_blocks(plan.id, packed(*rows[4:]))
    book.seal(plan)
    assert [[row.ordinal for row in batch] for batch in book.rows(plan.id, 0, 9)] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    assert [row for batch in book.rows(plan.id, 0, 9) for row in batch] == rows[:10]
    assert [[row.ordinal for row in batch] for batch in book.rows(plan.id, 2, 4)] == [[2, 3], [4]]
    assert [[row.ordinal for row in batch] for batch in book.rows(plan.id, 5, 8)] == [[5, 6, 7, 8]]
    assert [row for batch in book.rows(plan.id, FIRST_BLOCKED, -1) for row in batch] == rows[10:]
    assert [row for batch in book.rows(plan.id, FIRST_BLOCKED + 1, -1) for row in batch] == rows[11:]
    assert list(book.rows(plan.id, 10**6, 10**7)) == []


def test_hostile_texts_in_rows_survive(book: TrailBook) -> None:
    rows = [
        PlanRow(0, "queue/%00", "a\x00b\udcff\x1a", '["\\u0000"]', None),
        PlanRow(FIRST_BLOCKED, "queue/é", "\x1a\ud83d", "[]", "why\nnot\x1f"),
    ]
    plan = make_plan(rows)
    book.add_blocks(plan.id, packed(*rows))
    book.seal(plan)
    assert [row for batch in book.rows(plan.id, FIRST_BLOCKED, 0) for row in batch] == rows[::-1]


def test_a_unique_prefix_is_enough(book: TrailBook) -> None:
    for plan_id in ("p1", "p12345", "p19999", "q1"):
        sealed(book, plan_id=plan_id)
    assert book.plan("p12").id == "p12345"
    assert book.plan("p1").id == "p1"
    with pytest.raises(NoSuchPlan, match="several"):
        book.plan("p")
    for unknown in ("", "zz", "p123456", "_1", "%", "\udcff", "p1\x00", "x" * 3000):
        with pytest.raises(NoSuchPlan):
            book.plan(unknown)


def test_a_plan_that_is_not_sealed_does_not_exist_yet(book: TrailBook) -> None:
    book.add_blocks("p1", packed(*plan_rows(3)))
    with pytest.raises(NoSuchPlan):
        book.plan("p1")


def test_a_sealed_plan_takes_no_more_rows(book: TrailBook) -> None:
    plan = sealed(book)
    with pytest.raises(PlanAltered):
        book.add_blocks(plan.id, packed(PlanRow(99, "queue/x", "x", "[]", None)))
    with pytest.raises(PlanAltered):
        book.seal(plan)
    assert [row.ordinal for batch in book.rows(plan.id, 0, 99) for row in batch] == list(range(6))


def test_discarding_forgets_rows_and_plan_but_never_an_applied_one(book: TrailBook) -> None:
    book.discard("never-heard-of")
    for n in range(30):
        book.add_blocks("p1", packed(PlanRow(n, "queue/x", "x", "[]", None)))
    book.discard("p1")
    assert (count(book, "plan"), count(book, "plan_block")) == (0, 0)
    plan, _ = begun(book)
    with pytest.raises(PlanStale):
        book.discard(plan.id)
    assert count(book, "plan_block") == 1


def test_expired_plans_are_purged_and_applied_ones_kept(book: TrailBook, clock: FrozenClock) -> None:
    applied, _ = begun(book)
    unapplied = sealed(book)
    book.add_blocks("left-behind", packed(*plan_rows(4)))
    clock.moment = START + timedelta(minutes=30)
    sealed(book)
    assert book.plan(unapplied.id) == unapplied
    clock.moment = START + timedelta(days=2)
    newest = sealed(book, created=clock.moment)
    with pytest.raises(NoSuchPlan):
        book.plan(unapplied.id)
    assert book.plan(applied.id) == applied
    assert book.plan(newest.id) == newest
    assert count(book, "plan_block") == 2


def test_a_plan_in_the_place_of_another_is_altered(book: TrailBook) -> None:
    one, other = sealed(book), sealed(book)
    copied = "SELECT body, release, hash FROM plan WHERE id = ?"
    body, release, digest = book._storage.read(lambda reading: reading.all(copied, (other.id,)), [()])[0]
    change = "UPDATE plan SET body = ?, release = ?, hash = ? WHERE id = ?"
    book._storage.write(lambda writing: writing.run(change, (body, release, digest, one.id)))
    with pytest.raises(PlanAltered):
        book.plan(one.id)
    assert book.plan(other.id) == other


def test_a_plan_is_begun_once_and_only_as_it_was_stored(book: TrailBook) -> None:
    plan, owner = begun(book)
    with pytest.raises(PlanStale, match="op1"):
        book.begin("op2", plan, YES, owner, START)
    other = sealed(book, places=("/elsewhere",))
    object.__setattr__(other, "hash", "0" * 64)
    with pytest.raises(PlanAltered):
        book.begin("op3", other, YES, owner, START)
    with pytest.raises(PlanStale):
        book.begin("op4", make_plan(plan_rows(1), places=("/x",)), YES, owner, START)
    assert [override.op_id for override in book.overrides()] == ["op1"]
    assert json.dumps(book.override("op1").confirmed["plan_hash"]) == json.dumps(plan.hash)
