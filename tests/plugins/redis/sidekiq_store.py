"""Sidekiq's own layout in a real Redis, for the contract suites. The JSON is written as Ruby writes it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import redis

from console.core.item import ItemKey
from console.core.policy import PolicyOverride
from console.testing import FrozenClock, Harness, Sample, Store
from console.testing.clock import NOON
from plugins.sidekiq import SidekiqQueues
from plugins.sidekiq.backend import Options
from tests.plugins.redis.rq_store import OWN
from tests.redis_store import contents

PAYLOAD = "secret-argument"
STATUSES = ("dead", "retry", "schedule", "queue", "work")


def open_sidekiq(url: str, policy: PolicyOverride = OWN, *, read_only: bool = False) -> SidekiqQueues:
    return SidekiqQueues.open("jobs", Options(url=url), policy, read_only=read_only, deadline=timedelta(seconds=20))


def ruby(job: Mapping[str, Any]) -> bytes:
    """As Ruby's JSON.generate: no blanks, and nothing but ASCII controls escaped."""
    return json.dumps(job, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogateescape")


def when(value: Any) -> Any:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else value


class SidekiqStore:
    """Writes and reads jobs as Sidekiq does, without the backend."""

    def __init__(self, url: str, policy: PolicyOverride = OWN, *, read_only: bool = False) -> None:
        self.url = url
        self.policy = policy
        self.client = redis.Redis.from_url(url, protocol=2)
        self.backend = open_sidekiq(url, policy, read_only=read_only)

    def harness(self) -> Harness:
        self.client.sadd("queues", "default")
        self.client.sadd("processes", "host:1:a")
        self.client.hset("host:1:a", mapping={"info": json.dumps({"queues": ["default"]}), "beat": time.time()})
        return Harness(
            self.backend, self.put, STATUSES, FrozenClock(), lambda item: (item.type, "default"), self.fingerprint,
            Store(self.rows, self.touch, self.remove, lambda: open_sidekiq(self.url, self.policy, read_only=True), PAYLOAD,
                  self.execute),
        )

    def put(self, samples: Sequence[Sample]) -> int:
        pipeline = self.client.pipeline(transaction=False)
        for number, sample in enumerate(samples):
            self._put(pipeline, sample, number)
        pipeline.execute()
        return len(samples)

    def _put(self, pipeline: Any, sample: Sample, number: int) -> None:
        job: dict[str, Any] = {
            "retry": sample.max_attempts if number % 3 else True, "queue": "default", "args": [PAYLOAD, {}, [], 2**70, 1.10],
            "class": sample.type, "jid": sample.id, "created_at": when(sample.created),
        }
        if number % 4:
            job["enqueued_at"] = when(sample.updated) if number % 8 else 1762771200.123
        if sample.attempts:
            job |= {"error_message": sample.error, "error_class": "RuntimeError" if number % 2 else None,
                    "failed_at": when(sample.created), "retry_count": sample.attempts}
            if number % 2:
                job["retried_at"] = when(sample.updated)
        due = sample.due.timestamp() if isinstance(sample.due, datetime) else 0.5
        match sample.status:
            case "queue":
                pipeline.lpush("queue:default", ruby(job))
            case "work":
                work = {"queue": "default", "payload": ruby(job).decode("utf-8", "surrogateescape"), "run_at": int(due)}
                pipeline.hset("host:1:a:work", f"thread{number}", ruby(work))
            case "retry" | "schedule":
                pipeline.zadd(sample.status, {ruby(job): due})
            case _:
                pipeline.zadd("dead", {ruby(job): due})

    def fingerprint(self) -> object:
        return contents(self.client)

    def _members(self) -> list[tuple[bytes, str, object]]:
        found = [(name, key, score) for key in ("dead", "retry", "schedule") for name, score in self.client.zrange(key, 0, -1, withscores=True)]
        found += [(name, "queue:default", None) for name in self.client.lrange("queue:default", 0, -1)]
        works = self.client.hvals("host:1:a:work")
        return found + [(json.loads(work.decode("utf-8", "surrogateescape"), strict=False)["payload"].encode("utf-8", "surrogateescape"), "work", work) for work in works]

    def rows(self) -> Mapping[ItemKey, object]:
        return {ItemKey("jobs", (_jid(name),)): (name, *where) for name, *where in self._members()}

    def touch(self, key: ItemKey) -> None:
        """It is retried and fails once more."""
        for name, place, score in self._members():
            if _jid(name) != key.parts[0] or place == "work":
                continue
            changed = ruby(json.loads(name.decode("utf-8", "surrogateescape"), strict=False) | {"retried_at": 1762771234567})
            if place == "queue:default":
                self.client.lrem(place, 0, name)
                self.client.lpush(place, changed)
            else:
                self.client.zrem(place, name)
                self.client.zadd(place, {changed: score})

    def execute(self, key: ItemKey, error: str | None) -> None:
        """A process takes the job. Sidekiq counts from the beginning where it finds no count."""
        for name, place, _ in self._members():
            if _jid(name) != key.parts[0] or place != "queue:default":
                continue
            self.client.lrem(place, 0, name)
            if error is None:
                continue
            job = json.loads(name.decode("utf-8", "surrogateescape"), strict=False)
            at, count = when(NOON + timedelta(seconds=1)), job.get("retry_count")
            counted = {"failed_at": at, "retry_count": 0} if count is None else {"retried_at": at, "retry_count": count + 1 if type(count) is int else 0}
            self.client.zadd("retry", {ruby(job | {"error_message": error, "error_class": "RuntimeError"} | counted): 4e9})

    def remove(self, key: ItemKey) -> None:
        for name, place, _ in self._members():
            if _jid(name) == key.parts[0] and place != "work":
                self.client.lrem(place, 0, name) if place == "queue:default" else self.client.zrem(place, name)


def _jid(member: bytes) -> str:
    return json.loads(member.decode("utf-8", "surrogateescape"), strict=False)["jid"]
