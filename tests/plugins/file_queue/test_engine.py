"""The five invariants of the contract queue, for the file storage."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.backend import PageRequest
from console.core.item import Condition
from console.core.policy import RetryPolicy
from console.testing import ALL, NOON, FrozenClock, StopFlag
from plugins._contract_queue import POLICY, work
from plugins.file_queue.engine import FileTaskQueue
from tests.patience import PATIENCE
from tests.plugins.file_queue import folders

PROCESSES, TASKS = 8, 40


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return folders.make(tmp_path / "jobs")


def queue_of(base: Path, clock: FrozenClock | None = None, policy: RetryPolicy = POLICY) -> FileTaskQueue:
    return FileTaskQueue(base, policy, clock or FrozenClock(), random.Random(3))


def _claim_all(base: Path, start: object, won: object) -> None:
    queue = queue_of(base)
    start.wait()
    while (claimed := queue.claim()) is not None:
        won.put((claimed.id, claimed.attempts))
    won.put(None)


def test_atomic_claim_one_winner_among_eight_processes(base: Path) -> None:
    ids = {queue_of(base).enqueue("jobs.send", [n]) for n in range(TASKS)}
    context = multiprocessing.get_context("fork")
    start, won = context.Barrier(PROCESSES), context.Queue()
    workers = [context.Process(target=_claim_all, args=(base, start, won)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    claims: list[tuple[str, int]] = []
    finished = 0
    while finished < PROCESSES:
        got = won.get(timeout=PATIENCE)
        finished += got is None
        claims += [] if got is None else [got]
    for worker in workers:
        worker.join()
    assert Counter(id for id, _ in claims) == Counter(ids)
    assert {attempts for _, attempts in claims} == {1}
    assert all(folders.content(base / "queue" / f"{id}.running")["attempts"] == 1 for id in ids)


def test_attempt_counting_once_per_claim(base: Path) -> None:
    clock = FrozenClock()
    queue = queue_of(base, clock)
    id = queue.enqueue("jobs.send", max_retries=5)
    for attempt in range(1, 5):
        claimed = queue.claim()
        assert claimed is not None
        assert claimed.attempts == attempt
        assert folders.content(base / "queue" / f"{id}.running")["attempts"] == attempt
        assert queue.claim() is None
        queue.fail(claimed, "boom")
        assert folders.content(base / "queue" / f"{id}.task")["attempts"] == attempt
        clock.tick(timedelta(minutes=5))


@pytest.mark.parametrize("max_retries", [1, 2, 3, 5])
def test_retry_predicate_allows_max_retries_executions(base: Path, max_retries: int) -> None:
    clock = FrozenClock()
    queue = queue_of(base, clock)
    id = queue.enqueue("jobs.send", max_retries=max_retries)
    executions = 0
    while (claimed := queue.claim()) is not None:
        executions += 1
        assert queue.fail(claimed, f"boom {executions}")
        clock.tick(timedelta(minutes=5))
    assert executions == max_retries
    assert folders.listing(base) == [f"{id}.done"]
    assert folders.content(base / "queue" / f"{id}.done")["status"] == "FAILED"
    assert folders.content(base / "results" / f"{id}.result")["error"] == f"boom {max_retries}"


def test_queue_owned_policy_decides_the_delay(base: Path) -> None:
    clock = FrozenClock()
    queue = queue_of(base, clock)
    id = queue.enqueue("jobs.send", max_retries=9)
    for expected in (1, 2, 4, 8, 16, 32, 60, 60):
        claimed = queue.claim()
        assert claimed is not None
        failed_at = clock.now()
        queue.fail(claimed, "boom")
        task = folders.content(base / "queue" / f"{id}.task")
        delay = queue._time.decode(task["schedule"]["eta"]) - failed_at
        assert timedelta(seconds=expected * 0.75) <= delay <= timedelta(seconds=expected * 1.25)
        assert queue.claim() is None, "not before its time"
        clock.tick(delay)


def test_no_double_reschedule(base: Path) -> None:
    queue = queue_of(base)
    id = queue.enqueue("jobs.send")
    claimed = queue.claim()
    assert claimed is not None
    assert queue.fail(claimed, "boom")
    once = folders.fingerprint(base)
    assert not queue.fail(claimed, "boom")
    assert not queue.complete(claimed, 1)
    assert folders.fingerprint(base) == once
    assert folders.listing(base) == [f"{id}.task"]


def test_an_old_worker_cannot_finish_a_requeued_task(base: Path) -> None:
    queue = queue_of(base)
    id = queue.enqueue("jobs.send")
    first = queue.claim()
    assert first is not None
    (base / "queue" / f"{id}.running").rename(base / "queue" / f"{id}.task")
    path = base / "queue" / f"{id}.task"
    path.write_text(path.read_text().replace("RUNNING", "PENDING"))
    second = queue.claim()
    assert second is not None
    assert second.attempts == 2
    assert not queue.complete(first, "late")
    assert queue.complete(second, "right")
    assert folders.content(base / "results" / f"{id}.result")["result"] == "right"


def test_the_worker_loop_works_until_stopped(base: Path) -> None:
    clock, stop, log = FrozenClock(NOON), StopFlag(), []
    queue = queue_of(base, clock)
    good, bad = queue.enqueue("ok"), queue.enqueue("no", max_retries=2)

    def handler(type: str, payload: object) -> str:
        if type == "no":
            raise ValueError("it is broken")
        return "fine"

    def note(line: str) -> None:
        log.append(line)
        if len(log) == 3:
            stop.set()

    assert work(queue, handler, clock, stop, note) == 3
    assert folders.listing(base) == sorted([f"{good}.done", f"{bad}.done"])
    assert folders.content(base / "results" / f"{bad}.result")["error"] == "ERR_HANDLER: it is broken"


def test_broken_files_are_never_claimed(base: Path) -> None:
    (base / "queue" / "half.task").write_text('{"id": "half", "sta')
    folders.write_task(base, "another", "PENDING").rename(base / "queue" / "other.task")
    folders.write_task(base, "twice", "PENDING")
    folders.write_task(base, "twice", "RUNNING")
    before = folders.fingerprint(base)
    assert queue_of(base).claim() is None
    assert folders.fingerprint(base) == before


def test_a_result_that_is_not_json_is_stored_as_its_repr(base: Path) -> None:
    queue = queue_of(base)
    id = queue.enqueue("jobs.send")
    assert work(queue, lambda *_: {(1, 2): 3}, FrozenClock(), StopFlag(after_looks=2), lambda _: None) == 1
    result = json.loads((base / "results" / f"{id}.result").read_text())
    assert (result["status"], result["result"]) == ("SUCCESS", "{(1, 2): 3}")


@pytest.mark.parametrize("value", [None, 7, [1, {"a": "\u00e9"}], "text", True])
def test_a_result_is_stored_as_its_json_value(base: Path, value: object) -> None:
    queue = queue_of(base)
    id = queue.enqueue("jobs.send")
    claimed = queue.claim()
    assert claimed is not None
    assert queue.complete(claimed, value)
    assert folders.content(base / "results" / f"{id}.result")["result"] == value


def test_a_success_changes_only_the_name_of_the_file(base: Path) -> None:
    """As the queue's own workers leave it; the result says SUCCESS."""
    queue = queue_of(base)
    id = queue.enqueue("jobs.send")
    claimed = queue.claim()
    assert claimed is not None
    running = (base / "queue" / f"{id}.running").read_bytes()
    assert queue.complete(claimed, 1)
    assert (base / "queue" / f"{id}.done").read_bytes() == running
    assert folders.content(base / "queue" / f"{id}.done")["status"] == "RUNNING"
    (item,) = folders.open_queue(base).page(PageRequest(ALL, NOON)).items
    assert (item.condition, item.native_status) == (Condition.DONE, "RUNNING")


