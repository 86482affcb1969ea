"""Overrides with a pace: the steps of a task stay together, whatever the size of a canary."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console.core.backend import Attempts, Operation
from console.core.confirm import Limits
from console.core.faults import TooMany
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


def test_a_limit_of_as_many_as_a_plan_may_have_is_not_refused(workflow: Workflow, tmp_path: Path) -> None:
    """It is what the refusal of too many items advises. The last task is left out if it would be one step too many."""
    for _ in range(3):
        task = workflow.task("blocked_by_failures", datetime.now(UTC) - timedelta(hours=1))
        for _ in range(2):
            workflow.step(task=task)
    with operating(workflow.open(), tmp_path, limits=Limits(max_items=3)) as operator:
        everything = Matching(Filter.parse("condition:terminal,failed"), limit=3)
        assert operator.operations.propose(everything, WAKE).changes == 2


def test_a_task_with_more_steps_than_a_plan_may_have_is_refused_with_the_number(
    workflow: Workflow, tmp_path: Path
) -> None:
    task = workflow.task("blocked_by_failures", datetime.now(UTC) - timedelta(hours=1))
    for _ in range(4):
        workflow.step(task=task)
    with operating(workflow.open(), tmp_path, limits=Limits(max_items=3)) as operator:
        everything = Matching(Filter.parse("condition:terminal,failed"), limit=2)
        with pytest.raises(TooMany, match="more than 3 items are selected, but a plan may have at most 3"):
            operator.operations.propose(everything, WAKE)
