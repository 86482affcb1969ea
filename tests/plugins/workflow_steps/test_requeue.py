"""Requeueing steps: transitions in one transaction, waking tasks, skipped steps, and undo."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from console.core.advice import Advice, Step
from console.core.backend import APPLIED, Attempts, Authority, Change, Operation
from console.core.item import Condition, ItemKey
from console.core.plan import Matching
from console.core.query import Filter
from console.testing import StopFlag
from plugins.workflow_steps.engine import Orchestrator
from plugins.workflow_steps.prediction import WAKE_TASK
from tests.plugins.postgres_analyses.operating import Operator, RealClock, operating
from tests.plugins.workflow_steps.world import Workflow, postgres_workflow, sqlite_workflow

RESET = Operation(attempts=Attempts.RESET)
WAKE = Operation(attempts=Attempts.RESET, flags=frozenset({WAKE_TASK}))


@pytest.fixture
def operator(workflow: Workflow, tmp_path: Path) -> Iterator[Operator]:
    with operating(workflow.open(), tmp_path) as found:
        yield found


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


def test_a_reset_is_the_systems_own_in_one_transaction(workflow: Workflow, operator: Operator) -> None:
    id = workflow.step(in_process=True, processed=True, processed_at=ago(hours=1), backoff_request_seconds=30, results={"error": "x"})
    before = workflow.row(id)
    assert operator.requeue(id, operation=RESET).counts == {"applied": 1}
    row = workflow.row(id)
    assert row == before | {
        "attempts": 0, "in_process": False, "processed": False, "processed_at": None, "backoff_request_seconds": None
    }
    assert workflow.moves("workflow_step", id) == [(None, "error", 1, False), ("error", "pending", 2, True)]
    metadata = workflow.metadata("workflow_step", id)
    assert (metadata["by"], metadata["reason"], metadata["action"]) == ("ann (says Ann A.)", "disk is back", "requeue")


def test_keep_leaves_the_counter_and_needs_an_eligible_step(workflow: Workflow, operator: Operator) -> None:
    left, spent = workflow.step(attempts=2), workflow.step(attempts=3)
    plan = operator.plan(left, spent)
    assert plan.changes == 1
    assert list(plan.skipped) == ["No attempts left, so its system would ignore it."]
    operator.apply(plan)
    assert workflow.row(left)["attempts"] == 2


def test_a_plan_after_a_check_reads_the_same_tables(workflow: Workflow, operator: Operator) -> None:
    id = workflow.step(attempts=2)
    assert operator.plan(id).changes == 1
    operator.backend.check(RealClock())
    assert operator.plan(id).changes == 1


@pytest.mark.parametrize("state", ["pending", "in_progress", "waiting_for_retry", "complete", "cancelled", "resolved_manually", "odd"])
def test_only_a_step_in_error_can_be_reset(workflow: Workflow, operator: Operator, state: str) -> None:
    plan = operator.plan(workflow.step(state, attempts=1), operation=RESET)
    assert (plan.changes, len(plan.skipped)) == (0, 1)


TASKS: list[tuple[str, timedelta, str | None, bool]] = [
    ("pending", timedelta(days=3), None, False),
    ("waiting_for_dependencies", timedelta(minutes=59), None, False),
    ("waiting_for_dependencies", timedelta(minutes=61), "for over 60m", True),
    ("waiting_for_retry", timedelta(minutes=29), None, False),
    ("waiting_for_retry", timedelta(minutes=31), "for over 30m", True),
    ("blocked_by_failures", timedelta(minutes=1), "Its task is blocked_by_failures", True),
    ("error", timedelta(minutes=1), "Its task is error", True),
    ("steps_in_process", timedelta(minutes=1), "Its task is steps_in_process", False),
    ("complete", timedelta(minutes=1), "Its task is complete", False),
    ("cancelled", timedelta(minutes=1), "Its task is cancelled", False),
    ("resolved_manually", timedelta(minutes=1), "Its task is resolved_manually", False),
]


@pytest.mark.parametrize(("state", "since", "reason", "can_be_woken"), TASKS, ids=range(len(TASKS)))
def test_steps_of_tasks_that_the_orchestrator_does_not_poll_are_skipped(
    workflow: Workflow, operator: Operator, state: str, since: timedelta, reason: str | None, can_be_woken: bool
) -> None:
    id = workflow.step(task=workflow.task(state, ago(seconds=since.total_seconds())))
    plan = operator.plan(id, operation=RESET)
    assert plan.changes == (reason is None)
    if reason is not None:
        assert reason in next(iter(plan.skipped)).replace("1h", "60m")
        assert (Advice(Step.TURN_ON, "wake_task") in plan.advice.values()) is can_be_woken
        assert operator.plan(id, operation=WAKE).changes == can_be_woken


def test_steps_of_a_woken_task_are_one_write(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("blocked_by_failures", ago(hours=1))
    other = workflow.task("pending")
    ids = [workflow.step(task=task), workflow.step(task=other), workflow.step(task=task)]
    plan = operator.plan(Filter.parse("condition:terminal"), operation=WAKE)
    assert plan.changes == 3
    assert plan.warnings == {"Its task is woken: a transition to waiting_for_retry is added.": 2}
    override = operator.apply(plan)
    assert override.counts == {"applied": 3}
    assert workflow.moves("task", task) == [
        (None, "blocked_by_failures", 1, False), ("blocked_by_failures", "waiting_for_retry", 2, True)
    ]
    assert len(workflow.moves("task", other)) == 1
    assert all(workflow.row(id)["attempts"] == 0 for id in ids)
    assert workflow.metadata("task", task)["operation"] == override.override_id


def test_one_changed_step_keeps_its_whole_unit_unchanged(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("error", ago(hours=1))
    ids = [workflow.step(task=task) for _ in range(2)]
    plan = operator.plan(*ids, operation=WAKE)
    workflow.move("workflow_step", ids[0], "resolved_manually")
    override = operator.apply(plan)
    assert override.counts == {"changed": 2}
    assert len(workflow.moves("task", task)) == len(workflow.moves("workflow_step", ids[1])) == 1
    ((_, detail),) = operator.outcomes(override)
    assert detail == "state is now resolved_manually, was error"


def test_a_limit_does_not_end_within_a_task(workflow: Workflow, operator: Operator) -> None:
    """The first step alone would not run, because the other one is still in error."""
    task = workflow.task("blocked_by_failures", ago(hours=1))
    ids = [workflow.step(task=task) for _ in range(2)]
    for _ in range(3):
        workflow.step(task=workflow.task("blocked_by_failures", ago(hours=1)))
    plan = operator.operations.propose(Matching(Filter.parse(f"condition:terminal {task}"), limit=1), WAKE)
    assert operator.apply(plan).counts == {"applied": 2}
    assert [workflow.moves("workflow_step", id)[-1][1] for id in ids] == ["pending", "pending"]


def test_steps_of_a_task_are_requeued_together_however_far_apart_they_were_marked(
    workflow: Workflow, operator: Operator
) -> None:
    """Read apart, each half would have an image of its own, and the second would find the task woken by the first."""
    task = workflow.task("blocked_by_failures", ago(hours=1))
    ids = [workflow.step(task=task) for _ in range(2)]
    between = [str(uuid4()) for _ in range(600)]
    plan = operator.plan(ids[0], *between, ids[1], operation=WAKE)
    assert plan.skipped == {"No such item.": 600}
    assert operator.apply(plan).counts == {"applied": 2}
    assert [workflow.moves("workflow_step", id)[-1][1] for id in ids] == ["pending", "pending"]


@pytest.mark.parametrize("meant", [0, 1])
def test_a_task_is_woken_now_whichever_of_its_steps_is_selected(workflow: Workflow, operator: Operator, meant: int) -> None:
    """The orchestrator does not poll a task that has been waiting for long."""
    task = workflow.task("blocked_by_failures", ago(hours=1))
    plan = operator.plan(*(workflow.step(task=task) for _ in range(2)), operation=WAKE)
    (row, _) = (row for batch in operator.trail.rows(plan.id, 0, 1) for row in batch)
    before, now = row.before, datetime.now(UTC)
    backend: Any = operator.backend
    change = Change(task, (ItemKey("steps", (before[2 + meant][0],)),), before, ())
    change = change._replace(after=backend.after(change, WAKE, now, now))
    assert backend.compare_and_set([change], WAKE, Authority("ann", "disk is back", None, "op")) == [APPLIED]
    ((woken,),) = workflow.run(
        f"SELECT created_at FROM {workflow.dot}task_transitions WHERE task_uuid = ? AND most_recent", [task]
    )
    assert str(woken)[:19].replace("T", " ") == f"{now:%Y-%m-%d %H:%M:%S}"


@pytest.mark.parametrize("what", ["workflow_step", "task"])
def test_what_changes_while_the_plan_is_made_is_skipped(
    workflow: Workflow, operator: Operator, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A step that began to run in between would be reset while it runs."""
    task = workflow.task("blocked_by_failures", ago(hours=1))
    id = workflow.step(task=task)
    guard = operator.backend.attached.guard
    read = guard.steps

    def moving(ids: Any) -> Any:
        workflow.move(what, id if what == "workflow_step" else task, "in_progress")
        return read(ids)

    monkeypatch.setattr(guard, "steps", moving)
    plan = operator.plan(id, operation=WAKE)
    assert (plan.changes, plan.skipped) == (0, {"Changed while the plan was made.": 1})


