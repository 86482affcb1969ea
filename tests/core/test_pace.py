from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.core.faults import UsageFault
from console.core.pace import CANARY_GROWTH, Canary, Now, Over, Rate, parse_pace

totals = st.integers(1, 100_000)
seeds = st.text(max_size=5)


@pytest.mark.parametrize(
    ("text", "pace"),
    [
        ("now", Now()), ("over 30m", Over(timedelta(minutes=30))), ("10/s", Rate(10.0)), ("30/m", Rate(0.5)),
        ("0.5/s", Rate(0.5)), ("canary 20", Canary(20)), ("  over   1h30m ", Over(timedelta(minutes=90))),
    ],
)
def test_paces_as_they_are_written(text: str, pace: object) -> None:
    assert parse_pace(text) == pace


@pytest.mark.parametrize("pace", [Now(), Over(timedelta(minutes=90)), Rate(10.0), Canary(20)])
def test_a_pace_reads_back(pace: Now | Over | Rate | Canary) -> None:
    assert parse_pace(str(pace)) == pace


@pytest.mark.parametrize(
    "text", ["", "soon", "over", "over 0s", "over soon", "over -5m", "0/s", "10", "10/d", "canary", "canary 0", "canary ²",
             "canary 1000001", "now please", "-1/s", "1e3/s", "canary -1", "over 367d", "over 999999999d", "0.0000001/s", "0.9/h"]
)
def test_what_is_no_pace(text: str) -> None:
    with pytest.raises(UsageFault, match=r"[Pp]ace"):
        parse_pace(text)


@given(st.integers(1, 1000), st.integers(0, 10**7))
def test_canary_steps_make_up_the_whole(size: int, total: int) -> None:
    steps = Canary(size).steps(total)
    assert sum(steps) == total
    assert all(step > 0 for step in steps)
    assert steps[:1] == ([min(size, total)] if total else [])
    assert all(later == CANARY_GROWTH * step for step, later in pairwise(steps[:-1]))


@given(totals, seeds, st.data())
def test_over_spreads_within_its_window_in_order(total: int, seed: str, data: st.DataObject) -> None:
    window = timedelta(minutes=30)
    pace = Over(window)
    position = data.draw(st.integers(0, total - 1))
    offset = pace.offset(position, total, seed)
    assert window * (position / total) <= offset + timedelta(microseconds=1)
    assert timedelta(0) <= offset <= window
    assert offset == Over(window).offset(position, total, seed)
    if position:
        assert pace.offset(position - 1, total, seed) <= offset


def test_over_is_not_the_same_for_every_plan() -> None:
    one, other = (tuple(Over(timedelta(hours=1)).offset(n, 50, seed) for n in range(50)) for seed in "ab")
    assert one != other


@given(st.floats(0.001, 10_000), totals, seeds)
def test_rate_is_monotone_and_as_fast_as_said(per_second: float, total: int, seed: str) -> None:
    pace = Rate(per_second)
    offsets = [pace.offset(n, total, seed) for n in range(min(total, 50))]
    assert offsets == sorted(offsets)
    assert offsets[0] == timedelta(0)
    last = len(offsets) - 1
    assert abs(offsets[-1].total_seconds() - last / per_second) < 1e-5


@pytest.mark.parametrize("pace", [Now(), Canary(5)])
def test_at_once_is_at_once(pace: Now | Canary) -> None:
    assert pace.offset(9, 10, "x") == timedelta(0)
