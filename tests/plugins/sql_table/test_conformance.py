"""The contract's promises over every preset, and over home-made tables in SQLite and PostgreSQL."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride
from console.testing import PROMISES, REQUEUE_PROMISES, Harness, exercise_backend, exercise_requeue
from tests.plugins.sql_table import home_made as home
from tests.plugins.sql_table.systems import SYSTEMS
from tests.plugins.sql_table.world import harness, mapping, postgres_queue, sqlite_queue

STRICTER = PolicyOverride(unrecoverable=("invalid json", "É"), stuck_after=timedelta(hours=1))


def make_on(preset: str, stack: ExitStack) -> Harness:
    system = SYSTEMS[preset]
    return system.harness(stack.enter_context(system.queue()), STRICTER)


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("preset", SYSTEMS)
def test_a_preset_keeps_its_promise(preset: str, promise: str) -> None:
    with ExitStack() as stack:
        exercise_backend(lambda: make_on(preset, stack), promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
@pytest.mark.parametrize("preset", SYSTEMS)
def test_a_preset_hands_back_as_it_promises(preset: str, promise: str) -> None:
    with ExitStack() as stack:
        exercise_requeue(lambda: make_on(preset, stack), promise)


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


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("which", ["sqlite", "postgres"])
def test_a_home_made_table_keeps_the_promise(which: str, promise: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        exercise_backend(lambda: home_made(which, tmp_path, stack), promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
@pytest.mark.parametrize("which", ["sqlite", "postgres"])
def test_a_home_made_table_hands_back_as_promised(which: str, promise: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        exercise_requeue(lambda: home_made(which, tmp_path, stack), promise)
