"""Retry policies, and `judge`, which turns the facts of a row into a verdict.

`judge(facts, policy, now)` is pure: the clock is passed in, and the same facts always get the same verdict.
SQL backends also state the conditions as predicates; `exercise_backend()` proves that both agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, assert_never

from console.core.item import Condition, Verdict, Window
from console.core.text import ascii_lower, coming, countdown, duration, instant, span

LONGEST = timedelta.max / 4
"""The longest delay, so that a growing one never overflows; jitter still fits above it."""

FOREVER = 1_000
"""A limit of this many attempts or more counts as no limit."""


@dataclass(frozen=True, slots=True)
class FixedDelays:
    """A list of delays: the k-th failure waits for the k-th delay, later failures for the last."""

    delays: tuple[timedelta, ...]

    def bounds(self, failures: int) -> tuple[timedelta, timedelta]:
        if not self.delays:
            return timedelta(0), timedelta(0)
        delay = self.delays[min(max(failures, 1), len(self.delays)) - 1]
        return delay, delay

    def __str__(self) -> str:
        return ", ".join(duration(delay) for delay in self.delays)


@dataclass(frozen=True, slots=True)
class Exponential:
    """base · multiplier^(failures-1), at most `cap`, then varied by ±`jitter` (a fraction of it)."""

    base: timedelta
    multiplier: float = 2.0
    cap: timedelta | None = None
    jitter: float = 0.0

    def bounds(self, failures: int) -> tuple[timedelta, timedelta]:
        delay = self._uncapped(max(failures, 1))
        if self.cap is not None:
            delay = min(delay, self.cap)
        return delay * (1 - self.jitter), delay * (1 + self.jitter)

    def _uncapped(self, failures: int) -> timedelta:
        try:
            # A float overflows at once; the power of an int would grow until memory ends.
            return min(self.base * float(self.multiplier) ** (failures - 1), LONGEST)
        except OverflowError:
            return LONGEST

    def __str__(self) -> str:
        text = f"{duration(self.base)} ×{self.multiplier:g}"
        if self.cap is not None:
            text += f" up to {duration(self.cap)}"
        return f"{text} ±{self.jitter:.0%}" if self.jitter else text


Backoff = FixedDelays | Exponential


@lru_cache(maxsize=64)
def _lowered(patterns: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((ascii_lower(pattern), pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a system gives up and how long it waits between attempts. `max_attempts` includes the first execution."""

    max_attempts: int | None = None
    backoff: Backoff | None = None
    retryable: bool = True
    max_age: timedelta | None = None
    stuck_after: timedelta | None = None
    recoverable: tuple[str, ...] = ()
    unrecoverable: tuple[str, ...] = ()
    retries_failed: bool = False
    """Whether the system retries failed items itself after the backoff. Otherwise it runs only scheduled ones."""
    items_have_limits: bool = False
    """Whether the limit is stored with each item; `max_attempts` is then for items without one."""

    def hopeless(self, error: str | None) -> str | None:
        """The first unrecoverable pattern found in this error."""
        if not error or not self.unrecoverable:
            return None
        lowered = ascii_lower(error)
        for small, pattern in _lowered(self.unrecoverable):
            if small in lowered:
                return pattern
        return None

    def delay_after(self, failures: int) -> tuple[timedelta, timedelta] | None:
        return self.backoff.bounds(failures) if self.backoff else None

    def __str__(self) -> str:
        own = "the limit of each item" if self.items_have_limits else "no limit"
        limit = own if self.max_attempts is None else f"{self.max_attempts} attempts"
        parts = [limit, str(self.backoff) if self.backoff else "no backoff"]
        if not self.retryable:
            parts.append("not retryable")
        if self.max_age is not None:
            parts.append(f"until {duration(self.max_age)} old")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class PolicyOverride:
    """The policy options of a config. None leaves the system's own value."""

    max_attempts: int | None = None
    backoff: Backoff | None = None
    retryable: bool | None = None
    max_age: timedelta | None = None
    stuck_after: timedelta | None = None
    recoverable: tuple[str, ...] | None = None
    unrecoverable: tuple[str, ...] | None = None

    def over(self, policy: RetryPolicy) -> RetryPolicy:
        """The policy with these options applied."""
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(policy, **given)


