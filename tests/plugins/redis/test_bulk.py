"""What a bulk requeue asks of the server: it is shared with the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from console.core.confirm import Limits
from console.core.query import Filter
from tests.faults.systems.redis_queues import BullMq, Rq, Sidekiq
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.redis.bullmq_store import open_bullmq
from tests.plugins.redis.rq_store import open_rq
from tests.plugins.redis.sidekiq_store import open_sidekiq

FAILED = Filter.parse("condition:terminal")
JOBS = 1_700
SYSTEMS: dict[str, tuple[Callable[[redis.Redis, list[str]], None], Callable[[str], object]]] = {
    "rq": (Rq.prepare, open_rq), "sidekiq": (Sidekiq.prepare, open_sidekiq), "bullmq": (BullMq.prepare, open_bullmq),
}
UNHURRIED = Limits(chunk_target=timedelta(hours=1))
"""So that only the backend limits the size of a chunk."""


@pytest.fixture
def client(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url, protocol=2) as found:
        yield found


def calls(client: redis.Redis) -> dict[str, int]:
    """How often each command was called since the last time, in scripts too."""
    found = {name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in client.info("commandstats").items()}
    client.config_resetstat()
    return found


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_bulk_requeue_is_short_scripts_and_few_reads(system: str, url: str, client: redis.Redis, tmp_path: Path) -> None:
    prepare, opened = SYSTEMS[system]
    prepare(client, [f"t{n:06d}" for n in range(JOBS)])
    with operating(opened(url), tmp_path, limits=UNHURRIED) as ann:
        calls(client)
        plan = ann.plan(FAILED)
        asked = calls(client)
        most = {"rq": 2, "sidekiq": 0, "bullmq": 1}[system]  # fields and error; a whole member; fields
        reads = sum(asked.get(name, 0) for name in ("hmget", "xrevrange", "xlen", "hget", "exists", "zscore"))
        assert most * JOBS <= reads < most * JOBS + 100
        override = ann.apply(plan)
        assert ann.outcomes(override) == {("applied", ""): JOBS}
        asked = calls(client)
        ranges = [pair for intent in ann.trail.intents(override.override_id) for pair in intent.ranges]
        largest = max(last - first + 1 for first, last in ranges)
        assert largest <= 500, "a script stops the whole server"
        # In the script: the fields that it compares. Sidekiq's jobs are read before, because the new ones are made of them.
        assert asked.get("hmget", 0) <= (0 if system == "sidekiq" else JOBS + 100)
        chunks = len(list(ann.trail.intents(override.override_id)))
        assert asked.get("zrangebyscore", 0) == (chunks if system == "sidekiq" else 0)
        assert asked.get("xrevrange", 0) == asked.get("xlen", 0) == 0
