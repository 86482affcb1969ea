"""The task decides whether its steps run: failed siblings, stale tasks, dead letters, priorities and privileges."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from console.core.advice import Advice, Step
from console.core.backend import Attempts, Finding, Operation, PageRequest
from console.core.item import Condition, Item, ItemKey
from console.core.query import Filter
from console.testing import FrozenClock, StopFlag
from plugins.workflow_steps.engine import Orchestrator
from plugins.workflow_steps.prediction import INCLUDE_FAILED, WAKE_TASK
from tests.plugins.postgres_analyses.operating import Operator, RealClock, operating
from tests.plugins.workflow_steps.world import NOW, Workflow, postgres_workflow

RESET = Operation(attempts=Attempts.RESET)
WAKE = Operation(attempts=Attempts.RESET, flags=frozenset({WAKE_TASK}))
WHOLE = Operation(attempts=Attempts.RESET, flags=frozenset({WAKE_TASK, INCLUDE_FAILED}))
MINUTE = timedelta(minutes=1)


@pytest.fixture
def operator(workflow: Workflow, tmp_path: Path) -> Iterator[Operator]:
    with operating(workflow.open(), tmp_path) as found:
        yield found


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


def seen(workflow: Workflow, id: str) -> Item:
    backend = workflow.open()
    try:
        return backend.items([key := ItemKey("steps", (id,))], NOW)[key]
    finally:
        backend.close()


def ran_by(operator: Operator) -> set[str]:
    """The steps that the orchestrator runs now."""
    ran: set[str] = set()
    engine = Orchestrator(operator.backend, lambda _, step: ran.add(step["id"]), RealClock(), lambda _: None)
    while engine.cycle(StopFlag()):
        pass
    return ran


# --- verdicts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "minutes", "why"), [
    ("complete", 1, "Its task is complete."),
    ("cancelled", 1, "Its task is cancelled."),
    ("error", 1, "Its task is error, so its system ignores it."),
    ("blocked_by_failures", 1, "Its task is blocked_by_failures, so its system ignores it."),
    ("waiting_for_retry", 31, "Its task has been waiting_for_retry for over 30m, so its system ignores it."),
    ("waiting_for_dependencies", 61, "Its task has been waiting_for_dependencies for over 1h, so its system ignores it."),
    (None, 1, "Its task has no state, so its system does not find it."),
    ("odd", 1, "Its task is odd, so its system ignores it."),
])
def test_a_waiting_step_of_a_task_that_is_not_polled_is_stuck(
    workflow: Workflow, state: str | None, minutes: int, why: str
) -> None:
    task = workflow.task(state, NOW - minutes * MINUTE)
    ids = {workflow.step(step, task=task, attempts=attempts) for step, attempts in (("pending", 0), ("waiting_for_retry", 1))}
    backend = workflow.open()
    listed = backend.page(PageRequest(Filter(), NOW)).items
    backend.close()
    assert {item.key.parts[0] for item in listed} == ids, "they are in the default list"
    assert {(item.condition, item.verdict.why, item.verdict.will_run_again) for item in listed} == {(Condition.STUCK, why, False)}


@pytest.mark.parametrize(("state", "minutes"), [
    ("pending", 9999), ("waiting_for_retry", 29), ("waiting_for_dependencies", 59),
])
def test_a_waiting_step_of_a_polled_task_runs(workflow: Workflow, state: str, minutes: int) -> None:
    item = seen(workflow, workflow.step("pending", task=workflow.task(state, NOW - minutes * MINUTE), attempts=0))
    assert (item.condition, item.verdict.will_run_again) == (Condition.WAITING, True)


def test_no_step_runs_while_another_one_of_its_task_is_in_error(workflow: Workflow) -> None:
    task = workflow.task("waiting_for_retry")
    id = workflow.step("pending", task=task, attempts=0)
    workflow.step("error", task=task)
    item = seen(workflow, id)
    assert (item.condition, item.verdict.will_run_again) == (Condition.STUCK, False)
    assert item.verdict.why == "1 other step of its task is in error, so its system ignores the task."


def test_a_step_behind_one_that_never_completes_is_stuck(workflow: Workflow) -> None:
    task = workflow.task("waiting_for_dependencies")
    first, second, third = (
        workflow.step(state, task=task, attempts=0, name=name)
        for state, name in (("cancelled", "reserve"), ("pending", "charge"), ("pending", "notify"))
    )
    workflow.edge(first, second)
    workflow.edge(second, third)
    for id in (second, third):
        item = seen(workflow, id)
        assert (item.condition, item.verdict.why) == (Condition.STUCK, "It waits for reserve, which will not complete.")


def test_nobody_can_tell_what_follows_a_step_that_runs_now(workflow: Workflow) -> None:
    task = workflow.task("steps_in_process")
    item = seen(workflow, workflow.step("pending", task=task, attempts=0))
    assert (item.condition, item.verdict.will_run_again) == (Condition.WAITING, None)
    waiting = workflow.task("waiting_for_dependencies")
    child = workflow.step("pending", task=waiting, attempts=0)
    workflow.edge(workflow.step("in_progress", task=waiting, name="reserve"), child)
    assert seen(workflow, child).verdict[1:4] == ("It waits for reserve, which may fail.", None, None)


def test_a_step_that_is_due_after_its_task_becomes_stale_is_not_promised(workflow: Workflow) -> None:
    task = workflow.task("waiting_for_retry", NOW - 10 * MINUTE)
    step = {"task": task, "attempts": 1, "last_attempted_at": NOW}
    soon, late = (workflow.step("waiting_for_retry", backoff_request_seconds=s, **step) for s in (600, 1500))
    assert seen(workflow, soon).verdict.will_run_again is True
    verdict = seen(workflow, late).verdict
    assert verdict.will_run_again is None
    assert verdict.why == "Its task may become stale at 2026-11-10T12:20:00Z, before it is due."


@pytest.mark.parametrize("event", ['{"Fail":"card declined"}', {"Fail": "card declined"}], ids=["text", "object"])
def test_an_error_may_be_only_in_the_event_of_its_transition(workflow: Workflow, event: Any) -> None:
    assert seen(workflow, workflow.step(metadata={"event": event, "timestamp": "x"})).error == "card declined"
    retried = workflow.step("waiting_for_retry", attempts=1, metadata={"event": '{"WaitForRetry":"too slow"}'})
    assert seen(workflow, retried).error == "too slow"
    assert seen(workflow, workflow.step("pending", attempts=0, metadata={"event": '"Enqueue"'})).error is None


# --- plans ------------------------------------------------------------------------------------------


def test_one_of_two_failed_steps_alone_is_skipped_and_the_other_is_offered(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("blocked_by_failures", ago(minutes=1))
    ids = [workflow.step(task=task, at=ago(hours=1)) for _ in range(2)]
    for operation in (RESET, WAKE):
        plan = operator.plan(ids[0], operation=operation)
        assert plan.skipped == {"1 other step of its task is in error, so its system ignores the task.": 1}
        assert Advice(Step.TURN_ON, INCLUDE_FAILED) in plan.advice.values()
    plan = operator.plan(ids[0], operation=WHOLE)
    assert (plan.changes, plan.skipped) == (2, {})
    assert "Included because it is a failed step of the same task." in " ".join(plan.warnings)
    assert operator.apply(plan).counts == {"applied": 2}
    assert ran_by(operator) == set(ids)


def test_both_failed_steps_selected_need_no_switch(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("blocked_by_failures", ago(minutes=1))
    ids = [workflow.step(task=task, at=ago(hours=1)) for _ in range(2)]
    assert operator.requeue(*ids, operation=WAKE).counts == {"applied": 2}
    assert ran_by(operator) == set(ids)


def test_a_failed_step_that_stays_in_error_keeps_its_siblings_out_of_the_plan(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("blocked_by_failures", ago(minutes=1))
    left, spent = workflow.step(task=task, attempts=1), workflow.step(task=task, attempts=3)
    plan = operator.plan(left, spent, operation=Operation(flags=WHOLE.flags))
    assert (plan.changes, plan.skipped) == (0, {
        "1 other step of its task is in error, so its system ignores the task.": 1,
        "No attempts left, so its system would ignore it.": 1,
    })


@pytest.mark.parametrize(("state", "helps"), [
    ("error", True), ("blocked_by_failures", True), ("waiting_for_retry", True), ("complete", False), (None, False),
])
def test_waking_helps_a_stuck_step_exactly_where_its_task_sleeps(
    workflow: Workflow, operator: Operator, state: str | None, helps: bool
) -> None:
    task = workflow.task(state, ago(hours=1))
    id = workflow.step("pending", task=task, attempts=0, at=ago(hours=1))
    plan = operator.plan(id, operation=RESET)
    assert plan.changes == 0
    assert (Advice(Step.TURN_ON, WAKE_TASK) in plan.advice.values()) is helps
    plan = operator.plan(id, operation=WAKE)
    assert plan.changes == helps
    assert ran_by(operator) == set()
    if helps:
        override = operator.apply(plan)
        assert override.counts == {"applied": 1}
        assert workflow.moves("workflow_step", id) == [(None, "pending", 1, True)], "the step itself is not moved"
        assert ran_by(operator) == {id}


def test_waking_a_task_can_be_undone(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("error", ago(hours=1))
    id = workflow.step("pending", task=task, attempts=0, at=ago(hours=1))
    override = operator.requeue(id, operation=WAKE)
    assert operator.apply(operator.operations.undo(override.override_id)).counts == {"applied": 1}
    assert workflow.moves("task", task)[-1] == ("waiting_for_retry", "error", 3, True)
    assert workflow.moves("workflow_step", id) == [(None, "pending", 1, True)]
    assert ran_by(operator) == set()


def test_a_step_of_a_task_that_is_being_worked_on_is_skipped(workflow: Workflow, operator: Operator) -> None:
    plan = operator.plan(workflow.step(task=workflow.task("steps_in_process", ago(minutes=1))), operation=WHOLE)
    assert plan.skipped == {"Its task is steps_in_process, and runs more steps once the current ones end.": 1}


def test_waking_a_task_that_the_detector_gives_up_is_warned_of(workflow: Workflow, operator: Operator) -> None:
    def warnings(hours: float, **dead: str) -> str:
        task = workflow.task("error", ago(minutes=1), created=ago(hours=hours))
        if dead:
            workflow.dead_letter(task, **dead)
        return " ".join(operator.plan(workflow.step(task=task, at=ago(hours=1)), operation=WAKE).warnings)

    old = "Its task is older than 1d: the staleness detector moves it back to error within 5m."
    assert old in warnings(25)
    assert old in warnings(25, status="manually_resolved")
    assert "until the staleness detector moves it to error" in warnings(23.9)
    for warned in (warnings(3), warnings(25, status="pending")):
        assert "detector" not in warned


def test_waking_a_task_behind_many_with_a_higher_priority_is_warned_of(workflow: Workflow, tmp_path: Path) -> None:
    for _ in range(10):
        workflow.task("waiting_for_dependencies", ago(minutes=1), priority=5)
    warned = "Its system looks at tasks with a higher priority first, so it may have to wait."
    with operating(workflow.open(batch_size=1), tmp_path) as operator:
        low, high = (
            workflow.step(task=workflow.task("error", ago(minutes=1), priority=priority), at=ago(hours=1)) for priority in (1, 9)
        )
        assert warned in " ".join(operator.plan(low, operation=WAKE).warnings)
        assert warned not in " ".join(operator.plan(high, operation=WAKE).warnings)
        operator.requeue(low, high, operation=WAKE)
        assert ran_by(operator) == {high}, "ten tasks without ready steps are in the way of the other one"
    wide = workflow.open(batch_size=2)
    with operating(wide, tmp_path) as operator:
        assert ran_by(operator) == {low}


# --- dead letters, the detector, and check ----------------------------------------------------------


def test_a_task_in_the_dead_letter_queue_is_named(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("error", ago(minutes=1))
    workflow.dead_letter(task)
    workflow.dead_letter(workflow.task("error", ago(minutes=1)), status="cancelled")
    key = ItemKey("steps", (workflow.step("pending", task=task, attempts=0),))
    detail = operator.backend.item(key, operator.backend.now())
    assert ("dead letter queue", "staleness_timeout") in detail.extra
    assert "in the dead letter queue (staleness_timeout)" in detail.item.verdict.why
    assert [finding.message for finding in findings(operator, "dead letters")] == [
        "tasks are in the dead letter queue: staleness_timeout 1"
    ]


def findings(operator: Operator, subject: str) -> list[Finding]:
    found = operator.backend.check(FrozenClock(operator.backend.now()))
    return [finding for finding in found if finding.subject == subject]


def test_a_system_without_dead_letters_has_no_detector(workflow: Workflow, operator: Operator) -> None:
    workflow.run(f"DROP TABLE {workflow.dot}tasks_dlq", [])
    id = workflow.step(task=workflow.task("error", ago(minutes=1), created=ago(days=3)), at=ago(hours=1))
    assert operator.plan(id, operation=WAKE).warnings == {"Its task is woken: a transition to waiting_for_retry is added.": 1}
    assert findings(operator, "dead letters") == []


def test_the_engine_gives_up_stale_tasks_as_its_system_does(workflow: Workflow, operator: Operator) -> None:
    stale, old, fresh, known = (
        workflow.task(state, ago(minutes=minutes), created=ago(hours=hours))
        for state, minutes, hours in (
            ("waiting_for_retry", 31, 1), ("waiting_for_dependencies", 1, 25), ("waiting_for_retry", 1, 1),
            ("waiting_for_retry", 31, 1),
        )
    )
    workflow.dead_letter(known)
    Orchestrator(operator.backend, print, RealClock(), lambda _: None).detect_stale()
    assert [workflow.moves("task", task)[-1][1] for task in (stale, old, fresh, known)] == [
        "error", "error", "waiting_for_retry", "waiting_for_retry"
    ]
    assert workflow.run(f"SELECT count(*) FROM {workflow.dot}tasks_dlq WHERE resolution_status = 'pending'", []) == [(3,)]


GRANTS = """
    CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA tasker TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA tasker TO {role};
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA tasker TO {role};
    GRANT UPDATE (attempts, in_process, processed, processed_at, backoff_request_seconds, updated_at)
        ON tasker.workflow_steps TO {role};
    GRANT UPDATE ON tasker.workflow_step_transitions, tasker.task_transitions TO {role};