def test_parents_that_are_not_complete_are_a_warning(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("pending", ago(minutes=1))
    id = workflow.step(task=task)
    workflow.edge(workflow.step("pending", task=task, attempts=0, name="reserve"), id)
    assert operator.plan(id, operation=RESET).warnings == {"Would wait for reserve.": 1}


def test_undo_is_a_compensating_transition(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("blocked_by_failures", ago(hours=1))
    id = workflow.step(task=task, backoff_request_seconds=30)
    before = workflow.row(id)
    override = operator.requeue(id, operation=WAKE)
    plan = operator.operations.undo(override.override_id)
    assert operator.apply(plan).counts == {"applied": 1}
    assert workflow.row(id) == before
    assert workflow.moves("workflow_step", id)[-1] == ("pending", "error", 3, True)
    assert workflow.moves("task", task)[-1] == ("waiting_for_retry", "blocked_by_failures", 3, True)
    assert workflow.metadata("workflow_step", id)["action"] == "undo"


def test_a_rejected_unit_does_not_affect_the_others(workflow: Workflow, operator: Operator) -> None:
    ids = [workflow.step() for _ in range(20)]
    if workflow.is_sqlite:
        workflow.run(
            f"CREATE TRIGGER no BEFORE UPDATE ON workflow_steps WHEN new.workflow_step_uuid = '{ids[7]}'"
            " BEGIN SELECT raise(ABORT, 'not this one'); END", [],
        )
    else:
        workflow.run(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$", []
        )
        workflow.run(
            "CREATE TRIGGER no BEFORE UPDATE ON tasker.workflow_steps FOR EACH ROW"
            f" WHEN (new.workflow_step_uuid = '{ids[7]}') EXECUTE FUNCTION no()", [],
        )
    override = operator.requeue(Filter.parse("condition:terminal"), operation=RESET)
    assert override.counts == {"applied": 19, "rejected": 1}
    assert len(workflow.moves("workflow_step", ids[7])) == 1


@pytest.mark.parametrize("table", ["workflow_steps", "workflow_step_transitions", "task_transitions"])
def test_a_unit_that_a_trigger_ignores_is_rejected(workflow: Workflow, operator: Operator, table: str) -> None:
    tasks = [workflow.task("blocked_by_failures", ago(hours=1)) for _ in range(5)]
    ids = [workflow.step(task=task) for task in tasks]
    verb = "UPDATE" if table == "workflow_steps" else "INSERT"
    column, id = ("task_uuid", tasks[2]) if table == "task_transitions" else ("workflow_step_uuid", ids[2])
    if workflow.is_sqlite:
        workflow.run(
            f"CREATE TRIGGER no BEFORE {verb} ON {table} WHEN new.{column} = '{id}' BEGIN SELECT raise(IGNORE); END", []
        )
    else:
        workflow.run("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$", [])
        workflow.run(
            f"CREATE TRIGGER no BEFORE {verb} ON tasker.{table} FOR EACH ROW WHEN (new.{column} = '{id}')"
            " EXECUTE FUNCTION no()", [],
        )
    override = operator.requeue(Filter.parse("condition:terminal"), operation=WAKE)
    assert override.counts == {"applied": 4, "rejected": 1}
    assert operator.outcomes(override)["rejected", "the database left it unchanged"] == 1
    assert workflow.moves("workflow_step", ids[2]) == [(None, "error", 1, True)]
    assert workflow.moves("task", tasks[2]) == [(None, "blocked_by_failures", 1, True)]
    assert workflow.row(ids[2])["attempts"] == 3


def test_an_error_that_aborts_the_transaction_rejects_one_unit(tmp_path: Path) -> None:
    with sqlite_workflow(tmp_path / "steps.db") as workflow, operating(workflow.open(), tmp_path) as operator:
        ids = [workflow.step() for _ in range(5)]
        workflow.run(
            f"CREATE TRIGGER no BEFORE UPDATE ON workflow_steps WHEN new.workflow_step_uuid = '{ids[2]}'"
            " BEGIN SELECT raise(ROLLBACK, 'not this one'); END", [],
        )
        override = operator.requeue(*ids, operation=RESET)
        assert override.counts == {"applied": 4, "rejected": 1}
        assert operator.outcomes(override)["rejected", "not this one"] == 1


def test_a_locked_step_is_left(tmp_path: Path) -> None:
    import psycopg

    with postgres_workflow() as workflow, operating(workflow.open(), tmp_path) as operator:
        ids = [workflow.step() for _ in range(3)]
        plan = operator.plan(*ids, operation=RESET)
        with psycopg.connect(workflow.url) as other:
            other.execute("SELECT 1 FROM tasker.workflow_steps WHERE workflow_step_uuid = %s FOR UPDATE", [ids[1]])
            override = operator.apply(plan)
        assert operator.outcomes(override)["changed", "locked by another transaction"] == 1
        assert override.counts == {"applied": 2, "changed": 1}


# --- the orchestrator -----------------------------------------------------------------------------------


def test_a_reset_step_is_run_by_the_orchestrator_and_one_it_would_ignore_is_not(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task("blocked_by_failures", ago(minutes=1))
    parent, child = workflow.step(task=task, name="reserve"), workflow.step("pending", task=task, attempts=0)
    workflow.edge(parent, child)
    ran: list[str] = []

    def handler(name: str, _step: Any) -> None:
        ran.append(name)

    loop = Orchestrator(operator.backend, handler, RealClock(), lambda _: None)
    assert loop.cycle(StopFlag()) == 0
    operator.requeue(parent, operation=WAKE)
    assert [loop.cycle(StopFlag()), loop.cycle(StopFlag()), ran] == [1, 1, ["reserve", "charge"]]
    assert workflow.moves("workflow_step", parent)[-1][1] == "complete"


def test_a_step_fails_until_its_attempts_are_used_and_its_task_is_blocked(workflow: Workflow, operator: Operator) -> None:
    task = workflow.task()
    id = workflow.step("pending", task=task, attempts=None, max_attempts=1)

    def handler(_name: str, _step: Any) -> None:
        raise RuntimeError("card declined")

    assert Orchestrator(operator.backend, handler, RealClock(), lambda _: None).cycle(StopFlag()) == 1
    key = ItemKey("steps", (id,))
    item = operator.backend.items([key], operator.backend.now())[key]
    assert (item.condition, item.error, item.attempts) == (Condition.TERMINAL, "card declined", 1)
    assert workflow.moves("task", task)[-1][1] == "blocked_by_failures"


def test_two_orchestrators_moving_one_task_at_once_both_go_on(tmp_path: Path) -> None:
    """The second waits for the first, finds the number taken, says so and goes on."""
    log: list[str] = []
    with postgres_workflow() as workflow, operating(workflow.open(), tmp_path) as operator:
        task = workflow.task()
        workflow.step("pending", task=task, attempts=None, max_attempts=1)
        other = psycopg.connect(workflow.url)
        commit = threading.Timer(0.2, other.commit)

        def handler(_name: str, _step: Any) -> None:
            other.execute("UPDATE tasker.task_transitions SET most_recent = false")
            other.execute(
                "INSERT INTO tasker.task_transitions (task_uuid, to_state, sort_key, most_recent, created_at, updated_at)"
                " VALUES (%s, 'error', 3, true, now(), now())", (task,),
            )
            commit.start()
            raise RuntimeError("card declined")

        assert Orchestrator(operator.backend, handler, RealClock(), log.append).cycle(StopFlag()) == 1
        commit.join()
        other.close()
        assert workflow.moves("task", task)[-1][1:3] == ("error", 3)
    assert log[-1].startswith(f"task {task} was not moved: duplicate key value")


@pytest.mark.parametrize(("result", "state"), [
    ({(1, 2): 3}, "complete"), ("bad \udce9 \0", "complete"), (float("nan"), "complete"), (ValueError("bad \udce9 \0"), "error"),
], ids=range(4))
def test_whatever_a_handler_says_its_step_is_moved(workflow: Workflow, operator: Operator, result: object, state: str) -> None:
    id = workflow.step("pending", attempts=None, max_attempts=1)

    def handler(_name: str, _step: Any) -> object:
        if isinstance(result, Exception):
            raise result
        return result

    assert Orchestrator(operator.backend, handler, RealClock(), lambda _: None).cycle(StopFlag()) == 1
    assert workflow.moves("workflow_step", id)[-1][1] == state
