"""Presets of queues whose library cannot run here: the queue's own statements take what verdicts and plans promise."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from console.core.backend import Attempts, Operation, PageRequest
from console.core.item import Condition
from console.core.query import Filter
from tests.depth import campaign
from tests.plugins.postgres_analyses.operating import Operator, operating
from tests.plugins.sql_table import fetching
from tests.plugins.sql_table.fetching import Day, naive
from tests.plugins.sql_table.systems import SYSTEMS
from tests.plugins.sql_table.world import Queue, as_json
from tests.promises import Record

EVERYTHING = Filter.parse("condition:*")
TERMINAL = Filter.parse("condition:terminal")
HOUR = timedelta(hours=1)
Fill = Callable[[Queue, random.Random, datetime, int], None]


def a_time(chance: random.Random, now: datetime) -> datetime:
    """Past, within the day, or after it; never within the last simulated hour, in which the order of both counts."""
    return now + chance.choice((-1, 1, 1)) * chance.uniform(0.1, 20) * HOUR if chance.random() < 0.8 else now + 50 * HOUR


def fill_river(queue: Queue, chance: random.Random, now: datetime, count: int) -> None:
    for name, paused_at in (("mail", now), ("default", None)):
        queue.insert("river_queue", name=name, paused_at=paused_at, updated_at=now)
    for _ in range(count):
        state = chance.choice(("available", "cancelled", "completed", "discarded", "discarded", "pending", "retryable", "running", "scheduled"))
        queue.insert(
            "river_job", state=state, attempt=chance.randrange(26), max_attempts=25, kind="k", args=as_json({}),
            queue=chance.choice(("default", "default", "unknown", "mail")), scheduled_at=a_time(chance, now), priority=chance.randint(1, 4),
            finalized_at=now if state in ("cancelled", "completed", "discarded") else None, attempted_at=now if state == "running" else None,
        )


def fill_good_job(queue: Queue, chance: random.Random, now: datetime, count: int) -> None:
    pauses = {"queues": ["mail"], "job_classes": ["Paused"], "labels": ["slow"]}
    queue.insert("good_job_settings", key="pauses", value=as_json(pauses), created_at=naive(now), updated_at=naive(now))
    for _ in range(count):
        over, tried = chance.random() < 0.5, chance.random() < 0.6
        queue.insert(
            "good_jobs", queue_name=chance.choice((*["default"] * 6, "mail")), job_class=chance.choice((*"MMMMMM", "Paused")),
            labels=chance.choice((None, None, None, ["quick"], ["quick"], ["slow", "x"])), serialized_params=as_json({"executions": 2}), priority=0,
            scheduled_at=None if chance.random() < 0.05 else naive(a_time(chance, now)), finished_at=naive(now) if over else None,
            error="E: no" if tried else None, executions_count=chance.randrange(4) if tried else 0, created_at=naive(now), updated_at=naive(now),
        )


def fill_que(queue: Queue, chance: random.Random, now: datetime, count: int) -> None:
    queue.insert(
        "que_lockers", pid=7, worker_count=1, worker_priorities=[1], ruby_pid=7, ruby_hostname="h", queues=["default", "bulk"],
        listening=True, job_schema_version=2,
    )
    for _ in range(count):
        place = chance.choice(("queued", "finished", "expired", "expired", "errored"))
        queue.insert(
            "que_jobs", job_class="M", queue=chance.choice(("default", "bulk", "other")), job_schema_version=chance.choice((1, 2, 2, 2)),
            run_at=a_time(chance, now), error_count=0 if place == "queued" else chance.randrange(1, 17), last_error_message="no",
            finished_at=now if place == "finished" else None, expired_at=now if place == "expired" else None,
        )


def fill_solid_queue(queue: Queue, chance: random.Random, now: datetime, count: int) -> None:
    made, held = naive(now), ["taken", "blocked"]
    queue.insert("solid_queue_pauses", queue_name="mail", created_at=made)
    for key in held:
        queue.insert("solid_queue_semaphores", key=key, value=0, expires_at=made, created_at=made, updated_at=made)
    for n in range(count):
        place = chance.choice(("ready", "scheduled", "scheduled", "blocked", "failed", "failed", "finished", "nowhere"))
        key = {"blocked": "blocked", "ready": None}.get(place, chance.choice((None, None, "taken", f"key {n}")))
        name = chance.choice(("default", "default", "mail"))
        ((id,),) = queue.run(
            "INSERT INTO solid_queue_jobs (queue_name, class_name, arguments, finished_at, concurrency_key, created_at, updated_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
            [name, "M", as_json({"executions": 1}), made if place == "finished" else None, key, made, made],
        )
        more: dict[str, Any] = {"job_id": id, "created_at": made}
        if place in ("ready", "scheduled", "blocked"):
            more["queue_name"] = name
        if place == "scheduled":
            more["scheduled_at"] = naive(a_time(chance, now))
        if place == "blocked":
            more |= {"concurrency_key": key, "expires_at": made}
        if place == "failed":
            more["error"] = as_json({"exception_class": "E", "message": "no", "backtrace": []})
        if place not in ("finished", "nowhere"):
            queue.insert(f"solid_queue_{place}_executions", **more)


class World(NamedTuple):
    fill: Fill
    day: Day
    attempts: Attempts = Attempts.KEEP


SOLID = World(fill_solid_queue, fetching.solid_queue, Attempts.RESET)
WORLDS = {
    "river": World(fill_river, fetching.river), "good_job": World(fill_good_job, fetching.good_job), "que": World(fill_que, fetching.que),
    "solid_queue": SOLID, "solid_queue_sqlite": SOLID, "solid_queue_mysql": SOLID,
}


def predicted(ann: Operator, end: datetime) -> dict[str, bool | None]:
    """Whether each job that nobody works on is predicted to run by then."""
    items = ann.backend.page(PageRequest(EVERYTHING, ann.backend.now(), limit=100_000)).items
    found: dict[str, bool | None] = {}
    for item in items:
        if item.condition not in (Condition.RUNNING, Condition.STUCK):
            will, at = item.verdict.will_run_again, item.verdict.next_retry_at
            found[item.key.id] = False if will and at is not None and at > end else will
    return found


@pytest.mark.parametrize("count", [120, pytest.param(4_500, marks=campaign)])
@pytest.mark.parametrize("preset", WORLDS)
def test_its_own_statements_take_what_is_promised(tmp_path: Path, preset: str, count: int, promises: Record) -> None:
    world, now = WORLDS[preset], datetime.now(UTC).replace(microsecond=0)
    with ExitStack() as stack:
        queue = stack.enter_context(SYSTEMS[preset].queue())
        world.fill(queue, random.Random(count), now, count)
        ann = stack.enter_context(operating(queue.open(), tmp_path))
        before = predicted(ann, now + 24 * HOUR)
        plan = ann.plan(TERMINAL, operation=Operation(attempts=world.attempts))
        keys = {row.key.rpartition("/")[2] for batch in ann.trail.rows(plan.id, 0, plan.changes - 1) for row in batch}
        assert count / 10 < len(keys) == plan.changes
        assert not any(before[key] for key in keys)
        ann.apply(plan)
        outlook = predicted(ann, now + 24 * HOUR)
        assert not [key for key in keys if outlook[key] is False]
        taken = world.day(queue, now)
    promises(f"{preset}, by its own statements", outlook, taken)
    counts = [sum(will is each for will in outlook.values()) for each in (True, False, None)]
    assert counts[0] > count / 5
    assert counts[1] > count / 5
    assert counts[2] < count / 2
