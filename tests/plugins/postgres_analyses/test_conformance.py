"""The contract suites over a table of analyses, in PostgreSQL and in SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride
from console.testing import (
    DISCARD_PROMISES,
    PROMISES,
    REQUEUE_PROMISES,
    BackendSuite,
    DiscardSuite,
    Harness,
    RequeueSuite,
    exercise_backend,
)
from tests.depth import in_depth
from tests.plugins.postgres_analyses.world import INDEX, harness, postgres_table, sqlite_table

MORE = PolicyOverride(max_attempts=6, unrecoverable=("invalid json", "É"), stuck_after=timedelta(hours=1))
KINDS = ("postgres", "postgres-indexed", "postgres-other-policy", "sqlite")
QUICK = ("postgres", "sqlite")
CLOCK_CHANGES = {
    "gap": datetime(2026, 3, 29, 1, 10, tzinfo=UTC),
    "after-the-gap": datetime(2026, 3, 29, 3, 30, tzinfo=UTC),
    "before-the-hour-repeats": datetime(2026, 10, 25, 0, 40, tzinfo=UTC),
    "in-the-repeated-hour": datetime(2026, 10, 25, 1, 20, tzinfo=UTC),
    "after-it": datetime(2026, 10, 25, 2, 30, tzinfo=UTC),
}


@pytest.fixture(scope="module", params=in_depth(KINDS, QUICK))
def reading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[BackendSuite]:
    folder = tmp_path_factory.mktemp("analyses")
    with ExitStack() as stack, BackendSuite(maker(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=in_depth(["postgres", "postgres-other-policy", "sqlite"], QUICK))
def requeue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[RequeueSuite]:
    folder = tmp_path_factory.mktemp("analyses")
    with ExitStack() as stack, RequeueSuite(maker(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=in_depth(["postgres", "sqlite"], quick=["sqlite"]))
def discard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[DiscardSuite]:
    folder = tmp_path_factory.mktemp("analyses")
    with ExitStack() as stack, DiscardSuite(maker(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.mark.parametrize("promise", PROMISES)
def test_a_table_of_analyses_keeps_its_promise(reading: BackendSuite, promise: str) -> None:
    reading.check(promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_analyses_are_requeued_as_promised(requeue: RequeueSuite, promise: str) -> None:
    requeue.check(promise)


@pytest.mark.parametrize("when", CLOCK_CHANGES)
def test_the_clocks_change_and_the_promises_hold(when: str, thorough: bool) -> None:
    """Columns without a zone, in a zone with summer time: what SQL finds by them is what the verdict says."""
    promises = ["conditions_partition", "histograms_add_up"]
    if thorough or when in ("gap", "in-the-repeated-hour"):
        promises.append("filters_agree")
    with ExitStack() as stack:
        exercise_backend(
            lambda: harness(stack.enter_context(postgres_table()), now=CLOCK_CHANGES[when]), *promises, thorough=thorough
        )


@pytest.mark.parametrize("promise", DISCARD_PROMISES)
def test_discards_as_promised(discard: DiscardSuite, promise: str) -> None:
    discard.check(promise)


def maker(kind: str, folder: Path, stack: ExitStack) -> Callable[[], Harness]:
    files = (folder / f"{number}.db" for number in range(100))

    def make() -> Harness:
        if kind == "sqlite":
            return harness(stack.enter_context(sqlite_table(next(files))))
        table = stack.enter_context(postgres_table(INDEX if kind == "postgres-indexed" else ""))
        return harness(table, MORE if kind == "postgres-other-policy" else PolicyOverride())

    return make
