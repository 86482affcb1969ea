"""The contract's promises over a table of analyses, in PostgreSQL and in SQLite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride
from console.testing import PROMISES, REQUEUE_PROMISES, Harness, exercise_backend, exercise_requeue
from tests.plugins.postgres_analyses.world import INDEX, harness, postgres_table, sqlite_table

MORE = PolicyOverride(max_attempts=6, unrecoverable=("invalid json", "É"), stuck_after=timedelta(hours=1))


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("kind", ["postgres", "postgres-indexed", "postgres-other-policy", "sqlite"])
def test_a_table_of_analyses_keeps_its_promise(kind: str, promise: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        exercise_backend(maker(kind, tmp_path, stack), promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
@pytest.mark.parametrize("kind", ["postgres", "postgres-other-policy", "sqlite"])
def test_analyses_are_handed_back_as_promised(kind: str, promise: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        exercise_requeue(maker(kind, tmp_path, stack), promise)


@pytest.mark.parametrize("promise", ["conditions_partition", "histograms_add_up", "filters_agree"])
@pytest.mark.parametrize("now", [
    datetime(2026, 3, 29, 1, 10, tzinfo=UTC), datetime(2026, 3, 29, 3, 30, tzinfo=UTC), datetime(2026, 10, 25, 0, 40, tzinfo=UTC),
    datetime(2026, 10, 25, 1, 20, tzinfo=UTC), datetime(2026, 10, 25, 2, 30, tzinfo=UTC),
], ids=["gap", "after-the-gap", "before-the-hour-repeats", "in-the-repeated-hour", "after-it"])
def test_the_clocks_change_and_the_promises_hold(now: datetime, promise: str) -> None:
    """Columns without a zone, in a zone with summer time: what SQL finds by them is what the verdict says."""
    with ExitStack() as stack:
        exercise_backend(lambda: harness(stack.enter_context(postgres_table()), now=now), promise)


def maker(kind: str, folder: Path, stack: ExitStack) -> Callable[[], Harness]:
    files = (folder / f"{number}.db" for number in range(100))

    def make() -> Harness:
        if kind == "sqlite":
            return harness(stack.enter_context(sqlite_table(next(files))))
        table = stack.enter_context(postgres_table(INDEX if kind == "postgres-indexed" else ""))
        return harness(table, MORE if kind == "postgres-other-policy" else PolicyOverride())

    return make