class Phase(StrEnum):
    """What a native status means in its own system, before the policy is applied."""

    READY = "ready"
    RUNNING = "running"
    FAILED = "failed"
    DONE = "done"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class Facts(NamedTuple):
    """The facts in one native row. A row's own limits take precedence over the policy's."""

    phase: Phase
    native_status: str
    attempts: int = 0
    max_attempts: int | None = None
    retryable: bool | None = None
    error: str | None = None
    due_at: datetime | None = None
    """When the system will run it, if the row stores that."""
    last_attempt_at: datetime | None = None
    """The start of a backoff that the row does not store."""
    since: datetime | None = None
    """When it entered this status, if the row stores that."""
    time_limit: timedelta | None = None
    """How long it may stay in this status before it is stuck, if the row stores that."""
    born_at: datetime | None = None
    """The start of `max_age`."""
    marker: str | None = None
    """Why it is marked as terminal, if it is."""
    ignored: str | None = None
    """Why its system ignores it when its status is ready."""
    reclaimed: bool | None = False
    """Whether its system takes up stuck items again itself while attempts are left. None: nobody can tell."""
    stuck_note: str | None = None
    """What else is known about it if it is stuck."""
    stuck: str | None = None
    """Why a running item is stuck whatever its age, if its system shows that."""


def judge(facts: Facts, policy: RetryPolicy, now: datetime) -> Verdict:
    """The verdict on one item: condition, why, next retry, will it run again, is it recoverable."""
    pattern = policy.hopeless(facts.error)
    recoverable = None if not facts.error else pattern is None
    match facts.phase:
        case Phase.READY:
            return _ready(facts, policy, now, recoverable)
        case Phase.FAILED:
            return _failed(facts, policy, now, pattern, recoverable)
        case Phase.RUNNING:
            return _running(facts, policy, now, recoverable)
        case Phase.DONE:
            return Verdict(Condition.DONE, "finished", recoverable=recoverable)
        case Phase.CANCELLED:
            return Verdict(Condition.CANCELLED, "cancelled", recoverable=recoverable)
        case Phase.UNKNOWN:
            return Verdict(Condition.UNKNOWN, f"unknown status {facts.native_status!r}", recoverable=recoverable)
        case _:
            assert_never(facts.phase)


def limit_of(facts: Facts, policy: RetryPolicy) -> int | None:
    """Executions allowed in total: the row's own number, else the policy's; one when not retryable."""
    limit = policy.max_attempts if facts.max_attempts is None else facts.max_attempts
    retryable = policy.retryable if facts.retryable is None else facts.retryable
    if retryable:
        return limit
    return 1 if limit is None else min(limit, 1)


def _over_limit(facts: Facts, policy: RetryPolicy, now: datetime) -> timedelta | None:
    limit = policy.stuck_after if facts.time_limit is None else facts.time_limit
    if limit is None or facts.since is None or now - facts.since <= limit:
        return None
    return now - facts.since


def _ready(facts: Facts, policy: RetryPolicy, now: datetime, recoverable: bool | None) -> Verdict:
    again = facts.ignored is None
    if facts.time_limit is not None and (over := _over_limit(facts, policy, now)):
        why = f"{facts.native_status} for {countdown(over)}, limit {duration(facts.time_limit)}"
        return Verdict(Condition.STUCK, _unless(facts.ignored, why), None, again, recoverable)
    due = Window.at(facts.due_at) if facts.due_at and again else None
    if facts.attempts <= 0:
        why = "not run yet" if due is None else f"not run yet, {_due_words(due, now)}"
        return Verdict(Condition.WAITING, _unless(facts.ignored, why), due, again, recoverable)
    limit = limit_of(facts, policy)
    used = f"attempt {facts.attempts} failed" if limit is None else f"{facts.attempts} of {limit} attempts used"
    if limit is not None and facts.attempts >= limit and again:
        used += ", requeued for one more"
    why = f"{used}, {_due_words(due, now) if due else 'due now'}"
    return Verdict(Condition.RETRYING, _unless(facts.ignored, why), due, again, recoverable)


def _unless(ignored: str | None, why: str) -> str:
    return f"its system ignores it: {ignored}" if ignored else why


