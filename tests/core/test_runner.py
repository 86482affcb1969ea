"""A runner carries out what has no process of its own, and leaves the rest alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.confirm import Limits
from console.core.operations import Operations
from console.core.override import TERMINAL_GONE, Override, OverrideState
from console.core.pace import Canary
from console.core.runner import TAKEN_OVER_WITHIN, Runner
from console.testing import StopFlag
from tests.core.working_queue import CanaryWorld, WorkingClock
from tests.faults.world import KEEP, ORIGIN, RESET, TIMEOUT, WHO, World, confirm, matching, world_in
from tests.patience import PATIENCE


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as found:
        found.queue.fill(2_000)
        found.queue.forget()
        yield found


def detached(console: Operations, limit: int = 5) -> Override:
    """An override that is confirmed for a runner."""
    plan = console.propose(matching("condition:terminal", limit=limit), RESET)
    return console.carry_out(plan, confirm(plan), detached=True)


class Waiting:
    """The time of the world, and real waiting: the threads need some."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.clock.now()

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.02))


def runner(world: World, stop: Any = None, take_over: bool = False, **options: Any) -> tuple[Runner, list[str]]:
    said: list[str] = []
    return Runner(world.console(**options), Waiting(world), WHO, ORIGIN, stop or StopFlag(), said.append, take_over=take_over), said


def state(world: World, override: Override) -> OverrideState:
    return world.trail(read_only=True).override(override.override_id).state


def test_a_detached_override_is_carried_out(world: World) -> None:
    override = detached(world.console())
    assert world.queue.touched() == set()
    one, said = runner(world)
    one.run(once=True)
    assert state(world, override) is OverrideState.FINISHED
    assert len(world.queue.touched()) == 5
    assert f"Override {override.override_id} finished: 5 requeued" in said[0]
    assert world.trail().verified().what == ""
    takeover = next(record for record in world.trail().records() if record.kind == "takeover")
    assert (takeover.body["previous_state"], takeover.body["by"]) == ("queued", str(WHO))


@pytest.mark.parametrize(("error", "state", "results"), [
    (None, OverrideState.FINISHED, {"recovered": 40}), (TIMEOUT, OverrideState.STOPPED, {"failed_again": 10}),
])
def test_the_result_of_what_it_carried_out_is_recorded(
    tmp_path: Path, error: str | None, state: OverrideState, results: dict[str, int]
) -> None:
    """Also when its canary has stopped it: nobody else is there to see what became of those items."""
    world = CanaryWorld(tmp_path, clock=WorkingClock())
    world.worker(world.queue)
    world.queue.fill(40)
    world.clock.handle = lambda _: error
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, Canary(10))
    override = console.carry_out(plan, confirm(plan), detached=True)
    one, _ = runner(world)
    one.look()
    end = time.monotonic() + PATIENCE
    while (found := console.trail.override(override.override_id)).results is None:
        assert time.monotonic() < end, found
        time.sleep(0.05)
    for thread in one._watches:
        thread.join(PATIENCE)
    assert (found.state, {str(kind): n for kind, n in found.results.counts.items() if n}) == (state, results)
    world.close()


def test_two_on_one_backend_are_carried_out_one_after_the_other(world: World) -> None:
    console = world.console()
    first = console.propose(matching("condition:terminal key:queue/t0000*"), RESET)
    second = console.propose(matching("condition:terminal key:queue/t0001*"), RESET)
    for plan in (first, second):
        console.carry_out(plan, confirm(plan), detached=True)
    one, _ = runner(world)
    one.run(once=True)
    assert {o.state for o in console.trail.overrides()} == {OverrideState.FINISHED}
    assert len(world.queue.requeued()) == first.changes + second.changes


def test_a_runner_that_is_stopped_queues_its_override_again(world: World) -> None:
    override = detached(world.console(), 1_000)
    stop = StopFlag()
    chunks: list[str] = []

    def reach(point: str) -> None:
        if point == "after_write":
            chunks.append(point)
            stop.set()

    one, _ = runner(world, stop, reach=reach, limits=Limits(chunk_target=timedelta(microseconds=1)))
    one.run()
    assert len(chunks) == 1
    assert state(world, override) is OverrideState.QUEUED
    done = len(world.queue.touched())
    assert 0 < done < 1_000
    again, _ = runner(world)
    again.run(once=True)
    assert state(world, override) is OverrideState.FINISHED
    assert set(world.queue.requeued().values()) == {1}
    assert len(world.queue.requeued()) == 1_000
    assert world.trail().verified().what == ""


class Gone(StopFlag):
    """A Stop whose terminal is gone."""

    terminal_gone = True


def interrupted(world: World, stop: Any) -> Override:
    """An override that stops after its first chunk."""
    console = world.console(limits=Limits(chunk_target=timedelta(microseconds=1)), reach=lambda point: stop.set() if point == "after_write" else None)
    plan = console.propose(matching("condition:terminal", limit=1_000), RESET)
    return console.carry_out(plan, confirm(plan), stop)


def test_an_override_whose_terminal_is_gone_is_taken_over_if_wanted(world: World) -> None:
    override = interrupted(world, Gone())
    assert (override.state, override.note) == (OverrideState.STOPPED, TERMINAL_GONE)
    runner(world)[0].run(once=True)
    assert state(world, override) is OverrideState.STOPPED, "nobody asked for that"
    runner(world, take_over=True)[0].run(once=True)
    assert state(world, override) is OverrideState.FINISHED
    assert len(world.queue.requeued()) == 1_000


def test_what_a_person_stopped_or_is_old_stays(world: World) -> None:
    stopped, old = interrupted(world, StopFlag()), interrupted(world, Gone())
    world.clock.tick(TAKEN_OVER_WITHIN + timedelta(seconds=1))
    touched = world.queue.touched()
    runner(world, take_over=True)[0].run(once=True)
    assert [state(world, one) for one in (stopped, old)] == [OverrideState.STOPPED] * 2
    assert world.queue.touched() == touched


def test_an_override_of_a_backend_that_is_not_here_is_left_to_another_runner(world: World) -> None:
    override = detached(world.console())
    one, said = runner(world, backends=[])
    one.run(once=True)
    assert state(world, override) is OverrideState.QUEUED
    assert said == [f"Override {override.override_id} is left to another runner: no queue here."]


def test_an_altered_plan_is_reported_and_tried_later(world: World) -> None:
    override = detached(world.console())
    world.trail_run("UPDATE plan_block SET body = CAST(replace(CAST(body AS TEXT), 't001999', 't000001') AS BLOB)")
    stop = StopFlag()
    one, said = runner(world, stop)
    for _ in range(5):
        one.look(watch=False)
        for carried in list(one._carried.values()):
            carried.thread.join()
    assert len(said) == 1, "it waits before it tries again"
    assert "altered" in said[0]
    assert state(world, override) is OverrideState.QUEUED
    assert world.queue.touched() == set()
