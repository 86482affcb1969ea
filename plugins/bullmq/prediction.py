"""Predicts whether BullMQ will run a job.

Any worker of a queue moves due jobs from `delayed` to the jobs that wait, and takes those, unless the queue is paused.
A job that waits for its children, or whose lock is lost, runs if other jobs and workers do their part. BullMQ does not
keep a list of its workers, so a prediction assumes that one runs.
"""

from __future__ import annotations

from datetime import datetime

from console.core.item import Window
from console.core.prediction import Prediction

FAILED, DELAYED, ACTIVE, WAIT, PAUSED, PRIORITIZED, CHILDREN, COMPLETED = (
    "failed", "delayed", "active", "wait", "paused", "prioritized", "waiting-children", "completed"
)
QUEUED = (WAIT, PAUSED, PRIORITIZED)


def predict(place: str, queue: str, *, paused: bool, due: datetime | None = None) -> Prediction:
    """What BullMQ does with a job of this queue that is kept in this place. Only delayed ones have a due time."""
    if place == CHILDREN:
        return Prediction(None, "waits for its children")
    if place != DELAYED and place not in QUEUED:
        return Prediction(False, f"It is {place}.")
    at = None if due is None else Window.at(due)
    if paused:
        return Prediction(None, f"Queue {queue!r} is paused; it runs once it is resumed.", at=at)
    return Prediction(True, at=at)
