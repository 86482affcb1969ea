"""What a step means: state, eligibility, next retry, and what check says about its numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import Attempts, Operation, PageRequest, Severity
from console.core.faults import WrongSchema
from console.core.item import Condition, Item, ItemKey
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.core.query import Filter, Sort
from console.testing import FrozenClock
from plugins.workflow_steps.rows import AT_WORK
from tests.plugins.workflow_steps.world import NOW, Workflow, postgres_workflow, sqlite_workflow

MINUTE = timedelta(minutes=1)


def seen(workflow: Workflow, id: str, **options: Any) -> Item:
    backend = workflow.open(**options)
    try:
        return backend.items([key := ItemKey("steps", (id,))], NOW)[key]
    finally:
        backend.close()


ELIGIBLE = [
    *((0, retryable, attempts, attempts in (0, None)) for retryable in (True, False, None) for attempts in (0, None, 1)),
    *((1, retryable, attempts, attempts == 0) for retryable in (True, False) for attempts in (0, 1)),
    *((3, True, attempts, attempts < 3) for attempts in range(4)),
    *((3, False, attempts, attempts == 0) for attempts in (0, 1)),
    (None, None, 2, True), (None, None, 3, False), (3, None, None, True),
]


@pytest.mark.parametrize(("limit", "retryable", "attempts", "eligible"), ELIGIBLE)
def test_eligibility_is_exactly_that_of_the_systems_own_sql(
    workflow: Workflow, limit: int | None, retryable: bool | None, attempts: int | None, eligible: bool
) -> None:
    id = workflow.step(max_attempts=limit, retryable=retryable, attempts=attempts)
    own = workflow.run(
        "SELECT COALESCE(ws.attempts, 0) = 0 OR (COALESCE(ws.retryable, true) = true AND COALESCE(ws.attempts, 0) <"
        f" COALESCE(ws.max_attempts, 3)) FROM {workflow.dot}workflow_steps ws WHERE workflow_step_uuid = ?", [id],
    )
    assert bool(own[0][0]) is eligible
    assert seen(workflow, id).condition is (Condition.FAILED if eligible else Condition.TERMINAL)


@pytest.mark.parametrize(("state", "attempts", "condition"), [
    (None, 0, Condition.WAITING), ("pending", None, Condition.WAITING), ("pending", 1, Condition.RETRYING),
    ("waiting_for_retry", 2, Condition.RETRYING), ("waiting_for_retry", 3, Condition.TERMINAL),
    *((state, 1, Condition.RUNNING) for state in AT_WORK), ("complete", 1, Condition.DONE),
    ("resolved_manually", 3, Condition.DONE), ("cancelled", 1, Condition.CANCELLED), ("odd", 1, Condition.UNKNOWN),
])
def test_the_state_is_the_most_recent_transition(
    workflow: Workflow, state: str | None, attempts: int | None, condition: Condition
) -> None:
    id = workflow.step("error", attempts=attempts)
    if state is not None:
        workflow.move("workflow_step", id, state)
    else:
        workflow.run(f"DELETE FROM {workflow.dot}workflow_step_transitions", [])
    item = seen(workflow, id)
    assert (item.condition, item.native_status, item.type) == (condition, state or "pending", "charge")


def test_the_next_retry_is_what_the_step_asked_for_or_else_exponential(workflow: Workflow) -> None:
    asked = workflow.step("waiting_for_retry", attempts=1, last_attempted_at=NOW - MINUTE, backoff_request_seconds=90)
    assert seen(workflow, asked).verdict.next_retry_at == NOW + timedelta(seconds=30)
    for attempts, delay in ((1, 2), (2, 4), (5, 32), (6, 60), (9, 60)):
        own = workflow.step("error", attempts=attempts, max_attempts=20, at=NOW - MINUTE)
        workflow.move("workflow_step", own, "waiting_for_retry", NOW)
        assert seen(workflow, own).verdict.next_retry_at == NOW - MINUTE + timedelta(seconds=delay)


END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_time_at_the_end_of_the_calendar_is_a_time(workflow: Workflow) -> None:
    asked = workflow.step("waiting_for_retry", attempts=1, last_attempted_at=END, backoff_request_seconds=45)
    own = workflow.step("error", attempts=1, last_attempted_at=None, at=END)
    workflow.move("workflow_step", own, "waiting_for_retry", NOW)
    backend = workflow.open()
    listed = backend.page(PageRequest(Filter.parse("next>1d"), NOW)).items
    assert {item.key.parts[0] for item in listed} == {asked, own}
    assert {item.verdict.next_retry_at for item in listed} == {END.replace(microsecond=999_999)}
    backend.close()


@pytest.mark.parametrize("odd", [
    {"max_attempts": "abc"}, {"max_attempts": b"3"}, {"max_attempts": 2.5, "attempts": 2}, {"max_attempts": -1},
    {"backoff_request_seconds": "soon"}, {"backoff_request_seconds": 10**15}, {"backoff_request_seconds": -90},
    {"backoff_request_seconds": 2**63 - 1}, {"attempts": "x"}, {"attempts": b"2"}, {"retryable": "no"}, {"retryable": 2},
    {"in_process": "yes"}, {"processed": b"1"}, {"updated_at": b"then"}, {"last_attempted_at": b"then"},
], ids=str)
def test_whatever_a_step_holds_it_is_listed_judged_and_planned(odd: dict[str, Any], tmp_path: Path) -> None:
    with sqlite_workflow(tmp_path / "steps.db") as workflow:
        for state in ("waiting_for_retry", "error"):
            workflow.step(state, **({"attempts": 1, "backoff_request_seconds": 90} | odd))
        backend = workflow.open()
        items = backend.page(PageRequest(Filter.parse("condition:*"), NOW)).items
        assert len(items) == 2
        for words in (*(f"condition:{condition}" for condition in Condition), "next>0s", "next<1d", "-next<1d"):
            asked = Filter.parse(f"condition:* {words}") if "next" in words else Filter.parse(words)
            found = {item.key for item in backend.page(PageRequest(asked, NOW)).items}
            assert found == {i.key for i in items if i.condition in asked.conditions() and asked.matches(i, NOW)}, words
        operation = Operation(attempts=Attempts.RESET)
        drafts = [draft for batch in backend.drafts([i.key for i in items], Sort(), operation, NOW, Never()) for draft in batch]
        assert len(drafts) == 2
        backend.check(FrozenClock(backend.now()))
        backend.close()


@pytest.mark.parametrize(("results", "metadata", "error"), [
    ({"error": {"message": "card declined"}}, None, "card declined"), ({"error": "declined"}, {"error": "no"}, "declined"),
    (None, {"error_message": "timed out"}, "timed out"), (None, {"reason": "lost"}, "lost"), (None, None, None),
])
def test_the_error_is_found_in_results_or_in_the_transition(workflow: Workflow, results: Any, metadata: Any, error: str | None) -> None:
    assert seen(workflow, workflow.step(results=results, metadata=metadata)).error == error


def test_the_results_of_a_finished_step_are_no_error(workflow: Workflow) -> None:
    assert seen(workflow, workflow.step("complete", results={"error": None, "message": "fine"})).error is None


def test_detail_shows_the_transitions_the_task_and_the_parents_it_waits_for(workflow: Workflow) -> None:
    id = workflow.step(task=workflow.task("blocked_by_failures"))
    workflow.edge(workflow.step("error", name="reserve"), id)
    workflow.edge(workflow.step("complete", name="validate"), id)
    workflow.edge(workflow.step("resolved_manually", name="approve"), id)
    backend = workflow.open()
    detail = backend.item(ItemKey("steps", (id,)), NOW)
    assert dict(detail.extra)["waits for"] == "reserve"
    assert dict(detail.extra)["task state"] == "blocked_by_failures"
    assert [attempt.outcome for attempt in detail.attempts] == ["error"]
    backend.close()


def test_a_step_that_is_marked_processed_says_that_it_is_not_taken(workflow: Workflow) -> None:
    item = seen(workflow, workflow.step("pending", attempts=1, processed=True))
    assert (item.condition, item.verdict.will_run_again) == (Condition.STUCK, False)
    assert item.verdict.why == "It is marked as processed, so its system ignores it."


def test_check_warns_per_named_step_and_numbers(workflow: Workflow) -> None:
    for limit, retryable, name in ((0, True, "zero"), (3, False, "once"), (999_999, True, "ever"), (3, True, "good"), (0, True, "zero")):
        workflow.step(max_attempts=limit, retryable=retryable, name=name)
    backend = workflow.open()
    found = backend.check(FrozenClock(backend.now()))
    warned = [finding.message for finding in found if finding.subject == "limits"]
    assert len(warned) == 3
    assert {message.split()[1] for message in warned} == {"zero", "once", "ever"}
    assert all(finding.severity is Severity.OK or finding.fix for finding in found)
    backend.close()


def test_stuck_only_where_the_config_says_how_long(workflow: Workflow) -> None:
    id = workflow.step("in_progress", attempts=1, at=NOW - 20 * MINUTE)
    assert seen(workflow, id).condition is Condition.RUNNING
    assert seen(workflow, id, policy=PolicyOverride(stuck_after=10 * MINUTE)).condition is Condition.STUCK


def test_another_schema_by_config_and_a_missing_one_is_named() -> None:
    with postgres_workflow() as workflow:
        workflow.run("ALTER SCHEMA tasker RENAME TO other", [])
        workflow.dot = "other."
        id = workflow.step()
        assert seen(workflow, id, schema="other").condition is Condition.TERMINAL
        with pytest.raises(WrongSchema, match="there is no table 'tasker"):
            seen(workflow, id)
