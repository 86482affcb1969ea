from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.workflow_steps.world import Workflow, postgres_workflow, sqlite_workflow


@pytest.fixture(params=["postgres", "sqlite"])
def workflow(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workflow]:
    """Empty tables of each kind; the PostgreSQL server's zone has summer time, the columns are in UTC."""
    made = postgres_workflow() if request.param == "postgres" else sqlite_workflow(tmp_path / "steps.db")
    with made as found:
        yield found
