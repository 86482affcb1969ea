"""Predicts whether Sidekiq will run a job.

Every Sidekiq process moves due jobs from the sets `retry` and `schedule` to their queues, for all processes. A job in a
queue runs once a living process takes jobs from that queue.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from console.core.item import Window
from console.core.prediction import Prediction

DEAD, RETRY, WORK, QUEUE, SCHEDULE = "dead", "retry", "work", "queue", "schedule"


def predict(place: str, queue: str, served: Collection[str], due: datetime | None = None) -> Prediction:
    """What Sidekiq does with a job of this queue that is kept in this place. `served` are the queues from which a
    living process takes jobs."""
    if place not in (RETRY, SCHEDULE, QUEUE):
        return Prediction(False, f"It is {place}.")
    at = None if due is None else Window.at(due)
    if not served:
        return Prediction(None, "no Sidekiq process is running", at=at)
    if queue not in served:
        why = f"No Sidekiq process takes jobs from queue {queue!r} now; it runs once one does."
        return Prediction(None, why, at=at)
    return Prediction(True, at=at)
