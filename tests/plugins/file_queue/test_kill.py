"""Kills a requeue or a worker at every system call: no task is lost or duplicated."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from console.core.backend import APPLIED, Attempts, Authority, Operation
from console.core.faults import BackendBusy
from console.testing import NOON, FrozenClock, StopFlag
from plugins.file_queue import folder as folder_module
from plugins.file_queue.engine import FileTaskQueue
from plugins.file_queue.moves import Mover
from tests.plugins.file_queue import folders
from tests.plugins.file_queue.killing import in_dying_child

WHO = Authority("ops", "test", None, "o1")
MOST_CALLS = 200


def one_file_each(base: Path) -> list[str]:
    """The names in the queue folder; asserts that each task has exactly one file and that there are no others."""
    names = folders.listing(base)
    ids = [name.rpartition(".")[0] for name in names]
    assert len(set(ids)) == len(ids), names
    assert all(name.rpartition(".")[2] in ("task", "running", "done") for name in names), names
    return names


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("attempts", Attempts)
def test_requeue_killed_at_every_call(tmp_path: Path, before: bool, attempts: Attempts) -> None:
    died, applied_of_killed, operation = 0, set(), Operation(attempts=attempts)
    for die_at in range(1, MOST_CALLS):
        base = folders.make(tmp_path / str(die_at))
        for id in ("a", "b", "c"):
            folders.write_task(base, id, error="boom")
        backend = folders.open_queue(base)
        changes = folders.plan(backend, "a", "b", "c", operation=operation)
        if not in_dying_child(lambda b=backend, c=changes: b.compare_and_set(c, operation, WHO), folder_module, die_at, before=before):
            break
        died += 1
        shown = backend.items([key for change in changes for key in change.keys], NOON)
        assert len(shown) == 3, "every task is shown whatever happened"

        images = backend.images(changes)
        applied = [image == change.after for image, change in zip(images, changes, strict=True)]
        assert all(i in (c.before, c.after) for i, c in zip(images, changes, strict=True)), images
        applied_of_killed.add(sum(applied))
        left = [change for change, done in zip(changes, applied, strict=True) if not done]
        assert list(backend.compare_and_set(left, operation, WHO)) == [APPLIED] * len(left)
        assert one_file_each(base) == ["a.task", "b.task", "c.task"]
        for change in changes:
            found = folders.content(base / "queue" / f"{change.keys[0].parts[0]}.task")
            assert (found["status"], found["attempts"]) == ("PENDING", change.after[2])
            assert found["args"] == [1]
            assert found["kwargs"] == {"x": "é"}
    assert died > 20
    assert applied_of_killed == {0, 1, 2, 3}, "kills fell before, between and after the writes"


@pytest.mark.parametrize("error", [None, "boom"], ids=["complete", "fail"])
def test_worker_killed_at_every_call_of_complete_and_fail(tmp_path: Path, error: str | None) -> None:
    """The task is still running or finished afterwards, never lost or duplicated."""
    seen = set()
    for die_at in range(1, MOST_CALLS):
        base = folders.make(tmp_path / str(die_at))
        queue = FileTaskQueue(base, folders.open_queue(base).policy, FrozenClock(), random.Random(1))
        queue.enqueue("jobs.send")
        claimed = queue.claim()
        assert claimed is not None

        def decide(queue: FileTaskQueue = queue, claimed: object = claimed) -> None:
            queue.complete(claimed, 1) if error is None else queue.fail(claimed, error)

        if not in_dying_child(decide, folder_module, die_at, before=False):
            break
        mover = Mover(base / "queue")
        mover.recover(mover.unfinished())
        (name,) = one_file_each(base)
        task = folders.content(base / "queue" / name)
        assert task["attempts"] == 1
        seen.add(name.rpartition(".")[2])
    assert seen == {"running", "done" if error is None else "task"}


def test_claim_killed_at_every_call_counts_once(tmp_path: Path) -> None:
    for die_at in range(1, MOST_CALLS):
        base = folders.make(tmp_path / str(die_at))
        queue = FileTaskQueue(base, folders.open_queue(base).policy, FrozenClock())
        queue.enqueue("jobs.send")
        if not in_dying_child(queue.claim, folder_module, die_at, before=False):
            break
        mover = Mover(base / "queue")
        mover.recover(mover.unfinished())
        (name,) = one_file_each(base)
        task = folders.content(base / "queue" / name)
        expected = {("task", "PENDING", 0), ("running", "PENDING", 0), ("running", "RUNNING", 1)}
        assert (name.rpartition(".")[2], task["status"], task["attempts"]) in expected
    assert die_at > 5


def test_an_interrupted_move_is_not_reverted_after_its_task_was_claimed(tmp_path: Path) -> None:
    base = folders.make(tmp_path)
    folders.write_task(base, "a", error="boom")
    backend = folders.open_queue(base)
    (change,) = folders.plan(backend, "a")
    done = (base / "queue" / "a.done").read_bytes()
    backend.compare_and_set([change], Operation(), WHO)
    (base / "queue" / "a.done.0123456789ab.retriage").write_bytes(done)
    queue = FileTaskQueue(base, backend.policy, FrozenClock(NOON))
    assert queue.claim() is not None
    (image,) = backend.images([change])
    assert image is not None
    assert image[:3] == ("running", "RUNNING", 4)
    assert folders.listing(base) == ["a.running"]


def test_an_interrupted_move_of_another_task_with_the_same_id_is_kept(tmp_path: Path) -> None:
    base = folders.make(tmp_path)
    folders.write_task(base, "a", "PENDING", attempts=0)
    interrupted = folders.write_task(base, "b")
    interrupted.rename(base / "queue" / "a.done.0123456789ab.retriage")
    (base / "queue" / "a.done.0123456789ab.retriage").write_text('{"id": "a", "status": "FAILED", "args": ["other"]}')
    Mover(base / "queue").recover(["a"])
    assert folders.listing(base) == ["a.done.0123456789ab.retriage", "a.task"]


def test_recovery_waits_for_a_move_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugins.file_queue.moves._RECOVERY_TIMEOUT", 0.05)
    base = folders.make(tmp_path)
    folders.write_task(base, "a").rename(base / "queue" / "a.done.0123456789ab.retriage")
    mover = Mover(base / "queue")
    with (
        folder_module.Folder(base / "queue") as held,
        held.locked(),
        pytest.raises(BackendBusy, match="another process is moving files"),
    ):
        mover.recover(["a"])
    assert folders.listing(base) == ["a.done.0123456789ab.retriage"]
    assert mover.recover(["a"])
    assert folders.listing(base) == ["a.done"]


def test_a_worker_that_starts_while_files_are_moved_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugins.file_queue.moves._RECOVERY_TIMEOUT", 0.05)
    base = folders.make(tmp_path)
    folders.write_task(base, "a").rename(base / "queue" / "a.done.0123456789ab.retriage")
    folders.write_task(base, "b", "PENDING", attempts=0)
    log: list[str] = []
    ran: list[str] = []
    with folder_module.Folder(base / "queue") as held, held.locked():
        folders.open_queue(base).run(lambda name, _: ran.append(name), FrozenClock(NOON), StopFlag(after_looks=1), log.append)
    assert ran == ["jobs.send"]
    assert log[0] == "1 tasks have an unfinished move: another process is moving files"
