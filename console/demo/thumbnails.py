"""Thumbnails, an RQ queue on a private Redis: the image service fails, and old failures are about to expire."""

from __future__ import annotations

import time
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Protocol

from console.demo.seeding import DAY, HOUR, pick
from console.demo.system import BuildContext, DemoSystem

QUEUE = "images"
_STATES = ((0.45, "finished"), (0.2, "queued"), (0.25, "failed"), (0.1, "scheduled"))
_FUNCTIONS = ("images.thumbnail", "images.watermark", "images.transcode")
_HASH, _RESULTS, _WORKER = "rq:job:", "rq:results:", "rq:worker:demo"
_SUSPECT = "7"
"""Images whose number ends with this cannot be read, however often they are tried."""


_RENEWED_EVERY = 30
"""Seconds between two signs of life of the worker. Each is written to the server's file."""


class Stop(Protocol):
    @property
    def requested(self) -> bool: ...

    def wait(self, seconds: float) -> None: ...


def _build(build: BuildContext) -> dict[str, Any]:
    import redis

    assert build.redis is not None, "this system is built only where there is a Redis"
    chance = Random(build.seed)
    with closing(redis.Redis.from_url(build.redis)) as client:
        client.sadd("rq:queues", f"rq:queue:{QUEUE}")
        _register(client)  # it will start in a moment
        pipeline = client.pipeline(transaction=False)
        for n in range(build.items):
            _add(pipeline, build.base, chance, n)
        pipeline.execute()
    return {"plugin": "rq", "url": build.redis, "queues": [QUEUE]}


def _add(pipeline: Any, base: datetime, chance: Random, number: int) -> None:
    state = pick(chance, _STATES)
    id, image = f"img-{number:05}", chance.randrange(10_000, 99_999)
    ended = base - timedelta(seconds=DAY * chance.random())
    ran = state != "queued"
    pipeline.hset(_HASH + id, mapping={
        "status": state, "origin": QUEUE, "data": b"", "description": f"{chance.choice(_FUNCTIONS)}({image})",
        "created_at": _time(ended - timedelta(minutes=2)), "enqueued_at": _time(ended - timedelta(minutes=1)),
        "started_at": _time(ended - timedelta(seconds=3)) if ran else "", "ended_at": _time(ended) if ran else "",
        "timeout": 180, "last_heartbeat": "", "worker_name": "",
    })
    match state:
        case "failed":
            _result(pipeline, id, _error(image, chance), f"{ended.timestamp() * 1000:.0f}")
            # Some are kept for a year, others vanish within hours.
            life = HOUR * (1 + 4 * chance.random()) if chance.random() < 0.2 else 365 * DAY
            pipeline.zadd(f"rq:failed:{QUEUE}", {id: int(base.timestamp() + life)})
        case "scheduled":
            pipeline.hset(_HASH + id, "retries_left", chance.randrange(1, 3))
            pipeline.zadd(f"rq:scheduled:{QUEUE}", {id: int(base.timestamp() + 40 * 60 * chance.random())})
        case "finished":
            pipeline.zadd(f"rq:finished:{QUEUE}", {id: int(base.timestamp() + DAY)})
        case _:
            pipeline.rpush(f"rq:queue:{QUEUE}", id)


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"


def _error(image: int, chance: Random) -> str:
    raised = (
        f"OSError: cannot identify image file 'upload-{image}.webp'"
        if str(image).endswith(_SUSPECT)
        else f"ConnectionError: image service 10.0.3.{chance.randrange(2, 9)} refused the connection"
    )
    return f'Traceback (most recent call last):\n  File "images.py", line 41, in thumbnail\n{raised}'


def _result(pipeline: Any, id: str, error: str | None, at: str = "*") -> None:
    """Keep the result of an execution. Its id in the stream is its time in milliseconds; `*` is now."""
    fields: dict[str, Any] = {"type": 1 if error is None else 2, "worker_name": "demo"}
    if error is not None:
        fields["exc_string"] = b64encode(zlib.compress(error.encode())).decode()
    pipeline.xadd(_RESULTS + id, fields, at, maxlen=10)


def work(url: str, speed: int, stop: Stop) -> None:
    """The application's own worker: takes jobs as RQ does, until `stop`."""
    import redis

    chance, renewed = Random(), float("-inf")
    with closing(redis.Redis.from_url(url)) as client:
        while not stop.requested:
            if time.monotonic() - renewed > _RENEWED_EVERY:
                _register(client)
                renewed = time.monotonic()
            for id in _taken(client):
                _execute(client, id, chance)
            stop.wait(2.0 / speed)


def _register(client: Any) -> None:
    """Say that the worker and its scheduler are alive, as RQ's do."""
    now, life = _time(datetime.now(UTC)), 2 * _RENEWED_EVERY
    with client.pipeline() as pipeline:
        pipeline.hset(_WORKER, mapping={"birth": now, "last_heartbeat": now, "queues": QUEUE, "state": "idle"})
        pipeline.expire(_WORKER, life)
        pipeline.sadd("rq:workers", _WORKER)
        pipeline.sadd(f"rq:workers:{QUEUE}", _WORKER)
        pipeline.set(f"rq:scheduler-lock:{QUEUE}", "demo", ex=life)
        pipeline.execute()


def _taken(client: Any) -> Iterator[str]:
    """The next job of the queue, after what is due has been enqueued."""
    for due in client.zrangebyscore(f"rq:scheduled:{QUEUE}", 0, time.time(), start=0, num=5):
        with client.pipeline() as pipeline:
            pipeline.zrem(f"rq:scheduled:{QUEUE}", due)
            pipeline.hset(_HASH + due.decode(), "status", "queued")
            pipeline.rpush(f"rq:queue:{QUEUE}", due)
            pipeline.execute()
    taken = client.lmove(f"rq:queue:{QUEUE}", f"rq:queue:{QUEUE}:intermediate", "LEFT", "RIGHT")
    if taken is not None:
        yield taken.decode()


def _execute(client: Any, id: str, chance: Random) -> None:
    now = datetime.now(UTC)
    client.hset(_HASH + id, mapping={"status": "started", "started_at": _time(now), "last_heartbeat": _time(now)})
    client.lrem(f"rq:queue:{QUEUE}:intermediate", 1, id)
    client.zadd(f"rq:wip:{QUEUE}", {f"{id}:demo": int(time.time()) + 90})
    client.zadd(f"rq:executions:{id}", {f"{id}:demo": int(time.time()) + 90})
    time.sleep(0.05 + 0.1 * chance.random())
    image = (client.hget(_HASH + id, "description") or b"").decode().rpartition("(")[2].rstrip(")")
    broken = image.endswith(_SUSPECT)
    with client.pipeline() as pipeline:
        ended: Mapping[str, str] = {"status": "failed" if broken else "finished", "ended_at": _time(datetime.now(UTC))}
        pipeline.hset(_HASH + id, mapping=dict(ended))
        pipeline.zrem(f"rq:wip:{QUEUE}", f"{id}:demo")
        pipeline.delete(f"rq:executions:{id}")
        _result(pipeline, id, _error(int(image or 0), chance) if broken else None)
        pipeline.zadd(f"rq:{ended['status']}:{QUEUE}", {id: int(time.time()) + 365 * DAY})
        pipeline.execute()


SYSTEMS = (DemoSystem("thumbnails", 0.08, _build, most=400),)
