"""What the queue's own workers leave in the folder and do with it, and what the console makes of it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import APPLIED, Authority, Change, Draft, Operation, OutcomeKind, PageRequest, Severity
from console.core.item import Condition, Item, ItemKey
from console.core.pace import Now
from console.core.plan import BackendPart, Plan, PlanRow
from console.core.ports import Never
from console.core.query import Filter, Sort
from console.core.reconcile import settle
from console.testing import ALL, NOON, FrozenClock
from plugins._contract_queue import POLICY
from plugins.file_queue import FileQueue
from plugins.file_queue.engine import FileTaskQueue
from tests.plugins.file_queue import folders

WHO = Authority("ops", "test", None, "o1")
EARLIER, LATER = ((NOON + timedelta(hours=hours)).isoformat() for hours in (-1, 1))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return folders.make(tmp_path / "jobs")


def only(backend: FileQueue) -> Item:
    (item,) = backend.page(PageRequest(ALL, NOON)).items
    return item


def by_id(backend: FileQueue) -> dict[str, Item]:
    return {item.key.id: item for item in backend.page(PageRequest(ALL, NOON)).items}


def drafts(backend: FileQueue, wanted: Any, operation: Operation = folders.KEEP) -> dict[str, Draft]:
    found = backend.drafts(wanted, Sort(), operation, NOON, Never())
    return {draft.key.removeprefix("files/"): draft for batch in found for draft in batch}


def keys(*ids: str) -> list[ItemKey]:
    return [ItemKey("files", (id,)) for id in ids]


def queue_of(base: Path, clock: FrozenClock | None = None) -> FileTaskQueue:
    return FileTaskQueue(base, POLICY, clock or FrozenClock(NOON))


@pytest.mark.parametrize("status", ["RUNNING", "PENDING"])
@pytest.mark.parametrize(("result", "condition"), [("SUCCESS", Condition.DONE), ("FAILED", Condition.UNKNOWN), (None, Condition.UNKNOWN)])
def test_a_result_that_says_success_makes_a_done_file_done(
    base: Path, status: str, result: str | None, condition: Condition
) -> None:
    """A success only renames the file. A late worker even leaves PENDING in it."""
    folders.write_task(base, "a", status, suffix="done")
    if result is not None:
        folders.write_result(base, "a", result, None)
    item = only(folders.open_queue(base))
    assert (item.condition, item.native_status) == (condition, status)


def test_a_failed_task_file_blocks_the_queue_and_comes_first(base: Path) -> None:
    """Its worker died between recording the failure and scheduling the retry."""
    folders.write_task(base, "new", created_at=LATER)
    folders.write_task(base, "poison", "FAILED", suffix="task", attempts=1, created_at=EARLIER, error="boom")
    folders.write_task(base, "old", created_at=(NOON - timedelta(days=1)).isoformat())
    backend = folders.open_queue(base)
    items = backend.page(PageRequest(ALL, NOON)).items
    assert [item.key.id for item in items] == ["poison", "new", "old"]
    assert items[0].condition is Condition.STUCK
    assert items[0].verdict.why.startswith("blocks the queue: its file is named .task but its status is FAILED")
    assert items[0].verdict.will_run_again is False
    assert backend.counts(Filter.parse("condition:stuck"), NOON)[Condition.STUCK].value == 1


def test_no_task_behind_a_blocking_file_is_taken(base: Path) -> None:
    """Workers go by eta, none first, and then by creation; the file that blocks is where they stop."""
    created = (NOON - timedelta(minutes=30)).isoformat()
    folders.write_task(base, "poison", "FAILED", suffix="task", attempts=1, created_at=created)
    folders.write_task(base, "before", "PENDING", attempts=0, created_at=EARLIER)
    folders.write_task(base, "behind", "PENDING", attempts=0, created_at=(NOON - timedelta(minutes=20)).isoformat())
    folders.write_task(base, "scheduled", "PENDING", attempts=1, created_at=EARLIER, schedule={"eta": LATER})
    folders.write_task(base, "alike", "PENDING", attempts=0, created_at=created)
    found = by_id(folders.open_queue(base))
    assert {id: item.verdict.will_run_again for id, item in found.items()} == {
        "poison": False, "before": True, "behind": False, "scheduled": False, "alike": None,
    }
    assert found["behind"].verdict.why == "its system ignores it: 'poison' blocks the queue until it is requeued"
    assert "nobody can tell" in found["alike"].verdict.why
    clock = FrozenClock(NOON)
    queue = queue_of(base, clock)
    first = queue.claim()
    assert first is not None
    assert first.id == "before"
    clock.tick(timedelta(hours=2))
    assert queue.claim() is None


def test_requeueing_the_blocking_file_repairs_the_queue(base: Path) -> None:
    folders.write_task(base, "poison", "FAILED", suffix="task", attempts=1, error="boom")
    folders.write_task(base, "failed", error="boom")
    backend = folders.open_queue(base)
    alone = drafts(backend, keys("failed"))
    assert alone["failed"].skipped is not None
    assert alone["failed"].skipped.text == "Its system would not take it: 'poison' blocks the queue until it is requeued."
    both = drafts(backend, Filter.parse("condition:*"))
    assert [draft.skipped for draft in both.values()] == [None, None]
    assert backend.compare_and_set(folders.plan(backend, "poison"), Operation(), WHO) == [APPLIED]
    assert folders.content(base / "queue" / "poison.task")["status"] == "PENDING"
    assert drafts(backend, keys("failed"))["failed"].skipped is None
    claimed = queue_of(base).claim()
    assert claimed is not None
    assert claimed.id == "poison"


@pytest.mark.parametrize(
    ("eta", "why"),
    [
        ("2026-11-10T11:00:00", "schedule.eta has no time zone, so a worker cannot compare it"),
        ("soon", "schedule.eta is not a time"), (17, "schedule.eta is not a time"),
        ("2026-11-10T11:00:00+02:00", None), ("2026-11-10T11:00:00Z", None), (None, None),
    ],
)
def test_an_eta_that_workers_cannot_compare_is_never_due(base: Path, eta: Any, why: str | None) -> None:
    folders.write_task(base, "a", "PENDING", attempts=1, schedule={"eta": eta})
    verdict = only(folders.open_queue(base)).verdict
    taken = queue_of(base).claim()
    assert verdict.will_run_again is (why is None)
    assert (taken is not None) is (why is None)
    if why is not None:
        assert verdict.why == f"its system ignores it: {why}"


def test_a_tab_in_an_id_is_ordinary(base: Path) -> None:
    folders.write_task(base, "a\tb", error="boom")
    backend = folders.open_queue(base)
    assert only(backend).condition is Condition.TERMINAL
    assert backend.compare_and_set(folders.plan(backend, "a\tb"), Operation(), WHO) == [APPLIED]
    assert folders.listing(base) == ["a\tb.task"]


def test_an_error_belongs_to_the_attempt_that_its_result_names(base: Path) -> None:
    began = (NOON - timedelta(hours=2)).isoformat()
    folders.write_task(base, "a", "RUNNING", attempts=3, updated_at=began, last_attempt_at=began)
    result = {"task_id": "a", "status": "FAILED", "error": "boom 2", "finished_at": EARLIER, "attempts": 2}
    (base / "results" / "a.result").write_text(json.dumps(result))
    backend = folders.open_queue(base)
    detail = backend.item(ItemKey("files", ("a",)), NOON)
    assert detail.item.verdict.why == (
        "running for 2h 00m, limit 1h; attempt 3 of 3, nothing recorded since; a worker may still hold it"
    )
    assert [(attempt.number, attempt.error) for attempt in detail.attempts] == [(2, "boom 2"), (3, None)]
    assert "the error is of attempt 2" in detail.item.notes


@pytest.mark.parametrize("compact", [True, False])
def test_undo_restores_the_same_bytes(base: Path, compact: bool) -> None:
    """msgspec, the queue's usual serializer, writes compact JSON with plain Unicode."""
    fields = folders.fields("a", kwargs={"name": "J\u00f6rg \U0001f4a5"}, schedule={"interval": "PT90S"})
    written = json.dumps(fields, separators=(",", ":"), ensure_ascii=False) if compact else json.dumps(fields)
    path = base / "queue" / "a.done"
    path.write_bytes(written.encode())
    backend = folders.open_queue(base)
    (change,) = folders.plan(backend, "a")
    assert backend.compare_and_set([change], Operation(), WHO) == [APPLIED]
    assert (b'": "' in (base / "queue" / "a.task").read_bytes()) is not compact
    undone = Change("", change.keys, change.after, change.before)
    assert backend.compare_and_set([undone], Operation(), WHO) == [APPLIED]
    assert path.read_bytes() == written.encode()


