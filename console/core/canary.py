"""The canary: a few first, and the rest only when the backend shows that those were executed and succeeded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from console.core.backend import Backend
from console.core.faults import BackendBusy, BackendFault, DeadlineExceeded, Unreachable
from console.core.item import Condition, Item, ItemKey

_BAD = frozenset({Condition.RETRYING, Condition.FAILED, Condition.TERMINAL, Condition.STUCK})
_SAMPLE = 1_000
"""Of a large step, so many are watched."""
_PASSING = (Unreachable, BackendBusy, DeadlineExceeded)
"""What may be over by the next look: nothing is written meanwhile, so looking again costs nothing but time."""


@dataclass(slots=True)
class Watch:
    """The items of one step, and what has been seen of them since they were handed back."""

    handed_back: dict[ItemKey, datetime] = field(default_factory=dict)
    known_causes: frozenset[str] = frozenset()
    """The signatures the plan's items had failed by."""
    good: int = 0
    bad: int = 0
    same_cause: int = 0
    total: int = 0
    unread: BackendFault | None = None
    """Why the last look saw nothing."""

    def add(self, key: ItemKey, at: datetime) -> None:
        if self.total < _SAMPLE:
            self.handed_back[key] = at
            self.total += 1

    @property
    def waiting(self) -> int:
        return len(self.handed_back)

    def look(self, backend: Backend) -> None:
        """Judge what the backend shows executed since, and not running now."""
        try:
            items = backend.items(list(self.handed_back), backend.now())
        except _PASSING as fault:
            self.unread = fault
            return
        self.unread = None
        for key, at in list(self.handed_back.items()):
            item = items.get(key)
            if item is not None and not _executed(item, at):
                continue
            del self.handed_back[key]
            if item is None or item.condition not in _BAD:
                self.good += 1
                continue
            self.bad += 1
            self.same_cause += item.signature in self.known_causes

    def summary(self) -> str:
        text = f"canary: {self.good} good, {self.bad} bad of {self.total}"
        if self.same_cause:
            text += f" ({self.same_cause} by the same cause)"
        return f"{text}, {self.waiting} not judged yet" if self.waiting else text


def _executed(item: Item, since: datetime) -> bool:
    return item.executed_at is not None and item.executed_at > since and item.condition is not Condition.RUNNING


def wait_for(
    watch: Watch, backend: Backend, limit: float, until: datetime, pause: Callable[[], datetime]
) -> str | None:
    """Watch a step until it is judged: the reason to stop, or None to go on. `pause` waits and tells the time."""
    late = False
    while watch.waiting:
        watch.look(backend)
        if watch.bad > limit * watch.total:
            return f"{watch.summary()}: more than {limit:.0%} failed again"
        if late and watch.unread is not None:
            return f"{watch.summary()}: they could not be read: {watch.unread}"
        if late and watch.waiting:
            return f"{watch.summary()}: not all were executed in time"
        late = bool(watch.waiting) and pause() >= until
    return None
