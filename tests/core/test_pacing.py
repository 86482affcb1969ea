"""An override that keeps the pace itself, where its backend stores no due time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from console.core.backend import Authority, Change, Operation, Outcome
from console.core.pace import Over, Pace, Rate
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.schema import ASYNC_TASKS
from tests.faults.world import KEEP, NOON, FrozenClock, World, confirm, matching


class LeapingClock(FrozenClock):
    """At one of its naps it is suddenly another time: the process was suspended, or somebody has set it."""

    def __init__(self, nap: int, leap: timedelta) -> None:
        super().__init__(NOON)
        self.naps = 0
        self._leap = nap, leap

    def sleep(self, seconds: float) -> None:
        self.naps += 1
        super().sleep(seconds)
        if self.naps == self._leap[0]:
            self.tick(self._leap[1])


class Undated(SqliteQueue):
    """The queue, did its system not read the due time; and how many it was handed at once."""

    abilities = replace(ASYNC_TASKS.abilities, stores_due_time=False)
    sizes: list[int]

    def compare_and_set(self, changes: Sequence[Change], operation: Operation, authority: Authority) -> Sequence[Outcome]:
        self.sizes.append(len(changes))
        return super().compare_and_set(changes, operation, authority)


@pytest.fixture
def undated() -> type[Undated]:
    Undated.sizes = []
    return Undated


def carried(world: World, kind: type[Undated], count: int, pace: Pace) -> Counter[datetime]:
    """How many were requeued in each second."""
    world.queue.fill(count)
    console = world.console(kind=kind)
    plan = console.propose(matching("condition:terminal"), KEEP, pace)
    assert console.carry_out(plan, confirm(plan)).counts == {"applied": count}
    console.trail.close()
    return Counter(datetime.fromisoformat(row[8]).replace(microsecond=0) for row in world.queue.rows())


@pytest.mark.parametrize("leap", [timedelta(minutes=1), timedelta(hours=-1)])
def test_what_was_missed_is_not_made_up_for_in_one_go(tmp_path: Path, undated: type[Undated], leap: timedelta) -> None:
    world = World(tmp_path, clock=LeapingClock(4, leap))
    per_second = carried(world, undated, 80, Rate(10))
    assert max(per_second.values()) <= 15
    assert isinstance(world.clock, LeapingClock)
    assert world.clock.naps < 40, "nor is anything waited for twice"
    world.close()


def test_a_paced_chunk_is_no_larger_than_any_other(tmp_path: Path, undated: type[Undated]) -> None:
    world = World(tmp_path)
    carried(world, undated, 3_000, Over(timedelta(seconds=1)))
    assert max(undated.sizes[:1]) <= 500
    assert len(undated.sizes) > 2
    world.close()
