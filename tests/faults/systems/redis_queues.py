"""RQ, Sidekiq and BullMQ on a Redis of their own. The oracle is what workers took: every take is noted in a list, and
each requeue leads to exactly one take, or is still in the queue."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, ClassVar

import redis
from rq import Queue, SimpleWorker
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry

from console.core.backend import Requeues
from console.core.policy import PolicyOverride
from console.core.ports import Clock, Stop
from console.demo.redis_server import running
from tests.faults.systems import System
from tests.plugins.redis import rq_app
from tests.plugins.redis.bullmq_store import open_bullmq
from tests.plugins.redis.node import Bull
from tests.plugins.redis.rq_store import Options, RqQueues
from tests.plugins.redis.sidekiq_store import open_sidekiq, ruby
from tests.redis_store import server_program

TAKEN, NOTES = rq_app.EXECUTIONS, "test:notes"


class RedisSystem(System):
    """A queue on a server that ends with the test."""

    name = "jobs"
    places: Mapping[str, str]
    """Where a job can be, and what kind of key that is."""
    queue: str

    def create(self, items: int) -> list[str]:
        program = server_program()
        assert program is not None
        self._stack = ExitStack()
        url, _ = self._stack.enter_context(running(program))
        (self.folder / "url").write_text(url)
        ids = [f"t{n:06d}" for n in range(items)]
        self.fill(ids)
        self.forget()
        return [self.key(id) for id in ids]

    @property
    def url(self) -> str:
        return f"{(self.folder / 'url').read_text()}?db=0"

    @property
    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, protocol=2)

    def key(self, id: str) -> str:
        return id

    @abstractmethod
    def fill(self, ids: list[str]) -> None: ...

    @abstractmethod
    def id_of(self, member: bytes) -> str: ...

    def where(self) -> list[tuple[str, str, bytes]]:
        """Every place in which a job is."""
        with self.client as client:
            found = []
            for place, kind in self.places.items():
                members = client.zrange(place, 0, -1) if kind == "zset" else client.lrange(place, 0, -1)
                found += [(self.key(self.id_of(member)), place, member) for member in members]
            return found

    def present(self) -> set[str]:
        return {id for id, times in Counter(id for id, _, _ in self.where()).items() if times == 1}

    def requeued(self) -> Counter[str]:
        with self.client as client:
            first = int((self.folder / "seen").read_text())
            taken = [line.decode().partition(" ")[0] for line in client.lrange(TAKEN, first, -1)]
        waiting = [id for id, place, _ in self.where() if place in self.queue.split()]
        return Counter([*map(self.key, taken), *waiting])

    def touched(self) -> set[str]:
        before, now = pickle.loads((self.folder / "before").read_bytes()), self._jobs()
        return {id for id in before.keys() | now.keys() if before.get(id) != now.get(id)}

    def _jobs(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for id, place, member in self.where():
            found.setdefault(id, []).append((place, member))
        return found

    def forget(self) -> None:
        with self.client as client:
            (self.folder / "seen").write_text(str(client.llen(TAKEN)))
        (self.folder / "before").write_bytes(pickle.dumps(self._jobs()))

    def taken(self) -> bool:
        with self.client as client:
            return client.llen(TAKEN) > 0

    def notes(self) -> Counter[str]:
        with self.client as client:
            return Counter(self.key(name.decode()) for name in client.lrange(NOTES, 0, -1))

    def drop(self) -> None:
        self._stack.close()


class _Worker(SimpleWorker):
    """RQ's own, which leaves the signals to the test."""

    def _install_signal_handlers(self) -> None:
        pass


