"""Rules of alerts: what they find, for how long it must hold, and how often it is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from console.core.alert_rules import Rule, RuleKind
from console.core.alerts import MOST_ALERTS, AlertState, Situation, evaluate, matches, payload, sent
from console.core.backend import Histogram
from console.core.cause_count import Cause
from console.core.cause_life import CauseLife, CauseState
from console.core.override import Override, OverrideState

NOW = datetime(2026, 11, 10, 3, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def cause(signature: str, count: int, state: CauseState = CauseState.NEW) -> tuple[Cause, CauseLife]:
    return Cause(signature, "boom", count, 0, None, None, (("jobs", count),)), CauseLife(state)


def override(state: OverrideState, *, alive: bool = False, age: timedelta = MINUTE, result: object = None) -> Override:
    return Override("o1", "p1", state, NOW - age, "ann", "because", None, alive=alive, note="Canary failed.",
                    result=result)  # type: ignore[arg-type]


def subjects(rule: Rule, situation: Situation) -> list[str]:
    return [found.subject for found in matches([rule], situation)]


def test_new_causes() -> None:
    rule = Rule(RuleKind.NEW_CAUSE, count=10)
    found = [
        cause("a1", 10), cause("b2", 9), cause("c3", 99, CauseState.REGRESSED), cause("d4", 99, CauseState.ONGOING),
        cause("e5", 99, CauseState.ACKNOWLEDGED), cause("f6", 99, CauseState.SNOOZED),
    ]
    assert subjects(rule, Situation(NOW, found)) == ["a1", "c3"]


def test_a_regressed_cause_names_what_had_resolved_it() -> None:
    back = cause("c3", 99, CauseState.REGRESSED)[0], CauseLife(CauseState.REGRESSED, by="override o1f0c (ann)")
    (found,) = matches([Rule(RuleKind.NEW_CAUSE, count=10)], Situation(NOW, [back]))
    assert found.text == "Regressed cause with 99 failures, had been resolved by override o1f0c (ann)"
    assert found.facts["by"] == "override o1f0c (ann)"


def test_growing_causes() -> None:
    rule = Rule(RuleKind.CAUSE_GROWS, factor=3)
    found = [cause("a1", 30), cause("b2", 29), cause("c3", 9), cause("d4", 500), cause("e5", 90, CauseState.SNOOZED),
             cause("f6", 90, CauseState.ACKNOWLEDGED)]
    before = {"a1": 10, "b2": 10, "c3": 3, "e5": 10, "f6": 10}  # nobody knows about d4
    assert subjects(rule, Situation(NOW, found, before)) == ["a1", "f6"]


def test_storms_count_all_systems_and_what_is_overdue() -> None:
    rule = Rule(RuleKind.STORM_AHEAD, count=200, within=15 * MINUTE)
    near = {"jobs": Histogram(NOW, 5 * MINUTE, (50, 0, 40, 900), 10), "mail": Histogram(NOW, 5 * MINUTE, (0, 99, 0, 0))}
    assert subjects(rule, Situation(NOW, upcoming=near)) == []
    near["mail"] = Histogram(NOW, 5 * MINUTE, (0, 100, 0, 0))
    (found,) = matches([rule], Situation(NOW, upcoming=near))
    assert (found.text, found.facts["backends"]) == ("200 retries are due within 15m", {"jobs": 100, "mail": 100})


@pytest.mark.parametrize(("one", "expected"), [
    (override(OverrideState.STOPPED), ["o1"]),
    (override(OverrideState.STOPPED, age=timedelta(hours=25)), []),
    (override(OverrideState.STOPPED, result={"results": {}}), []),
    (override(OverrideState.RUNNING, alive=True), []),
    (override(OverrideState.RUNNING), ["o1"]),
    (override(OverrideState.FINISHED), []),
])
def test_stopped_overrides(one: Override, expected: list[str]) -> None:
    assert subjects(Rule(RuleKind.OVERRIDE_STOPPED), Situation(NOW, overrides=[one])) == expected


def test_unreachable_systems_and_a_broken_trail() -> None:
    situation = Situation(NOW, unreachable={"mail": "refused"}, trail_fault="record 3: edited")
    assert subjects(Rule(RuleKind.UNREACHABLE), situation) == ["mail"]
    assert [one.text for one in matches([Rule(RuleKind.TRAIL_BROKEN)], situation)] == [
        "The trail is broken: record 3: edited"
    ]
    assert subjects(Rule(RuleKind.TRAIL_BROKEN), Situation(NOW)) == []


def test_a_rule_is_on_after_it_has_lasted_and_is_sent_again_after_the_quiet_time() -> None:
    rule = Rule(RuleKind.UNREACHABLE, lasting=2 * MINUTE, quiet=10 * MINUTE)
    states: dict[str, AlertState] = {}
    announced, on = [], []
    for minute in range(30):
        now = NOW + minute * MINUTE
        down = {"mail": "refused"} if minute < 20 or minute > 22 else {}
        alerts, states = evaluate([rule], Situation(now, unreachable=down), states)
        on += [minute for _ in alerts]
        due = [alert for alert in alerts if alert.due]
        announced += [minute for _ in due]
        states = sent(states, due, now)
    assert on == [*range(2, 20), *range(25, 30)]
    assert announced == [2, 12, 25]


def test_what_a_hook_did_not_take_is_due_again() -> None:
    rule = Rule(RuleKind.TRAIL_BROKEN, quiet=timedelta(hours=1))
    alerts, states = evaluate([rule], Situation(NOW, trail_fault="x"), {})
    assert [alert.due for alert in alerts] == [True]
    alerts, states = evaluate([rule], Situation(NOW + MINUTE, trail_fault="x"), states)
    assert [alert.due for alert in alerts] == [True]
    alerts, _ = evaluate([rule], Situation(NOW + 2 * MINUTE, trail_fault="x"), sent(states, alerts, NOW + MINUTE))
    assert [alert.due for alert in alerts] == [False]


def test_a_clock_that_was_set_back_does_not_silence_anybody() -> None:
    rule = Rule(RuleKind.TRAIL_BROKEN)
    late = {f"{rule.id} | trail": AlertState(NOW, NOW)}
    alerts, _ = evaluate([rule], Situation(NOW - timedelta(hours=5), trail_fault="x"), late)
    assert [alert.due for alert in alerts] == [True]


def test_states_survive_being_stored() -> None:
    for state in (AlertState(NOW), AlertState(NOW, NOW + MINUTE)):
        assert AlertState.read(state.stored()) == state
    assert AlertState.read({"since": "yesterday", "sent": None}) is None
    assert AlertState.read({}) is None


def test_a_flood_is_one_message() -> None:
    rule = Rule(RuleKind.NEW_CAUSE, count=1)
    flood = [cause(f"{number:04x}", 5) for number in range(500)]
    alerts, _ = evaluate([rule], Situation(NOW, flood), {})
    message = payload(alerts, NOW)
    assert (len(message["alerts"]), message["count"], message["more"]) == (MOST_ALERTS, 500, 400)


@pytest.mark.parametrize(("rule", "written"), [
    (Rule(RuleKind.NEW_CAUSE, count=10), "new_cause: 10"),
    (Rule(RuleKind.CAUSE_GROWS, factor=2.5), "cause_grows: 2.5x"),
    (Rule(RuleKind.STORM_AHEAD, count=200, within=15 * MINUTE), "storm_ahead: 200 within 15m"),
    (Rule(RuleKind.UNREACHABLE, lasting=2 * MINUTE), "unreachable: 2m"),
    (Rule(RuleKind.OVERRIDE_STOPPED), "override_stopped"),
])
def test_a_rule_is_named_as_it_is_written(rule: Rule, written: str) -> None:
    assert rule.id == written
