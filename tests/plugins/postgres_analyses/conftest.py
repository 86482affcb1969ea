from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.postgres_analyses.world import Table, postgres_table, sqlite_table


@pytest.fixture(params=["postgres", "sqlite"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    """An empty table of each kind; the PostgreSQL server's zone has summer time."""
    made = postgres_table() if request.param == "postgres" else sqlite_table(tmp_path / "analyses.db")
    with made as found:
        yield found


@pytest.fixture
def postgres() -> Iterator[Table]:
    with postgres_table() as found:
        yield found
