"""Holds the plugin to the contract: `python -m pytest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from my_queue import PHASES, MemoryQueue

from console.core.item import ItemKey
from console.core.policy import RetryPolicy
from console.testing import (
    DISCARD_PROMISES,
    PROMISES,
    REQUEUE_PROMISES,
    FrozenClock,
    Harness,
    Sample,
    Store,
    exercise_backend,
    exercise_discard,
    exercise_requeue,
)

POLICY = RetryPolicy(
    3, stuck_after=timedelta(minutes=6), max_age=timedelta(days=300), unrecoverable=("invalid json",)
)


def make(kind: type[MemoryQueue] = MemoryQueue) -> Harness:
    """An open backend on an empty store, and the ways to fill and change that store behind its back."""
    rows: dict[str, dict[str, Any]] = {}
    clock = FrozenClock()
    backend = kind("memory", rows, POLICY, clock)

    def put(samples: Sequence[Sample]) -> int:
        rows.update({sample.id: {**sample._asdict(), "payload": "payload 4711"} for sample in samples})
        return len(samples)

    def stored() -> Mapping[ItemKey, object]:
        return {ItemKey("memory", (id,)): dict(row) for id, row in rows.items()}

    def execute(key: ItemKey, error: str | None) -> None:
        row = rows[key.parts[0]]
        attempts = row["attempts"] if isinstance(row["attempts"], int) else 0
        status = "done" if error is None else "failed"
        row.update(status=status, error=error, attempts=max(attempts, 0) + 1, updated=clock.now())

    store = Store(
        rows=stored,
        touch=lambda key: rows[key.parts[0]].update(status="running", updated=None),
        remove=lambda key: rows.pop(key.parts[0], None),
        read_only=lambda: kind("memory", rows, POLICY, clock, read_only=True),
        payload="payload 4711",
        execute=execute,
        takes=lambda key: rows.get(key.parts[0], {}).get("status") == "ready",
    )
    return Harness(backend, put, tuple(PHASES), clock, backend.references, lambda: repr(rows), store)


@pytest.mark.parametrize("promise", PROMISES)
def test_reading(promise: str) -> None:
    exercise_backend(make, promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_requeue(promise: str) -> None:
    exercise_requeue(make, promise)


@pytest.mark.parametrize("promise", DISCARD_PROMISES)
def test_discard(promise: str) -> None:
    exercise_discard(make, promise)
