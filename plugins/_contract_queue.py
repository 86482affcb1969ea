"""The rules of the contract queue, shared by its two storages: an SQLite file and a folder of files."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from console.core.policy import Exponential, Phase, RetryPolicy

PHASES = {
    "PENDING": Phase.READY,
    "RUNNING": Phase.RUNNING,
    "SUCCESS": Phase.DONE,
    "FAILED": Phase.FAILED,
    "CANCELLED": Phase.CANCELLED,
}

POLICY = RetryPolicy(
    max_attempts=3,
    backoff=Exponential(timedelta(seconds=1), multiplier=2, cap=timedelta(seconds=60), jitter=0.25),
    stuck_after=timedelta(hours=1),
)
"""The queue's own numbers. `max_retries` of a task is its max attempts: three means three executions."""


def may_retry(attempts: int, max_retries: int) -> bool:
    """The retry predicate, on the counter as it is after the claim."""
    return attempts < max_retries


def retry_delay(policy: RetryPolicy, attempts: int, chance: random.Random) -> timedelta:
    """The queue, not the worker, decides how long a failed task waits."""
    bounds = policy.delay_after(attempts)
    if bounds is None:
        return timedelta(0)
    low, high = bounds
    return low + (high - low) * chance.random()


def evidence(result_error: Any, task_error: Any) -> str | None:
    """The message a person needs: the result's error, else the task's own unless that is JSON's null."""
    if isinstance(result_error, str) and result_error:
        return result_error
    if isinstance(task_error, str) and task_error.strip() not in ("", "null"):
        return task_error
    return None