def test_check_names_the_serializers(base: Path) -> None:
    folders.write_task(base, "a")
    (base / "queue" / "b.task").write_bytes(b"\x80\x05\x95")
    found = {finding.subject: finding for finding in folders.open_queue(base).check(FrozenClock(NOON))}
    assert found["serializer"].severity is Severity.WARNING
    assert found["serializer"].message == "1 file was written by the serializer cloudpickle and cannot be read"
    (base / "queue" / "b.task").unlink()
    found = {finding.subject: finding for finding in folders.open_queue(base).check(FrozenClock(NOON))}
    assert (found["serializer"].severity, found["serializer"].message) == (Severity.OK, "the files are JSON (serializer json or msgspec)")


def test_check_names_a_file_that_blocks_the_queue(base: Path) -> None:
    folders.write_task(base, "poison", "FAILED", suffix="task", attempts=1)
    folders.write_task(base, "behind", "PENDING", attempts=0, created_at=LATER)
    found = {finding.subject: finding for finding in folders.open_queue(base).check(FrozenClock(NOON))}
    assert found["queue"].severity is Severity.ERROR
    assert found["queue"].message == "'poison' blocks the queue: no later task is taken"


# --- a worker was quicker than the record of the override ----------------------------------------------


def requeued(base: Path, **given: Any) -> tuple[FileQueue, Change]:
    """A task that was requeued at noon."""
    folders.write_task(base, "a", **{"error": "boom", **given})
    backend = folders.open_queue(base)
    (change,) = folders.plan(backend, "a")
    assert backend.compare_and_set([change], Operation(), WHO) == [APPLIED]
    return backend, change


