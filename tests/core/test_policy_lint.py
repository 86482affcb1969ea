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
        (RetryPolicy(items_have_limits=True), []),
        (RetryPolicy(), ["max_attempts is not set, so no number of attempts makes an item terminal. Set max_attempts to the total number of executions."]),
        (RetryPolicy(0), ["max_attempts 0 allows no execution at all. Use max_attempts: 1 for a single execution."]),
        (RetryPolicy(10**6), ["max_attempts 1000000 is so high that nothing will ever become terminal. Set a lower limit."]),
        (RetryPolicy(3, retryable=False), ["retryable: false makes max_attempts 3 the same as 1. Set max_attempts: 1, or retryable: true."]),
        (RetryPolicy(1, retryable=False), []),
        (RetryPolicy(3, FixedDelays((5 * M, 15 * M, 60 * M))),
         ["The delay 1h is never used: max_attempts 3 allows 2 retries. Set max_attempts: 4, or remove it."]),
        (RetryPolicy(2, FixedDelays((5 * M, 15 * M, 60 * M))),
         ["The delays 15m, 1h are never used: max_attempts 2 allows 1 retry. Set max_attempts: 4, or remove them."]),
        (RetryPolicy(6, FixedDelays((5 * M, 15 * M))),
         ["There are 2 delays for 5 retries, so the last (15m) is repeated. List one delay for each retry."]),
        (RetryPolicy(5, FixedDelays((5 * M,))),
         ["There is 1 delay for 4 retries, so it (5m) is repeated. List one delay for each retry."]),
        (RetryPolicy(2, FixedDelays((timedelta(0),))),
         ["A delay of zero retries at once, during the same outage. Set a delay for every retry."]),
        (RetryPolicy(3, Exponential(timedelta(0), cap=M)), ["base 0 makes every delay zero. Set base to the first delay."]),
        (RetryPolicy(3, Exponential(M, 0.5)), ["multiplier 0.5 makes each delay shorter than the one before. Use a multiplier of 1 or more."]),
        (RetryPolicy(3, Exponential(5 * M, cap=M)), ["cap 1m is below base 5m, so every delay is the cap. Raise cap, or lower base."]),
        (RetryPolicy(30, Exponential(M)), ["The delay grows without a cap, up to years. Set cap."]),
        (RetryPolicy(3, unrecoverable=(" ",)), ["An empty pattern matches every error. Remove it."]),
        (RetryPolicy(3, recoverable=("Bad Gateway",), unrecoverable=("bad",)),
         ["'Bad Gateway' is listed as recoverable, but an unrecoverable pattern matches it and is used. Remove one of the two."]),
        (RetryPolicy(4, FixedDelays((5 * M, 15 * M, 60 * M)), max_age=60 * M),
         ["max_age 1h is shorter than all retries together (1h20m). Raise max_age, or lower max_attempts."]),
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
