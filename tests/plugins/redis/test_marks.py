"""The mark of a write: what it proves after a crash, and when it proves nothing any more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import redis

from console.core.backend import APPLIED, Authority, Change, Operation
from console.core.item import ItemKey
from console.keyed.marks import MARK_LIFE
from plugins.rq import RqQueues
from tests.faults.systems.redis_queues import Rq
from tests.plugins.redis.rq_store import open_rq

LATE = MARK_LIFE + timedelta(seconds=1)


@pytest.fixture
def queue(url: str) -> Iterator[RqQueues]:
    with redis.Redis.from_url(url, protocol=2) as client:
        Rq.prepare(client, ["one"])
    backend = open_rq(url)
    yield backend
    backend.close()


def change(queue: RqQueues) -> Change:
    key = ItemKey("jobs", ("one",))
    (image,) = queue.images([Change("one", (key,), (), ())])
    assert image is not None
    before = Change("one", (key,), image, ())
    return before._replace(after=queue.after(before, Operation(), queue.now(), None))


@pytest.mark.parametrize(("age", "written", "expired", "proof"), [
    (timedelta(0), True, False, True),
    (timedelta(0), False, False, False),
    (LATE, True, False, True),
    (LATE, True, True, None),
    (LATE, False, False, None),
])
def test_a_mark_that_may_have_expired_proves_nothing(
    queue: RqQueues, url: str, age: timedelta, written: bool, expired: bool, proof: bool | None
) -> None:
    at, one = queue.now() - age, change(queue)
    if written:
        assert queue.compare_and_set([one], Operation(), Authority("ann", "", "", "o1", at=at)) == [APPLIED]
    if expired:
        with redis.Redis.from_url(url, protocol=2) as client:
            client.delete(*client.keys("retriage:*"))
    assert_proof(queue, url, one, at, proof)


def test_a_mark_that_the_server_may_evict_proves_nothing_by_its_absence(queue: RqQueues, url: str) -> None:
    at, one = queue.now(), change(queue)
    with redis.Redis.from_url(url, protocol=2) as client:
        before = client.config_get("maxmemory-policy")["maxmemory-policy"]
        client.config_set("maxmemory-policy", "volatile-lru")
        try:
            assert_proof(queue, url, one, at, None)
        finally:
            client.config_set("maxmemory-policy", before)


def assert_proof(queue: RqQueues, url: str, one: Change, at: datetime, proof: bool | None) -> None:
    assert queue.were_written([one], at, "o1") == [proof]
    assert queue.were_written([one], at, "o1") == [proof], "asked again"
    watching = open_rq(url, read_only=True)
    assert watching.were_written([one], at, "o1") == [proof]
    watching.close()
