"""Events: what happened to an override while nobody was looking, for notifications and hooks."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple


class EventKind(StrEnum):
    """What happened to an override."""

    FINISHED = "override_finished"
    STOPPED = "override_stopped"
    """It stopped before all items were written: a canary failed, somebody stopped it, or its system did not answer."""
    TAKEN_OVER = "override_taken_over"
    """Another process continues it."""
    WATCH_ENDED = "watch_ended"
    """Every item has a final result, or the watch time is over."""


class OverrideEvent(NamedTuple):
    """One thing that happened to an override. The trail has a record of it already."""

    kind: EventKind
    override_id: str
    text: str
    """One sentence, such as "Override o1a2 stopped: 10 requeued. Canary failed: …"."""
    bad: bool = False
    """Whether a person should do something: it stopped, was taken over, or items failed again."""


Listener = Callable[[OverrideEvent], None]
"""Is called in the thread of the override or of the watch, and must not raise."""
