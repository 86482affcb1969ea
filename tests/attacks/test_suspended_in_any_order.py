"""Promise: whatever the order in which suspended processes wake, write and tell, each item is recorded once, by who wrote it.

Real consoles over one queue and one trail, each in a thread of its own. A thread goes on only when the test says so:
before it announces items, before it writes them, and before it records what it did. Each new console takes the override
over from the one before, which is silent, and not dead.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core import executor
from console.core.backend import Authority, Change, Operation, Outcome
from console.core.faults import Fault, LeaseLost, OverrideRunning, PlanStale
from console.core.operations import Operations
from console.core.override import OverrideState
from console.core.reconcile import requeued_at
from console.trail import faultpoint
from plugins.sqlite_queue import SqliteQueue
from tests.depth import examples
from tests.faults.world import ORIGIN, RESET, WHO, World, confirm, final_outcomes, matching, world_in
from tests.patience import PATIENCE

ITEMS, CHUNK = 9, 4
SILENCE = timedelta(seconds=61)
POINTS = ("before_intent", "before_write", "before_outcome")


class Gated(SqliteQueue):
    """A queue whose writes can be held up, like those of a process that is suspended within one."""

    def compare_and_set(self, changes: Sequence[Change], operation: Operation, authority: Authority) -> Sequence[Outcome]:
        _gate("before_write")
        return super().compare_and_set(changes, operation, authority)


@dataclass
class Process:
    """One console, which waits at every point until it may go on."""

    world: World
    resumes: str = ""
    at: str = "start"
    fault: BaseException | None = None
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _waits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.console: Operations = self.world.console(kind=Gated)
        self._thread = threading.Thread(target=self._run, name="gated")
        _OF_THREAD[self._thread] = self
        self._thread.start()
        assert self._waits.acquire(timeout=PATIENCE)

    def _run(self) -> None:
        self.wait("start")
        try:
            if self.resumes:
                self.console.resume(self.resumes, WHO, ORIGIN)
            else:
                plan = self.console.propose(matching("condition:terminal"), RESET)
                self.console.carry_out(plan, confirm(plan))
        except Fault as fault:
            self.fault = fault
        finally:
            self.at = ""
            self._waits.release()

    def wait(self, point: str) -> None:
        self.at = point
        self._waits.release()
        assert self._go.acquire(timeout=PATIENCE)

    def go_on(self) -> str:
        """Until it waits again or has ended. Returns the point where it waits."""
        self._go.release()
        assert self._waits.acquire(timeout=PATIENCE)
        if not self.at:
            self._thread.join()
        return self.at

    def reach(self, *points: str) -> None:
        while self.at and self.at not in points:
            self.go_on()

    def end(self) -> None:
        while self.at:
            self.go_on()


_OF_THREAD: dict[threading.Thread, Process] = {}


def _gate(point: str) -> None:
    process = _OF_THREAD.get(threading.current_thread())
    if process is not None and point in POINTS:
        process.wait(point)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(faultpoint, "listener", _gate)
    monkeypatch.setattr(executor, "FIRST_CHUNK", CHUNK)
    monkeypatch.setattr(executor, "SMALLEST_CHUNK", CHUNK)
    with world_in(tmp_path) as made:
        made.queue.fill(ITEMS)
        made.queue.forget()
        yield made
        for process in _OF_THREAD.values():
            process.end()
        _OF_THREAD.clear()


def taking_over(world: World, override_id: str) -> Process:
    world.clock.tick(SILENCE)
    return Process(world, override_id)


def judge(world: World, before: list[tuple[Any, ...]]) -> None:
    """Nothing is lost, done twice or counted twice, and what was written can be undone."""
    console = world.console()
    (override,) = console.trail.overrides()
    if override.state is not OverrideState.FINISHED:
        world.clock.tick(SILENCE)
        override = console.resume(override.override_id, WHO, ORIGIN)
    assert set(world.queue.requeued().values()) == {1}
    assert len(world.queue.requeued()) == ITEMS
    assert override.counts == {"applied": ITEMS}
    assert all("applied" in outcome for outcome in final_outcomes(console.trail, override.override_id).values())
    assert console.trail.verified().what == ""
    written = {id: row for row in world.queue.rows() for id in [f"queue/{row[0]}"]}
    keys = [row.key for batch in console.trail.rows(override.plan_id, 0, ITEMS - 1) for row in batch]
    at = {keys[n]: moment for n, moment in requeued_at(console.trail, override.override_id, 0, ITEMS - 1).items()}
    assert {key: moment.isoformat() for key, moment in at.items()} == {key: row[-1] for key, row in written.items()}
    plan = console.undo(override.override_id)
    assert plan.changes == ITEMS, plan.skipped
    assert console.carry_out(plan, confirm(plan)).counts == {"applied": ITEMS}
    assert world.queue.rows() == before
    assert console.trail.verified().what == ""


def test_told_before_the_one_that_took_over_announces_the_same_items(world: World) -> None:
    before = world.queue.rows()
    first = Process(world)
    first.reach("before_write")
    (override,) = first.console.trail.overrides()
    second = taking_over(world, override.override_id)
    second.reach("before_outcome")
    second.go_on()
    assert second.at == "before_intent"
    world.clock.tick()
    first.end()
    assert isinstance(first.fault, LeaseLost)
    world.clock.tick()
    second.end()
    judge(world, before)


@pytest.mark.parametrize("seed", range(examples(100)))
def test_any_order_of_three(world: World, seed: int) -> None:
    chance = random.Random(seed)
    before = world.queue.rows()
    processes = [Process(world)]
    processes[0].reach("before_write")
    (override,) = processes[0].console.trail.overrides()
    while living := [one for one in processes if one.at]:
        if len(processes) < 3 and chance.random() < 0.2:
            processes.append(taking_over(world, override.override_id))
        else:
            world.clock.tick()
            chance.choice(living).go_on()
    faults = {type(one.fault) for one in processes} - {type(None), LeaseLost, OverrideRunning, PlanStale}
    assert not faults, [str(one.fault) for one in processes]
    judge(world, before)
