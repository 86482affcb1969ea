"""Every branch of `judge` as a table, and what must hold whatever the facts are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.core.item import Condition
from console.core.policy import (
    Exponential,
    Facts,
    FixedDelays,
    Phase,
    PolicyOverride,
    RetryPolicy,
    judge,
    limit_of,
    schedule_ahead,
)

NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)
S = timedelta(seconds=1)
READY, RUNNING, FAILED, DONE = Phase.READY, Phase.RUNNING, Phase.FAILED, Phase.DONE
THREE = RetryPolicy(max_attempts=3, stuck_after=60 * S)
LOOP = RetryPolicy(4, FixedDelays((60 * S, 300 * S)), retries_failed=True, max_age=timedelta(days=30))
PICKY = RetryPolicy(3, unrecoverable=("Invalid API key", "malformed"), recoverable=("timeout",))
C = Condition


@pytest.mark.parametrize(
    ("facts", "policy", "condition", "why", "next_in", "again"),
    [
        (Facts(DONE, "OK"), THREE, C.DONE, "finished", None, False),
        (Facts(Phase.CANCELLED, "X"), THREE, C.CANCELLED, "cancelled", None, False),
        (Facts(Phase.UNKNOWN, "odd\n"), THREE, C.UNKNOWN, r"unknown status 'odd\n'", None, False),
        # ready
        (Facts(READY, "P"), THREE, C.WAITING, "not run yet", None, True),
        (Facts(READY, "P", -3), THREE, C.WAITING, "not run yet", None, True),
        (Facts(READY, "P", error="old"), THREE, C.WAITING, "not run yet", None, True),
        (Facts(READY, "P", due_at=NOW + 90 * S), THREE, C.WAITING, "not run yet, due in 1m 30s", 90, True),
        (Facts(READY, "P", due_at=NOW), THREE, C.WAITING, "not run yet, due since 2026-11-10T12:00:00Z", 0, True),
        (Facts(READY, "P", 1, due_at=NOW + 5 * S), THREE, C.RETRYING, "1 of 3 attempts used, due in 5s", 5, True),
        (Facts(READY, "P", 1, due_at=NOW + 40_000 * 86_400 * S), THREE, C.RETRYING,
         f"1 of 3 attempts used, due on {NOW + 40_000 * 86_400 * S:%Y-%m-%d}", 40_000 * 86_400, True),
        (Facts(READY, "P", 2), THREE, C.RETRYING, "2 of 3 attempts used, due now", None, True),
        (Facts(READY, "P", 2), RetryPolicy(), C.RETRYING, "attempt 2 failed, due now", None, True),
        (Facts(READY, "P", 3), THREE, C.RETRYING, "3 of 3 attempts used, requeued for one more, due now", None, True),
        (Facts(READY, "P", 1, ignored="no time"), THREE, C.RETRYING, "its system ignores it: no time", None, False),
        (Facts(READY, "P", 0, ignored="no time", due_at=NOW), THREE, C.WAITING, "its system ignores it: no time", None, False),
        (Facts(READY, "P", 1, since=NOW - 61 * S, time_limit=60 * S), THREE, C.STUCK, "P for 1m 01s, limit 1m", None, True),
        (Facts(READY, "P", 1, since=NOW - 60 * S, time_limit=60 * S), THREE, C.RETRYING, "1 of 3 attempts used, due now", None, True),
        (Facts(READY, "P", 1, since=NOW - 61 * S), THREE, C.RETRYING, "1 of 3 attempts used, due now", None, True),
        # running
        (Facts(RUNNING, "R", 1, since=NOW - 60 * S), THREE, C.RUNNING, "running since 2026-11-10T11:59:00Z", None, True),
        (Facts(RUNNING, "R", 1), THREE, C.RUNNING, "running, start time unknown", None, True),
        (Facts(RUNNING, "R", 3, since=NOW), THREE, C.RUNNING, "running since 2026-11-10T12:00:00Z", None, False),
        (Facts(RUNNING, "R", 1, since=NOW - 61 * S, reclaimed=True), THREE, C.STUCK, "running for 1m 01s, limit 1m", None, True),
        (Facts(RUNNING, "R", 1, since=NOW - 61 * S), THREE, C.STUCK, "running for 1m 01s, limit 1m", None, False),
        (Facts(RUNNING, "R", 3, since=NOW - 61 * S, reclaimed=True), THREE, C.STUCK,
         "running for 1m 01s, limit 1m; 3 of 3 attempts used", None, False),
        (Facts(RUNNING, "R", 1, since=NOW - 61 * S, time_limit=90 * S), THREE, C.RUNNING, "running since 2026-11-10T11:58:59Z", None, True),
        (Facts(RUNNING, "R", 1, since=NOW - 9999 * S), RetryPolicy(3), C.RUNNING, "running since 2026-11-10T09:13:21Z", None, True),
        # failed
        (Facts(FAILED, "F", 1), THREE, C.FAILED, "failed after 1 of 3 attempts, not retried automatically", None, False),
        (Facts(FAILED, "F", 1), RetryPolicy(), C.FAILED, "failed after 1 attempts, not retried automatically", None, False),
        (Facts(FAILED, "F", 3), THREE, C.TERMINAL, "3 of 3 attempts used", None, False),
        (Facts(FAILED, "F", 3, max_attempts=5), THREE, C.FAILED, "failed after 3 of 5 attempts, not retried automatically", None, False),
        (Facts(FAILED, "F", 1, max_attempts=1), THREE, C.TERMINAL, "1 of 1 attempts used", None, False),
        (Facts(FAILED, "F", 0, max_attempts=0), THREE, C.TERMINAL, "0 of 0 attempts used", None, False),
        (Facts(FAILED, "F", 1, retryable=False), THREE, C.TERMINAL, "not retryable, runs only once", None, False),
        (Facts(FAILED, "F", 1), RetryPolicy(3, retryable=False), C.TERMINAL, "not retryable, runs only once", None, False),
        (Facts(FAILED, "F", 1, retryable=True), RetryPolicy(3, retryable=False), C.FAILED,
         "failed after 1 of 3 attempts, not retried automatically", None, False),
        (Facts(FAILED, "F", 1, marker="marked terminal by Kim"), THREE, C.TERMINAL, "marked terminal by Kim", None, False),
        (Facts(FAILED, "F", 1, error="INVALID api KEY given"), PICKY, C.TERMINAL,
         "unrecoverable error (matches 'Invalid API key')", None, False),
        (Facts(FAILED, "F", 1, error="timeout, malformed"), PICKY, C.TERMINAL, "unrecoverable error (matches 'malformed')", None, False),
        (Facts(FAILED, "F", 1, error="timeout"), PICKY, C.FAILED, "failed after 1 of 3 attempts, not retried automatically", None, False),
        (Facts(FAILED, "F", 1, last_attempt_at=NOW - 10 * S), LOOP, C.RETRYING, "failed after 1 of 4 attempts, due in 50s", 50, True),
        (Facts(FAILED, "F", 3, last_attempt_at=NOW - 310 * S), LOOP, C.RETRYING,
         "failed after 3 of 4 attempts, due since 2026-11-10T11:59:50Z", -10, True),
        (Facts(FAILED, "F", 2), LOOP, C.RETRYING, "failed after 2 of 4 attempts, due since 2026-11-10T12:00:00Z", 0, True),
        (Facts(FAILED, "F", 4, last_attempt_at=NOW), LOOP, C.TERMINAL, "4 of 4 attempts used", None, False),
        (Facts(FAILED, "F", 1, born_at=NOW - timedelta(days=30)), LOOP, C.TERMINAL, "older than 30d", None, False),
        (Facts(FAILED, "F", 1, born_at=NOW - timedelta(days=30) + S, last_attempt_at=NOW), LOOP, C.RETRYING,
         "failed after 1 of 4 attempts, due in 1m 00s", 60, True),
        (Facts(FAILED, "F", 1, last_attempt_at=NOW), RetryPolicy(3, retries_failed=True), C.FAILED,
         "failed after 1 of 3 attempts, not retried automatically", None, False),
    ],
)
def test_judge(
    facts: Facts, policy: RetryPolicy, condition: Condition, why: str, next_in: float | None, again: bool
) -> None:
    verdict = judge(facts, policy, NOW)
    assert (verdict.condition, verdict.why, verdict.will_run_again) == (condition, why, again)
    assert verdict.next_retry_at == (None if next_in is None else NOW + next_in * S)


@pytest.mark.parametrize(
    ("error", "recoverable"), [(None, None), ("", None), ("timeout", True), ("anything", True), ("is MALFORMED", False)]
)
@pytest.mark.parametrize("phase", Phase)
def test_recoverable_is_said_in_every_condition(phase: Phase, error: str | None, recoverable: bool | None) -> None:
    assert judge(Facts(phase, "x", error=error), PICKY, NOW).recoverable is recoverable


def test_only_ascii_case_is_ignored() -> None:
    policy = RetryPolicy(unrecoverable=("É",))
    assert policy.hopeless("É") == "É"
    assert policy.hopeless("é") is None


# --- whatever the facts are ---------------------------------------------------------------------------

times = st.one_of(st.none(), st.datetimes(timezones=st.just(UTC)))
spans = st.integers(0, 10**9).map(lambda n: n * S)
backoffs = st.one_of(
    st.none(),
    st.builds(FixedDelays, st.lists(spans, max_size=4).map(tuple)),
    st.builds(Exponential, spans, st.floats(1, 10), st.one_of(st.none(), spans), st.floats(0, 1)),
)
policies = st.builds(
    RetryPolicy, st.one_of(st.none(), st.integers(0, 6)), backoffs, st.booleans(), st.one_of(st.none(), spans),
    st.one_of(st.none(), spans), st.just(("time",)), st.just(("bad",)), st.booleans(),
)
facts_of_any_kind = st.builds(
    Facts, st.sampled_from(Phase), st.text(max_size=3), st.integers(-2, 2**62), st.one_of(st.none(), st.integers(0, 6)),
    st.one_of(st.none(), st.booleans()), st.sampled_from([None, "", "bad", "time out"]), times, times, times,
    st.one_of(st.none(), spans), times, st.sampled_from([None, "marked"]), st.sampled_from([None, "no"]), st.booleans(),
)
EXPECTED = {
    Phase.READY: {C.WAITING, C.RETRYING, C.STUCK}, Phase.RUNNING: {C.RUNNING, C.STUCK},
    Phase.FAILED: {C.FAILED, C.TERMINAL, C.RETRYING}, Phase.DONE: {C.DONE}, Phase.CANCELLED: {C.CANCELLED},
    Phase.UNKNOWN: {C.UNKNOWN},
}


@given(facts_of_any_kind, policies)
def test_a_verdict_is_whole(facts: Facts, policy: RetryPolicy) -> None:
    verdict = judge(facts, policy, NOW)
    assert verdict == judge(facts, policy, NOW)
    assert verdict.condition in EXPECTED[facts.phase]
    assert verdict.why
    assert "\n" not in verdict.why
    if verdict.condition in (C.TERMINAL, C.FAILED, C.DONE, C.CANCELLED, C.UNKNOWN):
        assert not verdict.will_run_again
    if verdict.next_retry is not None:
        assert verdict.will_run_again
        assert verdict.next_retry.earliest <= verdict.next_retry.latest
        assert verdict.condition in (C.RETRYING, C.WAITING)


@given(facts_of_any_kind, policies)
def test_a_failed_item_is_terminal_exactly_when_there_is_a_reason(facts: Facts, policy: RetryPolicy) -> None:
    facts = facts._replace(phase=Phase.FAILED)
    limit = limit_of(facts, policy)
    old = policy.max_age is not None and facts.born_at is not None and NOW - facts.born_at >= policy.max_age
    ends = facts.marker or facts.error == "bad" or (limit is not None and facts.attempts >= limit) or old
    assert (judge(facts, policy, NOW).condition is C.TERMINAL) == bool(ends)


@given(backoffs.filter(lambda backoff: backoff is not None), st.integers(-3, 5000))
def test_bounds_grow_and_hold_the_delay(backoff: Any, failures: int) -> None:
    low, high = backoff.bounds(failures)
    assert timedelta(0) <= low <= high
    if isinstance(backoff, Exponential):
        later = backoff.bounds(failures + 1)
        assert later[0] >= low
        assert later[1] >= high
        if backoff.cap is not None:
            assert high <= backoff.cap * (1 + backoff.jitter) + timedelta(microseconds=1)
        if backoff.jitter == 0:
            assert low == high
    elif backoff.delays:
        assert low in backoff.delays


@given(st.integers(1, 3), st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_the_next_retry_lies_within_the_window_of_its_delay(attempts: int, last: datetime) -> None:
    policy = RetryPolicy(4, Exponential(10 * S, 3, jitter=0.25), retries_failed=True)
    window = judge(Facts(FAILED, "F", attempts, last_attempt_at=last), policy, NOW).next_retry
    delay = 10 * 3 ** (attempts - 1) * S
    assert window is not None
    assert (window.earliest - last, window.latest - last) == (0.75 * delay, 1.25 * delay)


def test_a_delay_beyond_the_calendar_is_its_end() -> None:
    policy = RetryPolicy(None, Exponential(timedelta(days=10**6), 10), retries_failed=True)
    window = judge(Facts(FAILED, "F", 900, last_attempt_at=NOW), policy, NOW).next_retry
    assert window is not None
    assert window.latest.year == 9999


def test_a_whole_multiplier_and_a_broken_counter_are_no_endless_power() -> None:
    assert Exponential(S, multiplier=6, cap=60 * S).bounds(2**62) == (60 * S, 60 * S)


@given(facts_of_any_kind, policies)
def test_the_schedule_ahead_agrees_with_the_verdict(facts: Facts, policy: RetryPolicy) -> None:
    verdict = judge(facts, policy, NOW)
    lines = list(schedule_ahead(facts, policy, verdict, NOW))
    expected = verdict.condition in (C.RETRYING, C.WAITING) and verdict.will_run_again
    assert bool(lines) == expected
    if lines:
        assert lines[0].startswith(f"attempt {facts.attempts + 1} ")
        assert lines[-1] in ("then terminal", "then its system decides", "and so on")
        limit = limit_of(facts, policy)
        if limit is not None and lines[-1] == "then terminal":
            assert len(lines) - 1 == max(limit - facts.attempts, 1)


@pytest.mark.parametrize(
    ("facts", "policy", "lines"),
    [
        (Facts(READY, "P", 1, due_at=NOW + 5 * S), RetryPolicy(3, FixedDelays((S, 60 * S))),
         ["attempt 2 at 2026-11-10T12:00:05Z", "attempt 3 1m after that fails", "then terminal"]),
        (Facts(READY, "P", 2), RetryPolicy(3), ["attempt 3 now", "then terminal"]),
        (Facts(READY, "P", 0), RetryPolicy(3), ["attempt 1 now", "then its system decides"]),
        (Facts(READY, "P", 0), RetryPolicy(None, FixedDelays((S,))), ["attempt 1 now", *(f"attempt {n} 1s after that fails" for n in range(2, 7)), "and so on"]),
        (Facts(FAILED, "F", 1, last_attempt_at=NOW), RetryPolicy(3, Exponential(60 * S, jitter=0.25), retries_failed=True),
         ["attempt 2 between 2026-11-10T12:00:45Z and 2026-11-10T12:01:15Z", "attempt 3 1m30s–2m30s after that fails", "then terminal"]),
        (Facts(FAILED, "F", 3), THREE, []),
        (Facts(RUNNING, "R", 1), THREE, []),
    ],
)
def test_schedule_ahead(facts: Facts, policy: RetryPolicy, lines: list[str]) -> None:
    found = list(schedule_ahead(facts, policy, judge(facts, policy, NOW), NOW))
    assert found == lines


def test_a_config_changes_only_what_it_names() -> None:
    changed = PolicyOverride(max_attempts=9, unrecoverable=()).over(PICKY)
    assert (changed.max_attempts, changed.unrecoverable, changed.recoverable) == (9, (), ("timeout",))
    assert PolicyOverride().over(LOOP) == LOOP


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (RetryPolicy(4, FixedDelays((300 * S, 900 * S))), "4 attempts · 5m, 15m"),
        (RetryPolicy(3, Exponential(S, cap=60 * S, jitter=0.25)), "3 attempts · 1s ×2 up to 1m ±25%"),
        (RetryPolicy(retryable=False, max_age=timedelta(days=30)), "no limit · no backoff · not retryable · until 30d old"),
    ],
)
def test_a_policy_in_words(policy: RetryPolicy, text: str) -> None:
    assert str(policy) == text


@pytest.mark.parametrize("failures", [2**31, 2**62, 10**400])
def test_a_counter_beyond_all_reason_waits_as_long_as_the_cap(failures: int) -> None:
    assert Exponential(S, multiplier=6, cap=60 * S).bounds(failures) == (60 * S, 60 * S)
