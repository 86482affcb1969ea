"""BullMQ's own layout in a real Redis, for the contract suites."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import redis

from console.core.item import Item, ItemKey
from console.core.policy import PolicyOverride
from console.testing import FrozenClock, Harness, Sample, Store
from console.testing.clock import NOON
from plugins.bullmq import BullMq
from plugins.bullmq.backend import Options
from tests.plugins.redis.rq_store import OWN, raw
from tests.redis_store import contents

QUEUE, PAYLOAD = "mail", "secret-argument"
STATUSES = ("failed", "delayed", "active", "wait", "paused", "prioritized", "waiting-children", "completed")
LISTS = frozenset({"active", "wait", "paused"})


def open_bullmq(url: str, policy: PolicyOverride = OWN, *, read_only: bool = False, prefix: str = "bull") -> BullMq:
    return BullMq.open("jobs", Options(url=url, prefix=prefix), policy, read_only=read_only, deadline=timedelta(seconds=20))


def when(value: Any) -> bytes:
    if isinstance(value, datetime):
        return str(int(value.timestamp() * 1000)).encode()
    return b"" if value is None else raw(value)


class BullStore:
    """Writes and reads jobs as BullMQ does, without the backend."""

    def __init__(self, url: str, policy: PolicyOverride = OWN, *, read_only: bool = False, prefix: str = "bull") -> None:
        self.url = url
        self.policy = policy
        self.prefix = prefix
        self.base = f"{prefix}:{QUEUE}:".encode()
        self.client = redis.Redis.from_url(url, protocol=2)
        self.backend = open_bullmq(url, policy, read_only=read_only, prefix=prefix)
        self.ids: dict[str, None] = {}

    def harness(self) -> Harness:
        self.client.hset(self.base + b"meta", mapping={"opts.maxLenEvents": 10000, "version": "bullmq:6.7.0"})
        read_only = lambda: open_bullmq(self.url, self.policy, read_only=True, prefix=self.prefix)  # noqa: E731
        return Harness(
            self.backend, self.put, STATUSES, FrozenClock(), lambda item: (item.type, QUEUE), self.fingerprint,
            Store(self.rows, self.touch, self.remove, read_only, PAYLOAD, self.execute),
        )

    def put(self, samples: Sequence[Sample]) -> int:
        pipeline = self.client.pipeline(transaction=False)
        for number, sample in enumerate(samples):
            self._put(pipeline, sample, number)
        pipeline.execute()
        return len(samples)

    def _put(self, pipeline: Any, sample: Sample, number: int) -> None:
        id, place = raw(sample.id), sample.status if sample.status in STATUSES else "failed"
        self.ids[sample.id] = None
        opts: dict[str, Any] = {"attempts": sample.max_attempts, "lifo": number % 7 == 0}
        if number % 3 == 0:
            opts["removeOnFail"] = {"age": 3600 * number}
        fields: dict[str, Any] = {
            "name": raw(sample.type or ""), "data": PAYLOAD, "opts": json.dumps(opts), "timestamp": when(sample.created),
            "delay": 0, "priority": number % 2,
        }
        if sample.attempts is not None:
            fields["atm"] = raw(str(sample.attempts))
        if sample.error is not None:
            fields |= {"failedReason": raw(sample.error), "processedOn": when(sample.updated), "ats": 3}
        if place in ("failed", "completed"):
            fields["finishedOn"] = when(sample.updated)
        if number % 11 == 0:
            fields["parentKey"] = "bull:other:1"
        pipeline.hset(self.base + id, mapping=fields)
        due = int(sample.due.timestamp() * 1000) if isinstance(sample.due, datetime) else 0
        if place in LISTS:
            pipeline.lpush(self.base + place.encode(), id)
            if place == "active" and number % 2:
                pipeline.set(self.base + id + b":lock", "token")
        else:
            pipeline.zadd(self.base + place.encode(), {id: due * 4096 + number % 3 if place == "delayed" and due else due})

    def references(self, item: Item) -> Sequence[str]:
        return (item.type, QUEUE)

    def fingerprint(self) -> object:
        return contents(self.client)

    def rows(self) -> Mapping[ItemKey, object]:
        places: dict[bytes, list[object]] = {}
        for place in STATUSES:
            key = self.base + place.encode()
            if place in LISTS:
                for name in self.client.lrange(key, 0, -1):
                    places.setdefault(name, []).append((place, None))
            else:
                for name, score in self.client.zrange(key, 0, -1, withscores=True):
                    places.setdefault(name, []).append((place, score))
        return {
            ItemKey("jobs", (QUEUE, id)): (self.client.hgetall(self.base + raw(id)), places.get(raw(id)))
            for id in self.ids
            if raw(id) in places
        }

    def touch(self, key: ItemKey) -> None:
        self.client.hincrby(self.base + raw(key.parts[1]), "ats", 1)

    def execute(self, key: ItemKey, error: str | None) -> None:
        id, at = raw(key.parts[1]), when(NOON + timedelta(seconds=1))
        for place in LISTS:
            self.client.lrem(self.base + place.encode(), 0, id)
        self.client.zrem(self.base + b"prioritized", id)
        self.client.hset(self.base + id, mapping={"processedOn": at, "finishedOn": at, **({} if error is None else {"failedReason": raw(error)})})
        made = self.client.hget(self.base + id, "atm") or b"0"
        self.client.hset(self.base + id, "atm", int(made) + 1 if made.isdigit() else 1)
        self.client.zadd(self.base + (b"completed" if error is None else b"failed"), {id: at})

    def remove(self, key: ItemKey) -> None:
        id = raw(key.parts[1])
        self.client.delete(self.base + id)
        for place in STATUSES:
            self.client.lrem(self.base + place.encode(), 0, id) if place in LISTS else self.client.zrem(self.base + place.encode(), id)
