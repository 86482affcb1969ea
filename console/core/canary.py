"""The canary: a few items first, and the rest only when the backend shows that those ran and succeeded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from console.core.backend import Backend
from console.core.faults import BackendBusy, BackendFault, DeadlineExceeded, Unreachable
from console.core.item import Condition, Item, ItemKey
from console.core.recovery import Result, after_execution

_SAMPLE = 1_000
"""At most so many items of a step are watched."""
_TEMPORARY = (Unreachable, BackendBusy, DeadlineExceeded)
"""Faults that may be over at the next look. Nothing is written meanwhile, so waiting is safe."""


@dataclass(slots=True)
class Watch:
    """The items of one canary step, and what became of them since they were requeued."""

    requeued: dict[ItemKey, datetime] = field(default_factory=dict)
    known_causes: frozenset[str] = frozenset()
    """The error signatures of the plan's items."""
    succeeded: int = 0
    failed: int = 0
    same_cause: int = 0
    total: int = 0
    unread: BackendFault | None = None
    """Why the items could not be read last time."""

    def add(self, key: ItemKey, at: datetime) -> None:
        if self.total < _SAMPLE:
            self.requeued[key] = at
            self.total += 1

    @property
    def waiting(self) -> int:
        """How many have not run yet."""
        return len(self.requeued)

    def look(self, backend: Backend) -> None:
        """Read the items that have not run yet, and count those that have by now."""
        try:
            items = backend.items(list(self.requeued), backend.now())
        except _TEMPORARY as fault:
            self.unread = fault
            return
        self.unread = None
        for key, at in list(self.requeued.items()):
            item = items.get(key)
            if item is not None and not _executed(item, at):
                continue
            del self.requeued[key]
            if item is None or after_execution(item.condition) is not Result.FAILED_AGAIN:
                self.succeeded += 1
                continue
            self.failed += 1
            self.same_cause += item.signature in self.known_causes

    def summary(self) -> str:
        """The state so far: "Canary: 3 of 5 succeeded, 1 failed again, 1 not run yet"."""
        text = f"Canary: {self.succeeded} of {self.total} succeeded"
        if self.failed:
            text += f", {self.failed} failed again"
        return f"{text}, {self.waiting} not run yet" if self.waiting else text

    def failure(self, limit: float) -> str:
        """Why the override stops: "Canary failed: 4 of 5 failed again with the same error (limit 20 %)"."""
        if self.same_cause == self.failed:
            again = "failed again with the same error"
        elif self.same_cause:
            again = f"failed again, {self.same_cause} with the same error"
        else:
            again = "failed again with another error"
        return f"Canary failed: {self.failed} of {self.total} {again} (limit {limit * 100:.0f} %)"


def _executed(item: Item, since: datetime) -> bool:
    return item.executed_at is not None and item.executed_at > since and item.condition is not Condition.RUNNING


def wait_for(
    watch: Watch, backend: Backend, limit: float, until: datetime, pause: Callable[[], datetime]
) -> str | None:
    """Watch a step until all its items have run. Returns why to stop, or None to go on.

    `pause` waits and returns the time; after `until` no more waiting.
    """
    late = False
    while watch.waiting:
        watch.look(backend)
        if watch.failed > limit * watch.total:
            return watch.failure(limit)
        if late and watch.unread is not None:
            return f"Canary stopped: its items could not be read ({watch.unread})"
        if late and watch.waiting:
            return f"Canary stopped: {watch.waiting} of {watch.total} did not run in time"
        late = bool(watch.waiting) and pause() >= until
    return None
