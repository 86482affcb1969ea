"""What is predicted for an analysis, and whether its loop keeps it: by the engine and by a second model of the loop."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.advice import Advice, Step
from console.core.backend import Attempts, Flag, Operation, PageRequest, Severity
from console.core.item import Condition, Item, ItemKey
from console.core.pace import Canary
from console.core.plan import Matching
from console.core.query import Filter
from console.testing import FrozenClock, StopFlag
from plugins.postgres_analyses.engine import RetryLoop
from tests.depth import in_depth
from tests.plugins.postgres_analyses import model
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.postgres_analyses.world import Table, postgres_table, sqlite_table
from tests.promises import Record

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
EVERYTHING = Filter.parse("condition:*")
RESET = Operation(attempts=Attempts.RESET)
FORCED = Operation(flags=frozenset({Flag.INCLUDE_UNRECOVERABLE}))
STARVED = (
    "Starved by 10 older rows: its loop looks only at the 10 oldest, and always skips them because their errors are not"
    " recoverable."
)


def ago(span: timedelta) -> datetime:
    return datetime.now(UTC) - span


def item(table: Table, id: int, pipeline: str = "vectorization") -> Item:
    backend = table.open()
    try:
        key = ItemKey("analyses", (str(id), pipeline))
        return backend.items([key], backend.now())[key]
    finally:
        backend.close()


def failed(table: Table, count: int = 1, **values: Any) -> list[int]:
    return [table.failed(**({"processed_at": ago(HOUR) + n * MINUTE / 60} | values)) for n in range(count)]


def answers(table: Table) -> None:
    table.execute(f"CREATE TABLE {'' if table.is_sqlite else 'selfology.'}user_answers_new (id integer)")


# -- starvation ------------------------------------------------------------------------------------


def test_behind_ten_rows_that_the_loop_always_skips_a_row_is_starved(table: Table, tmp_path: Path) -> None:
    blocking = failed(table, 10, vectorization_error="malformed", processed_at=ago(3 * HOUR))
    (before,) = failed(table, processed_at=ago(4 * HOUR))
    (behind,) = failed(table, retry_count=1, last_retry_at=ago(2 * MINUTE))
    assert item(table, before).condition is Condition.RETRYING
    verdict = item(table, behind).verdict
    assert (verdict.condition, verdict.will_run_again, verdict.next_retry) == (Condition.FAILED, False, None)
    assert verdict.why == STARVED
    with operating(table.open(), tmp_path) as operator:
        for operation in (Operation(), RESET):
            plan = operator.plan((behind, "vectorization"), operation=operation)
            assert (plan.changes, plan.skipped) == (0, {STARVED: 1})
            assert plan.advice == {STARVED: Advice(Step.TURN_ON, "include_unrecoverable")}
        listed = operator.backend.page(PageRequest(Filter.parse("condition:failed"), operator.backend.now())).items
        assert [item.key.parts[0] for item in listed] == [str(behind)]
        found = {finding.subject: finding for finding in operator.backend.check(FrozenClock(operator.backend.now()))}
        assert found["starvation"].severity is Severity.WARNING
        assert found["starvation"].message.startswith("the loop looks at 10 failed rows of vectorization at a time, and always skips 10")
        table.set(blocking[0], vectorization_status="skipped")
        assert item(table, behind).verdict.will_run_again
        assert operator.plan((behind, "vectorization")).changes == 1


def test_a_starved_row_runs_through_the_stuck_rule_with_the_switch(table: Table, tmp_path: Path) -> None:
    failed(table, 10, vectorization_error="malformed", processed_at=ago(3 * HOUR))
    (behind,) = failed(table)
    with operating(table.open(), tmp_path) as operator:
        operator.requeue((behind, "vectorization"), operation=FORCED)
        assert item(table, behind).verdict.will_run_again
    assert table.row(behind)["vectorization_status"] == "pending"


def test_rows_that_leave_by_themselves_may_starve_others(table: Table) -> None:
    failed(table, 9, vectorization_error="malformed", processed_at=ago(3 * HOUR))
    failed(table, vectorization_error="malformed", processed_at=ago(3 * HOUR), dp_update_status="failed")
    (behind,) = failed(table)
    verdict = item(table, behind).verdict
    assert (verdict.condition, verdict.will_run_again) == (Condition.RETRYING, None)
    assert verdict.why.startswith("It may starve")


def test_pending_rows_that_fail_again_may_starve_others(table: Table) -> None:
    """The loop retries them whatever their error, and then skips them."""
    failed(table, 10, vectorization_status="pending", vectorization_error="malformed", processed_at=ago(3 * HOUR))
    (behind,) = failed(table)
    verdict = item(table, behind).verdict
    assert (verdict.condition, verdict.will_run_again) == (Condition.RETRYING, None)
    assert verdict.why.startswith("It may starve")


def test_rows_without_retries_left_or_in_the_other_pipeline_do_not_starve(table: Table) -> None:
    failed(table, 20, vectorization_error="malformed", processed_at=ago(3 * HOUR), retry_count=3)
    failed(table, 20, vectorization_status="success", dp_update_status="failed", dp_update_error="malformed")
    (behind,) = failed(table)
    assert item(table, behind).verdict.will_run_again


# -- rows without an answer ------------------------------------------------------------------------


def test_a_row_without_an_answer_never_runs_where_the_loop_joins_the_answers(table: Table, tmp_path: Path) -> None:
    (id,) = failed(table)
    (pending,) = failed(table, vectorization_status="pending")
    assert item(table, id).verdict.will_run_again
    answers(table)
    verdict = item(table, id).verdict
    assert (verdict.condition, verdict.will_run_again) == (Condition.TERMINAL, False)
    assert verdict.why == "Its loop does not see rows without an answer."
    verdict = item(table, pending).verdict
    assert (verdict.condition, verdict.will_run_again, verdict.why) == (
        Condition.STUCK, False, "Its loop does not see rows without an answer."
    )
    with operating(table.open(), tmp_path) as operator:
        for operation in (Operation(), RESET, FORCED):
            plan = operator.plan((id, "vectorization"), (pending, "vectorization"), operation=operation)
            assert plan.skipped == {"Its loop does not see rows without an answer.": 2}


# -- the shared counter ----------------------------------------------------------------------------


@pytest.mark.parametrize(("retries", "shared"), [(2, "the last retry"), (1, "the 2 retries")])
def test_the_second_pipeline_may_get_none_of_the_shared_retries(
    table: Table, tmp_path: Path, retries: int, shared: str
) -> None:
    (id,) = failed(table, dp_update_status="failed", retry_count=retries, last_retry_at=ago(MINUTE))
    assert item(table, id).verdict.will_run_again
    second = item(table, id, "dp_update").verdict
    why = f"It may get none: vectorization of the same row may use {shared} that both share."
    assert (second.condition, second.will_run_again, second.why) == (Condition.RETRYING, None, why)
    with operating(table.open(), tmp_path) as operator:
        warnings = operator.plan((id, "dp_update")).warnings
        assert any(why in warning for warning in warnings)
        plan = operator.plan((id, "dp_update"), operation=RESET)
        assert any("the 3 retries that both share" in warning for warning in plan.warnings)


# -- the forecast ----------------------------------------------------------------------------------


def test_a_plan_with_a_canary_shows_how_long_the_loop_needs(table: Table, tmp_path: Path) -> None:
    failed(table, 45, retry_count=3)
    with operating(table.open(), tmp_path) as operator:
        plan = operator.operations.propose(Matching(Filter.parse("condition:terminal")), RESET, Canary(20))
        assert plan.warnings["Its system takes at most 10 items every 1m, so it needs about 5m."] == 45
        assert operator.backend.abilities.throughput.time_for(20) == 2 * MINUTE


# -- generated worlds ------------------------------------------------------------------------------

ERRORS = ("connection timeout", "rate limit", None, "malformed", "Invalid JSON", "something new")
STATUSES = ("failed", "failed", "failed", "pending", "success", "skipped", "odd")


class GeneratedTable:
    """Generated rows, in the table and as the model takes them."""

    def __init__(self, table: Table, seed: int, count: int) -> None:
        self.table = table
        self.chance = random.Random(seed)
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.joined = bool(seed % 2)
        self.hopeless = self.chance.choice((0.02, 0.1, 0.4))
        """How many errors are unrecoverable: few, or enough to starve a pipeline."""
        if self.joined:
            answers(table)
        self.rows = [self._row(n) for n in range(count)]
        outcomes = {(row["id"], p): self.chance.random() < 0.5 for row in self.rows for p in model.PIPELINES}
        self.fails = lambda id, pipeline: outcomes[id, pipeline]

    def _row(self, number: int) -> model.Row:
        chance = self.chance
        row: model.Row = {
            "user_answer_id": chance.choice((number, number, number, None)),
            "retry_count": chance.choice((0, 0, 1, 2, 2, 3, None)),
            "last_retry_at": chance.choice((None, self._before(90), self._before(20 * 60), self._before(7200))),
            "processed_at": chance.choice((None, *[self._before(15 * 60), *[self._before(200_000)] * 8])),
        }
        for pipeline in model.PIPELINES:
            row[f"{pipeline}_status"] = chance.choice(STATUSES)
            row[f"{pipeline}_error"] = chance.choice(ERRORS[3:5] if chance.random() < self.hopeless else ERRORS[:3])
        return row | {"id": self.table.add(**row)}

    def _before(self, seconds: int) -> datetime:
        return self.now - timedelta(seconds=self.chance.randrange(1, seconds))

    def engine_takes(self) -> model.Taken:
        """What our engine takes in a day."""
        backend, clock, taken = self.table.open(), FrozenClock(self.now), set()

        def handle(pipeline: str, analysis: Mapping[str, Any]) -> None:
            taken.add((analysis["id"], pipeline))
            if self.fails(analysis["id"], pipeline):
                raise RuntimeError("connection reset")

        loop = RetryLoop(
            backend.database, backend.analysis_table(), backend.policy, backend.attached.time, clock,
            dict.fromkeys(backend.pipelines, handle), lambda _: None,
        )
        quiet = 0
        while quiet <= 45 and clock.now() < self.now + timedelta(days=1):
            quiet = 0 if sum(loop.cycle(StopFlag()).values()) else quiet + 1
            clock.tick(MINUTE)
        backend.close()
        return taken

    def predicted(self) -> dict[tuple[int, str], Item]:
        backend = self.table.open()
        try:
            found = backend.page(PageRequest(EVERYTHING, self.now, limit=10_000)).items
        finally:
            backend.close()
        return {(int(item.key.parts[0]), item.key.parts[1]): item for item in found}


@contextmanager
def generated(folder: Path, seed: int, count: int, kind: str = "sqlite") -> Iterator[GeneratedTable]:
    with sqlite_table(folder / f"{seed}.db") if kind == "sqlite" else postgres_table(zone="UTC") as table:
        yield GeneratedTable(table, seed, count)


def outlook(predicted: Mapping[tuple[int, str], Item]) -> dict[tuple[int, str], bool | None]:
    return {key: found.verdict.will_run_again for key, found in predicted.items()}


@pytest.mark.parametrize("seed", in_depth(range(22), range(8)))
def test_predictions_hold_in_a_second_model_of_the_loop(tmp_path: Path, seed: int, promises: Record) -> None:
    with generated(tmp_path, seed, 150) as world:
        predicted = world.predicted()
        taken = model.day(deepcopy(world.rows), world.now, world.fails, joined=world.joined)
    promises("postgres_analyses", outlook(predicted), taken)
    verdicts = Counter(found.verdict.will_run_again for found in predicted.values())
    assert verdicts[True] > 10
    assert verdicts[False] > 100
    assert verdicts[None] < 100


@pytest.mark.parametrize(("kind", "seed"), in_depth(
    [*(("sqlite", seed) for seed in (3, 4, 5, 6, *range(30, 48))), ("postgres", 7)], [("sqlite", 3), ("postgres", 7)],
))
def test_the_engine_keeps_the_predictions(
    tmp_path: Path, kind: str, seed: int, thorough: bool, promises: Record
) -> None:
    with generated(tmp_path, seed, 150 if thorough else 80, kind) as world:
        predicted = world.predicted()
        expected = model.day(deepcopy(world.rows), world.now, world.fails, joined=world.joined)
        taken = world.engine_takes()
    promises("postgres_analyses, by its engine", outlook(predicted), taken)
    certain = {key for key, found in predicted.items() if found.verdict.will_run_again is not None}
    assert taken & certain == expected & certain


@pytest.mark.parametrize("seed", range(20, 24))
@pytest.mark.parametrize("operation", [Operation(), RESET, FORCED], ids=["keep", "reset", "forced"])
def test_what_a_plan_requeues_is_taken(tmp_path: Path, seed: int, operation: Operation) -> None:
    """Without a warning that it may get none, the second model takes every item that a plan requeued."""
    with generated(tmp_path, seed, 90) as world, operating(world.table.open(), tmp_path) as operator:
        plan = operator.operations.propose(Matching(EVERYTHING, everything=True), operation)
        operator.apply(plan)
        after = world.predicted()
        written = {
            (int(key.parts[0]), key.parts[1])
            for batch in operator.trail.rows(plan.id, 0, plan.changes - 1) for row in batch
            for key in [ItemKey.parse(row.key)]
        }
        columns = ("retry_count", "last_retry_at", *(f"{p}_status" for p in model.PIPELINES))
        rows = deepcopy(world.rows)
        for row in rows:
            stored = world.table.row(row["id"])
            row.update({name: stored[name] for name in columns})
            if isinstance(row["last_retry_at"], str):
                row["last_retry_at"] = datetime.fromisoformat(row["last_retry_at"])
        taken = model.day(rows, world.now + MINUTE, world.fails, joined=world.joined)
    assert written
    assert not [key for key in written if after[key].verdict.will_run_again is False]
    assert not [key for key in written if after[key].verdict.will_run_again and key not in taken]
