"""One suite, every backend: what the contract promises holds for each of them, on real stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride, RetryPolicy
from console.testing import (
    PROMISES,
    REQUEUE_PROMISES,
    FrozenClock,
    Harness,
    MemoryBackend,
    Sample,
    exercise_backend,
    exercise_requeue,
)
from tests.plugins.sqlite_queue import queue_files as files

Place = Callable[[], Path]


def memory(_place: Place) -> Harness:
    clock = FrozenClock()
    policy = RetryPolicy(
        3, stuck_after=timedelta(minutes=6), max_age=timedelta(days=300), unrecoverable=("invalid json",)
    )
    backend = MemoryBackend(policy=policy, clock=clock)

    def put(samples: Sequence[Sample]) -> int:
        backend.rows.update({
            s.id: {**s._asdict(), "max_attempts": s.max_attempts if isinstance(s.max_attempts, int) else None}
            for s in samples
        })
        return len(samples)

    statuses = ("ready", "running", "failed", "done", "cancelled")
    return Harness(backend, put, statuses, clock, backend.references, lambda: repr(backend.rows))


NO_RETRY = PolicyOverride(retryable=False, stuck_after=timedelta(hours=1), unrecoverable=("\udcff",))

BACKENDS: dict[str, Callable[[Place], Harness]] = {
    "memory": memory,
    "async_tasks": lambda place: files.async_harness(place()),
    "async_tasks-no-index": lambda place: files.async_harness(place(), files.UNINDEXED),
    "async_tasks-without-rowid": lambda place: files.async_harness(place(), files.WITHOUT_ROWID, PolicyOverride()),
    "async_tasks-not-retryable": lambda place: files.async_harness(place(), files.UNCHECKED, NO_RETRY, read_only=True),
    "tasks": lambda place: files.tasks_harness(place()),
}


def places_in(folder: Path) -> Place:
    places = iter(range(100))

    def place() -> Path:
        own = folder / str(next(places))
        own.mkdir()
        return own / "queue.db"

    return place


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_keeps_its_promise(backend: str, promise: str, tmp_path: Path) -> None:
    place = places_in(tmp_path)
    exercise_backend(lambda: BACKENDS[backend](place), promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
@pytest.mark.parametrize("backend", ["async_tasks", "async_tasks-no-index", "async_tasks-without-rowid", "tasks"])
def test_a_backend_that_hands_items_back_keeps_its_promise(backend: str, promise: str, tmp_path: Path) -> None:
    place = places_in(tmp_path)
    exercise_requeue(lambda: BACKENDS[backend](place), promise)
