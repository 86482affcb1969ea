"""Predictions: over many jobs in all states, RQ's own worker runs what was predicted to run, and nothing else."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis
from rq import Queue, Retry, SimpleWorker
from rq.scheduler import RQScheduler

from console.core.backend import PageRequest
from console.core.item import Condition, Item
from console.core.query import Filter
from plugins.bullmq.prediction import predict as predict_bullmq
from plugins.rq import RqQueues
from plugins.rq.prediction import QueueState, predict
from plugins.sidekiq.prediction import predict as predict_sidekiq
from tests.depth import in_depth
from tests.plugins.redis import rq_app
from tests.plugins.redis.rq_store import open_rq
from tests.plugins.redis.sidekiq_store import open_sidekiq
from tests.plugins.redis.test_rq_library import burst, change, executions, items
from tests.promises import Record

DAY = 86_400
NO_PROCESS = "No Sidekiq process takes jobs from queue 'mail' now; it runs once one does."
NOBODY = "No worker listens to queue 'mail' now; it runs once one does."


@pytest.fixture
def client(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    monkeypatch.setenv("TEST_REDIS", url)
    with redis.Redis.from_url(url) as found:
        yield found


@pytest.fixture
def backend(url: str) -> Iterator[RqQueues]:
    opened = open_rq(url)
    yield opened
    opened.close()


def jobs_in_all_states(client: redis.Redis, number: int) -> None:
    """`mail` has jobs and no worker."""
    queue, mail = Queue(connection=client), Queue("mail", connection=client)
    for name, retry in (("failed", None), ("retrying", Retry(max=3, interval=[600, 1200, 2400]))):
        queue.enqueue_many([Queue.prepare_data(rq_app.work, (f"{name}-{n}",), job_id=f"{name}-{n}", retry=retry) for n in range(number)])
    client.set("test:broken", 1)
    burst(client)
    client.delete("test:broken")
    queue.enqueue_many([Queue.prepare_data(rq_app.work, (f"done-{n}",), job_id=f"done-{n}", result_ttl=-1) for n in range(number)])
    burst(client)
    for n in range(number):
        queue.enqueue(rq_app.work, f"waiting-{n}", job_id=f"waiting-{n}")
        mail.enqueue(rq_app.work, f"mail-{n}", job_id=f"mail-{n}")
        queue.enqueue_in(timedelta(hours=1 + n % 20), rq_app.work, f"later-{n}", job_id=f"later-{n}")
        mail.enqueue_in(timedelta(hours=1), rq_app.work, f"later-mail-{n}", job_id=f"later-mail-{n}")
        queue.enqueue(rq_app.work, f"cancelled-{n}", job_id=f"cancelled-{n}").cancel()
    client.delete(rq_app.EXECUTIONS)


def live(client: redis.Redis, worker: SimpleWorker, scheduler: RQScheduler) -> set[str]:
    """A day of a worker and a scheduler: all that is due within it is brought forward by a day."""
    for name in ("default", "mail"):
        for id, score in client.zrange(f"rq:scheduled:{name}", 0, -1, withscores=True):
            client.zadd(f"rq:scheduled:{name}", {id: score - DAY})
    scheduler.prepare_registries()
    scheduler.enqueue_scheduled_jobs()
    worker.register_death()
    worker.work(burst=True, logging_level="ERROR")
    return set(executions(client))


def expected(client: redis.Redis) -> set[str]:
    """By RQ's own description: what is in the queue of the worker, or due within the day in that of the scheduler."""
    end = int(client.time()[0]) + DAY
    listed = [*client.lrange("rq:queue:default", 0, -1), *client.zrangebyscore("rq:scheduled:default", "-inf", end)]
    return {id.decode() for id in listed}


