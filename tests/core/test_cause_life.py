"""The life of a cause: every transition over a simulated week, against an independent model."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from console.core.cause_count import Cause
from console.core.cause_life import (
    CauseChange,
    CauseRecord,
    CauseState,
    Resolution,
    Sighting,
    Snooze,
    body_of,
    cause_record_of,
    life_of,
    resolutions_of,
)
from console.core.ports import Record

START = datetime(2026, 11, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)


class CauseLifeMachine(RuleBasedStateMachine):
    """One cause over a week. The model keeps the state directly; the product derives it from records."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.seq = 0
        self.records: list[CauseRecord] = []
        self.resolutions: list[Resolution] = []
        self.count, self.backends, self.last, self.first = 0, {"jobs"}, None, None
        self.mode = "open"
        self.by = ""
        self.baseline: tuple[int, set[str], Snooze] | None = None
        self.some_recovered = False
        """An override of some of the failures recovered, and the others are still there."""
        self.owner = ""

    def next_seq(self) -> int:
        self.seq += 1
        self.now += timedelta(seconds=1)
        return self.seq

    def record(self, change: CauseChange, text: str = "", snooze: Snooze | None = None) -> None:
        if change not in (CauseChange.ASSIGNED, CauseChange.NOTED):
            self.some_recovered = False
        self.records.append(CauseRecord(
            self.next_seq(), self.now, "aa11", change, "ann", text, snooze, self.count, frozenset(self.backends),
        ))

    @rule(minutes=st.integers(1, 60 * 30))
    def time_passes(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)

    @rule(count=st.integers(1, 40), backend=st.sampled_from(["jobs", "mail", "payments"]))
    def fails(self, count: int, backend: str) -> None:
        self.now += timedelta(seconds=1)
        self.count += count
        self.backends = {*self.backends, backend}
        self.last = self.now
        self.first = self.first or self.now
        if self.some_recovered:  # whether these are the others cannot be known
            self.mode, self.by = "regressed", "override o1 (bo)"
        elif self.mode == "resolved":
            self.mode = "regressed"
        self.some_recovered = False

    @rule(share=st.floats(0, 1))
    def some_go_away(self, share: float) -> None:
        self.count = int(self.count * share)
        if self.some_recovered and not self.count:
            self.mode, self.by, self.some_recovered = "resolved", "override o1 (bo)", False

    @rule()
    def acknowledge(self) -> None:
        self.record(CauseChange.ACKNOWLEDGED)
        self.mode = "acknowledged"

    @rule(hours=st.integers(1, 48) | st.none(), doubles=st.booleans(), other=st.booleans())
    def snooze(self, hours: int | None, doubles: bool, other: bool) -> None:
        until = None if hours is None else self.now + hours * HOUR
        snooze = Snooze(until, doubles, other)
        if any(snooze):
            self.record(CauseChange.SNOOZED, snooze=snooze)
            self.mode, self.baseline = "snoozed", (self.count, set(self.backends), snooze)

    @rule()
    def resolve(self) -> None:
        self.record(CauseChange.RESOLVED)
        self.mode, self.by = "resolved", "ann"

    @rule(share=st.floats(0, 0.05))
    def an_override_of_all_recovers(self, share: float) -> None:
        self.count = int(self.count * share)
        self.recovered(left=self.count)
        self.mode, self.by = "resolved", "override o1 (bo)"

    @rule()
    def an_override_of_one_recovers(self) -> None:
        if self.count > 1:
            self.count -= 1
            self.recovered(left=0)
            self.some_recovered = True

    def recovered(self, left: int) -> None:
        self.some_recovered = False
        self.resolutions.append(Resolution(self.next_seq(), self.now, "override o1 (bo)", left, "o1"))

    @rule()
    def reopen(self) -> None:
        self.record(CauseChange.REOPENED)
        self.mode = "open"

    @rule(owner=st.sampled_from(["", "bo", "cy"]))
    def assign(self, owner: str) -> None:
        self.record(CauseChange.ASSIGNED, owner)
        self.owner = owner

    @rule()
    def note(self) -> None:
        self.record(CauseChange.NOTED, "seen before")

    @invariant()
    def the_state_is_that_of_the_model(self) -> None:
        sighting = Sighting(self.count, self.last, frozenset(self.backends if self.count else ()), self.first)
        life = life_of(sighting, self.records, self.resolutions, self.now)
        assert life.state is self.expected(sighting), self.mode
        assert life.owner == self.owner
        assert len(life.notes) == sum(one.change is CauseChange.NOTED for one in self.records)
        if life.state in (CauseState.RESOLVED, CauseState.REGRESSED):
            assert self.by in life.detail

    def expected(self, sighting: Sighting) -> CauseState:
        is_new = self.first is not None and self.now - self.first < 24 * HOUR
        open_state = CauseState.NEW if is_new else CauseState.ONGOING
        match self.mode:
            case "acknowledged":
                return CauseState.ACKNOWLEDGED
            case "resolved":
                return CauseState.RESOLVED
            case "regressed":
                # Failures that came and went again leave nothing that could be seen.
                return CauseState.REGRESSED if self.count else CauseState.RESOLVED
            case "snoozed":
                assert self.baseline is not None
                count, backends, snooze = self.baseline
                over = snooze.until is not None and self.now >= snooze.until
                over = over or (snooze.doubles and self.count >= 2 * max(count, 1))
                over = over or (snooze.another_system and bool(sighting.backends - backends))
                return open_state if over else CauseState.SNOOZED
            case _:
                return open_state


