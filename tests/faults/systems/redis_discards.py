"""Queues in Redis with jobs to discard: half have failed, a quarter is retried tomorrow, a quarter now, which workers take.

Redis has no triggers. The oracle is where the jobs are, and which of them workers took.
"""

from __future__ import annotations

import json
import pickle
import random
import time
from abc import abstractmethod
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from rq.job import JobStatus

from tests.faults.systems.discards import Discards
from tests.faults.systems.redis_queues import TAKEN, BullMq, RedisSystem, Rq, Sidekiq
from tests.plugins.redis.sidekiq_store import ruby


class RedisDiscards(Discards, RedisSystem):
    """What is the same of all of them: every fourth job, beginning with the third, is due."""

    def taken_first(self) -> set[str]:
        with self.client as client:
            first = int((self.folder / "seen").read_text())
            return {self.key(line.decode().partition(" ")[0]) for line in client.lrange(TAKEN, first, -1)}

    @abstractmethod
    def given_up(self) -> set[str]:
        """The jobs that only an operator can have given up."""

    def requeued(self) -> Counter[str]:
        """A job that was given up must not have been taken: that counts as twice."""
        taken = self.taken_first()
        return Counter({id: 1 + (id in taken) for id in self.given_up()})


class Deleted(RedisDiscards):
    """A deleted job is not lost if it was recorded; `unrecorded` counts the others."""

    def gone(self) -> set[str]:
        return set(pickle.loads((self.folder / "before").read_bytes())) - {id for id, _, _ in self.where()}

    def given_up(self) -> set[str]:
        return self.gone()

    def present(self) -> set[str]:
        return super().present() | self.gone()


class CancelledJobs(RedisDiscards, Rq):
    places: ClassVar = {**Rq.places, "rq:scheduled:default": "zset"}

    def fill(self, ids: list[str]) -> None:
        super().fill(ids)
        tomorrow = int(time.time()) + 86_400
        with self.client as client:
            pipeline = client.pipeline(transaction=False)
            for n, id in enumerate(ids):
                if n % 4 == 1:
                    pipeline.hset(f"rq:job:{id}", mapping={"status": JobStatus.SCHEDULED.value, "retries_left": 1})
                    pipeline.zadd("rq:scheduled:default", {id: tomorrow + n})
                elif n % 4 == 2:
                    pipeline.hset(f"rq:job:{id}", mapping={"status": JobStatus.QUEUED.value})
                    pipeline.rpush("rq:queue:default", id)
                if n % 4 in (1, 2):
                    pipeline.zrem("rq:failed:default", id)
            pipeline.execute()

    def given_up(self) -> set[str]:
        return {id for id, place, _ in self.where() if place == "rq:canceled:default"}

    def snapshot(self) -> dict[str, Any]:
        with self.client as client:
            fields = client.pipeline(transaction=False)
            where = self.where()
            for id, _, _ in where:
                fields.hgetall(f"rq:job:{id}")
            return {id: (place, job) for (id, place, _), job in zip(where, fields.execute(), strict=True)}

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        """Each of them is executed once more, deleted, or postponed."""
        with self.client as client:
            for id in ids:
                name = f"rq:job:{id}"
                match chance.randrange(3):
                    case 0:
                        client.hset(name, "started_at", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}")
                    case 1:
                        client.delete(name)
                        client.lrem("rq:queue:default", 0, id)
                        for place in ("rq:failed:default", "rq:scheduled:default"):
                            client.zrem(place, id)
                    case _:
                        client.hset(name, "last_heartbeat", str(time.time()))


class KilledJobs(Deleted, Sidekiq):
    """A job that is to be retried goes to the dead set. The others are deleted."""

    places: ClassVar = {**Sidekiq.places, "retry": "zset"}

    def fill(self, ids: list[str]) -> None:
        super().fill(ids)
        tomorrow = time.time() + 86_400
        with self.client as client:
            for n, member in enumerate(sorted(client.zrange("dead", 0, -1), key=self.id_of)):
                if n % 4 == 1:
                    client.zrem("dead", member)
                    client.zadd("retry", {ruby(json.loads(member) | {"retry_count": 1}): tomorrow + n})
                elif n % 4 == 2:
                    client.zrem("dead", member)
                    client.lpush("queue:default", member)

    def given_up(self) -> set[str]:
        before = pickle.loads((self.folder / "before").read_bytes())
        killed = {id for id, place, _ in self.where() if place == "dead" and [where for where, _ in before[id]] == ["retry"]}
        return self.gone() | killed

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        with self.client as client:
            for id, place, member in self.where():
                if id not in ids:
                    continue
                changed = ruby(json.loads(member) | {"retried_at": int(time.time() * 1000)})
                if self.places[place] == "list":
                    client.lrem(place, 0, member)
                    client.lpush(place, changed)
                    continue
                score = client.zscore(place, member) or 0
                client.zrem(place, member)
                client.zadd(place, {changed: score} if chance.random() < 0.5 else {member: score + 1})


class RemovedJobs(Deleted, BullMq):
    places: ClassVar = {**BullMq.places, "bull:mail:delayed": "zset"}

    def fill(self, ids: list[str]) -> None:
        super().fill(ids)
        tomorrow = int((datetime.now(UTC) + timedelta(days=1)).timestamp() * 1000)
        with self.client as client:
            pipeline = client.pipeline(transaction=False)
            for n, id in enumerate(ids):
                if n % 4 in (1, 2):
                    pipeline.zrem("bull:mail:failed", id)
                    pipeline.hset(f"bull:mail:{id}", "opts", '{"attempts":3}')
                    pipeline.hdel(f"bull:mail:{id}", "finishedOn")
                if n % 4 == 1:
                    pipeline.zadd("bull:mail:delayed", {id: tomorrow * 4096 + n})
                elif n % 4 == 2:
                    pipeline.lpush("bull:mail:wait", id)
            pipeline.execute()

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        """Each of them was executed once more since, or somebody has postponed it."""
        with self.client as client:
            for key in ids:
                client.hincrby(f"bull:mail:{key.removeprefix('mail/')}", chance.choice(("ats", "atm")), 1)
