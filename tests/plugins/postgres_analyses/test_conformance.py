"""The contract's promises over a table of analyses, in PostgreSQL and in SQLite."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride
from console.testing import PROMISES, Harness, exercise_backend
from tests.plugins.postgres_analyses.world import INDEX, harness, postgres_table, sqlite_table

MORE = PolicyOverride(max_attempts=6, unrecoverable=("invalid json", "É"), stuck_after=timedelta(hours=1))


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("kind", ["postgres", "postgres-indexed", "postgres-other-policy", "sqlite"])
def test_a_table_of_analyses_keeps_its_promise(kind: str, promise: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        def make() -> Harness:
            if kind == "sqlite":
                return harness(stack.enter_context(sqlite_table(tmp_path / "analyses.db")))
            table = stack.enter_context(postgres_table(INDEX if kind == "postgres-indexed" else ""))
            return harness(table, MORE if kind == "postgres-other-policy" else PolicyOverride())

        exercise_backend(make, promise)