def test_a_recurring_task_enqueues_its_successor(base: Path) -> None:
    clock = FrozenClock(NOON)
    queue = queue_of(base, clock)
    first = queue.enqueue("jobs.send", [7], max_retries=5, timeout=9, interval=timedelta(minutes=10))
    claimed = queue.claim()
    assert claimed is not None
    queue.fail(claimed, "boom")
    assert len(folders.listing(base)) == 1, "a failure is retried, not repeated"
    clock.tick(timedelta(minutes=2))
    again = queue.claim()
    assert again is not None
    assert queue.complete(again, "fine")
    (name,) = (name for name in folders.listing(base) if not name.startswith(first))
    successor = folders.content(base / "queue" / name)
    assert name == f"{successor['id']}.task"
    assert successor["schedule"] == {
        "eta": (clock.now() + timedelta(minutes=10)).isoformat(), "interval": {"type": "timedelta", "total_seconds": 600.0},
    }
    assert (successor["status"], successor["attempts"], successor["last_attempt_at"]) == ("PENDING", 0, None)
    assert (successor["args"], successor["max_retries"], successor["timeout"]) == ([7], 5, 9)
    clock.tick(timedelta(minutes=10))
    claimed = queue.claim()
    assert claimed is not None
    assert claimed.id == successor["id"]
