"""The contract suites over every preset, and over custom tables in SQLite, PostgreSQL and MySQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
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
)
from tests.depth import in_depth
from tests.plugins.sql_table import home_made as home
from tests.plugins.sql_table.systems import CHANGEABLE, SYSTEMS
from tests.plugins.sql_table.world import harness, mapping, mysql_queue, postgres_queue, sqlite_queue

AT_ONCE = ("river", "procrastinate", "good_job", "solid_queue_sqlite")
"""Presets that have their suites in the quick tests, one for each way to write: an UPDATE, a function, parts of JSON
under an advisory lock, and several statements. The suites of the others are a campaign."""
READ_AT_ONCE = ("river", "solid_queue_sqlite")
"""Of these, one for each database: how a preset writes makes no difference to how it is read."""
STRICTER = PolicyOverride(unrecoverable=("invalid json", "É"), stuck_after=timedelta(hours=1))


EACH_WAY = ("delayed_job", "graphile_worker", "solid_queue_sqlite")
"""One preset for each way to discard besides a plain UPDATE: by DELETE, by function, by statements."""


def make_on(preset: str, stack: ExitStack) -> Harness:
    system = SYSTEMS[preset]
    return system.harness(stack.enter_context(system.queue()), STRICTER)


@pytest.fixture(scope="module", params=in_depth(SYSTEMS, READ_AT_ONCE))
def preset_reading(request: pytest.FixtureRequest, thorough: bool) -> Iterator[BackendSuite]:
    with ExitStack() as stack, BackendSuite(lambda: make_on(request.param, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=in_depth(CHANGEABLE, AT_ONCE))
def preset_requeue(request: pytest.FixtureRequest, thorough: bool) -> Iterator[RequeueSuite]:
    with ExitStack() as stack, RequeueSuite(lambda: make_on(request.param, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=in_depth(CHANGEABLE, EACH_WAY))
def preset_discard(request: pytest.FixtureRequest, thorough: bool) -> Iterator[DiscardSuite]:
    with ExitStack() as stack, DiscardSuite(lambda: make_on(request.param, stack), thorough=thorough) as suite:
        yield suite


@pytest.mark.parametrize("promise", PROMISES)
def test_a_preset_keeps_its_promise(preset_reading: BackendSuite, promise: str) -> None:
    preset_reading.check(promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_a_preset_requeues_as_promised(preset_requeue: RequeueSuite, promise: str) -> None:
    preset_requeue.check(promise)


@pytest.mark.parametrize("promise", DISCARD_PROMISES)
def test_a_preset_discards_as_promised(preset_discard: DiscardSuite, promise: str) -> None:
    preset_discard.check(promise)


def home_made(which: str, folder: Path, stack: ExitStack) -> Harness:
    if which == "sqlite":
        path = folder / f"{len(list(folder.iterdir()))}.db"
        queue = stack.enter_context(sqlite_queue(path, home.MAIL_DDL, mapping(home.MAIL)))
        return harness(
            queue, home.add_mail, home.MAIL_STATUSES, policy=STRICTER, table='"order"', key=('"group"',),
            touch="tries = tries + 1, \"select\" = 'sending'",
        )
    if which == "mysql":
        queue = stack.enter_context(mysql_queue(home.TASKS_DDL, mapping(home.TASKS)))
        return harness(
            queue, home.add_task, home.MAIL_STATUSES, policy=STRICTER, table="tasks", key=("tenant", '"run no"'),
            touch="tries = coalesce(tries, 0) + 1, state = 'sending'",
        )
    queue = stack.enter_context(postgres_queue(home.SYNC_DDL, mapping(home.SYNC)))
    return harness(
        queue, home.add_sync, home.SYNC_STATUSES, policy=STRICTER, table="sync.runs", key=("tenant", '"run no"'),
        touch="tries = coalesce(tries, 0) + 1, state = 1",
    )


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mysql"])
def home_made_reading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[BackendSuite]:
    folder = tmp_path_factory.mktemp("home_made")
    with ExitStack() as stack, BackendSuite(lambda: home_made(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mysql"])
def home_made_requeue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[RequeueSuite]:
    folder = tmp_path_factory.mktemp("home_made")
    with ExitStack() as stack, RequeueSuite(lambda: home_made(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=in_depth(["sqlite", "postgres"], quick=["sqlite"]))
def home_made_discard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[DiscardSuite]:
    folder = tmp_path_factory.mktemp("home_made")
    with ExitStack() as stack, DiscardSuite(lambda: home_made(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.mark.parametrize("promise", PROMISES)
def test_a_home_made_table_keeps_the_promise(home_made_reading: BackendSuite, promise: str) -> None:
    home_made_reading.check(promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_a_home_made_table_requeues_as_promised(home_made_requeue: RequeueSuite, promise: str) -> None:
    home_made_requeue.check(promise)


@pytest.mark.parametrize("promise", DISCARD_PROMISES)
def test_a_home_made_table_discards_as_promised(home_made_discard: DiscardSuite, promise: str) -> None:
    home_made_discard.check(promise)