class Rq(RedisSystem):
    """RQ, with its own workers and its own requeue as the naive script."""

    places: ClassVar = {"rq:failed:default": "zset", "rq:finished:default": "zset", "rq:queue:default": "list", "rq:canceled:default": "zset"}
    queue = "rq:queue:default"

    def fill(self, ids: list[str]) -> None:
        with self.client as client:
            self.prepare(client, ids)

    @staticmethod
    def prepare(client: redis.Redis, ids: list[str], function: str = "tests.faults.systems.redis_queues.perform") -> None:
        """Jobs that have failed."""
        queue = Queue(connection=client)
        queue.enqueue_many([Queue.prepare_data(function, (id,), job_id=id) for id in ids])
        client.delete(queue.key)
        pipeline = client.pipeline(transaction=False)
        for n, job in enumerate(Job.fetch_many(ids, client)):
            assert job is not None
            job.set_status(JobStatus.FAILED, pipeline=pipeline)
            pipeline.hset(job.key, mapping={"started_at": "2026-11-10T12:00:00.000000Z", "ended_at": f"2026-11-10T12:00:01.{n:06d}Z"})
            pipeline.zadd("rq:failed:default", {job.id: 4_000_000_000 + n})
        pipeline.execute()

    def id_of(self, member: bytes) -> str:
        return member.decode()

    def open(self, deadline: timedelta = timedelta(seconds=30)) -> Requeues:
        return RqQueues.open(self.name, Options(url=self.url, queues=("default",)), PolicyOverride(), read_only=False, deadline=deadline)

    def work(self, handler: Callable[..., object], clock: Clock, stop: Stop) -> None:
        os.environ["TEST_REDIS"] = self.url
        with self.client as client:
            worker = _Worker([Queue(connection=client)], connection=client)
            while not stop.requested:
                worker.work(burst=True, logging_level="CRITICAL", max_jobs=20)
                clock.sleep(0.02)

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        with self.client as client:
            for id in ids:
                match chance.randrange(4):
                    case 0:
                        client.hset(f"rq:job:{id}", "last_heartbeat", str(time.time()))
                        client.zadd("rq:failed:default", {id: 4_100_000_000})
                    case 1:
                        client.zrem("rq:failed:default", id)
                        client.hset(f"rq:job:{id}", "status", "canceled")
                        client.zadd("rq:canceled:default", {id: 1})
                    case 2:
                        client.delete(f"rq:job:{id}")
                        client.zrem("rq:failed:default", id)
                    case _:
                        client.zrem("rq:failed:default", id)
                        client.hset(f"rq:job:{id}", "status", "finished")
                        client.zadd("rq:finished:default", {id: 4_000_000_000})

    def naive(self, chunk: int = 100) -> bool:
        with self.client as client:
            ids = FailedJobRegistry("default", connection=client).get_job_ids(0, chunk - 1, cleanup=False)
            for id in ids:
                try:
                    Job.fetch(id, client).requeue()
                except (InvalidJobOperation, NoSuchJobError):
                    continue
                client.rpush(NOTES, id)
            return bool(ids)


def perform(id: str) -> None:
    """What RQ's workers run: three in ten fail again."""
    rq_app.note(id).close()
    if random.random() < 0.3:
        raise RuntimeError("upstream timed out")


