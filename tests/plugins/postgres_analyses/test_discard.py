"""Discarding analyses: a skipped pipeline is never taken by the loop, and the other pipeline of its row is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console.core.backend import Action, Operation
from console.core.item import Condition, ItemKey
from console.core.ports import Never
from plugins.postgres_analyses.engine import RetryLoop
from tests.plugins.postgres_analyses.operating import Operator, RealClock, operating
from tests.plugins.postgres_analyses.world import Table

DISCARD = Operation(Action.DISCARD)


@pytest.fixture
def operator(table: Table, tmp_path: Path) -> Iterator[Operator]:
    with operating(table.open(), tmp_path) as found:
        yield found


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


def cycle(operator: Operator) -> list[str]:
    """The pipelines that one cycle of the loop runs."""
    backend, ran = operator.backend, []
    handlers = {name: (lambda *_, name=name: ran.append(name)) for name in backend.pipelines}
    time = backend.attached.time
    RetryLoop(
        backend.database, backend.analysis_table(), backend.policy, time, RealClock(), handlers, lambda _: None
    ).cycle(Never())
    return ran


def test_a_skipped_pipeline_never_runs_and_the_other_one_does(table: Table, operator: Operator) -> None:
    id = table.failed(processed_at=ago(hours=1), dp_update_status="failed", dp_update_error="timeout")
    before = table.row(id)
    override = operator.requeue((id, "vectorization"), operation=DISCARD)
    assert override.counts == {"applied": 1}
    assert table.row(id) == before | {"vectorization_status": "skipped"}
    key = ItemKey("analyses", (str(id), "vectorization"))
    item = operator.backend.items([key], operator.backend.now())[key]
    assert (item.condition, item.verdict.will_run_again) == (Condition.DONE, False)
    assert cycle(operator) == ["dp_update"]


def test_both_pipelines_of_a_row_are_one_write(table: Table, operator: Operator) -> None:
    id = table.failed(processed_at=ago(hours=1), dp_update_status="failed", dp_update_error="timeout")
    before = table.row(id)
    override = operator.requeue((id, "vectorization"), (id, "dp_update"), operation=DISCARD)
    assert override.counts == {"applied": 2}
    assert table.row(id) == before | {"vectorization_status": "skipped", "dp_update_status": "skipped"}
    assert cycle(operator) == []
    operator.apply(operator.operations.undo(override.override_id))
    assert table.row(id) == before


@pytest.mark.parametrize(("values", "condition"), [
    ({"retry_count": 0}, Condition.RETRYING),
    ({"retry_count": None}, Condition.FAILED),
    ({"retry_count": 3}, Condition.TERMINAL),
    ({"vectorization_error": "invalid json"}, Condition.TERMINAL),
    ({"vectorization_status": "pending", "retry_count": 0}, Condition.STUCK),
])
def test_terminal_and_stuck_analyses_are_closed_too(
    table: Table, operator: Operator, values: dict[str, object], condition: Condition
) -> None:
    id = table.failed(**{"processed_at": ago(hours=1), **values})
    plan = operator.plan((id, "vectorization"), operation=DISCARD)
    assert plan.by_condition == {condition.value: 1}
    assert bool(plan.warnings) == (condition is Condition.STUCK)
    operator.apply(plan)
    assert table.row(id)["vectorization_status"] == "skipped"


def test_a_pipeline_that_the_loop_took_meanwhile_is_left_alone(table: Table, operator: Operator) -> None:
    id = table.failed(processed_at=ago(hours=1))
    plan = operator.plan((id, "vectorization"), operation=DISCARD)
    assert cycle(operator) == ["vectorization"]
    assert operator.apply(plan).counts == {"changed": 1}
    assert table.row(id)["vectorization_status"] == "success"
