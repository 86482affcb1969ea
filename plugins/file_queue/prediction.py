"""Predicts whether and when a worker takes a task file.

A worker reads all `.task` files, leaves out those that it cannot read or whose `eta` it cannot compare, and claims the
first due one, by `eta` (none comes first) and then by `created_at`. If that file's status cannot become RUNNING, it
raises and tries the same file again: no later task is taken until the file is repaired.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from console.core.item import Window
from console.core.prediction import Prediction
from plugins.file_queue.folder import State

BLOCKING = frozenset({"FAILED", "SUCCESS", "CANCELLED"})
"""The statuses at which a worker stops. A file has FAILED while a failure is recorded, and keeps it if the worker dies
meanwhile."""

_FIRST = datetime.min.replace(tzinfo=UTC)


class Turn(NamedTuple):
    """When it is a task's turn, among the tasks that are due."""

    eta: datetime
    created: datetime


class Blocker(NamedTuple):
    """The first file at which workers stop."""

    turn: Turn
    id: str


def predict_task(eta: Any, created: datetime | None, blocker: Blocker | None = None) -> Prediction:
    """What workers do with a `.task` file whose status is PENDING."""
    at = due_time(eta)
    if isinstance(at, str):
        return Prediction(False, at)
    turn = Turn(at or _FIRST, created or _FIRST)
    if blocker is not None and blocker.turn <= turn:
        blocked = f"{blocker.id!r} blocks the queue"
        if blocker.turn == turn:
            return Prediction(None, f"{blocked} and has the same turn, so nobody can tell whether this task is taken")
        return Prediction(False, f"{blocked} until it is requeued")
    return Prediction(True, at=None if at is None else Window.at(at))


def due_time(eta: Any) -> datetime | str | None:
    """The due time; None if it is due at once; a text why it is never due."""
    if eta is None:
        return None
    try:
        at = datetime.fromisoformat(eta)
    except (TypeError, ValueError):
        return "schedule.eta is not a time"
    if at.tzinfo is None:
        return "schedule.eta has no time zone, so a worker cannot compare it"
    try:
        return at.astimezone(UTC)
    except OverflowError:
        return "schedule.eta is not a time"


def blocker_of(id: str, state: State | None, status: Any, eta: Any, created: datetime | None) -> Blocker | None:
    """The file as a blocker, if workers stop at it."""
    if state is not State.TASK or status not in BLOCKING:
        return None
    at = due_time(eta)
    return None if isinstance(at, str) else Blocker(Turn(at or _FIRST, created or _FIRST), id)
