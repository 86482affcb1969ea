"""The contract suites over every preset, and over custom tables in SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride
from console.testing import PROMISES, REQUEUE_PROMISES, BackendSuite, Harness, RequeueSuite
from tests.plugins.sql_table import home_made as home
from tests.plugins.sql_table.systems import SYSTEMS
from tests.plugins.sql_table.world import harness, mapping, postgres_queue, sqlite_queue

STRICTER = PolicyOverride(unrecoverable=("invalid json", "É"), stuck_after=timedelta(hours=1))


def make_on(preset: str, stack: ExitStack) -> Harness:
    system = SYSTEMS[preset]
    return system.harness(stack.enter_context(system.queue()), STRICTER)


@pytest.fixture(scope="module", params=SYSTEMS)
def preset_reading(request: pytest.FixtureRequest, thorough: bool) -> Iterator[BackendSuite]:
    with ExitStack() as stack, BackendSuite(lambda: make_on(request.param, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=SYSTEMS)
def preset_requeue(request: pytest.FixtureRequest, thorough: bool) -> Iterator[RequeueSuite]:
    with ExitStack() as stack, RequeueSuite(lambda: make_on(request.param, stack), thorough=thorough) as suite:
        yield suite


@pytest.mark.parametrize("promise", PROMISES)
def test_a_preset_keeps_its_promise(preset_reading: BackendSuite, promise: str) -> None:
    preset_reading.check(promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_a_preset_requeues_as_promised(preset_requeue: RequeueSuite, promise: str) -> None:
    preset_requeue.check(promise)


def home_made(which: str, folder: Path, stack: ExitStack) -> Harness:
    if which == "sqlite":
        path = folder / f"{len(list(folder.iterdir()))}.db"
        queue = stack.enter_context(sqlite_queue(path, home.MAIL_DDL, mapping(home.MAIL)))
        return harness(
            queue, home.add_mail, home.MAIL_STATUSES, policy=STRICTER, table='"order"', key=('"group"',),
            touch="tries = tries + 1, \"select\" = 'sending'",
        )
    queue = stack.enter_context(postgres_queue(home.SYNC_DDL, mapping(home.SYNC)))
    return harness(
        queue, home.add_sync, home.SYNC_STATUSES, policy=STRICTER, table="sync.runs", key=("tenant", '"run no"'),
        touch="tries = coalesce(tries, 0) + 1, state = 1",
    )


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def home_made_reading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[BackendSuite]:
    folder = tmp_path_factory.mktemp("home_made")
    with ExitStack() as stack, BackendSuite(lambda: home_made(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def home_made_requeue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[RequeueSuite]:
    folder = tmp_path_factory.mktemp("home_made")
    with ExitStack() as stack, RequeueSuite(lambda: home_made(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.mark.parametrize("promise", PROMISES)
def test_a_home_made_table_keeps_the_promise(home_made_reading: BackendSuite, promise: str) -> None:
    home_made_reading.check(promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_a_home_made_table_requeues_as_promised(home_made_requeue: RequeueSuite, promise: str) -> None:
    home_made_requeue.check(promise)
