"""The contract's promises over workflow steps, in PostgreSQL and in SQLite."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride
from console.testing import PROMISES, Harness, exercise_backend
from tests.plugins.workflow_steps.world import harness, postgres_workflow, sqlite_workflow

MORE = PolicyOverride(max_attempts=5, unrecoverable=("invalid json", "É"), stuck_after=timedelta(hours=1))


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_workflow_steps_keep_their_promise(kind: str, promise: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        def make() -> Harness:
            if kind == "sqlite":
                return harness(stack.enter_context(sqlite_workflow(tmp_path / "steps.db")))
            return harness(stack.enter_context(postgres_workflow()), MORE)

        exercise_backend(make, promise)
