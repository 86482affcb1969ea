"""The contract suites, over folders of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
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
from tests.plugins.file_queue import folders

STRICT = PolicyOverride(unrecoverable=("invalid json", "invalid api key", "É"), max_age=timedelta(days=300))
ONE_SHOT = PolicyOverride(retryable=False, stuck_after=timedelta(minutes=5))

VARIANTS: dict[str, Callable[[Path], Harness]] = {
    "own-policy": folders.harness,
    "strict": lambda base: folders.harness(base, STRICT),
    "read-only": lambda base: folders.harness(base, ONE_SHOT, read_only=True),
}


@pytest.fixture(scope="module", params=VARIANTS)
def reading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[BackendSuite]:
    folder, numbers = tmp_path_factory.mktemp("queue"), count()
    with BackendSuite(lambda: VARIANTS[request.param](folder / str(next(numbers))), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=[name for name in VARIANTS if name != "read-only"])
def requeue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[RequeueSuite]:
    folder, numbers = tmp_path_factory.mktemp("queue"), count()
    with RequeueSuite(lambda: VARIANTS[request.param](folder / str(next(numbers))), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module")
def discard(tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[DiscardSuite]:
    folder, numbers = tmp_path_factory.mktemp("queue"), count()
    with DiscardSuite(lambda: folders.harness(folder / str(next(numbers))), thorough=thorough) as suite:
        yield suite


@pytest.mark.parametrize("promise", PROMISES)
def test_keeps_its_promise(reading: BackendSuite, promise: str) -> None:
    reading.check(promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_requeues_as_promised(requeue: RequeueSuite, promise: str) -> None:
    requeue.check(promise)


@pytest.mark.parametrize("promise", DISCARD_PROMISES)
def test_discards_as_promised(discard: DiscardSuite, promise: str) -> None:
    discard.check(promise)
