"""Through the real door with a real trail: killed anywhere in a requeue, resumed, everything on record, undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.core.backend import Order
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.plan import Confirmation, Marked, Whence, Who
from console.testing import FrozenClock
from console.trail.owner import owner_token
from console.trail.store import open_book
from plugins.file_queue import folder as folder_module
from tests.plugins.file_queue import folders
from tests.plugins.file_queue.killing import in_dying_child

WHO, WHENCE = Who(0, "root", "ops"), Whence("host", None, None, 1, "test")
IDS = ("a", "b", "c")


def operations(base: Path) -> Operations:
    book = open_book(f"sqlite:///{base}/trail/trail.db", read_only=False, anchor=None, clock=FrozenClock())
    return Operations({"files": folders.open_queue(base)}, book, FrozenClock(), owner=owner_token())


def carry_out(base: Path) -> str:
    door = operations(base)
    plan = door.propose(Marked(tuple(ItemKey("files", (id,)) for id in IDS)), Order())
    return door.carry_out(plan.id, Confirmation(WHO, WHENCE, "because", plan.changes)).op_id


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = folders.make(tmp_path / "jobs")
    (base / "trail").mkdir(mode=0o700)
    for id in IDS:
        folders.write_task(base, id, error="boom")
    return base


def test_requeue_and_undo(base: Path) -> None:
    original = {path.name: path.read_text() for path in (base / "queue").iterdir()}
    op_id = carry_out(base)
    assert folders.listing(base) == ["a.task", "b.task", "c.task"]
    door = operations(base)
    plan = door.undo(op_id)
    assert plan.changes == 3
    door.carry_out(plan.id, Confirmation(WHO, WHENCE, "a mistake", plan.changes))
    assert {path.name: path.read_text() for path in (base / "queue").iterdir()} == original


@pytest.mark.parametrize("die_at", range(2, 40, 3))
def test_killed_and_resumed(base: Path, die_at: int) -> None:
    assert in_dying_child(lambda: carry_out(base), folder_module, die_at, before=False)
    door = operations(base)
    overrides = door.book.overrides()
    if not overrides:
        assert folders.listing(base) == ["a.done", "b.done", "c.done"], "nothing is written before it is announced"
        return
    door.settle_unresolved(WHO, WHENCE)
    ended = door.resume(overrides[0].op_id, WHO, WHENCE)
    assert folders.listing(base) == ["a.task", "b.task", "c.task"]
    changed = [o.key for batch in door.book.outcomes(ended.op_id) for o in batch if o.outcome == "changed"]
    assert sorted(changed) == ["files/a", "files/b", "files/c"], "each is recorded as changed exactly once"
