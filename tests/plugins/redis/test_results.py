"""The result of an override equals what the handlers of RQ's and BullMQ's own workers counted, item by item; for Sidekiq
a worker does what its source says.

Each handler notes how it will end before it does: success, one of two errors, or the death of its worker. Half of the
jobs vanish when they succeed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from rq import Queue
from rq.job import Job
from rq.registry import StartedJobRegistry

from console.core import recovery
from console.core.item import ItemKey
from console.core.query import Filter
from console.core.recovery import ItemResult, Result
from console.core.watch import OverrideWatch
from tests.depth import in_depth
from tests.faults.systems.redis_queues import BullMq, Rq, Sidekiq
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.operating import Operator, operating
from tests.plugins.redis import rq_app
from tests.plugins.redis.bullmq_store import open_bullmq
from tests.plugins.redis.node import Bull
from tests.plugins.redis.rq_app import OUTCOMES
from tests.plugins.redis.rq_store import open_rq
from tests.plugins.redis.sidekiq_store import open_sidekiq, ruby

SIZES = in_depth([60, 1_000], quick=[60])
FAILED = Filter.parse("condition:terminal")


@pytest.fixture(autouse=True)
def no_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished job that its system has deleted must be missing for a while; a test has no minute."""
    monkeypatch.setattr(recovery, "GONE_FOR", recovery.GONE_FOR / 60)


@pytest.fixture
def client(url: str) -> Iterator[redis.Redis]:
    found = redis.Redis.from_url(url, protocol=2)
    yield found
    found.close()


