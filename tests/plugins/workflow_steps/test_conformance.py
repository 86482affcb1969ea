"""The contract's promises over workflow steps, in PostgreSQL and in SQLite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride
from console.testing import PROMISES, REQUEUE_PROMISES, Harness, exercise_backend, exercise_requeue
from tests.plugins.workflow_steps.world import harness, postgres_workflow, sqlite_workflow

MORE = PolicyOverride(max_attempts=5, unrecoverable=("invalid json", "É"), stuck_after=timedelta(hours=1))


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_workflow_steps_keep_their_promise(kind: str, promise: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        exercise_backend(maker(kind, tmp_path, stack), promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_steps_are_reset_as_promised(kind: str, promise: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        exercise_requeue(maker(kind, tmp_path, stack), promise)


def maker(kind: str, folder: Path, stack: ExitStack) -> Callable[[], Harness]:
    files = (folder / f"{number}.db" for number in range(100))

    def make() -> Harness:
        if kind == "sqlite":
            return harness(stack.enter_context(sqlite_workflow(next(files))))
        return harness(stack.enter_context(postgres_workflow()), MORE)

    return make
