"""Killed at any moment while both tables are written: every partition is requeued once, and all of it is on record."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from console.core import executor
from console.core.backend import Operation
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import NOT_APPLIED
from console.core.plan import Marked, Plan
from plugins.partition_store.actions import INCLUDE_TERMINAL
from tests.faults.processes import killer
from tests.faults.world import confirm
from tests.plugins.partition_store.consoles import ORIGIN, WHO, console_on, last_outcomes
from tests.plugins.partition_store.stores import Store, part, run_id, tree_hash
from tests.plugins.partition_store.test_invariants import watch

INSIST = Operation(flags=frozenset({INCLUDE_TERMINAL}))
ITEMS = 84
FAULTS = ("before_write:2", "after_write:1", "after_write:3")


@pytest.fixture(params=["same database", "apart"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    if request.param == "same database":
        return {}
    with closing(sqlite3.connect(tmp_path / "control.db")) as made:
        made.execute("CREATE TABLE other (x)")
    return {"control_url": f"sqlite:///{tmp_path}/control.db"}


def fill(store: Store) -> None:
    """Marked terminal by their error, so that a requeue writes the state and the control table."""
    partitions = [part(1 + n % 28, f"c{n // 28}") for n in range(ITEMS)]
    store.put_all([(partition, {"status": "failed", "error_message": "gone [terminal]"}) for partition in partitions])
    for partition in partitions:
        store.run(partition, run_id(1), records=1)
    watch(store)


def plan_of(operations: Operations, store: Store) -> Plan:
    return operations.propose(Marked(tuple(ItemKey("parts", tuple(row[:4])) for row in store.rows())), INSIST)


def bring_to_its_end(store: Store, given: dict[str, str], folder: Path, plan: str, point: str = "") -> None:
    executor.FIRST_CHUNK = executor.SMALLEST_CHUNK = executor.LARGEST_CHUNK = 4  # few items make many chunks
    with console_on(store.open(**given), folder, killer(point)) as operations:
        begun = operations.trail.overrides()
        if begun:
            operations.resume(begun[0].override_id, WHO, ORIGIN)
        else:
            stored = operations.trail.plan(plan)
            operations.carry_out(stored, confirm(stored))


def killed(store: Store, given: dict[str, str], folder: Path, plan: str, *, after: float = 60, point: str = "") -> bool:
    child = os.fork()
    if child == 0:
        try:
            bring_to_its_end(store, given, folder, plan, point)
        finally:
            os._exit(0)
    end = time.monotonic() + after
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.WIFSIGNALED(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def test_each_once_and_on_record(store: Store, given: dict[str, str], tmp_path: Path) -> None:
    chance = random.Random(5)
    fill(store)
    raw = tree_hash(store.raw)
    backend = store.open(**given)
    with console_on(backend, tmp_path) as operations:
        plan = plan_of(operations, store)
        assert plan.changes == ITEMS
    backend.close()
    kills = sum(killed(store, given, tmp_path, plan.id, point=point) for point in FAULTS)
    kills += sum(killed(store, given, tmp_path, plan.id, after=chance.uniform(0.02, 0.2)) for _ in range(4))
    assert kills >= len(FAULTS)
    while killed(store, given, tmp_path, plan.id):
        pass
    with console_on(store.open(**given), tmp_path) as operations:
        (override,) = operations.trail.overrides()
        recorded = last_outcomes(operations, override.override_id)
        assert override.state.value == "finished"
        assert len(recorded) == ITEMS
        for outcomes in recorded.values():
            assert [outcome for outcome in outcomes if outcome != NOT_APPLIED] == ["applied"]
        assert operations.trail.verified().ok
    assert Counter(row[4] for row in store.rows()) == {"pending": ITEMS}
    moved = Counter(store.sql("SELECT old_status, new_status FROM oracle"))
    taken_back = moved.pop(("pending", "failed"), 0)
    assert moved == {("failed", "pending"): ITEMS + taken_back}, "what a crash left half done is taken back before it is done"
    assert not taken_back or given
    marks = Counter(mark for (mark,) in store.marks("terminal", url=given.get("control_url", "")))
    assert marks.total() == ITEMS
    assert {mark.split()[0] for mark in marks} == {"overruled"}
    assert tree_hash(store.raw) == raw
