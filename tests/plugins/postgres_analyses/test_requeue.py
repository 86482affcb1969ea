"""Requeueing analyses: what is written, what is skipped and why, and concurrent retry loops."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from console.core.advice import Advice, Step
from console.core.backend import Attempts, Flag, Operation, PageRequest
from console.core.faults import AllSkipped, ReadOnlyRefused
from console.core.policy import Backoff, Exponential, FixedDelays, PolicyOverride
from console.core.query import Filter, Sort, SortField
from console.core.text import duration
from tests.plugins.postgres_analyses.operating import Operator, operating
from tests.plugins.postgres_analyses.world import TABLE, Table, postgres_table

RESET = Operation(attempts=Attempts.RESET)
FORCED = Operation(flags=frozenset({Flag.INCLUDE_UNRECOVERABLE}))
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def ago(span: timedelta) -> datetime:
    return datetime.now(UTC) - span


@pytest.fixture
def operator(table: Table, tmp_path: Path) -> Iterator[Operator]:
    with operating(table.open(), tmp_path) as found:
        yield found


def failed(table: Table, **values: Any) -> int:
    return table.failed(**({"processed_at": ago(HOUR)} | values))


def test_keep_clears_the_last_retry_and_nothing_else(table: Table, operator: Operator) -> None:
    id = failed(table, retry_count=2, last_retry_at=ago(MINUTE))
    before = table.row(id)
    override = operator.requeue((id, "vectorization"))
    assert override.counts == {"applied": 1}
    assert table.row(id) == before | {"last_retry_at": None}


def test_a_row_below_zero_is_found_by_its_key(table: Table, operator: Operator) -> None:
    id = failed(table, id=-5, retry_count=2, last_retry_at=ago(MINUTE))
    assert operator.requeue((id, "vectorization")).counts == {"applied": 1}
    assert table.row(id)["last_retry_at"] is None


def test_reset_also_clears_the_counter_and_warns_that_it_is_shared(table: Table, operator: Operator) -> None:
    id = failed(table, retry_count=3, last_retry_at=ago(MINUTE))
    before = table.row(id)
    plan = operator.plan((id, "vectorization"), operation=RESET)
    assert "The other pipeline of the same row has its attempts reset too." in plan.warnings
    operator.apply(plan)
    assert table.row(id) == before | {"last_retry_at": None, "retry_count": 0}


def test_a_time_at_the_end_of_the_calendar_is_a_time(table: Table, tmp_path: Path) -> None:
    last = datetime(9999, 12, 31, 22, 59, 59, tzinfo=UTC)
    spent = failed(table, retry_count=3, last_retry_at=ago(MINUTE), processed_at=last)
    hopeless = failed(table, retry_count=3, vectorization_error="invalid json", processed_at=last)
    waiting = failed(table, retry_count=0, processed_at=last)
    slow = PolicyOverride(backoff=FixedDelays((2 * HOUR,)), stuck_after=2 * HOUR)
    with operating(table.open(policy=slow), tmp_path) as operator:
        plan = operator.plan((spent, "vectorization"), operation=RESET)
        assert "Its loop waits until 2h after processed_at" in next(iter(plan.warnings))
        plan = operator.plan((hopeless, "vectorization"), operation=FORCED)
        assert next(iter(plan.skipped)).startswith("Its loop's stuck rule takes it only from 9999-12-31")
        (item,) = operator.backend.page(PageRequest(Filter.parse("next>1d"), datetime.now(UTC))).items
        assert item.key.parts[0] == str(waiting)


NEVER = [FixedDelays((timedelta(days=999_999_999),)), Exponential(timedelta(days=999_999), 1e9)]


@pytest.mark.parametrize("backoff", NEVER)
def test_a_delay_longer_than_the_calendar_never_ends(table: Table, tmp_path: Path, backoff: Backoff) -> None:
    given_up_and_waiting(table, tmp_path, backoff)


@pytest.mark.parametrize("backoff", NEVER)
def test_a_delay_longer_than_the_calendar_in_a_large_plan(tmp_path: Path, backoff: Backoff) -> None:
    with postgres_table(zone="UTC") as table:
        given_up_and_waiting(table, tmp_path, backoff)


def given_up_and_waiting(table: Table, folder: Path, backoff: Backoff) -> None:
    given_up = failed(table, retry_count=3, last_retry_at=ago(HOUR))
    waiting = failed(table, retry_count=1, last_retry_at=ago(HOUR))
    with operating(table.open(policy=PolicyOverride(max_attempts=4, backoff=backoff)), folder) as operator:
        request = PageRequest(Filter.parse("condition:retrying next>1h"), datetime.now(UTC), Sort(SortField.NEXT))
        (item,) = operator.backend.page(request).items
        assert item.key.parts[0] == str(waiting)
        assert item.verdict.next_retry_at == datetime.max.replace(tzinfo=UTC)
        plan = operator.plan(Filter.parse("condition:retrying,terminal"), operation=RESET)
        assert any(f"Its loop waits until {duration(backoff.bounds(1)[0])} after" in one for one in plan.warnings)
        assert operator.apply(plan).counts == {"applied": 2}
    assert (table.row(given_up)["retry_count"], table.row(waiting)["retry_count"]) == (0, 0)


def test_an_error_that_is_not_recoverable_needs_the_flag_and_goes_through_the_stuck_rule(
    table: Table, operator: Operator
) -> None:
    id = failed(table, retry_count=3, vectorization_error="invalid json", last_retry_at=ago(MINUTE))
    plan = operator.plan((id, "vectorization"), operation=RESET)
    assert list(plan.skipped) == ["Its error is not recoverable, so its loop skips it."]
    assert set(plan.advice.values()) == {Advice(Step.TURN_ON, "include_unrecoverable")}
    before = table.row(id)
    operator.requeue((id, "vectorization"), operation=FORCED)
    assert table.row(id) == before | {"vectorization_status": "pending", "retry_count": 0, "last_retry_at": None}


SKIPPED: list[tuple[dict[str, Any], Operation, str]] = [
    ({"retry_count": 3}, Operation(), "3 of 3 retries used, shared by both pipelines."),
    ({"retry_count": None}, Operation(), "retry_count is NULL, which its loop never takes."),
    ({"processed_at": timedelta(seconds=1)}, Operation(), "A requeue would change nothing"),
    ({"processed_at": timedelta(seconds=1), "retry_count": 0}, RESET, "A requeue would change nothing"),
    ({"retry_count": 1, "last_retry_at": 6 * MINUTE}, Operation(), "Already scheduled; runs when due."),
    ({"vectorization_error": "malformed", "processed_at": None}, FORCED, "processed_at is not set"),
    ({"vectorization_error": "malformed", "processed_at": MINUTE}, FORCED, "Its loop's stuck rule takes it only from "),
    ({"vectorization_status": "pending", "retry_count": 1}, RESET, "Its loop runs stuck items again by itself."),
    ({"vectorization_status": "pending", "retry_count": 3}, Operation(), "3 of 3 retries used"),
    ({"vectorization_status": "pending", "retry_count": 3, "last_retry_at": MINUTE}, RESET, "it may still run"),
    ({"vectorization_status": "pending", "processed_at": MINUTE}, RESET, "Has not failed"),
    ({"vectorization_status": "pending", "retry_count": 1, "processed_at": MINUTE}, RESET, "Running, within its time limit."),
    ({"vectorization_status": "success"}, RESET, "Already done."),
    ({"vectorization_status": "skipped"}, RESET, "Already done."),
    ({"vectorization_status": "odd"}, RESET, "no rule applies"),
]


@pytest.mark.parametrize(("values", "operation", "reason"), SKIPPED, ids=range(len(SKIPPED)))
def test_what_the_loop_would_ignore_is_skipped_with_the_reason(
    table: Table, operator: Operator, values: dict[str, Any], operation: Operation, reason: str
) -> None:
    at_run_time = {name: ago(value) if isinstance(value, timedelta) else value for name, value in values.items()}
    id = failed(table, **at_run_time)
    plan = operator.plan((id, "vectorization"), operation=operation)
    assert (plan.changes, len(plan.skipped)) == (0, 1)
    assert reason in next(iter(plan.skipped))
    with pytest.raises(AllSkipped):
        operator.apply(plan)


def test_stuck_without_attempts_left_is_requeued_with_attempts_reset(table: Table, operator: Operator) -> None:
    id = failed(table, vectorization_status="pending", retry_count=3, last_retry_at=ago(HOUR))
    operator.requeue((id, "vectorization"), operation=RESET)
    row = table.row(id)
    assert (row["vectorization_status"], row["retry_count"], row["last_retry_at"]) == ("pending", 0, None)


def test_both_pipelines_of_a_row_are_one_write(table: Table, operator: Operator) -> None:
    id = failed(
        table, retry_count=3, last_retry_at=ago(MINUTE), dp_update_status="failed", dp_update_error="unauthorized"
    )
    operation = Operation(attempts=Attempts.RESET, flags=FORCED.flags)
    for sort in ("type:vectorization,dp_update", "updated<1d"):
        plan = operator.plan(Filter.parse(sort), operation=operation)
        assert plan.changes == 2
    override = operator.apply(plan)
    assert override.counts == {"applied": 2}
    row = table.row(id)
    assert (row["vectorization_status"], row["dp_update_status"], row["retry_count"]) == ("failed", "pending", 0)


def test_a_plan_says_how_long_the_loop_will_need(table: Table, operator: Operator) -> None:
    for _ in range(25):
        failed(table, retry_count=1, last_retry_at=ago(MINUTE))
    warnings = operator.plan(Filter.parse("condition:retrying")).warnings
    assert warnings == {"Its system takes at most 10 items every 1m, so it needs about 3m.": 25}


def test_a_requeue_the_loop_takes_later_says_when(table: Table, operator: Operator) -> None:
    id = failed(table, retry_count=2, processed_at=ago(10 * MINUTE), last_retry_at=ago(MINUTE))
    assert operator.plan((id, "vectorization")).warnings == {"Its loop waits until 15m after processed_at.": 1}


def test_what_the_loop_changed_since_the_plan_is_not_touched(table: Table, operator: Operator) -> None:
    ids = [failed(table, retry_count=1, last_retry_at=ago(MINUTE)) for _ in range(10)]
    plan = operator.plan(Filter.parse("condition:retrying"))
    table.set(ids[0], vectorization_status="pending", retry_count=2, last_retry_at=ago(timedelta(0)))
    table.set(ids[1], dp_update_status="failed")
    table.set(ids[2], last_retry_at=None)
    table.execute(f"DELETE FROM {'answer_analysis' if table.is_sqlite else TABLE} WHERE id = {ids[3]}")
    changed = [table.row(id) for id in ids[:3]]
    override = operator.apply(plan)
    assert override.counts == {"applied": 6, "changed": 4}
    assert [table.row(id) for id in ids[:3]] == changed
    details = {detail for kind, detail in operator.outcomes(override) if kind == "changed"}
    assert {"no longer there", "dp_update_status is now failed, was success"} <= details


def test_undo_restores_exactly_what_was_there(table: Table, operator: Operator) -> None:
    ids = [failed(table, retry_count=3, last_retry_at=ago(n * MINUTE)) for n in range(5)]
    before = [table.row(id) for id in ids]
    override = operator.requeue(Filter.parse("condition:terminal"), operation=RESET)
    table.set(ids[0], retry_count=1)
    plan = operator.operations.undo(override.override_id)
    assert (plan.changes, plan.skipped) == (4, {"Already picked up or changed.": 1})
    operator.apply(plan)
    assert [table.row(id) for id in ids[1:]] == before[1:]


def test_a_rejected_row_does_not_affect_the_others(table: Table, operator: Operator) -> None:
    ids = [failed(table, retry_count=3, last_retry_at=ago(MINUTE)) for _ in range(40)]
    if table.is_sqlite:
        table.execute(
            "CREATE TRIGGER no BEFORE UPDATE ON answer_analysis WHEN new.id IN (7, 30) AND new.retry_count = 0"
            " BEGIN SELECT raise(ABORT, 'not this one'); END"
        )
    else:
        table.execute(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'"
            " USING DETAIL = 'secret value'; END $$; CREATE TRIGGER no BEFORE UPDATE ON selfology.answer_analysis"
            " FOR EACH ROW WHEN (new.id IN (7, 30) AND new.retry_count = 0) EXECUTE FUNCTION no()"
        )
    override = operator.requeue(Filter.parse("condition:terminal"), operation=RESET)
    assert operator.outcomes(override) == Counter({("applied", ""): 38, ("rejected", "not this one"): 2})
    assert [table.row(id)["retry_count"] for id in ids].count(0) == 38


def test_a_locked_row_is_left_without_waiting(postgres: Table, tmp_path: Path) -> None:
    with operating(postgres.open(), tmp_path) as operator, psycopg.connect(postgres.url) as other:
        ids = [failed(postgres, retry_count=3) for _ in range(5)]
        plan = operator.plan(Filter.parse("condition:terminal"), operation=RESET)
        other.execute(f"SELECT 1 FROM {TABLE} WHERE id = %s FOR UPDATE", [ids[2]])
        override = operator.apply(plan)
        assert operator.outcomes(override) == Counter(
            {("applied", ""): 4, ("changed", "locked by another transaction"): 1}
        )


def test_rows_that_moved_without_changing_are_found_again(postgres: Table, tmp_path: Path) -> None:
    with operating(postgres.open(), tmp_path) as operator:
        for _ in range(20):
            failed(postgres, retry_count=3)
        plan = operator.plan(Filter.parse("condition:terminal"), operation=RESET)
        postgres.execute(f"UPDATE {TABLE} SET user_answer_id = 5")
        postgres.execute(f"VACUUM FULL {TABLE}")
        assert operator.apply(plan).counts == {"applied": 20}


def test_two_consoles_win_each_row_once(postgres: Table, tmp_path: Path) -> None:
    for _ in range(300):
        failed(postgres, retry_count=3)
    won: Counter[str] = Counter()

    def console(folder: Path) -> None:
        folder.mkdir()
        with operating(postgres.open(), folder) as operator:
            plan = operator.plan(Filter.parse("condition:terminal"), operation=RESET)
            ready.wait()
            won.update(operator.apply(plan).counts)

    ready = threading.Barrier(2)
    threads = [threading.Thread(target=console, args=(tmp_path / str(n),)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == {"applied": 300, "changed": 300}


def test_a_read_only_backend_refuses_to_write(table: Table) -> None:
    failed(table, retry_count=3)
    backend = table.open(read_only=True)
    with pytest.raises(ReadOnlyRefused):
        backend.database.writing().__enter__()
    backend.close()