def _due_words(due: Window, now: datetime) -> str:
    ahead = due.earliest - now
    return f"due {coming(due.earliest, now)}" if ahead > timedelta(0) else f"due since {instant(due.earliest)}"


def _running(facts: Facts, policy: RetryPolicy, now: datetime, recoverable: bool | None) -> Verdict:
    limit = limit_of(facts, policy)
    attempts_left = limit is None or facts.attempts < limit
    over = _over_limit(facts, policy, now)
    if over is None and facts.stuck is None:
        why = f"running since {instant(facts.since)}" if facts.since else "running, start time unknown"
        return Verdict(Condition.RUNNING, why, None, attempts_left and facts.ignored is None, recoverable)
    allowed = policy.stuck_after if facts.time_limit is None else facts.time_limit
    why = facts.stuck or f"running for {countdown(over or timedelta(0))}, limit {duration(allowed or timedelta(0))}"
    if facts.stuck_note is not None:
        why += f"; {facts.stuck_note}"
    elif not attempts_left:
        why += f"; {facts.attempts} of {limit} attempts used"
    again = facts.reclaimed if attempts_left and facts.ignored is None else False
    return Verdict(Condition.STUCK, why, None, again, recoverable)


def _failed(facts: Facts, policy: RetryPolicy, now: datetime, pattern: str | None, recoverable: bool | None) -> Verdict:
    if why := _terminal_because(facts, policy, now, pattern):
        return Verdict(Condition.TERMINAL, why, None, False, recoverable)
    limit = limit_of(facts, policy)
    of_limit = "" if limit is None else f" of {limit}"
    tried = f"failed after {facts.attempts}{of_limit} attempts"
    delay = policy.delay_after(facts.attempts)
    if not policy.retries_failed or delay is None:
        return Verdict(Condition.FAILED, f"{tried}, not retried automatically", None, False, recoverable)
    base = facts.last_attempt_at
    window = Window(later(base, delay[0]), later(base, delay[1])) if base else Window.at(now)
    return Verdict(Condition.RETRYING, f"{tried}, {_due_words(window, now)}", window, True, recoverable)


def later(base: datetime, delay: timedelta) -> datetime:
    """The moment after a delay, or the end of the calendar if that comes first."""
    try:
        return base + delay
    except OverflowError:
        return datetime.max.replace(tzinfo=base.tzinfo)


def _terminal_because(facts: Facts, policy: RetryPolicy, now: datetime, pattern: str | None) -> str | None:
    if facts.marker is not None:
        return facts.marker
    if pattern is not None:
        return f"unrecoverable error (matches {pattern!r})"
    limit = policy.max_attempts if facts.max_attempts is None else facts.max_attempts
    if limit is not None and facts.attempts >= limit:
        return f"{facts.attempts} of {limit} attempts used"
    retryable = policy.retryable if facts.retryable is None else facts.retryable
    if not retryable and facts.attempts >= 1:
        return "not retryable, runs only once"
    if policy.max_age is not None and facts.born_at is not None and now - facts.born_at >= policy.max_age:
        return f"older than {duration(policy.max_age)}"
    return None


def schedule_ahead(facts: Facts, policy: RetryPolicy, verdict: Verdict, now: datetime) -> Iterator[str]:
    """What happens next if every attempt fails: "attempt 3 at …", "attempt 4 60m after that fails", "then terminal"."""
    if verdict.condition not in (Condition.RETRYING, Condition.WAITING) or not verdict.will_run_again:
        return
    limit = limit_of(facts, policy)
    number = facts.attempts + 1
    when = verdict.next_retry
    yield f"attempt {number} {'now' if when is None or when.latest <= now else _at(when)}"
    shown = 1
    while limit is None or number < limit:
        delay = policy.delay_after(number)
        if delay is None or shown == 6:
            yield "then its system decides" if delay is None else "and so on"
            return
        number += 1
        shown += 1
        yield f"attempt {number} {span(*delay)} after that fails"
    yield "then terminal"


def _at(window: Window) -> str:
    if window.exact:
        return f"at {instant(window.earliest)}"
    return f"between {instant(window.earliest)} and {instant(window.latest)}"
