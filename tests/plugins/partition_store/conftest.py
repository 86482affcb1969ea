"""A store of each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from plugins.partition_store.schema import STATE_DDL
from tests.plugins.partition_store.stores import Store
from tests.plugins.postgres_analyses.server import database


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[Store]:
    """An empty one; the PostgreSQL server's zone has summer time."""
    with ExitStack() as stack:
        url = stack.enter_context(database()) if kind == "postgres" else ""
        made = Store(tmp_path / "etl", STATE_DDL, url)
        yield made
        made.close()