@pytest.mark.parametrize("fails", [False, True, None])
def test_an_execution_since_proves_the_requeue(base: Path, fails: bool | None) -> None:
    backend, change = requeued(base)
    assert backend.were_written([change], NOON, "o1") == [None], "as long as nobody has claimed it, its image tells"
    queue = queue_of(base, FrozenClock(NOON + timedelta(milliseconds=1)))
    claimed = queue.claim()
    assert claimed is not None
    if fails is not None:
        assert queue.fail(claimed, "again") if fails else queue.complete(claimed, 1)
    assert list(backend.images([change])) != [change.after]
    assert backend.were_written([change], NOON, "o1") == [True]
    assert backend.were_written([change], NOON + timedelta(seconds=1), "o1") == [None], "that execution began earlier"


def test_an_execution_when_it_was_due_anyway_proves_nothing(base: Path) -> None:
    folders.write_task(base, "a", "PENDING", attempts=1, schedule={"eta": LATER}, error="boom")
    backend = folders.open_queue(base)
    (change,) = folders.plan(backend, "a")
    for claimed_at, proven in ((NOON + timedelta(hours=1), False), (NOON + timedelta(minutes=1), True)):
        folders.write_task(base, "a", "RUNNING", attempts=2, last_attempt_at=claimed_at.isoformat())
        (base / "queue" / "a.task").unlink(missing_ok=True)
        assert backend.were_written([change], NOON, "o1") == [proven or None]


def test_settling_counts_a_requeue_that_has_run(base: Path) -> None:
    backend, change = requeued(base)
    queue = queue_of(base, FrozenClock(NOON + timedelta(milliseconds=1)))
    claimed = queue.claim()
    assert claimed is not None
    queue.complete(claimed, 1)
    part = BackendPart("files", backend.place, 0, 1, 1, ())
    plan = Plan("p1", NOON, datetime.max.replace(tzinfo=NOON.tzinfo), Operation(), Now(), "", (part,))
    row = PlanRow(0, "files/a", "", change.before, None)
    (outcome,) = settle(plan, part, backend, [row], NOON, "o1")
    assert (outcome.outcome, outcome.detail) == (OutcomeKind.APPLIED, "found by reading again: written, and changed since")
