"""The reading budget keeps its share, whatever the reads cost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.core.budget import Meter, ReadingBudget, charge, metered
from tests.depth import examples

costs = st.lists(st.floats(0.0001, 5.0), min_size=1, max_size=6)


def taken(costs: dict[str, float], seconds: float, budget: ReadingBudget) -> tuple[float, dict[str, int]]:
    """The time that automatic reads take of so many seconds, each figure being wanted every five seconds."""
    now, spent = 0.0, 0.0
    reads = dict.fromkeys(costs, 0)
    while now < seconds:
        for name, cost in costs.items():
            if budget.wait(name, now) <= 0:
                now += cost
                spent += cost
                reads[name] += 1
                budget.note(name, Meter(cost, 1), now)
        now += 5.0
    return spent / now, reads


@settings(max_examples=examples(40))
@given(costs)
def test_all_figures_together_keep_within_the_share(found: list[float]) -> None:
    names = {f"figure {n}": cost for n, cost in enumerate(found)}
    first = sum(found)  # the first read of each is not repeated before it is paid for
    share, _ = taken(names, 20_000.0, ReadingBudget())
    assert share <= 0.01 + 2 * first / 20_000.0


periods = st.sampled_from([5.0, 30.0, 60.0, 300.0])


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.floats(0.01, 3.0), periods), min_size=1, max_size=8))
def test_figures_that_are_wanted_once_a_minute_keep_within_the_share_too(found: list[tuple[float, float]]) -> None:
    """The history wants its figures every minute, the failures of the day every 30 s, a check every 5 minutes."""
    budget, now, spent, end = ReadingBudget(), 0.0, 0.0, 20_000.0
    due = dict.fromkeys(range(len(found)), 0.0)
    while now < end:
        for number, (cost, every) in enumerate(found):
            if now >= due[number]:
                due[number] = now + every
                if budget.wait(number, now, every) <= 0:
                    now, spent = now + cost, spent + cost
                    budget.note(number, Meter(cost, 1), now)
        now += 5.0
    first = sum(cost for cost, _ in found)
    assert spent / now <= 0.01 + 2 * first / end


def test_a_read_of_two_seconds_waits_for_two_hundred() -> None:
    budget = ReadingBudget()
    budget.note("counts", Meter(2.0, 1), 1_000.0)
    assert budget.wait("counts", 1_100.0) == pytest.approx(100.0)
    assert budget.wait("counts", 1_200.0) == 0.0


def test_a_cheap_figure_is_read_at_every_refresh_beside_an_expensive_one() -> None:
    _, reads = taken({"rows": 0.001, "counts": 3.0}, 3_000.0, ReadingBudget())
    assert reads["rows"] > 200
    assert 3 <= reads["counts"] <= 11


def test_a_figure_that_left_the_screen_gives_its_part_back() -> None:
    budget = ReadingBudget()
    budget.note("histogram", Meter(1.0, 1), 0.0)
    budget.note("counts", Meter(1.0, 1), 0.0)
    assert budget.wait("counts", 1.0) == pytest.approx(199.0)
    assert budget.wait("counts", 101.0) == 0.0


def test_the_way_to_the_server_and_back_is_not_its_time() -> None:
    budget = ReadingBudget()
    for trip in (0.210, 0.200, 0.350):
        budget.answered_in(trip)
    budget.note("counts", Meter(0.430, 2), 0.0)
    assert budget.cost("counts") == pytest.approx(0.030)
    assert budget.wait("counts", 0.0) == 5.0


def test_one_slow_answer_is_not_taken_for_the_way_to_the_server() -> None:
    """The first answer comes while the console starts. With it as the round trip, every read would seem to be free."""
    budget = ReadingBudget()
    budget.answered_in(0.050)
    budget.note("page", Meter(0.120, 3), 0.0)
    assert budget.wait("page", 0.0) == pytest.approx(12.0)
    for trip in (0.001, 0.002):
        budget.answered_in(trip)
    assert budget.cost("page") == pytest.approx(0.117)


def test_reads_before_the_way_to_the_server_is_known_do_not_wait_for_it_afterwards() -> None:
    budget = ReadingBudget()
    budget.note("counts", Meter(3.910, 13), 0.0)
    assert budget.wait("counts", 1.0) == pytest.approx(390.0)
    for trip in (0.300, 0.310, 0.300):
        budget.answered_in(trip)
    assert budget.wait("counts", 1.0) == 4.0
    budget.answered_in(0.100)
    budget.note("page", Meter(0.410, 1), 1.0)
    budget.answered_in(0.010)
    assert budget.cost("page") == pytest.approx(0.310), "the line was slower then"


def test_a_slow_server_is_read_less_often_and_a_recovered_one_at_once() -> None:
    budget, chance = ReadingBudget(), random.Random(3)
    now = 0.0
    for slower in (1, 2, 4, 8):
        cost = slower * chance.uniform(0.09, 0.1)
        budget.note("counts", Meter(cost, 1), now)
        assert budget.wait("counts", now) == pytest.approx(100 * cost, abs=5.0)
        now += 1_000.0
    budget.forget()
    assert budget.wait("counts", now) == 0.0


def test_what_the_figures_cost_a_minute_and_how_old_they_get() -> None:
    budget = ReadingBudget()
    budget.note("rows", Meter(0.005, 1), 0.0)
    assert budget.per_minute() == pytest.approx(0.06)
    assert budget.slowest() == 5.0
    budget.note("counts", Meter(2.0, 1), 0.0)
    assert budget.per_minute() == pytest.approx(0.6)
    assert budget.slowest() > 200


def test_no_share_means_that_only_people_read() -> None:
    budget = ReadingBudget(share=0.0)
    assert budget.wait("counts", 0.0) == 0.0
    budget.note("counts", Meter(0.001, 1), 0.0)
    assert budget.wait("counts", 1e9) > 0


def test_what_a_call_costs_is_collected_where_it_was_made() -> None:
    charge(1.0)
    with metered() as meter:
        charge(0.25)
        charge(0.5, statements=0)
    charge(1.0)
    assert meter == Meter(0.75, 1)


def test_a_backend_that_reports_nothing_took_all_the_time() -> None:
    with metered() as meter:
        sum(range(100_000))
    assert meter.statements == 0
    assert meter.seconds > 0


def test_a_read_that_is_repeated_more_often_than_the_refresh_shares_with_the_figures_on_screen() -> None:
    budget = ReadingBudget()
    alone = budget.rest_after("canary", Meter(1.0, 1), 0.0, 0.5)
    assert alone == pytest.approx(100.0)
    assert budget.rest_after("canary", Meter(0.0, 1), 100.0, 0.5) == 0.5
    budget.wait("causes", 100.0)
    budget.note("causes", Meter(10.0, 1), 100.0)
    assert budget.rest_after("canary", Meter(1.0, 1), 100.0, 0.5) == pytest.approx(200.0)
    assert budget.wait("causes", 100.0) == pytest.approx(2_000.0), "each has half of the share"
