"""However many one-off errors there are, the frequent causes are listed, and the counts add up to what was read."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from datetime import UTC, datetime
from random import Random

import pytest

from console.core import cause_count
from console.core.cause_count import CauseCounter
from tests.cli.place import Place, failed

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DOWN = "database down"


def one_off(n: int) -> str:
    """An error of its own signature: words are kept, numbers are not."""
    letters = "abcdefghij"
    return "one off " + "".join(letters[int(digit)] for digit in f"{n:06}") + "zq"


def counted(errors: list[str]) -> CauseCounter:
    counter = CauseCounter()
    counter.add(((error, NOW) for error in errors), "q", instant=lambda at: at)
    return counter


def test_one_off_errors_before_the_big_one_do_not_hide_it() -> None:
    counter = counted([one_off(n) for n in range(20_500)] + [DOWN] * 60_000)
    first, *_, rest = counter.causes()
    assert (first.sample, first.count) == (DOWN, 60_000)
    assert rest.overflow
    assert sum(cause.count for cause in counter.causes()) == counter.rows == 80_500


@pytest.mark.parametrize("seed", range(5))
def test_every_frequent_cause_is_listed_and_the_total_is_exact(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cause_count, "_CAUSES", 200)
    monkeypatch.setattr(cause_count, "_CHUNK", 50)
    chance = Random(seed)
    errors = [one_off(n) for n in range(8_000)]
    for n in range(40):
        errors += [f"frequent {one_off(900_000 + n)}"] * chance.randrange(150, 400)
    if seed < 4:
        chance.shuffle(errors)
    truth = Counter(errors)
    counter = counted(errors)
    listed = {cause.sample: cause for cause in counter.causes() if not cause.overflow}
    assert len(listed) <= 200
    assert sum(cause.count for cause in counter.causes()) == counter.rows == len(errors)
    for error, count in truth.items():
        if count > len(errors) / 100:  # half of the table is kept
            assert error in listed
            assert listed[error].count <= count <= listed[error].count + listed[error].maybe_more
    for error, cause in listed.items():
        assert cause.count <= truth[error]


def test_the_row_of_the_others_has_their_times_and_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cause_count, "_CAUSES", 4)
    counter = CauseCounter()
    for n, backend in enumerate(["a", "b"] * 5):
        at = NOW.replace(day=n + 1)
        counter.add([(one_off(n), at)], backend, NOW.replace(day=2), instant=lambda at: at)
    rest = counter.causes()[-1]
    assert rest.overflow
    assert (rest.signature, rest.first, dict(rest.backends).keys()) == (None, NOW, {"a", "b"})
    assert sum(cause.recent for cause in counter.causes()) == 9


def test_commands_show_the_others_as_a_row_of_its_own(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cause_count, "_CAUSES", 10)
    place.queue("q")
    with sqlite3.connect(place.folder / "q.db") as connection:
        rows = [failed(f"{n:04}", one_off(n)) for n in range(50)] + [failed(f"z{n}", DOWN) for n in range(30)]
        connection.executemany("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    connection.close()
    found = [json.loads(line) for line in place.run("causes", "--limit", "3").out.splitlines()]
    assert (found[0]["sample"], found[0]["count"]) == (DOWN, 30)
    assert [row["overflow"] for row in found] == [False, False, False, True]
    everything = [json.loads(line) for line in place.run("causes", "--limit", "0").out.splitlines()]
    assert sum(row["count"] for row in everything) == 80
    assert "other causes, too many to list" in place.run("causes", "--format", "table").out
    assert not [line for line in place.run("causes", "--where", "cause:*").out.splitlines() if '"overflow": true' in line]
