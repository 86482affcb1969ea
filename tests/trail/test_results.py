"""The result of an override: recorded once, bound to its items, append-only, and verified."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from console.core.faults import TrailUnavailable
from console.core.override import OverrideState
from console.core.recovery import ItemResult, Result, ResultCounts
from console.trail.store import TrailStore
from tests.trail.world import START, YES, FrozenClock, carried, trail_at

OTHER = "9" * 12


def items(count: int = 6) -> list[ItemResult]:
    """Recovered, failed again with the plan's cause, failed again with another one, and so on."""
    kinds = [(Result.RECOVERED, None), (Result.FAILED_AGAIN, "7f3a"), (Result.FAILED_AGAIN, OTHER)]
    return [ItemResult(n, f"queue/{n:06d}", *kinds[n % 3], kinds[n % 3][1] == "7f3a") for n in range(count)]


def batches(found: Sequence[ItemResult], size: int = 4) -> Iterator[Sequence[ItemResult]]:
    return (found[first : first + size] for first in range(0, len(found), size))


def add(trail: TrailStore, found: Sequence[ItemResult], override_id: str = "op1") -> bool:
    counts = ResultCounts()
    counts.add(found)
    body = {
        "override_id": override_id, "results": counts.record(), "same_cause": counts.same_cause,
        "causes": dict(counts.failed_with), "complete": True,
    }
    return trail.add_result(override_id, partial(batches, found), body, START)


def test_a_result_is_recorded_once_and_read_again(trail: TrailStore) -> None:
    carried(trail)
    trail.mark("op1", OverrideState.FINISHED, "", START)
    assert trail.override("op1").results is None
    assert list(trail.item_results("op1")) == []
    assert add(trail, items())
    assert not add(trail, items(2)), "there is one already"
    results = trail.override("op1").results
    assert results is not None
    assert results.summary() == "2 of 6 recovered, 4 failed again (2 with the same cause)"
    assert [one for batch in trail.item_results("op1") for one in batch] == items()
    assert [record.kind for record in trail.records()].count("result") == 1
    assert trail.verified().ok


def test_a_key_that_no_database_stores_survives(trail: TrailStore) -> None:
    carried(trail)
    trail.mark("op1", OverrideState.FINISHED, "", START)
    odd = [one._replace(key=f"queue/\0\udcff{one.ordinal}") for one in items()]
    assert add(trail, odd)
    assert [one for batch in trail.item_results("op1") for one in batch] == odd
    assert trail.verified().ok


def test_there_is_no_result_while_it_runs_and_another_one_after_it_was_resumed(trail: TrailStore) -> None:
    carried(trail)
    assert not add(trail, items()), "it is still running"
    trail.mark("op1", OverrideState.STOPPED, "Stopped on request.", START)
    assert add(trail, items(2))
    trail.take_over("op1", "me", START, YES)
    assert trail.override("op1").result is None
    assert not add(trail, items())
    assert trail.verified().ok
    trail.mark("op1", OverrideState.FINISHED, "", START)
    assert add(trail, items())
    assert trail.verified().ok


def test_of_many_watchers_one_records(url: str) -> None:
    with trail_at(url) as first:
        carried(first)
        first.mark("op1", OverrideState.FINISHED, "", START)
    together, won = Barrier(4), list[bool]()

    def watch() -> None:
        with trail_at(url) as trail:
            together.wait()
            won.append(add(trail, items()))

    threads = [Thread(target=watch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False, False, False, True]
    with trail_at(url) as trail:
        assert trail.verified().ok


@pytest.mark.parametrize("change", [
    "UPDATE item_result SET result = 'recovered'", "DELETE FROM item_result",
    "INSERT INTO item_result (seq, ordinal, key, result, cause) VALUES (1, 99, 'k', 'recovered', '')",
])  # fmt: skip
def test_item_results_only_grow(trail: TrailStore, change: str) -> None:
    carried(trail)
    trail.mark("op1", OverrideState.FINISHED, "", START)
    add(trail, items())
    with pytest.raises(TrailUnavailable):
        trail._storage.write(lambda writing: writing.run(change))
    assert trail.verified().ok


TAMPERING: dict[str, tuple[str, ...]] = {
    "its item results were edited": (
        "UPDATE item_result SET result = 'recovered' WHERE ordinal = 1", "UPDATE item_result SET cause = 'x' WHERE ordinal = 1",
        "UPDATE item_result SET key = 'queue/x' WHERE ordinal = 1", "UPDATE item_result SET ordinal = 9 WHERE ordinal = 0",
    ),
    "1 of its item results are missing": ("DELETE FROM item_result WHERE ordinal = 5",),
    "1 item results too many": ("INSERT INTO item_result SELECT seq, 77, key, result, cause FROM item_result WHERE ordinal = 1",),
    "item results without a record": (
        "INSERT INTO item_result VALUES (2, 1, 'k', 'recovered', '')", "INSERT INTO item_result VALUES (999, 1, 'k', 'recovered', '')",
    ),
    "table override_state does not match it": ("UPDATE override_state SET result = NULL",),
    "edited (its hash does not match)": ("UPDATE record SET body = replace(body, 'recovered', 'recovereD') WHERE kind = 'result'",),
}


@pytest.mark.parametrize(("what", "change"), [(what, change) for what, changes in TAMPERING.items() for change in changes])
def test_whatever_is_changed_is_found(tmp_path: Path, what: str, change: str) -> None:
    url = f"sqlite:///{tmp_path}/state/trail.db"
    with trail_at(url, FrozenClock()) as trail:
        carried(trail)
        trail.mark("op1", OverrideState.FINISHED, "", START)
        add(trail, items())
        assert trail.verified().ok
    database = sqlite3.connect(tmp_path / "state" / "trail.db", isolation_level=None)
    triggers: list[tuple[Any, ...]] = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        database.execute(f"DROP TRIGGER {name}")
    database.execute(change)
    database.close()
    with trail_at(url, FrozenClock()) as trail:
        found = trail.verified()
    assert (found.ok, found.what) == (False, what)