"""


def test_check_asks_for_exactly_the_privileges_that_a_requeue_needs(tmp_path: Path) -> None:
    role = "steps_operator"
    with postgres_workflow() as workflow:
        workflow.run(f"DROP ROLE IF EXISTS {role}", [])
        for statement in GRANTS.format(role=role).split(";")[:-1]:
            workflow.run(statement, [])
        parts = psycopg.conninfo.conninfo_to_dict(workflow.url)
        own = Workflow(workflow.url.replace(f"//{parts['user']}", f"//{role}", 1), workflow.run)
        id = workflow.step(task=workflow.task("error", ago(minutes=1)), at=ago(hours=1))
        try:
            with operating(own.open(), tmp_path) as operator:
                (found,) = findings(operator, "privileges")
                assert found.message == (
                    f"role {role} lacks INSERT on tasker.workflow_step_transitions, INSERT on tasker.task_transitions"
                )
                workflow.run(f"GRANT INSERT ON tasker.workflow_step_transitions, tasker.task_transitions TO {role}", [])
                (found,) = findings(operator, "privileges")
                assert found.message.startswith(f"role {role} may write")
                assert operator.requeue(id, operation=WAKE).counts == {"applied": 1}
        finally:
            workflow.run(f"DROP OWNED BY {role}; DROP ROLE {role}", [])
