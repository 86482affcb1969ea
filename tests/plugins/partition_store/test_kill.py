"""Killed at any moment while both tables are written: every partition is handed back once, and all of it is on record."""

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

from console.core import carrying
from console.core.backend import Flag, Order
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import NOT_APPLIED
from console.core.plan import Marked, Plan
from tests.faults.processes import killer
from tests.faults.world import confirm
from tests.plugins.partition_store.door import WHENCE, WHO, door, last_outcomes
from tests.plugins.partition_store.stores import Store, part, run_id, tree_hash
from tests.plugins.partition_store.test_invariants import watch

INSIST = Order(flags=frozenset({Flag.CLEAR_TERMINAL}))
ITEMS = 84
FAULTS = ("before_write:2", "after_write:1", "after_write:3")


@pytest.fixture(params=["beside", "apart"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    if request.param == "beside":
        return {}
    with closing(sqlite3.connect(tmp_path / "control.db")) as made:
        made.execute("CREATE TABLE other (x)")
    return {"control_url": f"sqlite:///{tmp_path}/control.db"}


def fill(store: Store) -> None:
    """Marked terminal by their error, so that handing one back writes the state and the control table."""
    partitions = [part(1 + n % 28, f"c{n // 28}") for n in range(ITEMS)]
    store.put_all([(partition, {"status": "failed", "error_message": "gone [terminal]"}) for partition in partitions])
    for partition in partitions:
        store.run(partition, run_id(1), records=1)
    watch(store)


def plan_of(operations: Operations, store: Store) -> Plan:
    return operations.propose(Marked(tuple(ItemKey("parts", tuple(row[:4])) for row in store.rows())), INSIST)


def bring_to_its_end(store: Store, given: dict[str, str], folder: Path, plan: str, point: str = "") -> None:
    carrying.FIRST_CHUNK = carrying.SMALLEST_CHUNK = carrying.LARGEST_CHUNK = 4  # few items make many chunks
    with door(store.open(**given), folder, killer(point)) as operations:
        begun = operations.book.overrides()
        if begun:
            operations.resume(begun[0].op_id, WHO, WHENCE)
        else:
            stored = operations.book.plan(plan)
            operations.carry_out(stored.id, confirm(stored))


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


@pytest.mark.timeout(200)
def test_each_once_and_on_record(store: Store, given: dict[str, str], tmp_path: Path) -> None:
    chance = random.Random(5)
    fill(store)
    raw = tree_hash(store.raw)
    backend = store.open(**given)
    with door(backend, tmp_path) as operations:
        plan = plan_of(operations, store)
        assert plan.changes == ITEMS
    backend.close()
    kills = sum(killed(store, given, tmp_path, plan.id, point=point) for point in FAULTS)
    kills += sum(killed(store, given, tmp_path, plan.id, after=chance.uniform(0.02, 0.2)) for _ in range(4))
    assert kills >= len(FAULTS)
    while killed(store, given, tmp_path, plan.id):
        pass
    with door(store.open(**given), tmp_path) as operations:
        (override,) = operations.book.overrides()
        told = last_outcomes(operations, override.op_id)
        assert override.state.value == "finished"
        assert len(told) == ITEMS
        for outcomes in told.values():
            assert [outcome for outcome in outcomes if outcome != NOT_APPLIED] == ["changed"]
        assert operations.book.verified().ok
    assert Counter(row[4] for row in store.rows()) == {"pending": ITEMS}
    moved = Counter(store.sql("SELECT old_status, new_status FROM oracle"))
    taken_back = moved.pop(("pending", "failed"), 0)
    assert moved == {("failed", "pending"): ITEMS + taken_back}, "what a crash left half done is taken back before it is done"
    assert not taken_back or given
    marks = Counter(mark for (mark,) in store.marks("terminal", url=given.get("control_url", "")))
    assert marks == {"overruled": ITEMS}
    assert tree_hash(store.raw) == raw
