"""Discarding task files: they end as cancelled `.done` files, which no worker takes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from console.core.backend import APPLIED, Action, Authority, Change, Operation
from console.core.item import Condition, ItemKey
from console.core.ports import Never
from console.core.query import Sort
from console.testing import NOON, FrozenClock
from plugins.file_queue import FileQueue
from plugins.file_queue.engine import FileTaskQueue
from tests.plugins.file_queue import folders

WHO = Authority("ops", "test", None, "o1")
DISCARD = Operation(Action.DISCARD)
LATER = (NOON + timedelta(hours=1)).isoformat()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return folders.make(tmp_path / "jobs")


def discarded(backend: FileQueue, id: str) -> Change:
    (change,) = folders.plan(backend, id, operation=DISCARD)
    assert backend.compare_and_set([change], DISCARD, WHO) == [APPLIED]
    return change


@pytest.mark.parametrize(("status", "attempts", "schedule"), [
    ("PENDING", 1, {"eta": LATER, "interval": None}), ("FAILED", 1, {"eta": None}), ("RUNNING", 2, {"eta": None}),
])
def test_a_task_is_cancelled_and_an_undo_restores_its_file(
    base: Path, status: str, attempts: int, schedule: dict[str, str | None]
) -> None:
    long_ago = (NOON - timedelta(hours=3)).isoformat()
    path = folders.write_task(
        base, "a", status, error="boom", attempts=attempts, schedule=schedule, timeout=0, updated_at=long_ago
    )
    before, backend = path.read_bytes(), folders.open_queue(base)
    change = discarded(backend, "a")
    assert folders.listing(base) == ["a.done"]
    fields = folders.fields("a", "CANCELLED", attempts=attempts, schedule=schedule, timeout=0, updated_at=NOON.isoformat())
    assert folders.content(base / "queue" / "a.done") == fields
    key = ItemKey("files", ("a",))
    item = backend.items([key], NOON)[key]
    assert (item.condition, item.verdict.will_run_again, item.error) == (Condition.CANCELLED, False, "boom")
    queue = FileTaskQueue(base, backend.policy, FrozenClock(NOON + timedelta(days=1)))
    assert (queue.reclaim(), queue.claim()) == (0, None)
    back = Change(change.unit, change.keys, change.after, change.before)
    assert backend.compare_and_set([back], Operation(Action.UNDO), WHO) == [APPLIED]
    assert path.read_bytes() == before
    assert folders.listing(base) == [path.name]


def test_a_file_that_blocks_the_queue_is_removed_from_the_line(base: Path) -> None:
    """A `.task` with FAILED inside makes every worker stop. Nobody holds it, so no warning is needed."""
    folders.write_task(base, "a", "FAILED", suffix="task", attempts=3)
    folders.write_task(base, "b", "PENDING", attempts=0)
    backend = folders.open_queue(base)
    ((draft,),) = backend.drafts([ItemKey("files", ("a",))], Sort(), DISCARD, NOON, Never())
    assert (draft.condition, draft.skipped, draft.warning) == (Condition.STUCK, None, None)
    discarded(backend, "a")
    claimed = FileTaskQueue(base, backend.policy, FrozenClock(NOON)).claim()
    assert claimed is not None
    assert claimed.id == "b"


def test_a_task_that_a_worker_took_meanwhile_is_left_alone(base: Path) -> None:
    folders.write_task(base, "a", "PENDING", attempts=1, schedule={"eta": NOON.isoformat()}, error="boom")
    backend = folders.open_queue(base)
    (change,) = folders.plan(backend, "a", operation=DISCARD)
    claimed = FileTaskQueue(base, backend.policy, FrozenClock(NOON)).claim()
    assert claimed is not None
    (outcome,) = backend.compare_and_set([change], DISCARD, WHO)
    assert outcome.kind == "changed"
    assert folders.listing(base) == ["a.running"]


def test_what_cannot_be_read_cannot_be_discarded(base: Path) -> None:
    (base / "queue" / "a.task").write_text("{")
    backend = folders.open_queue(base)
    ((draft,),) = backend.drafts([ItemKey("files", ("a",))], Sort(), DISCARD, NOON, Never())
    assert draft.skipped is not None
    assert draft.skipped.text.startswith("Cannot be discarded: ")
