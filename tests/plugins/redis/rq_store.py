"""RQ's own layout in a real Redis, for the contract suites."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import redis

from console.core.item import Item, ItemKey
from console.core.policy import PolicyOverride
from console.testing import FrozenClock, Harness, Sample, Store
from console.testing.clock import NOON
from plugins.rq import RqQueues
from plugins.rq.backend import Options
from tests.redis_store import contents

OWN = PolicyOverride()
QUEUE = "default"
PAYLOAD = "secret-argument"
STATUSES = ("failed", "stopped", "scheduled", "queued", "started", "deferred", "finished", "canceled")
HOMES = {
    "failed": f"rq:failed:{QUEUE}", "stopped": f"rq:failed:{QUEUE}", "scheduled": f"rq:scheduled:{QUEUE}",
    "started": f"rq:wip:{QUEUE}", "deferred": f"rq:deferred:{QUEUE}", "finished": f"rq:finished:{QUEUE}",
    "canceled": f"rq:canceled:{QUEUE}",
}
FUTURE = 4_000_000_000


def open_rq(url: str, policy: PolicyOverride = OWN, *, read_only: bool = False) -> RqQueues:
    return RqQueues.open("jobs", Options(url=url), policy, read_only=read_only, deadline=timedelta(seconds=20))


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def when(value: Any) -> bytes:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S.%fZ}".encode()
    return b"" if value is None else raw(value)


class RqStore:
    """Writes and reads jobs as RQ does, without the backend."""

    def __init__(self, url: str, policy: PolicyOverride = OWN, *, read_only: bool = False) -> None:
        self.url = url
        self.policy = policy
        self.client = redis.Redis.from_url(url, protocol=2)
        self.backend = open_rq(url, policy, read_only=read_only)
        self.ids: dict[str, None] = {}

    def harness(self) -> Harness:
        self.client.sadd("rq:queues", f"rq:queue:{QUEUE}")
        return Harness(
            self.backend, self.put, STATUSES, FrozenClock(), self.references, self.fingerprint,
            Store(self.rows, self.touch, self.remove, lambda: open_rq(self.url, self.policy, read_only=True), PAYLOAD, self.execute),
        )

    def put(self, samples: Sequence[Sample]) -> int:
        pipeline = self.client.pipeline(transaction=False)
        for number, sample in enumerate(samples):
            self._put(pipeline, sample, number)
        pipeline.execute()
        return len(samples)

    def _put(self, pipeline: Any, sample: Sample, number: int) -> None:
        id, status = raw(sample.id), "" if sample.status is None else sample.status
        self.ids[sample.id] = None
        attempts = min(max(sample.attempts, 0), 4) if isinstance(sample.attempts, int) else 0
        fields: dict[str, bytes | int] = {
            "status": raw(status), "origin": QUEUE.encode(), "created_at": when(sample.created),
            "enqueued_at": when(sample.updated), "data": PAYLOAD.encode(),
            "description": raw(f"{sample.type or ''}({PAYLOAD}, {sample.reference or ''})"),
            "started_at": when(sample.updated) if attempts else b"",
        }
        if isinstance(sample.max_attempts, int) and sample.max_attempts < 2**31:
            fields["retries_left"] = sample.max_attempts
        pipeline.hset(b"rq:job:" + id, mapping=fields)
        for _ in range(attempts):
            error = zlib.compress((sample.error or "").encode("utf-8", "surrogateescape"))
            pipeline.xadd(b"rq:results:" + id, {"type": 2, "exc_string": b64encode(error)})
        due = sample.due.timestamp() if isinstance(sample.due, datetime) else 0
        if status == "queued":
            pipeline.rpush(f"rq:queue:{QUEUE}{':intermediate' if number % 5 == 4 else ''}", id)
        elif status == "started":
            pipeline.zadd(f"rq:wip:{QUEUE}", {id + b":execution": due})
            pipeline.zadd(b"rq:executions:" + id, {id + b":execution": due})
        elif status == "scheduled":
            pipeline.zadd(HOMES[status], {id: due})
        else:
            expires = -1 if number % 3 == 0 else float("inf") if number % 3 == 1 else FUTURE + number // 3
            pipeline.zadd(HOMES.get(status, HOMES["failed"]), {id: expires})

    def references(self, item: Item) -> Sequence[str]:
        job = self.client.hget(b"rq:job:" + raw(item.key.parts[0]), "description")
        return (job.decode("utf-8", "surrogateescape"), QUEUE)

    def fingerprint(self) -> object:
        return contents(self.client)

    def rows(self) -> Mapping[ItemKey, object]:
        places: dict[bytes, list[tuple[str, object]]] = {}
        for key in sorted({*HOMES.values()}):
            for name, score in self.client.zrange(key, 0, -1, withscores=True):
                places.setdefault(name.removesuffix(b":execution"), []).append((key, score))
        for key in (f"rq:queue:{QUEUE}", f"rq:queue:{QUEUE}:intermediate"):
            for name in self.client.lrange(key, 0, -1):
                places.setdefault(name, []).append((key, None))
        return {
            ItemKey("jobs", (id,)): (self.client.hgetall(b"rq:job:" + raw(id)), places.get(raw(id)))
            for id in self.ids
            if self.client.exists(b"rq:job:" + raw(id))
        }

    def touch(self, key: ItemKey) -> None:
        self.client.hset(b"rq:job:" + raw(key.parts[0]), "last_heartbeat", "2026-11-10T12:34:56.000000Z")

    def execute(self, key: ItemKey, error: str | None) -> None:
        id, at = raw(key.parts[0]), NOON + timedelta(seconds=1)
        self.client.lrem(f"rq:queue:{QUEUE}", 0, id)
        status = "finished" if error is None else "failed"
        self.client.hset(b"rq:job:" + id, mapping={"status": status, "started_at": when(at), "ended_at": when(at)})
        self.client.zadd(HOMES[status], {id: FUTURE})
        text = b64encode(zlib.compress(raw(error or "")))
        self.client.xadd(b"rq:results:" + id, {"type": 1} if error is None else {"type": 2, "exc_string": text})

    def remove(self, key: ItemKey) -> None:
        id = raw(key.parts[0])
        self.client.delete(b"rq:job:" + id)
        for home in {*HOMES.values()}:
            self.client.zrem(home, id, id + b":execution")
        self.client.lrem(f"rq:queue:{QUEUE}", 0, id)
