"""One suite, every backend: what the contract promises holds for each of them, on real stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride
from console.testing import (
    DISCARD_PROMISES,
    PROMISES,
    REQUEUE_PROMISES,
    BackendSuite,
    DiscardSuite,
    Harness,
    RequeueSuite,
)
from tests.depth import in_depth
from tests.plugins.sqlite_queue import queue_files as files

Place = Callable[[], Path]


NO_INDEX = "async_tasks-no-index"
"""It answers as the one with an index does, so it is left to the campaigns."""
NO_RETRY = PolicyOverride(retryable=False, stuck_after=timedelta(hours=1), unrecoverable=("\udcff",))

BACKENDS: dict[str, Callable[[Place], Harness]] = {
    "async_tasks": lambda place: files.async_harness(place()),
    NO_INDEX: lambda place: files.async_harness(place(), files.UNINDEXED),
    "async_tasks-without-rowid": lambda place: files.async_harness(place(), files.WITHOUT_ROWID, PolicyOverride()),
    "async_tasks-not-retryable": lambda place: files.async_harness(place(), files.UNCHECKED, NO_RETRY, read_only=True),
    "tasks": lambda place: files.tasks_harness(place()),
}
CHANGEABLE = ["async_tasks", NO_INDEX, "async_tasks-without-rowid", "tasks"]


def places_in(folder: Path) -> Place:
    places = iter(range(100))

    def place() -> Path:
        own = folder / str(next(places))
        own.mkdir()
        return own / "queue.db"

    return place


@pytest.fixture(scope="module", params=in_depth(BACKENDS, [name for name in BACKENDS if name != NO_INDEX]))
def reading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[BackendSuite]:
    place = places_in(tmp_path_factory.mktemp("reading"))
    with BackendSuite(lambda: BACKENDS[request.param](place), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=in_depth(CHANGEABLE, [name for name in CHANGEABLE if name != NO_INDEX]))
def requeue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[RequeueSuite]:
    place = places_in(tmp_path_factory.mktemp("requeue"))
    with RequeueSuite(lambda: BACKENDS[request.param](place), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=["async_tasks", "tasks"])
def discard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[DiscardSuite]:
    place = places_in(tmp_path_factory.mktemp("discard"))
    with DiscardSuite(lambda: BACKENDS[request.param](place), thorough=thorough) as suite:
        yield suite


@pytest.mark.parametrize("promise", PROMISES)
def test_a_backend_keeps_its_promise(reading: BackendSuite, promise: str) -> None:
    reading.check(promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_a_backend_requeues_as_promised(requeue: RequeueSuite, promise: str) -> None:
    requeue.check(promise)


@pytest.mark.parametrize("promise", DISCARD_PROMISES)
def test_a_backend_discards_as_promised(discard: DiscardSuite, promise: str) -> None:
    discard.check(promise)
