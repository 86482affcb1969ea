"""The results that Celery itself has stored, and the contract of reading."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pytest
import redis
from celery import Celery, states
from celery.app.task import Context

from console.core.backend import PageRequest, Requeues
from console.core.item import Condition, ItemKey
from console.core.query import Filter
from console.testing import PROMISES, BackendSuite, FrozenClock, Harness, Sample
from plugins.celery import CeleryResults
from plugins.celery.backend import Options
from plugins.celery.tasks import CONDITIONS
from tests.plugins.redis.rq_store import OWN, raw
from tests.redis_store import Server, contents


def open_celery(url: str) -> CeleryResults:
    return CeleryResults.open("jobs", Options(url=url), OWN, read_only=False, deadline=timedelta(seconds=20))


def harness(url: str) -> Harness:
    client = redis.Redis.from_url(url, protocol=2)

    def put(samples: Sequence[Sample]) -> int:
        for sample in samples:
            done = sample.updated.isoformat() if isinstance(sample.updated, datetime) else sample.updated
            result = {"status": sample.status, "result": None, "traceback": sample.error, "date_done": done, "name": sample.type,
                      "retries": sample.attempts, "task_id": sample.id, "queue": sample.reference}
            client.set(b"celery-task-meta-" + raw(sample.id), json.dumps(result))
        return len(samples)

    def references(item: object) -> Sequence[str]:
        found = json.loads(client.get(b"celery-task-meta-" + raw(item.key.parts[0])) or b"{}")  # type: ignore[attr-defined]
        return (found.get("name") or "", found.get("queue") or "")

    return Harness(open_celery(url), put, tuple(CONDITIONS), FrozenClock(), references, lambda: contents(client))


@pytest.fixture(scope="module")
def reading(server: Server) -> Iterator[BackendSuite]:
    with BackendSuite(lambda: harness(server.database())) as suite:
        yield suite


@pytest.mark.parametrize("promise", PROMISES)
def test_keeps_its_promise(reading: BackendSuite, promise: str) -> None:
    reading.check(promise)


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's own
@pytest.mark.parametrize("extended", [False, True])
def test_every_result_reads_as_celery_reports_it(url: str, extended: bool) -> None:
    path, _, db = url.removeprefix("unix://").partition("?db=")
    app = Celery("shop", backend=f"redis+socket://{path}?virtual_host={db}")
    app.conf.update(result_extended=extended, result_expires=3600)

    request = Context(task="shop.mail", args=[1], kwargs={"secret": 2}, hostname="w1", retries=2, delivery_info={"routing_key": "mail"})
    for n in range(50):
        backend = app.backend
        backend.mark_as_done(f"done-{n}", n, request=request)
        backend.mark_as_failure(f"failed-{n}", ValueError(f"upstream said 503 for {n}"), traceback=f"Traceback …\nValueError: {n}", request=request)
        backend.mark_as_retry(f"retry-{n}", KeyError(n), traceback="Traceback …", request=request)
        backend.store_result(f"started-{n}", {"pid": 1}, states.STARTED, request=request)
        backend.mark_as_revoked(f"revoked-{n}", "revoked", request=request)
    opened = open_celery(url)
    now = opened.now()
    found = {item.key.id: item for item in opened.page(PageRequest(Filter.parse("condition:*"), now, limit=1000)).items}
    assert len(found) == 250
    disagreements = []
    for id, item in found.items():
        result = app.AsyncResult(id)
        said = (item.native_status, item.error, item.type, item.updated_at.replace(tzinfo=None) if item.updated_at else None)
        failed = result.status in (states.FAILURE, states.RETRY)
        at = result.date_done
        at = datetime.fromisoformat(at) if isinstance(at, str) else at
        expected = (result.status, result.traceback if failed else None, result.name or "", at.replace(tzinfo=None) if at else None)
        if said != expected:
            disagreements.append((id, said, expected))
    assert not disagreements, disagreements[:2]
    assert Counter(item.condition for item in found.values()) == dict.fromkeys(
        (Condition.DONE, Condition.TERMINAL, Condition.RETRYING, Condition.RUNNING, Condition.CANCELLED), 50
    )
    failed = found["failed-7"]
    assert failed.expires_at is not None
    assert timedelta(minutes=58) < failed.expires_at - now <= timedelta(hours=1)
    assert failed.attempts == (3 if extended else 1)
    assert found["retry-1"].verdict.will_run_again is None
    assert "secret" not in str(opened.item(ItemKey("jobs", ("failed-7",)), now).native)


def test_it_cannot_change_anything(url: str) -> None:
    assert not isinstance(open_celery(url), Requeues)
