"""Whole overrides with a real trail: killed at any point, resumed, recorded and undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.core.backend import Operation
from console.core.confirm import Confirmation, Origin, Who
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.plan import Marked
from console.testing import FrozenClock
from console.trail.leases import owner_token
from console.trail.store import open_trail
from plugins.file_queue import folder as folder_module
from tests.plugins.file_queue import folders
from tests.plugins.file_queue.killing import in_dying_child

WHO, ORIGIN = Who(0, "root", "ops"), Origin("host", None, None, 1, "test")
IDS = ("a", "b", "c")


def operations(base: Path) -> Operations:
    trail = open_trail(f"sqlite:///{base}/trail/trail.db", read_only=False, anchor=None, clock=FrozenClock())
    return Operations({"files": folders.open_queue(base)}, trail, FrozenClock(), owner=owner_token())


def carry_out(base: Path) -> str:
    ops = operations(base)
    plan = ops.propose(Marked(tuple(ItemKey("files", (id,)) for id in IDS)), Operation())
    return ops.carry_out(plan, Confirmation(WHO, ORIGIN, "because", plan.changes)).override_id


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = folders.make(tmp_path / "jobs")
    (base / "trail").mkdir(mode=0o700)
    for id in IDS:
        folders.write_task(base, id, error="boom")
    return base


def test_requeue_and_undo(base: Path) -> None:
    original = {path.name: path.read_text() for path in (base / "queue").iterdir()}
    override_id = carry_out(base)
    assert folders.listing(base) == ["a.task", "b.task", "c.task"]
    ops = operations(base)
    plan = ops.undo(override_id)
    assert plan.changes == 3
    ops.carry_out(plan, Confirmation(WHO, ORIGIN, "a mistake", plan.changes))
    assert {path.name: path.read_text() for path in (base / "queue").iterdir()} == original


@pytest.mark.parametrize("die_at", range(2, 40, 3))
def test_killed_and_resumed(base: Path, die_at: int) -> None:
    assert in_dying_child(lambda: carry_out(base), folder_module, die_at, before=False)
    ops = operations(base)
    overrides = ops.trail.overrides()
    if not overrides:
        assert folders.listing(base) == ["a.done", "b.done", "c.done"], "nothing is written before it is announced"
        return
    ops.settle_unresolved(WHO, ORIGIN)
    ended = ops.resume(overrides[0].override_id, WHO, ORIGIN)
    assert folders.listing(base) == ["a.task", "b.task", "c.task"]
    changed = [o.key for batch in ops.trail.outcomes(ended.override_id) for o in batch if o.outcome == "applied"]
    assert sorted(changed) == ["files/a", "files/b", "files/c"], "each is recorded as changed exactly once"
