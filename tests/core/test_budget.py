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
