"""The canary: a few items first, and the rest only when the backend shows that those ran and succeeded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from console.core.backend import Requeues
from console.core.budget import Meter, metered
from console.core.faults import BackendBusy, BackendFault, DeadlineExceeded, Unreachable
from console.core.item import ItemKey
from console.core.recovery import Observation, Requeued, Result, look_at

_FIX = "Fix the cause, then make a new plan."
_RESUME = "Resume it to try a new canary."
_SAMPLE = 1_000
"""The largest number of items of a step that are watched."""
_TEMPORARY = (Unreachable, BackendBusy, DeadlineExceeded)
"""Faults that may be over at the next look. Nothing is written meanwhile, so waiting is safe."""


class StopReason(NamedTuple):
    """Why a canary stops the override, and what to do now, as sentences without and with a full stop."""

    why: str
    advice: str


class CanaryProgress(NamedTuple):
    """The results of a canary step so far, for display."""

    step: int
    """From 1."""
    steps: tuple[int, ...]
    """The sizes of all steps, those to come included."""
    total: int
    recovered: int
    failed_again: int
    changed_by_others: int
    running: int
    waiting: int
    """Not run yet, or missing."""

    @property
    def reads_all(self) -> bool:
        """Whether it reads every item of its step, not a sample of them."""
        return self.steps[self.step - 1] <= _SAMPLE


@dataclass(slots=True)
class CanaryStep:
    """The items of one canary step, and their results so far."""

    known_causes: frozenset[str] = frozenset()
    """The error signatures of the plan's items."""
    waiting: dict[ItemKey, Requeued] = field(default_factory=dict)
    """The items whose result is not final yet."""
    results: Counter[Result] = field(default_factory=Counter)
    """The final results."""
    overdue: int = 0
    """How many have run for too long. Their results may still change."""
    running: int = 0
    """How many were running at the last look, within their time."""
    missing: int = 0
    """How many were not there at the last look, without a final result."""
    observed: list[tuple[int, Observation]] = field(default_factory=list)
    """What the last look found out about the items that were there, by their places in the plan."""
    causes: Counter[str] = field(default_factory=Counter)
    heads: dict[str, str] = field(default_factory=dict)
    """Cause → the beginning of one of its errors."""
    same_cause: int = 0
    total: int = 0
    cost: Meter = field(default_factory=Meter)
    """What the last look took."""
    unread: BackendFault | None = None
    """Why the items could not be read last time."""

    def add(self, requeued: Requeued) -> None:
        if self.total < _SAMPLE:
            self.waiting[requeued.key] = requeued
            self.total += 1

    @property
    def recovered(self) -> int:
        return self.results[Result.RECOVERED]

    @property
    def failed(self) -> int:
        return self.results[Result.FAILED_AGAIN] + self.overdue

    def look(self, backend: Requeues) -> None:
        """Read the items whose result is not final yet."""
        followed = list(self.waiting.values())
        try:
            with metered() as self.cost:
                now = backend.now()
                observed = look_at(backend, followed, now)
        except _TEMPORARY as fault:
            self.unread = fault
            return
        self.unread, self.overdue, self.running, self.missing = None, 0, 0, 0
        self.observed = [(one.ordinal, seen) for one, seen in zip(followed, observed, strict=True) if not seen.missing]
        for one, seen in zip(followed, observed, strict=True):
            if seen.final:
                del self.waiting[one.key]
                self._count(seen)
            elif seen.missing:
                self.waiting[one.key] = one._replace(gone_at=one.gone_at or now)
                self.missing += 1
            else:
                self.overdue += seen.result is Result.FAILED_AGAIN
                self.running += seen.result is Result.RUNNING

    def _count(self, seen: Observation) -> None:
        self.results[seen.result] += 1
        if seen.cause is not None:
            self.causes[seen.cause] += 1
            self.heads.setdefault(seen.cause, seen.error)
            self.same_cause += seen.cause in self.known_causes

    def progress(self, step: int, steps: tuple[int, ...]) -> CanaryProgress:
        waiting = len(self.waiting) - self.overdue - self.running
        changed = self.results[Result.CHANGED_BY_OTHERS]
        return CanaryProgress(step, steps, self.total, self.recovered, self.failed, changed, self.running, waiting)

    def summary(self) -> str:
        """The state so far: "Canary: 3 of 5 recovered, 1 failed again, 1 not run yet"."""
        parts = [f"{self.recovered} of {self.total} recovered"]
        if self.failed:
            parts.append(f"{self.failed} failed again")
        if changed := self.results[Result.CHANGED_BY_OTHERS]:
            parts.append(f"{changed} changed by somebody else")
        if unknown := self.missing + self.results[Result.NOT_KNOWN]:
            parts.append(f"{unknown} no longer there")
        if self.running:
            parts.append(f"{self.running} running")
        if waiting := len(self.waiting) - self.missing - self.overdue - self.running:
            parts.append(f"{waiting} not run yet")
        return f"Canary: {', '.join(parts)}"

    def failure(self, limit: float) -> str:
        """Why the override stops: "Canary failed: 4 of 5 failed again with the same error (limit 20 %)"."""
        if self.same_cause == self.failed:
            again = "failed again with the same error"
        elif self.same_cause:
            again = f"failed again, {self.same_cause} with the same error"
        else:
            again = "failed again with another error"
        text = f"Canary failed: {self.failed} of {self.total} {again} (limit {limit * 100:.0f} %)"
        # The record has the cause's signature and never its text, which may contain secrets.
        named = ", ".join(f"{cause[:8]} ({number})" for cause, number in self.causes.most_common(3))
        return f"{text}. Cause: {named}" if named else text


def wait_for(
    step: CanaryStep, backend: Requeues, limit: float, until: datetime, pause: Callable[[], datetime]
) -> StopReason | None:
    """Watch a step until all its items have run. Returns why to stop, or None to go on.

    `pause` waits and returns the time; after `until` no more waiting.
    """
    late = False
    while step.waiting:
        step.look(backend)
        if step.failed > limit * step.total:
            return StopReason(step.failure(limit), _FIX)
        if late and step.unread is not None:
            return StopReason(f"Canary stopped: its items could not be read ({step.unread})", _RESUME)
        if late and step.waiting:
            why = f"Canary stopped: {len(step.waiting)} of {step.total} did not run in time"
            return StopReason(why, f"Check its workers. {_RESUME}")
        late = bool(step.waiting) and pause() >= until
    if gone := step.results[Result.NOT_KNOWN]:
        why = f"Canary stopped: {gone} of {step.total} are no longer there, so nobody can tell whether they recovered"
        return StopReason(why, _RESUME)
    if step.total and not step.recovered + step.failed:
        return StopReason(f"Canary stopped: somebody else has changed all {step.total} items", _RESUME)
    return None
