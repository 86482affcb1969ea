from __future__ import annotations

from datetime import timedelta

import pytest

from console.core.policy import Exponential, FixedDelays, RetryPolicy
from console.core.policy_lint import lint

M = timedelta(minutes=1)
FINE = RetryPolicy(4, FixedDelays((5 * M, 15 * M, 60 * M)))


@pytest.mark.parametrize(
    ("policy", "lines"),
    [
        (FINE, []),
        (RetryPolicy(3, Exponential(M, cap=60 * M, jitter=0.25)), []),
        (RetryPolicy(), ["max_attempts is not set, so nothing ever becomes terminal by count. Set max_attempts to the executions allowed in total."]),
        (RetryPolicy(0), ["max_attempts 0 leaves no retry, and reads as never run at all. Use max_attempts: 1 for a single execution."]),
        (RetryPolicy(10**6), ["max_attempts 1000000 means for ever: nothing will become terminal. Set a limit somebody would wait for."]),
        (RetryPolicy(3, retryable=False), ["retryable: false makes max_attempts 3 the same as 1. Set max_attempts: 1, or retryable: true."]),
        (RetryPolicy(1, retryable=False), []),
        (RetryPolicy(3, FixedDelays((5 * M, 15 * M, 60 * M))),
         ["the delay 1h is never reached: max_attempts 3 allows 2 retries. Set max_attempts: 4, or remove the delay."]),
        (RetryPolicy(2, FixedDelays((5 * M, 15 * M, 60 * M))),
         ["the delay 15m, 1h is never reached: max_attempts 2 allows 1 retries. Set max_attempts: 4, or remove the delay."]),
        (RetryPolicy(6, FixedDelays((5 * M, 15 * M))),
         ["2 delays for 5 retries: the last (15m) is repeated. List one delay per retry if that is not meant."]),
        (RetryPolicy(2, FixedDelays((timedelta(0),))),
         ["a delay of zero retries at once, in the middle of the same outage. Give every retry a delay."]),
        (RetryPolicy(3, Exponential(timedelta(0), cap=M)), ["base 0 makes every delay zero. Set base to the first delay."]),
        (RetryPolicy(3, Exponential(M, 0.5)), ["multiplier 0.5 makes every delay shorter than the last. Use a multiplier of 1 or more."]),
        (RetryPolicy(3, Exponential(5 * M, cap=M)), ["cap 1m is below base 5m, so every delay is the cap. Raise cap, or lower base."]),
        (RetryPolicy(30, Exponential(M)), ["the delay doubles without a cap and reaches years. Set cap."]),
        (RetryPolicy(3, unrecoverable=(" ",)), ["an empty pattern matches every error. Remove it."]),
        (RetryPolicy(3, recoverable=("Bad Gateway",), unrecoverable=("bad",)),
         ["'Bad Gateway' is listed as recoverable, but an unrecoverable pattern matches it and wins. Remove one of the two."]),
        (RetryPolicy(4, FixedDelays((5 * M, 15 * M, 60 * M)), max_age=60 * M),
         ["max_age 1h ends before the schedule does (1h20m). Raise max_age, or lower max_attempts."]),
        (RetryPolicy(4, FixedDelays((5 * M, 15 * M, 60 * M)), max_age=80 * M), []),
    ],
)
def test_warnings_name_the_mistake_and_the_fix(policy: RetryPolicy, lines: list[str]) -> None:
    assert [str(warning) for warning in lint(policy)] == lines


def test_a_schedule_longer_than_any_calendar_is_only_a_warning() -> None:
    """Growing without a cap over many attempts must not overflow while it is being warned about."""
    policy = RetryPolicy(900, Exponential(timedelta(days=1), 10), max_age=timedelta(days=30))
    assert {warning.code for warning in lint(policy)} == {"no-cap", "age-before-attempts"}


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_below_one_has_no_schedule_to_outlive(limit: int) -> None:
    policy = RetryPolicy(limit, FixedDelays((5 * M,)), max_age=M)
    assert "age-before-attempts" not in {warning.code for warning in lint(policy)}
