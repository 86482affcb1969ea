"""Requeueing task files: kept and reset attempts, skipped items, conflicts, undo and read-only."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import APPLIED, Attempts, Authority, Change, Flag, Operation, OutcomeKind
from console.core.faults import ReadOnlyRefused
from console.core.item import ItemKey
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.core.query import Filter, Sort
from console.testing import NOON, FrozenClock
from plugins.file_queue import FileQueue
from plugins.file_queue.engine import FileTaskQueue
from tests.plugins.file_queue import folders

WHO = Authority("ops", "test", None, "o1")
RESET = Operation(attempts=Attempts.RESET)
INSIST = Operation(flags=frozenset({"include_claimed"}))
LATER = (NOON + timedelta(hours=1)).isoformat()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return folders.make(tmp_path / "jobs")


def draft_of(backend: FileQueue, id: str, operation: Operation = folders.KEEP) -> Any:
    ((draft,),) = backend.drafts([ItemKey(backend.name, (id,))], Sort(), operation, NOON, Never())
    return draft


@pytest.mark.parametrize(("operation", "attempts"), [(Operation(), 3), (RESET, 0)])
def test_failed_is_requeued_with_attempts_kept_or_reset(base: Path, operation: Operation, attempts: int) -> None:
    folders.write_task(base, "a", error="boom")
    backend = folders.open_queue(base)
    (change,) = folders.plan(backend, "a", operation=operation, due=NOON + timedelta(minutes=5))
    assert backend.compare_and_set([change], operation, WHO) == [APPLIED]
    assert folders.listing(base) == ["a.task"]
    found = folders.content(base / "queue" / "a.task")
    due = (NOON + timedelta(minutes=5)).isoformat()
    assert found == folders.fields("a", "PENDING", attempts=attempts, schedule={"eta": due, "interval": None}, updated_at=NOON.isoformat())
    assert (base / "results" / "a.result").exists(), "the result stays as evidence"
    assert list(backend.images([change])) == [change.after]


def test_keep_gives_exactly_one_more_execution(base: Path) -> None:
    folders.write_task(base, "a", error="boom")
    backend = folders.open_queue(base)
    backend.compare_and_set(folders.plan(backend, "a"), Operation(), WHO)
    queue = FileTaskQueue(base, backend.policy, FrozenClock(NOON))
    claimed = queue.claim()
    assert claimed is not None
    assert claimed.attempts == 4
    assert queue.fail(claimed, "again")
    assert folders.listing(base) == ["a.done"]


SKIPPED: list[tuple[str, dict[str, Any], Operation, str]] = [
    ("waiting", {"status": "PENDING", "attempts": 0}, Operation(), "Has not failed"),
    ("running", {"status": "RUNNING", "attempts": 1, "updated_at": NOON.isoformat()}, Operation(), "within its time limit"),
    ("done", {"status": "SUCCESS"}, Operation(), "Already done."),
    ("cancelled", {"status": "CANCELLED"}, Operation(), "Was cancelled."),
    ("unknown", {"status": "PAUSED"}, Operation(), "named .done but its status is 'PAUSED'"),
    ("due-already", {"status": "PENDING", "attempts": 1}, Operation(), "runs when due"),
    ("eta-no-time", {"status": "PENDING", "attempts": 1, "schedule": {"eta": "soon"}}, Operation(), None),
    ("run-earlier-with-reset", {"status": "PENDING", "attempts": 1, "schedule": {"eta": LATER}}, RESET, "it can only be run earlier"),
    ("stuck-used-up", {"status": "RUNNING", "attempts": 3, "updated_at": (NOON - timedelta(days=1)).isoformat()}, INSIST, "No attempts left"),
    ("stuck", {"status": "RUNNING", "attempts": 1, "updated_at": (NOON - timedelta(days=1)).isoformat()}, Operation(), "A worker may still hold it"),
    ("hopeless", {"status": "FAILED", "error": "Invalid API key"}, Operation(), "Its error is not recoverable."),
    ("no-schedule", {"status": "FAILED", "schedule": None}, Operation(), "could not be guarded"),
    ("attempts-text", {"status": "FAILED", "attempts": "3"}, Operation(), "could not be guarded"),
    ("nan", {"status": "FAILED", "schedule": {"eta": None, "interval": float("nan")}}, Operation(), "could not be guarded"),
    ("surrogate", {"status": "FAILED", "updated_at": "\udc80"}, Operation(), None),
    ("huge-schedule", {"status": "FAILED", "schedule": {"eta": None, "x": "y" * 5000}}, Operation(), "could not be guarded"),
]


@pytest.mark.parametrize(("given", "operation", "why"), [case[1:] for case in SKIPPED], ids=[case[0] for case in SKIPPED])
def test_what_is_skipped_and_why(base: Path, given: dict[str, Any], operation: Operation, why: str | None) -> None:
    folders.write_task(base, "a", **given)
    backend = folders.open_queue(base, policy=PolicyOverride(unrecoverable=("invalid api key",)))
    before = folders.fingerprint(base)
    skipped = draft_of(backend, "a", operation).skipped
    if why is None:
        assert skipped is None
    else:
        assert why in skipped.text
    assert folders.fingerprint(base) == before


def test_flags_and_warnings(base: Path) -> None:
    folders.write_task(base, "hopeless", error="invalid api key")
    folders.write_task(base, "stuck", "RUNNING", attempts=1, updated_at=(NOON - timedelta(hours=2)).isoformat())
    folders.write_task(base, "timeout", "RUNNING", attempts=1, timeout=30, updated_at=(NOON - timedelta(seconds=3631)).isoformat())
    backend = folders.open_queue(base, policy=PolicyOverride(unrecoverable=("invalid api key",)))
    allowed = Operation(flags=frozenset({Flag.INCLUDE_UNRECOVERABLE}))
    assert draft_of(backend, "hopeless", allowed).skipped is None
    for id in ("stuck", "timeout"):
        assert "old worker may still be alive" in draft_of(backend, id, INSIST).warning.text
        assert backend.compare_and_set(folders.plan(backend, id, operation=INSIST), INSIST, WHO) == [APPLIED]
    assert folders.listing(base) == ["hopeless.done", "stuck.task", "timeout.task"]


def test_a_scheduled_retry_runs_earlier(base: Path) -> None:
    folders.write_task(base, "a", "PENDING", attempts=1, schedule={"eta": LATER, "interval": 7}, error="boom")
    backend = folders.open_queue(base)
    assert backend.compare_and_set(folders.plan(backend, "a"), Operation(), WHO) == [APPLIED]
    found = folders.content(base / "queue" / "a.task")
    assert found["schedule"] == {"eta": NOON.isoformat(), "interval": 7}
    assert found["attempts"] == 1


@pytest.mark.parametrize(
    "mutation", [{"attempts": 4}, {"updated_at": NOON.isoformat()}, {"status": "SUCCESS"}, {"schedule": {"eta": "x"}}]
)
def test_what_changed_since_the_plan_is_not_touched(base: Path, mutation: dict[str, Any]) -> None:
    folders.write_task(base, "a")
    backend = folders.open_queue(base)
    changes = folders.plan(backend, "a")
    written = folders.write_task(base, "a", suffix="done", **{"status": "FAILED", **mutation}).read_bytes()
    (outcome,) = backend.compare_and_set(changes, Operation(), WHO)
    assert outcome.kind is OutcomeKind.CHANGED_SINCE
    assert folders.listing(base) == ["a.done"]
    assert (base / "queue" / "a.done").read_bytes() == written


def test_one_outcome_each_in_order(base: Path) -> None:
    for id in "abcde":
        folders.write_task(base, id)
    backend = folders.open_queue(base)
    changes = folders.plan(backend, *"abcde")
    (base / "queue" / "b.done").unlink()
    (base / "queue" / "c.done").rename(base / "queue" / "c.running")
    folders.write_task(base, "d", "PENDING", attempts=0)
    outcomes = backend.compare_and_set(changes, Operation(), WHO)
    assert [o.kind for o in outcomes] == ["applied", "changed", "changed", "changed", "applied"]
    assert outcomes[1].detail == "no longer there"
    assert "running" in outcomes[2].detail
    assert "same id" in outcomes[3].detail, "a task file is never overwritten"
    assert folders.listing(base) == ["a.task", "c.running", "d.done", "d.task", "e.task"]


@pytest.mark.parametrize("operation", [Operation(), RESET])
@pytest.mark.parametrize("given", [
    {"status": "FAILED"}, {"status": "RUNNING", "attempts": 1}, {"status": "PENDING", "attempts": 1, "schedule": {"eta": LATER}},
])
def test_undo_restores_exactly(base: Path, operation: Operation, given: dict[str, Any]) -> None:
    if given["status"] == "PENDING" and operation is RESET:
        operation = Operation()
    operation = replace(operation, flags=INSIST.flags)
    path = folders.write_task(base, "a", **given)
    original = folders.content(path)
    backend = folders.open_queue(base, policy=PolicyOverride(stuck_after=timedelta(minutes=1)))
    (change,) = folders.plan(backend, "a", operation=operation)
    assert backend.compare_and_set([change], operation, WHO) == [APPLIED]
    undone = Change("", change.keys, change.after, change.before)
    assert backend.compare_and_set([undone], operation, WHO) == [APPLIED]
    assert folders.listing(base) == [path.name]
    assert folders.content(path) == original


def test_drafts_by_filter_come_in_sort_order(base: Path) -> None:
    for n in range(20):
        folders.write_task(base, f"t{n:02}", created_at=(NOON - timedelta(minutes=n)).isoformat())
    backend = folders.open_queue(base)
    drafts = [d for batch in backend.drafts(Filter.parse("condition:terminal"), Sort.parse("created:asc"), Operation(), NOON, Never()) for d in batch]
    assert [d.key for d in drafts] == [f"files/t{n:02}" for n in reversed(range(20))]
    assert all(d.before[0] == "done" for d in drafts)


def test_permissions_are_kept(base: Path) -> None:
    folders.write_task(base, "a").chmod(0o640)
    backend = folders.open_queue(base)
    assert backend.compare_and_set(folders.plan(backend, "a"), Operation(), WHO) == [APPLIED]
    assert (base / "queue" / "a.task").stat().st_mode & 0o777 == 0o640


def test_a_write_that_fails_is_that_items_outcome_and_the_task_stays(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plugins.file_queue.folder import Folder

    folders.write_task(base, "a")
    folders.write_task(base, "b")
    backend = folders.open_queue(base)
    changes = folders.plan(backend, "a", "b")
    real = Folder.create

    def full(self: Folder, name: str, content: bytes, like: Any = None) -> None:
        if name.startswith("a."):
            raise OSError(28, "No space left on device")
        real(self, name, content, like)

    monkeypatch.setattr(Folder, "create", full)
    outcomes = backend.compare_and_set(changes, Operation(), WHO)
    assert [o.kind for o in outcomes] == [OutcomeKind.REJECTED, OutcomeKind.APPLIED]
    assert outcomes[0].detail == "No space left on device"
    assert folders.listing(base) == ["a.done", "b.task"]


def test_read_only_never_writes(base: Path) -> None:
    folders.write_task(base, "a")
    folders.write_task(base, "b").rename(base / "queue" / "b.done.0123456789ab.retriage")
    changes = folders.plan(folders.open_queue(base), "a", "b")
    backend = folders.open_queue(base, read_only=True)
    before = folders.fingerprint(base)
    assert list(backend.images(changes)) == [change.before for change in changes]
    backend.check(FrozenClock())
    with pytest.raises(ReadOnlyRefused):
        backend.compare_and_set(changes, Operation(), WHO)
    with pytest.raises(ReadOnlyRefused):
        backend.run(lambda *_: None, FrozenClock(), Never(), lambda _: None)
    assert folders.fingerprint(base) == before