def until(happened: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def handled(client: redis.Redis) -> dict[str, str]:
    """How the last execution of each job has ended, by its handler."""
    return dict(line.decode().split(" ") for line in client.lrange(OUTCOMES, 0, -1))


def seen(watch: OverrideWatch) -> dict[str, ItemResult]:
    return {ItemKey.parse(one.key).parts[-1]: one for batch in watch.items() for one in batch}


def started(ann: Operator, items: int) -> OverrideWatch:
    plan = ann.plan(FAILED)
    override = ann.apply(plan)
    assert ann.outcomes(override) == {("applied", ""): items}
    watch = ann.operations.watch(override.override_id)
    watch.look(asked=True)
    assert {one.result for one in seen(watch).values()} == {Result.NOT_RUN_YET}
    return watch


def taken_back(ann: Operator, *parts: tuple[str, ...]) -> None:
    """Some jobs are requeued and then undone by somebody else, before a worker has come: that was no execution."""
    override = ann.requeue(*parts)
    ann.apply(ann.operations.undo(override.override_id))
    watch = ann.operations.watch(override.override_id)
    watch.look(asked=True)
    assert watch.progress.counts.record() == {**dict.fromkeys(Result, 0), Result.CHANGED_BY_OTHERS: len(parts)}


def check(watch: OverrideWatch, expected: dict[str, Result], oracle: dict[str, str]) -> None:
    """Every item has the result that its handler has counted; those that failed have the two causes of the handler."""
    until(lambda: not watch.look(asked=True).open, "an item is open")
    found = seen(watch)
    assert {id: one.result for id, one in found.items() if one.result is not expected[id]} == {}
    assert found.keys() == expected.keys()
    causes = [{found[id].cause for id, kind in oracle.items() if kind == failed} for failed in ("timeout", "declined")]
    assert [len(some) for some in causes] == [1, 1]
    assert causes[0] != causes[1]


RESULTS = {"done": Result.RECOVERED, "timeout": Result.FAILED_AGAIN, "declined": Result.FAILED_AGAIN}


@pytest.mark.parametrize("items", SIZES)
def test_rq(url: str, client: redis.Redis, tmp_path: Path, items: int) -> None:
    ids = [f"t{n:06d}" for n in range(items)]
    Rq.prepare(client, ids, "tests.plugins.redis.rq_app.decide")
    for id in ids[::2]:
        client.hset(f"rq:job:{id}", "result_ttl", "0")
    with operating(open_rq(url), tmp_path) as ann:
        taken_back(ann, *((id,) for id in ids[1::9]))
        watch = started(ann, items)
        cancelled = ids[::30]
        for id in cancelled:
            Job.fetch(id, client).cancel()
        subprocess.run([sys.executable, "-m", "tests.plugins.redis.rq_app", url], check=True, timeout=PATIENCE)
        oracle = handled(client)
        assert oracle.keys() == set(ids) - set(cancelled)
        assert set(oracle.values()) == {"done", "timeout", "declined", "died"}
        dead = {id for id, kind in oracle.items() if kind == "died"}
        watch.look(asked=True)
        assert {id for id, one in seen(watch).items() if one.result is Result.RUNNING} == dead
        StartedJobRegistry(queue=Queue(connection=client)).cleanup(timestamp=time.time() + 86_400)  # as RQ does later
        expected = {id: RESULTS.get(kind, Result.FAILED_AGAIN) for id, kind in oracle.items()}
        check(watch, expected | dict.fromkeys(cancelled, Result.CHANGED_BY_OTHERS), oracle)
        assert not client.exists("rq:job:t000002"), "a job without a lifetime vanishes when it has succeeded"


@pytest.mark.parametrize("items", SIZES)
def test_bullmq(url: str, client: redis.Redis, tmp_path: Path, items: int) -> None:
    bull = Bull(url)
    ids = [f"t{n:06d}" for n in range(items)]
    BullMq.prepare(client, ids)
    for id in ids[::2]:
        client.hset(f"bull:mail:{id}", "opts", json.dumps({"attempts": 1, "removeOnComplete": True}))
    with operating(open_bullmq(url), tmp_path) as ann:
        taken_back(ann, *(("mail", id) for id in ids[1::9]))
        watch = started(ann, items)
        deaths = 0
        while bull.is_killed("decide"):
            deaths += 1
        oracle = handled(client)
        assert oracle.keys() == set(ids)
        assert set(oracle.values()) == {"done", "timeout", "declined"}
        assert deaths == len(ids[15::30]), "each of them has killed its worker once, and was then run again"
        check(watch, {id: RESULTS[kind] for id, kind in oracle.items()}, oracle)
        assert client.exists("bull:mail:t000002") == 0, "half of the jobs vanish"


@pytest.mark.parametrize("items", SIZES)
def test_sidekiq(url: str, client: redis.Redis, tmp_path: Path, items: int) -> None:
    ids = [f"t{n:06d}" for n in range(items)]
    Sidekiq.prepare(client, ids)
    with operating(open_sidekiq(url), tmp_path) as ann:
        taken_back(ann, *((id,) for id in ids[1::9]))
        watch = started(ann, items)
        processes = ("host:1:lives", "host:2:dies")
        for process in processes:
            client.sadd("processes", process)
            client.hset(process, "info", json.dumps({"queues": ["default"]}))
        for n in range(items):
            job = json.loads(client.rpop("queue:default"))
            id, kind = job["jid"], rq_app.outcome_of(job["jid"])
            client.rpush(OUTCOMES, f"{id} {kind}")
            if kind == "died" or n % 10 == 0:
                work = {"queue": "default", "payload": ruby(job).decode(), "run_at": int(time.time())}
                client.hset(f"{processes[kind == 'died']}:work", id, json.dumps(work))
            if kind in ("timeout", "declined"):
                error = {"error_class": "Error", "error_message": rq_app.ERRORS[kind], "retried_at": int(time.time() * 1000)}
                client.zadd("dead" if n % 2 else "retry", {ruby(job | error): time.time() + 60})
        oracle = handled(client)
        assert oracle.keys() == set(ids)
        dead = {id for id, kind in oracle.items() if kind == "died"}
        until(lambda: watch.look(asked=True).counts.counts[Result.RUNNING] > len(dead), "they are not shown as running")
        assert dead < {id for id, one in seen(watch).items() if one.result is Result.RUNNING}
        client.delete("host:1:lives:work", "host:2:dies:work", "host:2:dies")  # the first one is idle, the other one expires
        settled = [id for id in ids if id not in dead]
        until(lambda: watch.look(asked=True).open == len(dead), "an item is open")
        found = seen(watch)
        assert {id for id, one in found.items() if one.result is Result.NOT_KNOWN} == dead, "Sidekiq loses them, and keeps no trace"
        assert {id: found[id].result for id in settled} == {id: RESULTS[oracle[id]] for id in settled}
        pushed_back = ruby({"jid": min(dead), "class": "Job", "queue": "default", "args": []})
        client.lpush("queue:default", pushed_back)
        watch.look(asked=True)
        assert seen(watch)[min(dead)].result is Result.NOT_RUN_YET, "super_fetch found it"
