"""Releasing steps: a task is a unit, whatever the size of a canary."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from console.core.backend import Budget, Flag, Order
from console.core.limits import Limits
from console.core.plan import Matching
from console.core.query import Filter
from console.core.release import Canary
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.workflow_steps.world import Workflow

WAKE = Order(budget=Budget.FRESH, flags=frozenset({Flag.WAKE_TASK}))


def test_a_canary_does_not_end_within_a_task(workflow: Workflow, tmp_path: Path) -> None:
    """The rest of the task would find it woken by its own canary. Nobody executes them here, so it ends there."""
    for _ in range(3):
        task = workflow.task("blocked_by_failures", datetime.now(UTC) - timedelta(hours=1))
        for _ in range(3):
            workflow.step(task=task)
    limits = Limits(canary_deadline=timedelta(seconds=0))
    with operating(workflow.open(), tmp_path, limits=limits) as operator:
        everything = Matching(Filter.parse("condition:terminal,failed"))
        plan = operator.operations.propose(everything, WAKE, Canary(2))
        override = operator.apply(plan)
        assert override.counts == {"changed": 3}
        assert "not all were executed in time" in override.note
        undo = operator.operations.undo(override.op_id)
        assert (undo.changes, undo.blocked) == (3, {})
