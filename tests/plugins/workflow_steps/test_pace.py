"""Overrides with a pace: the steps of a task stay together, whatever the size of a canary."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from console.core.backend import Attempts, Operation
from console.core.confirm import Limits
from console.core.pace import Canary
from console.core.plan import Matching
from console.core.query import Filter
from plugins.workflow_steps.prediction import WAKE_TASK
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.workflow_steps.world import Workflow

WAKE = Operation(attempts=Attempts.RESET, flags=frozenset({WAKE_TASK}))


def test_a_canary_does_not_end_within_a_task(workflow: Workflow, tmp_path: Path) -> None:
    """Otherwise the rest of the task would find it woken by its own canary. No worker runs here, so the canary ends."""
    for _ in range(3):
        task = workflow.task("blocked_by_failures", datetime.now(UTC) - timedelta(hours=1))
        for _ in range(3):
            workflow.step(task=task)
    limits = Limits(canary_deadline=timedelta(seconds=0))
    with operating(workflow.open(), tmp_path, limits=limits) as operator:
        everything = Matching(Filter.parse("condition:terminal,failed"))
        plan = operator.operations.propose(everything, WAKE, Canary(2))
        override = operator.apply(plan)
        assert override.counts == {"applied": 3}
        assert "3 of 3 did not run in time" in override.note
        undo = operator.operations.undo(override.override_id)
        assert (undo.changes, undo.skipped) == (3, {})