TestCauseLife = CauseLifeMachine.TestCase
TestCauseLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_regression_names_what_had_resolved_it() -> None:
    resolved = Resolution(1, START, "override o1f0c (ann)", override_id="o1f0c")
    before = Sighting(0, START - HOUR, frozenset(), START - 100 * HOUR)
    assert life_of(before, [], [resolved], START + HOUR).state is CauseState.RESOLVED
    again = Sighting(1, START + timedelta(minutes=1), frozenset({"jobs"}), START - 100 * HOUR)
    life = life_of(again, [], [resolved], START + HOUR)
    assert (life.state, life.detail) == (
        CauseState.REGRESSED, "regressed, had been resolved by override o1f0c (ann)"
    )
    assert life.since is None, "its first failure since is not known"


def test_a_cause_has_regressed_since_its_first_failure_and_not_since_its_latest() -> None:
    resolved = Resolution(1, START, "cy")
    back = Sighting(9, START + 8 * HOUR, frozenset({"jobs"}), START - 100 * HOUR, oldest=START + 3 * HOUR)
    assert life_of(back, [], [resolved], START + 9 * HOUR).since == START + 3 * HOUR
    with_others = replace(back, oldest=START - HOUR)
    assert life_of(with_others, [], [resolved], START + 9 * HOUR).since is None


@pytest.mark.parametrize(("count", "last", "state"), [
    (3, START - HOUR, CauseState.RESOLVED),  # no more than those of it that did not recover
    (162, START - HOUR, CauseState.ACKNOWLEDGED),  # a few of many were requeued
    (503, START - timedelta(minutes=1), CauseState.ACKNOWLEDGED),  # others failed before its result was known
    (1, START + timedelta(minutes=1), CauseState.REGRESSED),
    (503, START + timedelta(minutes=1), CauseState.REGRESSED),
])
def test_an_override_does_not_resolve_failures_that_it_was_not_about(
    count: int, last: datetime, state: CauseState
) -> None:
    """Ten of 172 were requeued and recovered. The others are not listed last as resolved."""
    acknowledged = CauseRecord(1, START - HOUR, "aa11", CauseChange.ACKNOWLEDGED, "bo")
    resolved = Resolution(2, START, "override o1f0c (ann)", 3, "o1f0c")
    sighting = Sighting(count, last, frozenset({"jobs"}), START - 100 * HOUR)
    assert life_of(sighting, [acknowledged], [resolved], START + HOUR).state is state


def test_a_small_override_of_a_regressed_cause_leaves_it_regressed() -> None:
    by_hand = CauseRecord(1, START - 9 * HOUR, "aa11", CauseChange.RESOLVED, "cy")
    small = Resolution(2, START, "override o1f0c (ann)", 0, "o1f0c")
    found = life_of(Sighting(99, START - HOUR, frozenset({"jobs"}), START - 99 * HOUR), [by_hand], [small], START + HOUR)
    assert found.detail == "regressed, had been resolved by cy"


def test_without_times_a_growing_count_is_a_regression() -> None:
    record = CauseRecord(1, START, "aa11", CauseChange.RESOLVED, "ann", count=4)
    assert life_of(Sighting(4, None, frozenset(), None), [record], [], START).state is CauseState.RESOLVED
    assert life_of(Sighting(5, None, frozenset(), None), [record], [], START).state is CauseState.REGRESSED


def test_a_clock_that_was_set_back_does_not_change_the_order() -> None:
    first = CauseRecord(1, START, "aa11", CauseChange.ACKNOWLEDGED, "ann")
    second = CauseRecord(2, START - HOUR, "aa11", CauseChange.REOPENED, "bo")
    found = life_of(Sighting(1, None, frozenset(), None), [first, second], [], START - HOUR)
    assert found.state is CauseState.ONGOING


@pytest.mark.parametrize(("counts", "resolved"), [
    ({"recovered": 95, "failed_again": 5}, True),
    ({"recovered": 94, "failed_again": 6}, False),
    ({"recovered": 99, "not_run_yet": 1}, False),
    ({"recovered": 99, "running": 1}, False),
    ({"recovered": 96, "not_known": 4}, True),
    ({}, False),
    ({"recovered": 20}, False),  # stopped before the others were requeued
])
def test_an_override_resolves_its_cause_from_95_percent_on(counts: dict[str, int], resolved: bool) -> None:
    confirmed = {"causes": {"aa11": 100}, "items": 100}
    left = 100 - counts.get("recovered", 0)
    assert list(resolutions_of({"results": counts}, confirmed)) == ([("aa11", left)] if resolved else [])


def test_failures_of_an_override_of_several_causes_count_against_each() -> None:
    counts = {"recovered": 98, "failed_again": 2}
    assert list(resolutions_of({"results": counts}, {"causes": {"aa11": 90, "bb22": 10}, "items": 100})) == [
        ("aa11", 2)
    ]


@pytest.mark.parametrize("record", [
    CauseRecord(3, START, "aa11", CauseChange.ACKNOWLEDGED, "ann", "on it", None, 12, frozenset({"jobs", "mail"})),
    CauseRecord(4, START, "aa11", CauseChange.SNOOZED, "ann", "", Snooze(START + HOUR, True, False), 0, frozenset()),
    CauseRecord(5, START, "aa11", CauseChange.SNOOZED, "ann", "", Snooze(None, False, True), 7, frozenset({"jobs"})),
])
def test_a_record_reads_as_it_was_written(record: CauseRecord) -> None:
    stored = Record(record.seq, "cause", record.at, {**body_of(record), "by": "ann"}, "", "")
    assert cause_record_of(stored) == record


def test_a_sighting_takes_the_earliest_time() -> None:
    cause = Cause("aa11", "boom", 3, 0, START, START + HOUR, (("jobs", 3), ("mail", 0)))
    assert Sighting.of(cause, START - HOUR) == Sighting(
        3, START + HOUR, frozenset({"jobs"}), START - HOUR, START
    )
    assert Sighting.of(cause).first == START
