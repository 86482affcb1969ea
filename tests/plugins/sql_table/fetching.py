"""What the workers of a queue take within a day, by the statements that they use themselves.

They are copied from the sources of River 0.43, GoodJob 4.19, Que 2.4 and Solid Queue 1.5 (with a given time in place of
the clock, and without row locks), and know nothing of the presets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.plugins.sql_table.world import Queue

STEP = timedelta(hours=1)
Day = Callable[[Queue, datetime], set[str]]


def moments(now: datetime) -> Iterator[datetime]:
    return (now + n * STEP for n in range(25))


def ids(rows: list[tuple[Any, ...]]) -> set[str]:
    return {str(id) for (id, *_) in rows}


# --- River --------------------------------------------------------------------------------------------------

RIVER_SCHEDULE = """
    UPDATE river_job SET state = 'available' WHERE state IN ('retryable', 'scheduled')
    AND priority >= 0 AND queue IS NOT NULL AND scheduled_at <= ?"""
RIVER_QUEUES = "SELECT DISTINCT queue FROM river_job WHERE queue NOT IN (SELECT name FROM river_queue WHERE paused_at IS NOT NULL)"
RIVER_TAKE = """
    WITH locked_jobs AS (
        SELECT * FROM river_job WHERE state = 'available' AND queue = ?::text AND scheduled_at <= ?
        ORDER BY priority ASC, scheduled_at ASC, id ASC)
    UPDATE river_job SET state = 'completed', finalized_at = now(), attempt = river_job.attempt + 1
    FROM locked_jobs WHERE river_job.id = locked_jobs.id RETURNING river_job.id"""


def river(queue: Queue, now: datetime) -> set[str]:
    """Its scheduler makes due jobs available; the producer of each queue takes those, unless it is paused."""
    taken: set[str] = set()
    for at in moments(now):
        queue.run(RIVER_SCHEDULE, [at])
        for (name,) in queue.run(RIVER_QUEUES, []):
            taken |= ids(queue.run(RIVER_TAKE, [name, at]))
    return taken


# --- GoodJob ------------------------------------------------------------------------------------------------

_PAUSED = "SELECT jsonb_array_elements_text(value->'{0}') FROM good_job_settings WHERE key = 'pauses'"
GOOD_JOB_TAKE = f"""
    UPDATE good_jobs SET finished_at = now() WHERE id IN (
        SELECT id FROM good_jobs WHERE finished_at IS NULL AND locked_by_id IS NULL AND scheduled_at <= ?
        AND queue_name NOT IN ({_PAUSED.format("queues")}) AND job_class NOT IN ({_PAUSED.format("job_classes")})
        AND NOT COALESCE(labels && ARRAY({_PAUSED.format("labels")}), FALSE)) RETURNING id"""


def good_job(queue: Queue, now: datetime) -> set[str]:
    """With row locks and with pauses."""
    taken: set[str] = set()
    for at in moments(now):
        taken |= ids(queue.run(GOOD_JOB_TAKE, [at.astimezone(UTC).replace(tzinfo=None)]))
    return taken


# --- Que ----------------------------------------------------------------------------------------------------

QUE_TAKE = """
    UPDATE que_jobs SET finished_at = now() WHERE id IN (
        SELECT id FROM que_jobs AS j WHERE queue = ?::text AND job_schema_version = 2 AND priority <= 32767
        AND run_at <= ? AND finished_at IS NULL AND expired_at IS NULL) RETURNING id"""


def que(queue: Queue, now: datetime) -> set[str]:
    """The workers of Que 2 poll the queues that their row in `que_lockers` names."""
    taken: set[str] = set()
    for at in moments(now):
        for (name,) in queue.run("SELECT DISTINCT unnest(queues) FROM que_lockers", []):
            taken |= ids(queue.run(QUE_TAKE, [name, at]))
    return taken


# --- Solid Queue --------------------------------------------------------------------------------------------


def solid_queue(queue: Queue, now: datetime) -> set[str]:
    """Its dispatcher makes due jobs ready if the semaphore of their key allows; workers take them and release it."""
    taken: set[str] = set()

    def place(name: str, where: str = "1 = 1", *values: Any) -> list[str]:
        found = queue.run(f"SELECT job_id FROM solid_queue_{name}_executions e WHERE {where} ORDER BY job_id", list(values))
        return [str(id) for (id,) in found]

    def leave(name: str, id: str) -> None:
        queue.run(f"DELETE FROM solid_queue_{name}_executions WHERE job_id = ?", [int(id)])

    def enter(name: str, id: str, **more: Any) -> None:
        queue.insert(f"solid_queue_{name}_executions", job_id=int(id), queue_name=queue_of[id], created_at=naive(now), **more)

    def wait(id: str) -> bool:
        key = keys[id]
        if key is None:
            return True
        found = queue.run('SELECT value FROM solid_queue_semaphores WHERE "key" = ?', [key])
        if not found:
            queue.insert("solid_queue_semaphores", key=key, value=0, expires_at=naive(now), created_at=naive(now), updated_at=naive(now))
            return True
        queue.run('UPDATE solid_queue_semaphores SET value = value - 1 WHERE "key" = ? AND value > 0', [key])
        return bool(found[0][0] > 0)

    def signal(id: str) -> None:
        """The job has ended: its semaphore is free, and one job that waits for it becomes ready."""
        if keys[id] is None:
            return
        queue.run('UPDATE solid_queue_semaphores SET value = value + 1 WHERE "key" = ? AND value < 1', [keys[id]])
        if (next_ := place("blocked", "concurrency_key = ?", keys[id])[:1]) and wait(next_[0]):
            leave("blocked", next_[0])
            enter("ready", next_[0])

    found = queue.run("SELECT id, concurrency_key, queue_name FROM solid_queue_jobs", [])
    keys = {str(id): key for id, key, _ in found}
    queue_of = {str(id): name for id, _, name in found}
    for at in moments(now):
        for id in place("scheduled", "scheduled_at <= ?", naive(at)):
            leave("scheduled", id)
            if wait(id):
                enter("ready", id)
            else:
                enter("blocked", id, concurrency_key=keys[id], expires_at=naive(now))
        while ready := place("ready", "queue_name NOT IN (SELECT queue_name FROM solid_queue_pauses)"):
            for id in ready:
                leave("ready", id)
                taken.add(id)
                signal(id)
    return taken


def naive(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(tzinfo=None)
