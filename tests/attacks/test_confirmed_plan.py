"""Promise: what a person confirmed is what is applied, and every edit to a plan or a lease is found or harmless."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from console.core.faults import Fault, NoSuchPlan, PlanAltered
from console.core.override import OverrideState
from console.core.plan import Block, Plan, PlanHash
from console.trail.record import Kind
from tests.faults.world import KEEP, RESET, World, confirm, matching, planned, world_in
from tests.trail.world import START, YES, begun, carried, sealed, trail_at


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        made.queue.fill(30)
        yield made


def swapped(world: World, plan: Plan, other: Plan, **columns: object) -> None:
    """The items of `other` under the id of `plan`, hashed anew so that the tables agree with each other."""
    with closing(sqlite3.connect(world.trail_file, isolation_level=None)) as raw:
        blocks = [Block(*row) for row in raw.execute("SELECT first, items, body FROM plan_block WHERE nonce = ? ORDER BY first", (other.nonce,))]
        forged, digest = replace(other, nonce=plan.nonce), PlanHash()
        for block in blocks:
            digest.add(block)
        values = {"body": json.dumps(forged.body()), "hash": digest.seal(forged), **columns}
        raw.execute("DELETE FROM plan_block WHERE nonce = ?", (plan.nonce,))
        raw.executemany("INSERT INTO plan_block (nonce, first, items, body) VALUES (?, ?, ?, ?)", [(plan.nonce, *block) for block in blocks])
        sets = ", ".join(f"{name} = ?" for name in values)
        raw.execute(f"UPDATE plan SET {sets} WHERE nonce = ?", (*values.values(), plan.nonce))


@pytest.mark.parametrize("columns", [{}, {"seq": None}], ids=["rehashed", "rehashed and unrecorded"])
def test_another_plan_under_a_confirmed_id_is_not_applied(world: World, columns: dict[str, object]) -> None:
    console = world.console()
    shown = console.propose(matching("condition:terminal", limit=10), KEEP)
    console.record_plan(shown)
    other = console.propose(matching("condition:terminal", limit=10), RESET)
    before = world.queue.rows()
    swapped(world, shown, other, **columns)
    for attempt in (
        lambda: console.recorded_plan(shown.id), lambda: console.recorded_plan(shown.hash),
        lambda: console.carry_out(shown, confirm(shown)),
    ):
        with pytest.raises((PlanAltered, NoSuchPlan)):
            attempt()
    assert world.queue.rows() == before
    found = console.trail.verified()
    assert (found.ok, found.first_bad) == (False, 1)


def test_a_plan_whose_id_was_forged_too_is_not_the_recorded_one(world: World) -> None:
    """As if somebody had found other items with the same first digits of the hash."""
    console = world.console()
    shown = console.propose(matching("condition:terminal", limit=10), KEEP)
    console.record_plan(shown)
    other = console.propose(matching("condition:terminal", limit=5), RESET)
    world.trail_run(f"UPDATE plan SET seq = 1 WHERE id = '{other.id}'")
    with pytest.raises(PlanAltered):
        console.recorded_plan(other.id)
    with pytest.raises(PlanAltered):
        console.carry_out(other, confirm(other))


def test_the_expiry_cannot_be_moved(world: World) -> None:
    console = world.console()
    shown = console.propose(matching("condition:terminal", limit=10), KEEP)
    console.record_plan(shown)
    world.trail_run("UPDATE plan SET expires = '2036-01-01T00:00:00.000000Z'")
    for attempt in (lambda: console.recorded_plan(shown.id), lambda: console.carry_out(shown, confirm(shown))):
        with pytest.raises(PlanAltered):
            attempt()


def test_a_draft_that_was_never_recorded_cannot_be_applied_by_its_id(world: World) -> None:
    console = world.console()
    draft = console.propose(matching("condition:terminal", limit=10), KEEP)
    with pytest.raises(NoSuchPlan):
        console.recorded_plan(draft.id)
    console.carry_out(draft, confirm(draft))
    assert [record.kind for record in console.trail.records()][:2] == ["planned", "confirmed"]


def test_the_same_plan_is_not_applied_twice_whatever_its_table_says(world: World) -> None:
    console = world.console()
    plan = console.propose(matching("condition:terminal", limit=3), KEEP)
    console.carry_out(plan, confirm(plan))
    for column, value in (("stage", "1"), ("seq", "NULL")):
        world.trail_run(f"UPDATE plan SET {column} = {value}")
        with pytest.raises(Fault):
            console.carry_out(plan, confirm(plan))


EDITS = {
    "plan": {
        "nonce": ["'x'"], "id": ["'p000000000000'"], "stage": ["0", "2"], "created": ["'2026-11-01T12:00:00.000001Z'", "''"],
        "expires": ["'2036-01-01T00:00:00.000000Z'", "NULL"], "hash": ["''", "NULL", "upper(hash)"], "seq": ["NULL", "2", "99", "-1"],
        "body": ["'{}'", "NULL", "replace(body, 'keep', 'reset')", "replace(body, 'queue-0', 'queue-1')", "replace(body, 'over', 'rate')",
                 "replace(body, '1800000000', '1800000001')", "replace(body, 'terminal', 'failed')"],
    },
    "plan_block": {
        "nonce": ["'x'"], "first": ["first + 1", "-first - 1"], "items": ["items + 1", "0", "'x'"],
        "body": ["x'00'", "replace(body, '000001', '000002')", "replace(body, 'FAILED', 'DEAD')"],
    },
    "lease": {
        "place": ["'x'"], "backend": ["'x'"], "override_id": ["'x'"], "owner": ["'x'"],
        "heartbeat": ["'eve'", "'2026-11-01T12:00:00'", "''", "7"],
    },
    "override_state": {"request": ["1", "99", "-1"], "leases": ["0", "2"]},
}
ALL_EDITS = [
    *(f"UPDATE {table} SET {column} = {value}" for table, columns in EDITS.items() for column, values in columns.items() for value in values),
    "DELETE FROM plan", "DELETE FROM plan_block", "DELETE FROM lease",
    "INSERT INTO plan_block SELECT nonce, 77, items, body FROM plan_block",
    "INSERT INTO lease VALUES ('elsewhere', 'queue-0', 'op1', 'x', '2026-11-01T12:00:00.000000Z')",
    "INSERT INTO lease VALUES ('elsewhere', 'queue-0', 'nobody', 'x', '2026-11-01T12:00:00.000000Z')",
    "INSERT INTO plan SELECT 'n', 'p', stage, created, expires, body, hash, seq FROM plan",
    "INSERT INTO plan SELECT 'n', 'p', stage, created, expires, body, hash, 7 FROM plan",
]


@pytest.mark.parametrize("edit", ALL_EDITS)
def test_every_edit_of_a_recorded_plan_or_a_lease_is_found(tmp_path: Path, edit: str) -> None:
    with trail_at(f"sqlite:///{tmp_path}/trail.db") as trail:
        carried(trail)
        assert trail.verify().what == ""
        with closing(sqlite3.connect(tmp_path / "trail.db", isolation_level=None)) as raw:
            raw.execute("PRAGMA ignore_check_constraints = 1")
            before = [raw.execute(f"SELECT * FROM {table}").fetchall() for table in EDITS]
            raw.execute(edit)
            assert before != [raw.execute(f"SELECT * FROM {table}").fetchall() for table in EDITS], "the edit did nothing"
        assert not trail.verify().ok


@pytest.mark.parametrize("heartbeat", ["9999-12-31T23:59:59.000000Z", "2027-11-01T12:00:00.000000Z"])
def test_a_heartbeat_from_the_future_keeps_no_dead_process_alive(tmp_path: Path, heartbeat: str) -> None:
    with trail_at(f"sqlite:///{tmp_path}/trail.db") as trail:
        begun(trail, owner="far away 1 2 3")
        with closing(sqlite3.connect(tmp_path / "trail.db", isolation_level=None)) as raw:
            raw.execute("UPDATE lease SET heartbeat = ?", (heartbeat,))
        assert not trail.override("op1").alive


def test_dropping_a_recorded_plan_is_recorded(tmp_path: Path) -> None:
    with trail_at(f"sqlite:///{tmp_path}/trail.db") as trail:
        plan = sealed(trail)
        trail.record_plan(plan, YES.who, YES.origin, START)
        trail.discard(plan.id)
        assert [record.kind for record in trail.records()] == ["planned", "plan_dropped"]
        assert trail.verify().what == ""
        trail.discard(sealed(trail).id)
        assert len(trail.records()) == 2, "a draft leaves no record"


def test_a_record_that_drops_an_applied_plan_does_not_excuse_its_absence(tmp_path: Path) -> None:
    """Whoever can write the trail's file can also append a well-formed record."""
    with trail_at(f"sqlite:///{tmp_path}/trail.db") as trail:
        plan = carried(trail)
        trail.mark("op1", OverrideState.FINISHED, "", START)
        dropped = {"plan_id": plan.id, "plan_hash": plan.hash, "planned": 1, "note": "expired"}
        trail._append(Kind.PLAN_DROPPED, dropped, START)
        with closing(sqlite3.connect(tmp_path / "trail.db", isolation_level=None)) as raw:
            raw.execute("DELETE FROM plan_block")
        found = trail.verify()
        assert (found.ok, found.first_bad) == (False, len(trail.records()))
        assert "was applied" in found.what


