"""After a crash: settle by re-reading, resume where it ended; and undo, exactly, while nobody has taken it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.backend import Action
from console.core.faults import NotConfirmed, OverrideRunning, PlanAltered, PlanStale, UsageFault
from console.core.limits import Limits
from console.core.operations import Operations
from console.core.override import Override, OverrideState
from console.core.release import Over
from console.testing import Flag as StopFlag
from plugins.sqlite_queue.engine import AsyncTaskQueue
from tests.faults.world import (
    FRESH,
    KEEP,
    NOON,
    WHENCE,
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
        console.carry_out(plan.id, confirm(plan))
    world.clock.tick(SILENCE)
    (override,) = console.book.overrides()
    return console, override


def worker(world: World) -> AsyncTaskQueue:
    backend = world.queue.open(clock=world.clock)
    world._open.append(backend)
    return AsyncTaskQueue(backend.database, backend.policy, world.clock)


# -- settling --------------------------------------------------------------------------------------------


def test_before_image_intact_is_not_applied_and_done_on_resume(world: World) -> None:
    _, override = crashed(world, "before_write")
    console = world.console()
    assert len(console.book.unresolved()) == 1
    (settled,) = console.settle_unresolved(WHO, WHENCE)
    assert (settled.state, settled.counts, settled.note) == (OverrideState.STOPPED, {}, "interrupted, settled by re-reading")
    assert {outcome for outcome, _ in outcomes(console, override).values()} == {"not_applied"}
    assert world.queue.touched() == set()
    assert console.resume(override.op_id, WHO, WHENCE).counts == {"changed": 60}
    assert set(world.queue.handed_back().values()) == {1}


def test_after_image_is_applied_and_never_done_again(world: World) -> None:
    _, override = crashed(world, "after_write")
    console = world.console()
    (settled,) = console.settle_unresolved(WHO, WHENCE)
    assert settled.counts == {"changed": 60}
    assert set(outcomes(console, override).values()) == {("changed", "settled by re-reading")}
    resumed = console.resume(override.op_id, WHO, WHENCE)
    assert (resumed.state, resumed.counts) == (OverrideState.FINISHED, {"changed": 60})
    assert set(world.queue.handed_back().values()) == {1}


def test_anything_else_is_indeterminate_and_never_redone(world: World) -> None:
    _, override = crashed(world, "after_write")
    world.clock.tick(timedelta(minutes=20))
    queue = worker(world)
    taken = [queue.claim() for _ in range(5)]
    for task in taken[:3]:
        assert task is not None
        queue.fail(task, "ERR_TIMEOUT: again")
    world.queue.run("DELETE FROM async_tasks WHERE task_id = (SELECT max(task_id) FROM async_tasks WHERE status = 'PENDING')")
    console = world.console()
    resumed = console.resume(override.op_id, WHO, WHENCE)
    assert resumed.counts == {"changed": 54, "indeterminate": 6}
    said = {detail for outcome, detail in outcomes(console, override).values() if outcome == "indeterminate"}
    assert said == {"settled by re-reading: changed by its own system since", "settled by re-reading: no longer there"}
    assert set(world.queue.handed_back().values()) == {1}
    assert {world.queue.row(task.id)["status"] for task in taken[:3] if task} == {"FAILED"}


def test_nothing_is_settled_while_its_owner_is_alive(world: World) -> None:
    world.queue.fill(60)
    console = world.console(reach=crash_at("after_write"))
    plan = console.propose(matching("condition:terminal"), KEEP)
    with pytest.raises(Crash):
        console.carry_out(plan.id, confirm(plan))
    other = world.console()
    assert other.book.unresolved() == []
    assert other.settle_unresolved(WHO, WHENCE) == []
    with pytest.raises(OverrideRunning):
        other.resume(other.book.overrides()[0].op_id, WHO, WHENCE)


def test_another_override_on_the_backend_is_no_reason_not_to_start(world: World) -> None:
    """The abandoned one stays unresolved until it can be leased; then it is settled."""
    _, abandoned = crashed(world, "before_write")
    second, third = world.console(limits=SMALL), world.console()
    plan = second.propose(matching("condition:terminal", limit=1), FRESH)
    seen: list[int] = []

    def meanwhile(_: object) -> None:
        assert third.settle_unresolved(WHO, WHENCE) == []
        seen.append(len(third.book.unresolved()))

    second.carry_out(plan.id, confirm(plan), watch=meanwhile)
    assert seen == [1]
    (settled,) = third.settle_unresolved(WHO, WHENCE)
    assert settled.op_id == abandoned.op_id
    resumed = third.resume(abandoned.op_id, WHO, WHENCE)
    assert resumed.counts == {"changed": 59, "indeterminate": 1}
    assert set(world.queue.handed_back().values()) == {1}
    assert third.book.verify().ok


def test_a_backend_that_is_not_configured_stays_unresolved(world: World) -> None:
    crashed(world, "after_write")
    bare = world.console(backends=[])
    records = len(bare.book.records(limit=1_000))
    assert bare.settle_unresolved(WHO, WHENCE) == []
    assert len(bare.book.unresolved()) == 1
    assert len(bare.book.records(limit=1_000)) == records, "nothing happened, so nothing is on record"


# -- resuming --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before_write", "after_write"])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_resume_completes_the_plan_without_doing_anything_twice(world: World, point: str, passes: int) -> None:
    _, override = crashed(world, point, 900, passes)
    console = world.console(limits=SMALL)
    resumed = console.resume(override.op_id, WHO, WHENCE)
    assert (resumed.state, resumed.counts) == (OverrideState.FINISHED, {"changed": 900})
    assert world.queue.statuses() == {"PENDING": 900}
    assert set(world.queue.handed_back().values()) == {1}
    assert all(len(times) == 1 for times in final_outcomes(console.book, override.op_id).values())
    assert console.book.verify().ok


def test_a_resumed_override_keeps_its_reason_and_records_who_took_it_over(world: World) -> None:
    _, override = crashed(world, "after_write")
    console = world.console()
    console.resume(override.op_id[:6], WHO, WHENCE)
    takeovers = [record.body for record in console.book.records(limit=1_000) if record.kind == "takeover"]
    assert [(body["reason"], body["ticket"], body["by"]) for body in takeovers] == [("disk is back", "OPS-7", "ann (says Ann A.)")]


def test_a_finished_override_is_not_resumed(world: World) -> None:
    world.queue.fill(3)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    override = console.carry_out(plan.id, confirm(plan))
    with pytest.raises(PlanStale, match="finished"):
        console.resume(override.op_id, WHO, WHENCE)


def test_a_plan_altered_since_is_neither_resumed_nor_settled_nor_undone(world: World) -> None:
    _, override = crashed(world, "after_write", 900)
    world.queue.put("innocent")
    world.queue.forget()
    world.trail_run("UPDATE plan_block SET body = CAST(replace(CAST(body AS TEXT), 'queue/t000899', 'queue/innocent') AS BLOB)")
    console = world.console()
    with pytest.raises(PlanAltered):
        console.resume(override.op_id, WHO, WHENCE)
    with pytest.raises(PlanAltered):
        console.undo(override.op_id)
    assert console.settle_unresolved(WHO, WHENCE) == []
    assert world.queue.touched() == set()


def test_counts_go_on_where_they_were(world: World) -> None:
    _, override = crashed(world, "before_write", 900, 2)
    seen: list[int] = []
    world.console(limits=SMALL).resume(override.op_id, WHO, WHENCE, watch=lambda progress: seen.append(progress.done))
    assert seen[0] > 500
    assert seen[-1] == 900


def test_resume_does_not_ask_for_a_plan_that_has_not_expired(world: World) -> None:
    _, override = crashed(world, "before_write", 900, 2)
    world.clock.tick(timedelta(days=2))
    assert world.console().resume(override.op_id, WHO, WHENCE).counts == {"changed": 900}


# -- undo ------------------------------------------------------------------------------------------------


def requeued(world: World, console: Operations, selection: str = "condition:terminal", order: object = FRESH) -> Override:
    plan = console.propose(matching(selection), order, Over(timedelta(minutes=30)))  # type: ignore[arg-type]
    return console.carry_out(plan.id, confirm(plan))


def test_undo_restores_every_row_exactly(world: World) -> None:
    world.queue.fill(120)
    world.queue.put("soon", "PENDING", 2, due=NOON + timedelta(minutes=15))
    world.queue.put("stuck", "RUNNING", 2, updated=NOON - timedelta(hours=1))
    before = world.queue.rows()
    console = world.console()
    override = requeued(world, console, "condition:terminal,retrying,stuck", KEEP)
    assert override.counts == {"changed": 122}
    plan = console.undo(override.op_id)
    assert (plan.order.action, plan.changes, plan.undo_of) == (Action.UNDO, 122, override.op_id)
    assert world.queue.rows() != before, "a plan writes nothing"
    undone = console.carry_out(plan.id, confirm(plan))
    assert undone.counts == {"changed": 122}
    assert world.queue.rows() == before


def test_undo_is_blocked_for_what_a_worker_has_taken(world: World) -> None:
    world.queue.fill(10)
    before = {row[0]: row for row in world.queue.rows()}
    console = world.console()
    plan = console.propose(matching("condition:terminal"), FRESH)
    override = console.carry_out(plan.id, confirm(plan))
    world.clock.tick()
    task = worker(world).claim()
    assert task is not None
    world.queue.run("DELETE FROM async_tasks WHERE task_id = ?", (gone := next(id for id in before if id != task.id),))
    plan = console.undo(override.op_id)
    assert plan.changes == 8
    assert why_blocked(console, plan) == {
        f"queue/{task.id}": "no longer as the override left it", f"queue/{gone}": "no longer there",
    }
    assert console.carry_out(plan.id, confirm(plan)).counts == {"changed": 8}
    after = {row[0]: row for row in world.queue.rows()}
    assert {id for id in after if after[id] == before[id]} == before.keys() - {task.id, gone}
    assert after[task.id][3] == "RUNNING"


def test_an_item_taken_between_undo_plan_and_undo_is_conflicted(world: World) -> None:
    world.queue.fill(5)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), FRESH)
    override = console.carry_out(plan.id, confirm(plan))
    plan = console.undo(override.op_id)
    world.clock.tick()
    task = worker(world).claim()
    assert task is not None
    undone = console.carry_out(plan.id, confirm(plan))
    assert undone.counts == {"changed": 4, "conflicted": 1}
    assert outcomes(console, undone)[f"queue/{task.id}"] == ("conflicted", "status is now RUNNING, was PENDING")


def test_undo_takes_back_only_what_the_override_changed(world: World) -> None:
    keys = [world.queue.put(id) for id in "abc"]
    console = world.console()
    plan = console.propose(marked(*keys), KEEP)
    world.queue.run("UPDATE async_tasks SET attempts = 9 WHERE task_id = 'b'")
    override = console.carry_out(plan.id, confirm(plan))
    assert override.counts == {"changed": 2, "conflicted": 1}
    plan = console.undo(override.op_id)
    assert {row.key for row in planned(console, plan)} == {"queue/a", "queue/c"}
    assert plan.selected == 2


def test_an_undo_is_not_undone(world: World) -> None:
    world.queue.fill(2)
    console = world.console()
    undo = console.undo(requeued(world, console).op_id)
    undone = console.carry_out(undo.id, confirm(undo))
    with pytest.raises(PlanStale, match="an undo is not undone"):
        console.undo(undone.op_id)


def test_undone_twice_is_all_blocked(world: World) -> None:
    world.queue.fill(2)
    console = world.console()
    override = requeued(world, console)
    first, second = console.undo(override.op_id), console.undo(override.op_id)
    console.carry_out(first.id, confirm(first))
    assert console.carry_out(second.id, confirm(second)).counts == {"conflicted": 2}
    assert console.undo(override.op_id).changes == 0


def test_undo_needs_reason_and_count_like_any_plan(world: World) -> None:
    world.queue.fill(2)
    console = world.console()
    plan = console.undo(requeued(world, console).op_id)
    with pytest.raises(NotConfirmed, match="reason"):
        console.carry_out(plan.id, confirm(plan, reason=""))
    assert refusals(console.book)[-1]["action"] == "undo"


def test_an_undo_that_is_stopped_while_proposing_stores_nothing(world: World) -> None:
    world.queue.fill(900)
    console = world.console(limits=SMALL)
    override = requeued(world, console)
    with pytest.raises(UsageFault, match="stopped"):
        console.undo(override.op_id, StopFlag(after_looks=1))
    with sqlite3.connect(world.trail) as trail:
        assert trail.execute("SELECT count(DISTINCT plan) FROM plan_block").fetchone() == (1,)


def test_undo_after_a_crash_and_a_second_try_knows_which_write_was_the_one(world: World) -> None:
    """The first intent was never applied, the second was, by a later clock: that is what must be compared."""
    _, override = crashed(world, "before_write")
    before = world.queue.rows()
    console = world.console()
    console.resume(override.op_id, WHO, WHENCE)
    assert len(console.book.intents(override.op_id)) == 2
    plan = console.undo(override.op_id)
    assert (plan.changes, plan.blocked) == (60, {})
    console.carry_out(plan.id, confirm(plan))
    assert world.queue.rows() == before


def test_an_undo_survives_a_crash_too(world: World) -> None:
    world.queue.fill(700)
    before = world.queue.rows()
    console = world.console(limits=SMALL)
    override = requeued(world, console)
    broken = world.console(reach=crash_at("after_write", 2), limits=SMALL)
    plan = broken.undo(override.op_id)
    with pytest.raises(Crash):
        broken.carry_out(plan.id, confirm(plan))
    world.clock.tick(SILENCE)
    latest = console.book.overrides()[0]
    assert console.resume(latest.op_id, WHO, WHENCE).counts == {"changed": 700}
    assert world.queue.rows() == before


def test_undo_over_several_backends(world: World, tmp_path: Path) -> None:
    world.queue.fill(5)
    other = QueueFile.create(tmp_path / "other.db")
    other.fill(5)
    before = world.queue.rows(), other.rows()
    console = world.console(backends=[world.queue.open(clock=world.clock), other.open(name="other", clock=world.clock)])
    plan = console.undo(requeued(world, console).op_id)
    assert [(share.backend, share.first, share.changes) for share in plan.shares] == [("queue", 0, 5), ("other", 5, 5)]
    assert console.carry_out(plan.id, confirm(plan)).counts == {"changed": 10}
    assert (world.queue.rows(), other.rows()) == before


def test_the_images_of_an_undo_plan_hold_no_error_text(world: World) -> None:
    world.queue.put("a", error="SECRET: hunter2")
    console = world.console()
    plan = console.undo(requeued(world, console).op_id)
    (row,) = planned(console, plan)
    after, before = json.loads(row.before)
    assert (after[0], before[0]) == ("PENDING", "FAILED")
    assert "hunter2" not in row.before


@pytest.mark.parametrize("damage", ["DELETE FROM plan", "UPDATE plan SET body = '{}'", "DELETE FROM override_state"])
def test_what_cannot_be_settled_for_want_of_its_plan_keeps_nobody_from_starting(world: World, damage: str) -> None:
    crashed(world, "before_write", 2)
    world.trail_run(damage)
    world.queue.put("another")
    console = world.console()
    assert console.settle_unresolved(WHO, WHENCE) == []
    plan = console.propose(marked("queue/another"), KEEP)
    assert console.carry_out(plan.id, confirm(plan)).counts == {"changed": 1}


@pytest.mark.parametrize("do", ["resume", "undo", "settle"])
def test_an_override_is_never_that_of_another_plan_than_was_confirmed(world: World, do: str) -> None:
    """Which plan it has is in a table that could be edited; what was confirmed is on record."""
    console, override = crashed(world, "before_write", 3)
    world.queue.put("other")
    other = console.propose(marked("queue/other"), KEEP)
    world.trail_run(f"UPDATE override_state SET plan_id = '{other.id}'")
    if do == "settle":
        assert console.settle_unresolved(WHO, WHENCE) == []
    else:
        with pytest.raises(PlanAltered, match="was confirmed for another plan"):
            console.undo(override.op_id) if do == "undo" else console.resume(override.op_id, WHO, WHENCE)
    assert world.queue.row("other")["status"] == "FAILED"
