"""What tests of the history are made of: an injected clock, readings with chosen figures, and an independent model."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from console.core.backend import Count, Histogram
from console.core.cause_count import Cause
from console.core.history import UPCOMING_STEP, UPCOMING_STEPS
from console.core.item import Condition
from console.history.samples import Reading

START = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def cause(
    signature: str, count: int, backend: str = "jobs", *, first: datetime | None = None, last: datetime | None = None,
    sample: str = "ERR: it failed",
) -> Cause:
    return Cause(signature, sample, count, 0, first, last, ((backend, count),))


def reading(backend: str, causes: Mapping[str, int], *, retrying: int = 0, due: int = 0, sampled: bool = False) -> Reading:
    """A system with these failures, all of them terminal, and these retries, all due in the first step."""
    counts = {Condition.TERMINAL: Count(sum(causes.values())), Condition.RETRYING: Count(retrying)}
    steps = (due, *([0] * (UPCOMING_STEPS - 1)))
    found = [cause(signature, count, backend) for signature, count in causes.items()]
    return Reading(backend, counts, found, Histogram(START, UPCOMING_STEP, steps), sampled=sampled)
