"""Warnings about a retry policy that probably does not do what its author wanted, each with a fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from console.core.policy import FOREVER, Exponential, FixedDelays, RetryPolicy
from console.core.text import ascii_lower, duration


@dataclass(frozen=True, slots=True)
class PolicyWarning:
    """One probable mistake, and what to write instead."""

    code: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.message}. {self.fix}"


def lint(policy: RetryPolicy) -> list[PolicyWarning]:
    """All warnings about a policy."""
    return [*_limits(policy), *_delays(policy), *_exponential(policy), *_patterns(policy), *_age(policy)]


def _limits(policy: RetryPolicy) -> Iterator[PolicyWarning]:
    limit = policy.max_attempts
    if limit is None and not policy.items_have_limits:
        yield PolicyWarning(
            "no-limit",
            "max_attempts is not set, so no number of attempts makes an item terminal",
            "Set max_attempts to the total number of executions.",
        )
    elif limit is not None and limit <= 0:
        yield PolicyWarning(
            "zero-attempts",
            f"max_attempts {limit} allows no execution at all",
            "Use max_attempts: 1 for a single execution.",
        )
    elif limit is not None and limit >= FOREVER:
        yield PolicyWarning(
            "forever",
            f"max_attempts {limit} is so high that nothing will ever become terminal",
            "Set a lower limit.",
        )
    if not policy.retryable and limit is not None and limit > 1:
        yield PolicyWarning(
            "not-retryable",
            f"retryable: false makes max_attempts {limit} the same as 1",
            "Set max_attempts: 1, or retryable: true.",
        )


def _delays(policy: RetryPolicy) -> Iterator[PolicyWarning]:
    if not isinstance(policy.backoff, FixedDelays):
        return
    delays = policy.backoff.delays
    limit = policy.max_attempts if policy.retryable else 1
    if limit is not None and len(delays) > max(limit - 1, 0):
        retries = max(limit - 1, 0)
        unused = [duration(delay) for delay in delays[retries:]]
        one = len(unused) == 1
        what, them = (f"delay {unused[0]} is", "it") if one else (f"delays {', '.join(unused)} are", "them")
        yield PolicyWarning(
            "unreachable-delay",
            f"The {what} never used: max_attempts {limit} allows {retries} {'retry' if retries == 1 else 'retries'}",
            f"Set max_attempts: {len(delays) + 1}, or remove {them}.",
        )
    if limit is not None and 0 < len(delays) < min(limit, FOREVER) - 1:
        how_many, last = ("is 1 delay", "it") if len(delays) == 1 else (f"are {len(delays)} delays", "the last")
        yield PolicyWarning(
            "short-schedule",
            f"There {how_many} for {limit - 1} retries, so {last} ({duration(delays[-1])}) is repeated",
            "List one delay for each retry.",
        )
    if any(delay <= timedelta(0) for delay in delays):
        yield PolicyWarning(
            "zero-delay",
            "A delay of zero retries at once, during the same outage",
            "Set a delay for every retry.",
        )


def _exponential(policy: RetryPolicy) -> Iterator[PolicyWarning]:
    backoff = policy.backoff
    if not isinstance(backoff, Exponential):
        return
    if backoff.base <= timedelta(0):
        yield PolicyWarning("zero-delay", "base 0 makes every delay zero", "Set base to the first delay.")
    if backoff.multiplier < 1:
        yield PolicyWarning(
            "shrinking",
            f"multiplier {backoff.multiplier:g} makes each delay shorter than the one before",
            "Use a multiplier of 1 or more.",
        )
    if backoff.cap is not None and backoff.cap < backoff.base:
        yield PolicyWarning(
            "cap-below-base",
            f"cap {duration(backoff.cap)} is below base {duration(backoff.base)}, so every delay is the cap",
            "Raise cap, or lower base.",
        )
    if backoff.cap is None and backoff.multiplier > 1 and (policy.max_attempts or FOREVER) > 20:
        yield PolicyWarning("no-cap", "The delay grows without a cap, up to years", "Set cap.")


def _patterns(policy: RetryPolicy) -> Iterator[PolicyWarning]:
    hopeless = [ascii_lower(p) for p in policy.unrecoverable]
    if any(not p.strip() for p in (*policy.recoverable, *policy.unrecoverable)):
        yield PolicyWarning("empty-pattern", "An empty pattern matches every error", "Remove it.")
    for pattern in policy.recoverable:
        low = ascii_lower(pattern)
        if low and any(p and p in low for p in hopeless):
            yield PolicyWarning(
                "contradiction",
                f"{pattern!r} is listed as recoverable, but an unrecoverable pattern matches it and is used",
                "Remove one of the two.",
            )


def _sum(delays: Iterable[timedelta]) -> timedelta:
    try:
        return sum(delays, timedelta(0))
    except OverflowError:
        return timedelta.max


def _age(policy: RetryPolicy) -> Iterator[PolicyWarning]:
    if policy.max_age is None or policy.backoff is None or policy.max_attempts is None:
        return
    retries = min(policy.max_attempts, FOREVER) - 1
    longest = _sum(policy.backoff.bounds(k)[1] for k in range(1, retries + 1))
    if longest > policy.max_age:
        yield PolicyWarning(
            "age-before-attempts",
            f"max_age {duration(policy.max_age)} is shorter than all retries together ({duration(longest)})",
            "Raise max_age, or lower max_attempts.",
        )
