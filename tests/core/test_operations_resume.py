"""After a crash: settle by re-reading, resume where it ended; and undo, exactly, while nobody has taken it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from console.core import reconcile
from console.core.backend import Action
from console.core.confirm import Limits
from console.core.faults import NotConfirmed, OverrideRunning, PlanAltered, PlanStale, UsageFault
from console.core.operations import Operations
from console.core.override import Override, OverrideState
from console.core.pace import Over
from console.testing import StopFlag
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.engine import AsyncTaskQueue
from tests.faults.world import (
    KEEP,
    NOON,
    ORIGIN,
    RESET,
    WHO,
    QueueFile,
    World,
    confirm,
    final_outcomes,
    marked,
    matching,
    outcomes,
    planned,
    refusals,
    why_blocked,
    world_in,
)

SMALL = Limits(chunk_target=timedelta(microseconds=1))
SILENCE = timedelta(seconds=61)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        yield made


class Crash(BaseException):
    """The process is gone: nothing of it may clean up."""


def crash_at(point: str, passes: int = 1) -> Callable[[str], None]:
    left = passes

    def reach(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                raise Crash

    return reach


def crashed(world: World, point: str, count: int = 60, passes: int = 1) -> tuple[Operations, Override]:
    """An override whose process died at that point, a minute ago."""
    world.queue.fill(count)
    world.queue.forget()
    console = world.console(reach=crash_at(point, passes), limits=SMALL)
    plan = console.propose(matching("condition:terminal"), KEEP, Over(timedelta(minutes=10)))
    with pytest.raises(Crash):
        console.carry_out(plan, confirm(plan))
    world.clock.tick(SILENCE)
    (override,) = console.trail.overrides()
    return console, override


def worker(world: World) -> AsyncTaskQueue:
    backend = world.queue.open(clock=world.clock)
    world._open.append(backend)
    return AsyncTaskQueue(backend.database, backend.policy, world.clock)


# -- settling --------------------------------------------------------------------------------------------


def test_before_image_intact_is_not_applied_and_done_on_resume(world: World) -> None:
    _, override = crashed(world, "before_write")
    console = world.console()
    assert len(console.trail.unresolved()) == 1
    (settled,) = console.settle_unresolved(WHO, ORIGIN)
    assert (settled.state, settled.counts, settled.note) == (OverrideState.STOPPED, {}, "Interrupted. The outcome of its last items is on record.")
    assert {outcome for outcome, _ in outcomes(console, override).values()} == {"not_applied"}
    assert world.queue.touched() == set()
    assert console.resume(override.override_id, WHO, ORIGIN).counts == {"applied": 60}
    assert set(world.queue.requeued().values()) == {1}


def test_a_number_that_is_given_must_be_that_of_the_items_that_are_left(world: World) -> None:
    _, override = crashed(world, "before_write")
    console = world.console()
    for wrong in (0, 1, 61):
        with pytest.raises(NotConfirmed, match=f"{wrong} confirmed, but 60 items are left"):
            console.resume(override.override_id, WHO, ORIGIN, count=wrong)
    assert world.queue.touched() == set()
    assert console.resume(override.override_id, WHO, ORIGIN, count=60).counts == {"applied": 60}


def test_each_item_has_one_final_outcome(world: World) -> None:
    """An item that an interrupted write left out has two recorded outcomes; only the last one is shown."""
    _, override = crashed(world, "before_write")
    console = world.console()
    console.settle_unresolved(WHO, ORIGIN)
    console.resume(override.override_id, WHO, ORIGIN)
    assert sum(map(len, console.trail.outcomes(override.override_id))) == 120
    final = reconcile.final_outcomes(console.trail, override.override_id)
    assert (len(final), len({item.key for item in final}), {item.outcome for item in final}) == (60, 60, {"applied"})


def test_after_image_is_applied_and_never_done_again(world: World) -> None:
    _, override = crashed(world, "after_write")
    console = world.console()
    (settled,) = console.settle_unresolved(WHO, ORIGIN)
    assert settled.counts == {"applied": 60}
    assert set(outcomes(console, override).values()) == {("applied", "found by reading again")}
    resumed = console.resume(override.override_id, WHO, ORIGIN)
    assert (resumed.state, resumed.counts) == (OverrideState.FINISHED, {"applied": 60})
    assert set(world.queue.requeued().values()) == {1}


def test_anything_else_is_unknown_and_never_redone(world: World) -> None:
    _, override = crashed(world, "after_write")
    world.clock.tick(timedelta(minutes=20))
    queue = worker(world)
    taken = [queue.claim() for _ in range(5)]
    for task in taken[:3]:
        assert task is not None
        queue.fail(task, "ERR_TIMEOUT: again")
    world.queue.run("DELETE FROM async_tasks WHERE task_id = (SELECT max(task_id) FROM async_tasks WHERE status = 'PENDING')")
    console = world.console()
    resumed = console.resume(override.override_id, WHO, ORIGIN)
    assert resumed.counts == {"applied": 54, "unknown": 6}
    said = {detail for outcome, detail in outcomes(console, override).values() if outcome == "unknown"}
    assert said == {"found by reading again: changed by its system since", "found by reading again: no longer there"}
    assert set(world.queue.requeued().values()) == {1}
    assert {world.queue.row(task.id)["status"] for task in taken[:3] if task} == {"FAILED"}


def test_nothing_is_settled_while_its_owner_is_alive(world: World) -> None:
    world.queue.fill(60)
    console = world.console(reach=crash_at("after_write"))
    plan = console.propose(matching("condition:terminal"), KEEP)
    with pytest.raises(Crash):
        console.carry_out(plan, confirm(plan))
    other = world.console()
    assert other.trail.unresolved() == []
    assert other.settle_unresolved(WHO, ORIGIN) == []
    with pytest.raises(OverrideRunning):
        other.resume(other.trail.overrides()[0].override_id, WHO, ORIGIN)


def test_another_override_on_the_backend_is_no_reason_not_to_start(world: World) -> None:
    """The abandoned one stays unresolved until it can be leased; then it is settled."""
    _, abandoned = crashed(world, "before_write")
    second, third = world.console(limits=SMALL), world.console()
    plan = second.propose(matching("condition:terminal", limit=1), RESET)
    seen: list[int] = []

    def meanwhile(_: object) -> None:
        assert third.settle_unresolved(WHO, ORIGIN) == []
        seen.append(len(third.trail.unresolved()))

    second.carry_out(plan, confirm(plan), watch=meanwhile)
    assert seen == [1]
    (settled,) = third.settle_unresolved(WHO, ORIGIN)
    assert settled.override_id == abandoned.override_id
    resumed = third.resume(abandoned.override_id, WHO, ORIGIN)
    assert resumed.counts == {"applied": 59, "unknown": 1}
    assert set(world.queue.requeued().values()) == {1}
    assert third.trail.verify().ok


def test_a_backend_that_is_not_configured_stays_unresolved(world: World) -> None:
    crashed(world, "after_write")
    bare = world.console(backends=[])
    records = len(bare.trail.records(limit=1_000))
    assert bare.settle_unresolved(WHO, ORIGIN) == []
    assert len(bare.trail.unresolved()) == 1
    assert len(bare.trail.records(limit=1_000)) == records, "nothing happened, so nothing is on record"


def test_a_backend_that_can_no_longer_be_changed_stays_unresolved(world: World) -> None:
    """The same file, attached by a plugin that only reads it."""
    _, override = crashed(world, "after_write", 5)
    reader = SimpleNamespace(name="queue", place=world.queue.open().place)
    console = Operations({"queue": reader}, world.trail(), world.clock)  # type: ignore[dict-item]
    assert console.settle_unresolved(WHO, ORIGIN) == []
    assert len(console.trail.unresolved()) == 1
    with pytest.raises(PlanStale, match="This backend cannot be changed any more"):
        console.resume(override.override_id, WHO, ORIGIN)
    world.console().resume(override.override_id, WHO, ORIGIN)
    undo = console.undo(override.override_id)
    assert (undo.changes, list(undo.skipped.values())) == (0, [5])


def test_a_console_that_is_suspended_while_it_settles_starts_all_the_same(world: World) -> None:
    """Another one has taken over meanwhile, and has settled and finished the override."""
    _, override = crashed(world, "after_write", 5)
    other = world.console()

    class Suspended(SqliteQueue):
        def images(self, changes):  # type: ignore[no-untyped-def]
            world.clock.tick(2 * SILENCE)
            other.resume(override.override_id, WHO, ORIGIN)
            return super().images(changes)

    console = world.console(kind=Suspended)
    assert console.settle_unresolved(WHO, ORIGIN) == []
    ended = console.trail.override(override.override_id)
    assert (ended.state, ended.counts) == (OverrideState.FINISHED, {"applied": 5})
    assert console.trail.verify().ok


def test_an_undo_leaves_out_what_is_read_only_now(world: World) -> None:
    world.queue.fill(3)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    override = console.carry_out(plan, confirm(plan))
    audit = Operations(console.backends, world.trail(), world.clock, read_only_backends=frozenset({"queue"}))
    undo = audit.undo(override.override_id)
    assert (undo.changes, undo.skipped) == (0, {"queue is read-only in the config.": 3})


# -- resuming --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before_write", "after_write"])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_resume_completes_the_plan_without_doing_anything_twice(world: World, point: str, passes: int) -> None:
    _, override = crashed(world, point, 900, passes)
    console = world.console(limits=SMALL)
    resumed = console.resume(override.override_id, WHO, ORIGIN)
    assert (resumed.state, resumed.counts) == (OverrideState.FINISHED, {"applied": 900})
    assert world.queue.statuses() == {"PENDING": 900}
    assert set(world.queue.requeued().values()) == {1}
    assert all(len(times) == 1 for times in final_outcomes(console.trail, override.override_id).values())
    assert console.trail.verify().ok


def test_a_resumed_override_keeps_its_reason_and_records_who_took_it_over(world: World) -> None:
    _, override = crashed(world, "after_write")
    console = world.console()
    console.resume(override.override_id[:6], WHO, ORIGIN)
    takeovers = [record.body for record in console.trail.records(limit=1_000) if record.kind == "takeover"]
    assert [(body["reason"], body["ticket"], body["by"]) for body in takeovers] == [("disk is back", "OPS-7", "ann (says Ann A.)")]


def test_a_finished_override_is_not_resumed(world: World) -> None:
    world.queue.fill(3)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    override = console.carry_out(plan, confirm(plan))
    with pytest.raises(PlanStale, match="finished"):
        console.resume(override.override_id, WHO, ORIGIN)


def test_a_plan_altered_since_is_neither_resumed_nor_settled_nor_undone(world: World) -> None:
    _, override = crashed(world, "after_write", 900)
    world.queue.put("innocent")
    world.queue.forget()
    world.trail_run("UPDATE plan_block SET body = CAST(replace(CAST(body AS TEXT), 'queue/t000899', 'queue/innocent') AS BLOB)")
    console = world.console()
    with pytest.raises(PlanAltered):
        console.resume(override.override_id, WHO, ORIGIN)
    with pytest.raises(PlanAltered):
        console.undo(override.override_id)
    assert console.settle_unresolved(WHO, ORIGIN) == []
    assert world.queue.touched() == set()


def test_counts_go_on_where_they_were(world: World) -> None:
    _, override = crashed(world, "before_write", 900, 2)
    seen: list[int] = []
    world.console(limits=SMALL).resume(override.override_id, WHO, ORIGIN, watch=lambda progress: seen.append(progress.done))
    assert seen[0] > 500
    assert seen[-1] == 900


def test_resume_does_not_ask_for_a_plan_that_has_not_expired(world: World) -> None:
    _, override = crashed(world, "before_write", 900, 2)
    world.clock.tick(timedelta(days=2))
    assert world.console().resume(override.override_id, WHO, ORIGIN).counts == {"applied": 900}


# -- undo ------------------------------------------------------------------------------------------------


def requeued(world: World, console: Operations, selection: str = "condition:terminal", operation: object = RESET) -> Override:
    plan = console.propose(matching(selection), operation, Over(timedelta(minutes=30)))  # type: ignore[arg-type]
    return console.carry_out(plan, confirm(plan))


def test_undo_restores_every_row_exactly(world: World) -> None:
    world.queue.fill(120)
    world.queue.put("soon", "PENDING", 2, due=NOON + timedelta(minutes=15))
    world.queue.put("stuck", "RUNNING", 2, updated=NOON - timedelta(hours=1))
    before = world.queue.rows()
    console = world.console()
    override = requeued(world, console, "condition:terminal,retrying,stuck", KEEP)
    assert override.counts == {"applied": 122}
    plan = console.undo(override.override_id)
    assert (plan.operation.action, plan.changes, plan.undo_of) == (Action.UNDO, 122, override.override_id)
    assert world.queue.rows() != before, "a plan writes nothing"
    undone = console.carry_out(plan, confirm(plan))
    assert undone.counts == {"applied": 122}
    assert world.queue.rows() == before


def test_undo_skips_what_a_worker_has_taken(world: World) -> None:
    world.queue.fill(10)
    before = {row[0]: row for row in world.queue.rows()}
    console = world.console()
    plan = console.propose(matching("condition:terminal"), RESET)
    override = console.carry_out(plan, confirm(plan))
    world.clock.tick()
    task = worker(world).claim()
    assert task is not None
    world.queue.run("DELETE FROM async_tasks WHERE task_id = ?", (gone := next(id for id in before if id != task.id),))
    plan = console.undo(override.override_id)
    assert plan.changes == 8
    assert why_blocked(console, plan) == {
        f"queue/{task.id}": "Already picked up or changed.", f"queue/{gone}": "No longer there.",
    }
    assert console.carry_out(plan, confirm(plan)).counts == {"applied": 8}
    after = {row[0]: row for row in world.queue.rows()}
    assert {id for id in after if after[id] == before[id]} == before.keys() - {task.id, gone}
    assert after[task.id][3] == "RUNNING"


def test_an_item_taken_between_undo_plan_and_undo_has_changed(world: World) -> None:
    world.queue.fill(5)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), RESET)
    override = console.carry_out(plan, confirm(plan))
    plan = console.undo(override.override_id)
    world.clock.tick()
    task = worker(world).claim()
    assert task is not None
    undone = console.carry_out(plan, confirm(plan))
    assert undone.counts == {"applied": 4, "changed": 1}
    assert outcomes(console, undone)[f"queue/{task.id}"] == ("changed", "status is now RUNNING, was PENDING")


def test_undo_takes_back_only_what_the_override_changed(world: World) -> None:
    keys = [world.queue.put(id) for id in "abc"]
    console = world.console()
    plan = console.propose(marked(*keys), KEEP)
    world.queue.run("UPDATE async_tasks SET attempts = 9 WHERE task_id = 'b'")
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"applied": 2, "changed": 1}
    plan = console.undo(override.override_id)
    assert {row.key for row in planned(console, plan)} == {"queue/a", "queue/c"}
    assert plan.selected == 2


def test_an_undo_is_not_undone(world: World) -> None:
    world.queue.fill(2)
    console = world.console()
    undo = console.undo(requeued(world, console).override_id)
    undone = console.carry_out(undo, confirm(undo))
    with pytest.raises(PlanStale, match="An undo cannot be undone"):
        console.undo(undone.override_id)


def test_undone_twice_skips_all(world: World) -> None:
    world.queue.fill(2)
    console = world.console()
    override = requeued(world, console)
    first, second = console.undo(override.override_id), console.undo(override.override_id)
    console.carry_out(first, confirm(first))
    assert console.carry_out(second, confirm(second)).counts == {"changed": 2}
    assert console.undo(override.override_id).changes == 0


def test_undo_needs_reason_and_count_like_any_plan(world: World) -> None:
    world.queue.fill(2)
    console = world.console()
    plan = console.undo(requeued(world, console).override_id)
    with pytest.raises(NotConfirmed, match="reason"):
        console.carry_out(plan, confirm(plan, reason=""))
    assert refusals(console.trail)[-1]["action"] == "undo"


def test_an_undo_that_is_stopped_while_proposing_stores_nothing(world: World) -> None:
    world.queue.fill(900)
    console = world.console(limits=SMALL)
    override = requeued(world, console)
    with pytest.raises(UsageFault, match="Stopped"):
        console.undo(override.override_id, StopFlag(after_looks=1))
    with sqlite3.connect(world.trail_file) as trail:
        assert trail.execute("SELECT count(DISTINCT nonce) FROM plan_block").fetchone() == (1,)


def test_undo_after_a_crash_and_a_second_try_knows_which_write_was_the_one(world: World) -> None:
    """The first intent was never applied, the second was, by a later clock: that is what must be compared."""
    _, override = crashed(world, "before_write")
    before = world.queue.rows()
    console = world.console()
    console.resume(override.override_id, WHO, ORIGIN)
    assert len(console.trail.intents(override.override_id)) == 2
    plan = console.undo(override.override_id)
    assert (plan.changes, plan.skipped) == (60, {})
    console.carry_out(plan, confirm(plan))
    assert world.queue.rows() == before


def test_an_undo_survives_a_crash_too(world: World) -> None:
    world.queue.fill(700)
    before = world.queue.rows()
    console = world.console(limits=SMALL)
    override = requeued(world, console)
    broken = world.console(reach=crash_at("after_write", 2), limits=SMALL)
    plan = broken.undo(override.override_id)
    with pytest.raises(Crash):
        broken.carry_out(plan, confirm(plan))
    world.clock.tick(SILENCE)
    latest = console.trail.overrides()[0]
    assert console.resume(latest.override_id, WHO, ORIGIN).counts == {"applied": 700}
    assert world.queue.rows() == before


def test_undo_over_several_backends(world: World, tmp_path: Path) -> None:
    world.queue.fill(5)
    other = QueueFile.create(tmp_path / "other.db")
    other.fill(5)
    before = world.queue.rows(), other.rows()
    console = world.console(backends=[world.queue.open(clock=world.clock), other.open(name="other", clock=world.clock)])
    plan = console.undo(requeued(world, console).override_id)
    assert [(part.backend, part.first, part.changes) for part in plan.parts] == [("queue", 0, 5), ("other", 5, 5)]
    assert console.carry_out(plan, confirm(plan)).counts == {"applied": 10}
    assert (world.queue.rows(), other.rows()) == before


def test_the_images_of_an_undo_plan_hold_no_error_text(world: World) -> None:
    world.queue.put("a", error="SECRET: hunter2")
    console = world.console()
    plan = console.undo(requeued(world, console).override_id)
    (row,) = planned(console, plan)
    after, before = row.before
    assert (after[0], before[0]) == ("PENDING", "FAILED")
    assert "hunter2" not in str(row.before)


@pytest.mark.parametrize("damage", ["DELETE FROM plan", "UPDATE plan SET body = '{}'", "DELETE FROM override_state"])
def test_what_cannot_be_settled_for_want_of_its_plan_keeps_nobody_from_starting(world: World, damage: str) -> None:
    crashed(world, "before_write", 2)
    world.trail_run(damage)
    world.queue.put("another")
    console = world.console()
    assert console.settle_unresolved(WHO, ORIGIN) == []
    plan = console.propose(marked("queue/another"), KEEP)
    assert console.carry_out(plan, confirm(plan)).counts == {"applied": 1}


@pytest.mark.parametrize("do", ["resume", "undo", "settle"])
def test_an_override_is_never_that_of_another_plan_than_was_confirmed(world: World, do: str) -> None:
    """Which plan it has is in a table that could be edited; what was confirmed is on record."""
    console, override = crashed(world, "before_write", 3)
    world.queue.put("other")
    other = console.propose(marked("queue/other"), KEEP)
    world.trail_run(f"UPDATE override_state SET plan_id = '{other.id}'")
    if do == "settle":
        assert console.settle_unresolved(WHO, ORIGIN) == []
    else:
        with pytest.raises(PlanAltered, match="was confirmed for another plan"):
            console.undo(override.override_id) if do == "undo" else console.resume(override.override_id, WHO, ORIGIN)
    assert world.queue.row("other")["status"] == "FAILED"
