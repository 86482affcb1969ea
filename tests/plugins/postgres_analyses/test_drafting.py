"""Drafting column by column says of each row what drafting it alone would say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from console.core.backend import Budget, Draft, Order
from console.core.changes import Changes, SoleKeys
from console.sql.times import Naive
from plugins.postgres_analyses.backend import POLICY
from plugins.postgres_analyses.requeue import Drafting, Requeue
from plugins.postgres_analyses.rows import AnalysisRows
from plugins.postgres_analyses.schema import PIPELINES

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
STORED = NOW.replace(tzinfo=None)
TIMES = st.sampled_from([STORED - timedelta(seconds=n) for n in (1, 59, 60, 61, 100_000)])
USUAL = st.fixed_dictionaries({
    "pipeline": st.sampled_from(PIPELINES),
    "other": st.sampled_from(["success", "failed", "pending", None]),
    "error": st.sampled_from(["timeout after 3 s", "timeout after 44 s", "", "gone"]),
    "retries": st.sampled_from([3, 4]),
    "last": st.one_of(st.none(), TIMES),
    "processed": TIMES,
})
ODD = st.sampled_from([
    {"error": None}, {"error": "invalid JSON"}, {"retries": None}, {"retries": 1}, {"processed": None},
    {"processed": "infinity"}, {"last": "infinity"}, {"status": "pending"}, {"other": b"\xff"},
])


def row(number: int, pipeline: str, other: Any, error: Any, retries: Any, last: Any, processed: Any, status: str = "failed") -> tuple[Any, ...]:
    statuses = (status, other) if pipeline == PIPELINES[0] else (other, status)
    return (number, pipeline, error, retries, last, processed, None, f"(0,{number})", *statuses, 0, number, pipeline)


def requeue() -> Requeue:
    time = Naive(UTC)
    rows = AnalysisRows("analyses", POLICY, time, PIPELINES)
    return Requeue("analyses", "t", PIPELINES, POLICY, time, rows, sqlite=False)


def one_by_one(requeue: Requeue, batches: list[list[tuple[Any, ...]]], order: Order) -> list[Draft]:
    drafting = Drafting(requeue, order, NOW)
    return [draft for batch in batches for draft in drafting.drafts([[requeue.rows.native(one)] for one in batch])]


@given(st.lists(st.lists(USUAL, min_size=1, max_size=14), max_size=6), st.sampled_from(Budget))
def test_rows_that_are_alike(batches: list[list[dict[str, Any]]], budget: Budget) -> None:
    order = Order(budget=budget)
    stored = [[row(n, **values) for n, values in enumerate(batch, 100 * b)] for b, batch in enumerate(batches)]
    drafting = Drafting(requeue(), order, NOW)
    together = [drafting.alike(batch) for batch in stored]
    assert None not in together
    assert [draft for drafts in together for draft in drafts or ()] == one_by_one(requeue(), stored, order)


@given(st.lists(USUAL, min_size=1, max_size=5), USUAL, ODD)
def test_one_that_is_not_is_left_to_be_looked_at(values: list[dict[str, Any]], usual: dict[str, Any], odd: dict[str, Any]) -> None:
    batch = [row(n, **each) for n, each in enumerate([*values, {**usual, **odd}])]
    order = Order(budget=Budget.FRESH)
    assert Drafting(requeue(), order, NOW).alike(batch) is None
    assert len(one_by_one(requeue(), [batch], order)) == len(batch)


@given(st.lists(st.tuples(st.sampled_from(["failed", None]), st.sampled_from([0, 3, None]), st.sampled_from(["", "", PIPELINES[0], ",".join(PIPELINES)])), max_size=4), st.sampled_from(Budget))
def test_after_images_of_many(given: list[tuple[Any, Any, str]], budget: Budget) -> None:
    order, count = Order(budget=budget), len(given)
    befores = [("failed", other, retries, "2026-11-10T00:00:00", forced) for other, retries, forced in given]
    texts = [f"analyses/{n}/{PIPELINES[n % 2]}" for n in range(count)]
    changes = Changes([""] * count, SoleKeys("analyses", texts), befores, [()] * count)
    assert list(requeue().afters(changes, order)) == [requeue().after(change, order) for change in changes]
