"""The retry loop: what it retries, in which order, how many, and how it handles errors."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import Attempts, Flag, Operation, Requeues, RunsEngine
from console.core.item import Condition, ItemKey
from console.core.query import Filter
from console.testing import FrozenClock, StopFlag
from plugins.postgres_analyses import PostgresAnalyses
from plugins.postgres_analyses.engine import RetryLoop
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.postgres_analyses.world import NOW, Table

MINUTE = timedelta(minutes=1)


OPEN: list[PostgresAnalyses] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Handler:
    """Records its calls and fails for the given ids."""

    def __init__(self, *failing: int, error: str = "connection reset") -> None:
        self.calls: list[tuple[str, int]] = []
        self.failing = set(failing)
        self.error = error

    def __call__(self, pipeline: str, analysis: Mapping[str, Any]) -> None:
        self.calls.append((pipeline, analysis["id"]))
        if analysis["id"] in self.failing:
            raise RuntimeError(self.error)


def loop(table: Table, handler: Callable[..., object], clock: Any = None) -> tuple[RetryLoop, list[str]]:
    backend, lines = table.open(), []
    OPEN.append(backend)
    made = RetryLoop(
        backend.database, backend.analysis_table(), backend.policy, backend.attached.time, clock or FrozenClock(NOW),
        dict.fromkeys(backend.pipelines, handler), lines.append,
    )
    return made, lines


def test_the_delays_are_kept_to_the_second_and_the_fourth_execution_is_the_last(table: Table) -> None:
    clock, handler = FrozenClock(NOW), Handler(1)
    id = table.failed(processed_at=NOW)
    made, _ = loop(table, handler, clock)
    for delay in (60, 300, 900):
        clock.tick(timedelta(seconds=delay - 1))
        assert made.cycle(StopFlag())["vectorization"] == 0
        clock.tick()
        assert made.cycle(StopFlag())["vectorization"] == 1
    clock.tick(timedelta(days=1))
    assert made.cycle(StopFlag()) == {"vectorization": 0, "dp_update": 0, "stuck": 0}
    row = table.row(id)
    assert (row["vectorization_status"], row["retry_count"], row["vectorization_error"]) == ("failed", 3, "connection reset")
    assert (made.statistics.total_retries, made.statistics.failures, made.statistics.success_rate) == (3, 3, 0.0)


def test_success_clears_the_error_and_sets_the_time(table: Table) -> None:
    id = table.failed()
    made, lines = loop(table, Handler())
    made.cycle(StopFlag())
    row = table.row(id)
    assert (row["vectorization_status"], row["vectorization_error"]) == ("success", None)
    assert row["vectorization_completed_at"] == table.stored(NOW)
    assert lines == [
        f"Retrying vectorization for analysis {id}", f"Successfully retried vectorization for analysis {id}",
        "Retry cycle completed: vectorization=1, dp=0, stuck=0",
    ]
    assert made.statistics.success_rate == 100.0


def test_at_most_ten_per_pipeline_oldest_first(table: Table) -> None:
    handler = Handler()
    ids = [
        table.failed(processed_at=NOW - timedelta(hours=1, minutes=(n * 7) % 25), dp_update_status="failed") for n in range(25)
    ]
    made, _ = loop(table, handler)
    assert made.cycle(StopFlag()) == {"vectorization": 10, "dp_update": 10, "stuck": 0}
    oldest = sorted(ids, key=lambda id: table.row(id)["processed_at"])
    assert [id for pipeline, id in handler.calls if pipeline == "vectorization"] == oldest[:10]
    assert not {id for pipeline, id in handler.calls if pipeline == "dp_update"} & set(oldest[:10])


def test_it_takes_ten_rows_before_it_skips_any_of_them(table: Table) -> None:
    for _ in range(10):
        table.failed(vectorization_error="Invalid API key", processed_at=NOW - timedelta(days=1))
    good, waiting = table.failed(), table.failed(retry_count=1, last_retry_at=NOW - 2 * MINUTE)
    made, lines = loop(table, handler := Handler())
    made.cycle(StopFlag())
    assert not handler.calls
    assert sum(line.startswith("Skipping non-recoverable error") for line in lines) == 10
    table.execute(f"DELETE FROM {'answer_analysis' if table.is_sqlite else 'selfology.answer_analysis'} WHERE id = 1")
    made.cycle(StopFlag())
    assert handler.calls == [("vectorization", good)]
    made.cycle(StopFlag())
    assert f"Skipping analysis {waiting}: need to wait 3.0 more minutes" in lines


def test_the_stuck_rule_takes_ten_rows_of_all_pipelines_together(table: Table) -> None:
    old = NOW - timedelta(hours=1)
    for n in range(12):
        status = "pending" if n % 2 else "success"
        table.add(vectorization_status="pending", dp_update_status=status, retry_count=2, processed_at=old + n * MINUTE)
    made, _ = loop(table, handler := Handler())
    made.cycle(StopFlag())
    assert len({id for _, id in handler.calls}) == 10
    assert Counter(pipeline for pipeline, _ in handler.calls) == {"vectorization": 10, "dp_update": 5}


def test_the_pipeline_that_the_loop_takes_first_uses_the_last_retry(table: Table) -> None:
    id = table.failed(dp_update_status="failed", dp_update_error="connection timeout", retry_count=2)
    made, _ = loop(table, handler := Handler())
    made.cycle(StopFlag())
    assert handler.calls == [("vectorization", id)]


def test_without_times_a_failed_row_is_taken_at_once_and_a_pending_one_never(table: Table) -> None:
    failed, pending = table.failed(processed_at=None), table.failed(vectorization_status="pending", processed_at=None)
    clock = FrozenClock(NOW)
    made, _ = loop(table, handler := Handler(), clock)
    for _ in range(3):
        made.cycle(StopFlag())
        clock.tick(timedelta(hours=1))
    assert handler.calls == [("vectorization", failed)]
    assert table.row(pending)["vectorization_status"] == "pending"


def test_it_does_not_see_rows_without_an_answer_where_it_joins_the_answers(table: Table) -> None:
    answers = "user_answers_new" if table.is_sqlite else "selfology.user_answers_new"
    table.failed(), table.failed(vectorization_status="pending")
    made, _ = loop(table, handler := Handler())
    table.execute(f"CREATE TABLE {answers} (id integer)")
    answered = table.failed(user_answer_id=7)
    joined, _ = loop(table, handler)
    joined.cycle(StopFlag())
    assert handler.calls == [("vectorization", answered)]
    made.cycle(StopFlag())
    assert len(handler.calls) == 3


def test_stuck_rows_are_retried_whatever_their_error(table: Table) -> None:
    old = NOW - timedelta(minutes=11)
    stuck = table.failed(vectorization_status="pending", vectorization_error="invalid json", processed_at=old)
    table.failed(vectorization_status="pending", processed_at=NOW - timedelta(minutes=9))
    table.failed(vectorization_status="pending", processed_at=old, retry_count=3)
    table.failed(vectorization_status="pending", processed_at=old, retry_count=1, last_retry_at=NOW - MINUTE)
    made, _ = loop(table, handler := Handler())
    assert made.cycle(StopFlag())["stuck"] == 1
    assert handler.calls == [("vectorization", stuck)]
    assert table.row(stuck)["retry_count"] == 1


def test_a_long_error_is_cut_at_500_characters(table: Table) -> None:
    id = table.failed()
    made, _ = loop(table, Handler(id, error="x" * 900))
    made.cycle(StopFlag())
    assert table.row(id)["vectorization_error"] == "x" * 500


def test_the_loop_continues_after_an_error_and_stops_on_request(table: Table) -> None:
    name = "answer_analysis" if table.is_sqlite else "selfology.answer_analysis"
    first, second = table.failed(), table.failed()
    lines: list[str] = []
    done: list[int] = []
    stop = StopFlag()

    def handler(_pipeline: str, analysis: Mapping[str, Any]) -> None:
        done.append(analysis["id"])
        if analysis["id"] == first:
            table.execute(f"ALTER TABLE {name} RENAME TO away")

    class Clock(FrozenClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.now() >= NOW + timedelta(seconds=50) and done == [first]:
                table.execute(f"ALTER TABLE {name.replace('answer_analysis', 'away')} RENAME TO answer_analysis")
                done.append(0)
            if second in done:
                stop.set()

    backend = table.open()
    assert isinstance(backend, RunsEngine)
    assert isinstance(backend, Requeues)
    assert backend.run(handler, Clock(NOW), stop, lines.append) >= 2
    assert lines[0] == "Starting automatic retry system"
    assert any(line.startswith("Error retrying") for line in lines)
    assert table.row(second)["vectorization_status"] == "success"
    assert lines[-1].startswith("Automatic retry system stopped; ")
    backend.close()


def test_two_loops_never_claim_the_same_row(postgres: Table) -> None:
    for n in range(60):
        postgres.failed(dp_update_status="failed" if n % 2 else "success")
    calls: Counter[tuple[str, int]] = Counter()
    lock = threading.Lock()

    def handler(pipeline: str, analysis: Mapping[str, Any]) -> None:
        with lock:
            calls[pipeline, analysis["id"]] += 1

    def work() -> None:
        made, _ = loop(postgres, handler)
        for _ in range(4):
            made.cycle(StopFlag())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(calls.values()) == {1}
    assert len({id for _, id in calls}) == 60  # the pipelines of a row share the time of the last retry


def test_the_next_cycle_runs_a_requeued_analysis(table: Table, tmp_path: Path) -> None:
    class Real:
        def now(self) -> datetime:
            return datetime.now(UTC)

        def sleep(self, seconds: float) -> None:
            raise AssertionError("one cycle does not wait")

    now = datetime.now(UTC)
    kept = table.failed(processed_at=now - timedelta(hours=1), retry_count=2, last_retry_at=now - MINUTE)
    fresh = table.failed(processed_at=now - timedelta(hours=1), retry_count=3, last_retry_at=now - MINUTE)
    forced = table.failed(processed_at=now - timedelta(hours=1), vectorization_error="malformed", retry_count=3)
    left = table.failed(processed_at=now - timedelta(hours=1), retry_count=2, last_retry_at=now - MINUTE)
    with operating(table.open(), tmp_path) as operator:
        operator.requeue((kept, "vectorization"))
        operator.requeue((fresh, "vectorization"), operation=Operation(attempts=Attempts.RESET))
        operator.requeue((forced, "vectorization"), operation=Operation(flags=frozenset({Flag.INCLUDE_UNRECOVERABLE})))
        made, _ = loop(table, handler := Handler(kept), Real())
        assert made.cycle(StopFlag()) == {"vectorization": 2, "dp_update": 0, "stuck": 1}
        assert {id for _, id in handler.calls} == {kept, fresh, forced}
        key = ItemKey("analyses", (str(kept), "vectorization"))
        assert operator.backend.items([key], operator.backend.now())[key].condition is Condition.TERMINAL
        assert table.row(fresh)["vectorization_status"] == table.row(forced)["vectorization_status"] == "success"
        assert table.row(left)["vectorization_status"] == "failed"
        assert operator.backend.counts(Filter.parse("condition:done"), operator.backend.now())