@pytest.mark.parametrize("number", in_depth([15, 400], quick=[15]))
def test_what_is_predicted_to_run_is_run_by_rq_and_nothing_else(
    client: redis.Redis, backend: RqQueues, number: int, promises: Record
) -> None:
    jobs_in_all_states(client, number)
    worker = SimpleWorker([Queue(connection=client)], connection=client)
    worker.register_birth()
    scheduler = RQScheduler([Queue(connection=client)], client)
    scheduler.acquire_locks()
    chosen = random.Random(number).sample([f"{name}-{n}" for name in ("failed", "retrying") for n in range(number)], number)
    changes, outcomes = change(backend, chosen)
    assert len(changes) == len(outcomes) == number
    shown: dict[str, Item] = items(backend)
    model = expected(client)
    predicted = {id: item.verdict.will_run_again for id, item in shown.items()}
    ran = live(client, worker, scheduler)
    promises("RQ, by its own worker", predicted, ran)
    assert ran == model
    assert set(chosen) <= ran
    assert len(shown) == 8 * number
    unknown = {id for id, will in predicted.items() if will is None}
    assert unknown == {id for id in shown if "mail" in id}, "whoever listens to their queue later decides"
    assert {shown[id].verdict.why for id in unknown if shown[id].condition is Condition.WAITING} == {
        NOBODY, "no RQ scheduler is running for queue mail; start a worker with a scheduler"
    }


def test_a_worker_that_was_killed_takes_nothing(client: redis.Redis, backend: RqQueues) -> None:
    """Its name stays in the set of its queue until another worker removes it."""
    Queue("mail", connection=client).enqueue(rq_app.work, "a", job_id="a")
    worker = SimpleWorker([Queue("mail", connection=client)], connection=client)
    worker.register_birth()
    client.delete(worker.key)
    assert client.scard("rq:workers:mail") == 1
    assert items(backend)["a"].verdict[1:4] == (NOBODY, None, None)


@pytest.mark.parametrize(("place", "state", "runs"), [
    ("queue", QueueState("q", workers=1), True), ("queue", QueueState("q"), None),
    ("queue", QueueState("q", workers=1, suspended=True), None), ("scheduled", QueueState("q", workers=1), None),
    ("failed", QueueState("q", workers=1), False), ("deferred", QueueState("q", workers=1), None),
])
def test_what_decides(place: str, state: QueueState, runs: bool | None) -> None:
    found = predict(place, state)
    assert found.runs is runs
    assert bool(found.why) is (runs is not True)


# --- Sidekiq and BullMQ -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queues", "why"), [
    (["default"], {"default": "not run yet, it is in the queue", "mail": NO_PROCESS}),
    ([], dict.fromkeys(("default", "mail"), "no Sidekiq process is running")),
])
def test_a_job_in_a_queue_that_no_process_serves_is_not_promised(
    client: redis.Redis, url: str, queues: list[str], why: dict[str, str]
) -> None:
    for queue in ("default", "mail"):
        client.sadd("queues", queue)
        job = {"class": "MailJob", "args": [], "queue": queue}
        client.lpush(f"queue:{queue}", json.dumps({**job, "jid": f"in-{queue}", "enqueued_at": time.time()}))
        client.zadd("retry", {json.dumps({**job, "jid": f"retry-{queue}", "retry_count": 0}): time.time() + 600})
    if queues:
        client.sadd("processes", "host:1:a")
        client.hset("host:1:a", "info", json.dumps({"queues": queues}))
    backend = open_sidekiq(url)
    found = backend.page(PageRequest(Filter.parse("condition:*"), backend.now(), limit=10)).items
    backend.close()
    verdicts = {item.key.id: item.verdict for item in found}
    assert {id: verdict.will_run_again for id, verdict in verdicts.items()} == {
        f"{place}-{queue}": True if queue in queues else None for place in ("in", "retry") for queue in why
    }
    assert {queue: verdicts[f"in-{queue}"].why for queue in why} == why
    assert all(verdict.next_retry_at for id, verdict in verdicts.items() if id.startswith("retry"))


def test_what_decides_elsewhere() -> None:
    assert [predict_sidekiq(place, "q", {"q"}).runs for place in ("queue", "retry", "schedule", "dead", "work")] == [
        True, True, True, False, False
    ]
    for paused in (True, False):
        assert [predict_bullmq(place, "q", paused=paused).runs for place in ("wait", "delayed", "prioritized")] == [
            None if paused else True
        ] * 3
        assert [predict_bullmq(place, "q", paused=paused).runs for place in ("failed", "completed", "waiting-children")] == [
            False, False, None
        ]