class Sidekiq(RedisSystem):
    """Sidekiq, with a worker that does what its source says."""

    places: ClassVar = {"dead": "zset", "queue:default": "list", "test:done": "list"}
    queue = "queue:default"

    def fill(self, ids: list[str]) -> None:
        with self.client as client:
            self.prepare(client, ids)

    @staticmethod
    def prepare(client: redis.Redis, ids: list[str]) -> None:
        client.sadd("queues", "default")
        jobs = {
            ruby({"retry": 3, "queue": "default", "args": [id], "class": "Job", "jid": id, "created_at": 1762771200000 + n,
                  "error_class": "Timeout", "error_message": "upstream timed out", "failed_at": 1762771200000, "retry_count": 3}): 1762771200.5 + n
            for n, id in enumerate(ids)
        }
        client.zadd("dead", jobs)

    def id_of(self, member: bytes) -> str:
        return str(json.loads(member)["jid"])

    def open(self, deadline: timedelta = timedelta(seconds=30)) -> Requeues:
        return open_sidekiq(self.url)

    def work(self, handler: Callable[..., object], clock: Clock, stop: Stop) -> None:
        with self.client as client:
            while not stop.requested:
                job = client.rpop("queue:default")
                if job is None:
                    clock.sleep(0.02)
                    continue
                found = json.loads(job)
                client.rpush(TAKEN, found["jid"])
                if random.random() < 0.3:
                    client.zadd("dead", {ruby(found | {"retried_at": int(time.time() * 1000), "retry_count": 3}): time.time()})
                else:
                    client.rpush("test:done", job)

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        with self.client as client:
            for member in client.zrange("dead", 0, -1):
                if self.id_of(member) not in ids:
                    continue
                score = client.zscore("dead", member)
                match chance.randrange(3):
                    case 0:
                        client.zadd("dead", {member: (score or 0) + 1})
                    case 1:
                        client.zrem("dead", member)
                    case _:
                        client.zrem("dead", member)
                        client.zadd("dead", {ruby(json.loads(member) | {"retried_at": 1}): score or 0})

    def naive(self, chunk: int = 100) -> bool:
        """As its own retry: take the job away, then push it."""
        with self.client as client:
            for n in range(chunk):
                popped = client.zpopmin("dead", 1)
                if not popped:
                    return n > 0
                client.lpush("queue:default", popped[0][0])
                client.rpush(NOTES, self.id_of(popped[0][0]))
        return True


class BullMq(RedisSystem):
    """BullMQ, with its own workers."""

    places: ClassVar = {f"bull:mail:{name}": kind for name, kind in (("failed", "zset"), ("completed", "zset"), ("wait", "list"), ("active", "list"))}
    queue = "bull:mail:wait bull:mail:active"

    def key(self, id: str) -> str:
        return f"mail/{id}"

    def fill(self, ids: list[str]) -> None:
        with self.client as client:
            self.prepare(client, ids)

    @staticmethod
    def prepare(client: redis.Redis, ids: list[str]) -> None:
        client.hset("bull:mail:meta", mapping={"opts.maxLenEvents": 10000, "version": "bullmq:6.7.0"})
        pipeline = client.pipeline(transaction=False)
        for n, id in enumerate(ids):
            at = 1762771200000 + n
            pipeline.hset(f"bull:mail:{id}", mapping={
                "name": id, "data": "{}", "opts": '{"attempts":1}', "timestamp": at, "processedOn": at, "finishedOn": at,
                "atm": 1, "ats": 1, "failedReason": "upstream timed out", "delay": 0, "priority": 0, "stacktrace": "[]",
            })
            pipeline.zadd("bull:mail:failed", {id: at})
        pipeline.execute()

    def id_of(self, member: bytes) -> str:
        return member.decode()

    def open(self, deadline: timedelta = timedelta(seconds=30)) -> Requeues:
        return open_bullmq(self.url)

    def work(self, handler: Callable[..., object], clock: Clock, stop: Stop) -> None:
        worker = Bull(self.url).start("serve", FAILS="0.3")
        while not stop.requested:
            clock.sleep(0.05)
        assert worker.stdin is not None
        worker.stdin.close()
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        with self.client as client:
            for key in ids:
                id = key.removeprefix("mail/")
                match chance.randrange(3):
                    case 0:
                        client.hincrby(f"bull:mail:{id}", "ats", 1)
                        client.zadd("bull:mail:failed", {id: 1762771299999})
                    case 1:
                        client.delete(f"bull:mail:{id}")
                        client.zrem("bull:mail:failed", id)
                    case _:
                        client.zrem("bull:mail:failed", id)
                        client.zadd("bull:mail:completed", {id: 1762771299999})

    def naive(self, chunk: int = 100) -> bool:
        """Read, then write, without a guard."""
        with self.client as client:
            found = client.zrange("bull:mail:failed", 0, chunk - 1)
            for id in found:
                client.lpush("bull:mail:wait", id)
            if found:
                client.zrem("bull:mail:failed", *found)
                client.rpush(NOTES, *found)
            return bool(found)
