"""The contract's promises over workflow steps, in PostgreSQL and in SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
from tests.plugins.workflow_steps.world import harness, postgres_workflow, sqlite_workflow

MORE = PolicyOverride(max_attempts=5, unrecoverable=("invalid json", "É"), stuck_after=timedelta(hours=1))


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def reading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[BackendSuite]:
    folder = tmp_path_factory.mktemp("steps")
    with ExitStack() as stack, BackendSuite(maker(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def requeue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[RequeueSuite]:
    folder = tmp_path_factory.mktemp("steps")
    with ExitStack() as stack, RequeueSuite(maker(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=in_depth(["postgres", "sqlite"], quick=["sqlite"]))
def discard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[DiscardSuite]:
    folder = tmp_path_factory.mktemp("steps")
    with ExitStack() as stack, DiscardSuite(maker(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.mark.parametrize("promise", PROMISES)
def test_workflow_steps_keep_their_promise(reading: BackendSuite, promise: str) -> None:
    reading.check(promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_steps_are_reset_as_promised(requeue: RequeueSuite, promise: str) -> None:
    requeue.check(promise)


@pytest.mark.parametrize("promise", DISCARD_PROMISES)
def test_discards_as_promised(discard: DiscardSuite, promise: str) -> None:
    discard.check(promise)


def maker(kind: str, folder: Path, stack: ExitStack) -> Callable[[], Harness]:
    files = (folder / f"{number}.db" for number in range(100))

    def make() -> Harness:
        if kind == "sqlite":
            return harness(stack.enter_context(sqlite_workflow(next(files))))
        return harness(stack.enter_context(postgres_workflow()), MORE)

    return make
