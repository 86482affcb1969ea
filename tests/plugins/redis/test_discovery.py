"""Each plugin finds its own system behind a URL, and no other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis

from plugins.bullmq import BullMq
from plugins.celery import CeleryResults
from plugins.rq import RqQueues
from plugins.sidekiq import SidekiqQueues
from tests.redis_store import contents

PLUGINS: dict[str, Any] = {"rq": RqQueues, "sidekiq": SidekiqQueues, "bullmq": BullMq, "celery": CeleryResults}
STORES: dict[str, list[tuple[Any, ...]]] = {
    "rq": [("SADD", "rq:queues", "rq:queue:default")],
    "sidekiq": [("SADD", "queues", "default"), ("SET", "stat:processed", 3)],
    "bullmq": [("HSET", "bull:mail:meta", "version", "bullmq:6.7.0"), ("HSET", "bull:orders:meta", "opts.maxLenEvents", 1)],
    "celery": [("SET", "celery-task-meta-1", '{"status": "SUCCESS"}')],
    "nothing": [("SADD", "queues", "of something else"), ("SET", "bull", 1)],
}


@pytest.mark.parametrize("stored", STORES)
def test_each_plugin_finds_its_own_system_only(url: str, stored: str) -> None:
    client = redis.Redis.from_url(url)
    for command in STORES[stored]:
        client.execute_command(*command)
    before = contents(client)
    found = {name: plugin.discover(url, deadline=timedelta(seconds=9)) for name, plugin in PLUGINS.items()}
    assert [name for name, queues in found.items() if queues] == ([stored] if stored in PLUGINS else [])
    assert contents(client) == before
    for queue in found.get(stored, ()):
        PLUGINS[stored].options(**queue.options)
