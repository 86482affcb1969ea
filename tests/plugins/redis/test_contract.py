"""The contract suites, over queues in a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
from tests.plugins.redis.bullmq_store import BullStore
from tests.plugins.redis.rq_store import RqStore
from tests.plugins.redis.sidekiq_store import SidekiqStore
from tests.redis_store import Server

STRICT = PolicyOverride(unrecoverable=("invalid json", "invalid api key", "É"))

VARIANTS: dict[str, Callable[[str], Harness]] = {
    "rq": lambda url: RqStore(url).harness(),
    "rq-read-only": lambda url: RqStore(url, STRICT, read_only=True).harness(),
    "sidekiq": lambda url: SidekiqStore(url, STRICT).harness(),
    "bullmq": lambda url: BullStore(url, STRICT, prefix="{bull}").harness(),
}


@pytest.fixture(scope="module", params=in_depth(VARIANTS, quick=["rq", "sidekiq", "bullmq"]))
def reading(request: pytest.FixtureRequest, server: Server, thorough: bool) -> Iterator[BackendSuite]:
    with BackendSuite(lambda: VARIANTS[request.param](server.database()), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=[name for name in VARIANTS if not name.endswith("read-only")])
def requeue(request: pytest.FixtureRequest, server: Server, thorough: bool) -> Iterator[RequeueSuite]:
    with RequeueSuite(lambda: VARIANTS[request.param](server.database()), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=[name for name in VARIANTS if not name.endswith("read-only")])
def discard(request: pytest.FixtureRequest, server: Server, thorough: bool) -> Iterator[DiscardSuite]:
    with DiscardSuite(lambda: VARIANTS[request.param](server.database()), thorough=thorough) as suite:
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
