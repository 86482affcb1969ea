"""Predicts whether RQ will run a job.

A worker takes what is in its queues, in order. What is scheduled gets there at its time, if a scheduler runs. Nothing
takes a job from a queue to which no living worker listens, or while all workers are suspended.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from console.core.item import Window
from console.core.prediction import Prediction

FAILED, SCHEDULED, QUEUE, TAKEN, WIP, DEFERRED, FINISHED, CANCELED = (
    "failed", "scheduled", "queue", "taken", "wip", "deferred", "finished", "canceled"
)
SUSPENDED = "RQ is suspended: its workers take no job until somebody runs `rq resume`."


class QueueState(NamedTuple):
    """What is known of one queue besides its jobs."""

    name: str = ""
    workers: int = 0
    scheduler: bool = False
    suspended: bool = False
    """All workers are suspended. RQ knows that for all queues together."""


def predict(place: str, queue: QueueState, due: datetime | None = None, retries_left: int = 0) -> Prediction:
    """What RQ does with a job that is kept in this place. `due` is the time of a scheduled one."""
    match place:
        case "queue" | "scheduled":
            return _in_turn(place, queue, due)
        case "wip":
            return Prediction(retries_left > 0, "" if retries_left > 0 else "No retries are left.")
        case "deferred":
            return Prediction(None, "waits for the jobs that it depends on; if one of them failed, it waits forever")
        case _:
            return Prediction(False, f"It is {place}.")


def _in_turn(place: str, queue: QueueState, due: datetime | None) -> Prediction:
    if queue.suspended:
        return Prediction(None, SUSPENDED)
    at = None if due is None else Window.at(due)
    if place == SCHEDULED and not queue.scheduler:
        why = f"no RQ scheduler is running for queue {queue.name}; start a worker with a scheduler"
        return Prediction(None, why, at=at)
    if not queue.workers:
        return Prediction(None, f"No worker listens to queue {queue.name!r} now; it runs once one does.", at=at)
    if place == SCHEDULED and due is None:
        return Prediction(None, "scheduled, but its time cannot be read")
    return Prediction(True, at=at)
