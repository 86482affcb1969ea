"""A second model of the orchestrator, written from its documented rules. It shares no code with the plugin.

All times are minutes from the start of the simulated day.
"""

from __future__ import annotations

from dataclasses import dataclass, field

POLLED = {"pending": None, "waiting_for_dependencies": 60.0, "waiting_for_retry": 30.0}
DETECTOR_EVERY = 5.0
LIFETIME = 24 * 60.0


@dataclass
class ModelStep:
    name: str
    state: str
    attempts: int | None = 0
    max_attempts: int | None = 3
    retryable: bool | None = True
    processed: bool = False
    in_process: bool = False
    last_attempt: float | None = None
    backoff: float | None = None
    """In minutes."""
    failures: list[float] = field(default_factory=list)
    parents: list[ModelStep] = field(default_factory=list)
    ran: bool = False

    @property
    def eligible(self) -> bool:
        used = self.attempts or 0
        if used == 0:
            return True
        most = 3 if self.max_attempts is None else self.max_attempts
        return self.retryable is not False and used < most

    @property
    def retry_at(self) -> float | None:
        if self.backoff is not None and self.last_attempt is not None:
            return self.last_attempt + self.backoff
        if not self.failures:
            return None
        exponent = 1 if self.attempts is None else self.attempts
        return max(self.failures) + min(2**exponent, 60) / 60

    def ready(self, now: float) -> bool:
        return (
            self.state in ("pending", "waiting_for_retry")
            and not self.processed
            and not self.in_process
            and all(parent.state in ("complete", "resolved_manually") for parent in self.parents)
            and self.eligible
            and (self.retry_at is None or self.retry_at <= now)
        )


@dataclass
class ModelTask:
    state: str | None
    since: float
    created: float
    steps: list[ModelStep] = field(default_factory=list)
    in_dead_letters: bool = False

    def polled(self, now: float) -> bool:
        if self.state not in POLLED:
            return False
        longest = POLLED[self.state]
        return longest is None or now - self.since <= longest

    def take(self, now: float) -> bool:
        """Run what is ready, if the orchestrator finds the task; every execution succeeds."""
        if not self.polled(now) or any(step.state == "error" for step in self.steps):
            return False
        ready = [step for step in self.steps if step.ready(now)]
        for step in ready:
            step.ran, step.state, step.processed = True, "complete", True
        if ready:
            open_ = [step.state for step in self.steps if step.state not in ("complete", "resolved_manually", "cancelled")]
            self.state = "complete" if not open_ else "waiting_for_retry" if "waiting_for_retry" in open_ else "waiting_for_dependencies"
            self.since = now
        return bool(ready)

    def detect(self, now: float) -> None:
        """What the staleness detector does with the task."""
        limits = {"waiting_for_dependencies": 60.0, "waiting_for_retry": 30.0, "steps_in_process": 30.0}
        if self.state not in limits or self.in_dead_letters:
            return
        if now - self.since >= limits[self.state] or now - self.created >= LIFETIME:
            self.state, self.since, self.in_dead_letters = "error", now, True


def moments() -> list[float]:
    """When the simulated day is looked at: often at first, because the limits are minutes."""
    return [*range(0, 70, 2), *range(70, 130, 5), *range(130, 24 * 60 + 1, 60)]


def simulate(tasks: list[ModelTask]) -> None:
    """One day: the orchestrator polls until nothing is ready, and the detector looks every five minutes."""
    detects_at = 0.0
    for now in moments():
        for task in tasks:
            while task.take(now):
                pass
        if now >= detects_at:
            detects_at = now + DETECTOR_EVERY
            for task in tasks:
                task.detect(now)
