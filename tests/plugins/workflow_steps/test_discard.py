"""Giving steps up: cancelled and resolved are written as the system itself does, and mean two different things."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.advice import Advice, Step
from console.core.backend import Action, Operation
from console.core.item import Condition, ItemKey
from console.core.policy import PolicyOverride
from console.testing import StopFlag
from plugins.workflow_steps.discard import AS_CANCELLED, AS_RESOLVED
from plugins.workflow_steps.engine import Orchestrator
from plugins.workflow_steps.prediction import WAKE_TASK
from tests.plugins.postgres_analyses.operating import Operator, RealClock, operating
from tests.plugins.workflow_steps.world import Workflow

CANCEL = Operation(Action.DISCARD, flags=frozenset({AS_CANCELLED}))
RESOLVE = Operation(Action.DISCARD, flags=frozenset({AS_RESOLVED}))
RESOLVE_AND_WAKE = Operation(Action.DISCARD, flags=frozenset({AS_RESOLVED, WAKE_TASK}))
NEVER = "Cancelled: steps that depend on it never run, and its task does not complete."
MAY_RUN = "Resolved by hand: steps that depend on it run, without its result."


@pytest.fixture
def operator(workflow: Workflow, tmp_path: Path) -> Iterator[Operator]:
    with operating(workflow.open(), tmp_path) as found:
        yield found


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


def condition(operator: Operator, id: str) -> Condition:
    key = ItemKey("steps", (id,))
    return operator.backend.items([key], operator.backend.now())[key].condition


def orchestrate(operator: Operator, cycles: int = 3) -> list[str]:
    """The names of the steps that the orchestrator runs."""
    ran: list[str] = []
    loop = Orchestrator(operator.backend, lambda name, _step: ran.append(name), RealClock(), lambda _: None)
    for _ in range(cycles):
        loop.cycle(StopFlag())
    return ran


@pytest.mark.parametrize(("operation", "state", "after"), [
    (CANCEL, "cancelled", Condition.CANCELLED), (RESOLVE, "resolved_manually", Condition.DONE),
])
def test_a_step_in_error_is_written_as_its_own_operators_do(
    workflow: Workflow, operator: Operator, operation: Operation, state: str, after: Condition
) -> None:
    """The columns and the transition are those of `handle_move_to_cancelled` and `handle_move_to_resolved_manually`
    of the real state machine."""
    id = workflow.step(in_process=True, backoff_request_seconds=30, results={"error": "x"})
    before = workflow.row(id)
    override = operator.requeue(id, operation=operation)
    assert override.counts == {"applied": 1}
    row = workflow.row(id)
    assert row == before | {"in_process": False, "processed": True, "processed_at": row["processed_at"]}
    assert row["processed_at"] is not None
    assert workflow.moves("workflow_step", id) == [(None, "error", 1, False), ("error", state, 2, True)]
    metadata = workflow.metadata("workflow_step", id)
    assert (metadata["by"], metadata["reason"], metadata["action"]) == ("ann (says Ann A.)", "disk is back", "discard")
    assert condition(operator, id) is after


def test_without_a_choice_nothing_is_discarded(workflow: Workflow, operator: Operator) -> None:
    id = workflow.step()
    for flags in ((), (AS_CANCELLED, AS_RESOLVED)):
        plan = operator.plan(id, operation=Operation(Action.DISCARD, flags=frozenset(flags)))
        assert (plan.changes, plan.skipped) == (0, {"Choose how it is discarded.": 1})
        assert plan.advice == {"Choose how it is discarded.": Advice(Step.CHOOSE_KIND, "as_cancelled as_resolved")}


def test_a_plan_says_what_each_way_means(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("waiting_for_dependencies", ago(minutes=1))
    id = workflow.step(task=task)
    assert list(operator.plan(id, operation=CANCEL).warnings) == [NEVER]
    assert list(operator.plan(id, operation=RESOLVE).warnings) == [MAY_RUN]


@pytest.mark.parametrize(("operation", "ran"), [(CANCEL, []), (RESOLVE, ["ship"])])
def test_only_a_resolved_step_lets_its_dependents_run(
    workflow: Workflow, operator: Operator, operation: Operation, ran: list[str]
) -> None:
    task = workflow.task("waiting_for_dependencies", ago(minutes=1))
    parent = workflow.step(task=task)
    child = workflow.step("pending", task=task, name="ship", attempts=0)
    workflow.edge(parent, child)
    assert orchestrate(operator) == []
    operator.requeue(parent, operation=operation)
    assert orchestrate(operator) == ran
    finished = workflow.moves("task", task)[-1][1] == "complete"
    assert finished == bool(ran)


def test_a_sleeping_task_is_woken_with_it(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("blocked_by_failures", ago(minutes=1))
    parent = workflow.step(task=task)
    child = workflow.step("pending", task=task, name="ship", attempts=0)
    workflow.edge(parent, child)
    plan = operator.plan(parent, operation=RESOLVE)
    (warning,) = plan.warnings
    assert warning == f"{MAY_RUN} Its task is blocked_by_failures, so its system ignores it."
    assert plan.advice[warning] == Advice(Step.TURN_ON, WAKE_TASK)
    plan = operator.plan(parent, operation=RESOLVE_AND_WAKE)
    assert list(plan.warnings) == [f"{MAY_RUN} Its task is woken: a transition to waiting_for_retry is added."]
    override = operator.apply(plan)
    assert workflow.moves("task", task)[-1][1] == "waiting_for_retry"
    undo = operator.operations.undo(override.override_id)
    operator.apply(undo)
    assert workflow.moves("task", task)[-1][1] == "blocked_by_failures"
    assert workflow.moves("workflow_step", parent)[-1][:2] == ("resolved_manually", "error")
    assert condition(operator, parent) is Condition.TERMINAL
    operator.requeue(parent, operation=RESOLVE_AND_WAKE)
    assert orchestrate(operator) == ["ship"]


def test_a_task_with_another_failed_step_stays_blocked(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("waiting_for_dependencies", ago(minutes=1))
    one, two = workflow.step(task=task), workflow.step(task=task)
    plan = operator.plan(one, operation=RESOLVE)
    assert list(plan.warnings) == [f"{MAY_RUN} 1 other step of its task is in error, so its system ignores the task."]
    assert list(operator.plan(one, two, operation=RESOLVE).warnings) == [MAY_RUN]


@pytest.mark.parametrize(("state", "attempts", "changes"), [
    ("waiting_for_retry", 1, 1), ("pending", 1, 1), ("pending", 3, 1), ("error", 1, 1), ("error", 3, 1),
    ("pending", 0, 0), ("in_progress", 1, 0), ("complete", 1, 0), ("cancelled", 1, 0), ("resolved_manually", 1, 0),
    ("odd", 1, 0),
])
def test_which_steps_are_taken(workflow: Workflow, operator: Operator, state: str, attempts: int, changes: int) -> None:
    id = workflow.step(state, attempts=attempts)
    for operation in (CANCEL, RESOLVE):
        assert operator.plan(id, operation=operation).changes == changes


def test_a_retrying_step_is_not_run_again(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("waiting_for_retry", ago(minutes=1))
    id = workflow.step("waiting_for_retry", task=task, attempts=1, at=ago(minutes=1))
    assert condition(operator, id) is Condition.RETRYING
    operator.requeue(id, operation=CANCEL)
    assert orchestrate(operator) == []


def test_a_step_that_a_worker_holds_stays_given_up(workflow: Workflow, tmp_path: Path) -> None:
    """Its system lets no transition lead out of `cancelled`, so the worker's result is lost."""
    policy = PolicyOverride(stuck_after=timedelta(seconds=1))
    with operating(workflow.open(policy=policy), tmp_path) as operator:
        task = workflow.task("pending", ago(minutes=1))
        id = workflow.step("pending", task=task, attempts=0)

        def handler(_name: str, _step: Any) -> None:
            workflow.run(
                f"UPDATE {workflow.dot}workflow_step_transitions SET created_at = ? WHERE workflow_step_uuid = ?",
                [workflow.stored(ago(hours=1)), id],
            )
            plan = operator.plan(id, operation=CANCEL)
            assert "Ran longer than its limit; a worker may still hold it" in next(iter(plan.warnings))
            assert operator.apply(plan).counts == {"applied": 1}

        Orchestrator(operator.backend, handler, RealClock(), lambda _: None).cycle(StopFlag())
        assert workflow.moves("workflow_step", id)[-1][1] == "cancelled"