def test_a_finished_override_has_no_lease(tmp_path: Path) -> None:
    with trail_at(f"sqlite:///{tmp_path}/trail.db") as trail:
        carried(trail)
        trail.mark("op1", OverrideState.FINISHED, "", START)
        assert trail.verify().ok
        with closing(sqlite3.connect(tmp_path / "trail.db", isolation_level=None)) as raw:
            raw.execute("INSERT INTO lease VALUES ('/srv/queue.db tasks', 'queue-0', 'op1', 'x', '2026-11-01T12:00:00.000000Z')")
        assert "lease" in trail.verify().what


# --- while an override runs ------------------------------------------------------------------------------------------

OTHERS = "(SELECT body FROM plan_block WHERE nonce = '{other}' AND first = 1500)"
EXCHANGES = {
    "replaced": f"UPDATE plan_block SET body = {OTHERS} WHERE nonce = '{{shown}}' AND first = 950",
    "deleted": "DELETE FROM plan_block WHERE nonce = '{shown}' AND first = 950",
    "overlaid": f"INSERT INTO plan_block VALUES ('{{shown}}', 901, 50, {OTHERS})",
}


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_items_that_are_exchanged_while_the_override_runs_are_not_touched(
    world: World, monkeypatch: pytest.MonkeyPatch, exchange: str
) -> None:
    """The rows are read while they are applied, which may take hours. Whoever edits them may put them back later."""
    monkeypatch.setattr("console.core.planner.BLOCK_ITEMS", 50)
    world.queue.fill(2_000, prefix="u")
    world.queue.forget()
    console = world.console()
    shown = console.propose(matching("condition:terminal", limit=1_000), KEEP)
    other = console.propose(matching("condition:terminal"), KEEP)
    confirmed = {row.key for row in planned(console, shown)}
    kept: list[tuple[object, ...]] = []

    def edit_once(_: object) -> None:
        if not kept:
            with closing(sqlite3.connect(world.trail_file, isolation_level=None)) as raw:
                kept.extend(raw.execute("SELECT * FROM plan_block WHERE nonce = ?", (shown.nonce,)))
                assert raw.execute(exchange.format(shown=shown.nonce, other=other.nonce)).rowcount == 1

    with pytest.raises(PlanAltered, match=r"On record: .* requeued of 1000") as caught:
        console.carry_out(shown, confirm(shown), watch=edit_once)
    assert caught.value.exit_code == 5
    assert {f"queue/{id}" for id in world.queue.touched()} < confirmed
    (override,) = console.trail.overrides()
    assert (override.state, override.alive) == (OverrideState.STOPPED, False)
    assert "altered in the trail while it was applied" in override.note
    with pytest.raises(PlanAltered):
        console.resume(override.override_id, YES.who, YES.origin)
    with closing(sqlite3.connect(world.trail_file, isolation_level=None)) as raw:
        raw.execute("DELETE FROM plan_block WHERE nonce = ?", (shown.nonce,))
        raw.executemany("INSERT INTO plan_block VALUES (?, ?, ?, ?)", kept)
    assert console.resume(override.override_id, YES.who, YES.origin).state is OverrideState.FINISHED
    assert {f"queue/{id}" for id in world.queue.touched()} == confirmed
