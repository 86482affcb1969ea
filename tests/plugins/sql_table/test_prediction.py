"""Would it be picked up? The mapping's own rule, and a worker that knows nothing of the mapping."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import Severity
from console.core.item import Condition
from console.core.query import Filter
from tests.depth import campaign
from tests.plugins.postgres_analyses.operating import RealClock, operating
from tests.plugins.sql_table.world import Queue, mapping, sqlite_queue
from tests.promises import Record

DDL = """CREATE TABLE jobs (id INTEGER PRIMARY KEY, failed_at TEXT, locked_at TEXT, done_at TEXT, tries INTEGER NOT NULL,
    run_at TEXT, paused INTEGER NOT NULL, error TEXT, changed TEXT)"""
MAPPING = """
table: jobs
key: id
status:
  cases:
    - {name: done, condition: done, when: job.done_at IS NOT NULL}
    - {name: dead, condition: terminal, when: job.failed_at IS NOT NULL}
    - {name: working, condition: running, when: job.locked_at IS NOT NULL}
    - {name: spent, condition: terminal, when: job.tries >= 5}
    - {name: queued, condition: ready, when: "1 = 1"}
attempts: tries
next_run: run_at
error: error
updated: changed
held:
  - {when: job.paused = 1, why: "Paused by its application."}
requeue:
  conditions: [terminal]
  guard: [tries, failed_at, changed]
  set: {failed_at: null, run_at: {time: due}, changed: {time: now}}
  attempts:
    keep: {effect: last_try}
    reset: {effect: reset, set: {tries: 0}}
"""
NOT_TAKEN = "Its status would be 'spent', which its system does not take."


def rows(queue: Queue, count: int, chance: random.Random) -> None:
    now = datetime.now(UTC)
    for _ in range(count):
        day = [None, None, (now - timedelta(hours=chance.randint(1, 50))).isoformat()]
        queue.insert(
            "jobs", failed_at=chance.choice(day), locked_at=chance.choice([None, *day]), done_at=chance.choice([None, *day]),
            tries=chance.randint(0, 7), run_at=(now + timedelta(minutes=chance.randint(-600, 600))).isoformat(),
            paused=int(chance.random() < 0.1), error="no", changed=now.isoformat(),
        )


def taken_within_a_day(queue: Queue) -> set[str]:
    """What a worker takes in the next day, by its own rule: the ids are asked for with its own SQL."""
    found = queue.run(
        "SELECT id FROM jobs WHERE done_at IS NULL AND failed_at IS NULL AND locked_at IS NULL AND tries < 5"
        " AND paused = 0 AND datetime(run_at) <= datetime('now', '+1 day')", [],
    )
    return {str(id) for (id,) in found}


@pytest.fixture(params=[40, pytest.param(5_000, marks=campaign)])
def count(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_verdicts_promise_what_a_worker_takes(tmp_path: Path, count: int, promises: Record) -> None:
    with sqlite_queue(tmp_path / "q.db", DDL, mapping(MAPPING)) as queue:
        rows(queue, count, random.Random(count))
        with operating(queue.open(), tmp_path) as ann:
            items = [item for page in _pages(ann.backend) for item in page]
            taken = taken_within_a_day(queue)
            ready = [item for item in items if item.condition in (Condition.WAITING, Condition.RETRYING)]
            assert len(items) == count
            unknown = {item.key.id for item in ready if item.verdict.will_run_again is None}
            working = {item.key.id for item in items if item.condition in (Condition.RUNNING, Condition.STUCK)}
            promises("sql_table", {
                item.key.id: item.verdict.will_run_again for item in items if item.key.id not in working
            }, taken)
            paused = "SELECT id FROM jobs WHERE paused = 1"
            assert unknown <= {str(id) for (id,) in queue.run(paused, [])}


def _pages(backend: Any) -> Any:
    from console.core.backend import PageRequest

    request = PageRequest(Filter.parse("condition:*"), backend.now(), limit=500)
    while True:
        page = backend.page(request)
        yield page.items
        if page.next is None:
            return
        request = PageRequest(Filter.parse("condition:*"), request.now, limit=500, after=page.next)


def test_plans_change_what_a_worker_takes_afterwards_and_nothing_else(tmp_path: Path, count: int) -> None:
    with sqlite_queue(tmp_path / "q.db", DDL, mapping(MAPPING)) as queue:
        rows(queue, count, random.Random(count))
        with operating(queue.open(), tmp_path) as ann:
            before = taken_within_a_day(queue)
            plan = ann.plan(Filter.parse("condition:terminal"))
            working = {str(id) for (id,) in queue.run("SELECT id FROM jobs WHERE locked_at IS NOT NULL AND done_at IS NULL", [])}
            assert plan.skipped[NOT_TAKEN] > 0
            ann.apply(plan)
            new = taken_within_a_day(queue) - before
            warned = sum(times for text, times in plan.warnings.items() if "Paused" in text)
            assert plan.changes == len(new) + warned
            assert not new & working


def test_check_names_the_line_of_a_requeue_that_leaves_rows_unready(tmp_path: Path) -> None:
    with sqlite_queue(tmp_path / "q.db", DDL, mapping(MAPPING.replace("failed_at: null, ", ""))) as queue:
        rows(queue, 60, random.Random(7))
        backend = queue.open()
        errors = [f for f in backend.check(RealClock()) if f.severity is Severity.ERROR]
        backend.close()
        assert {f.subject for f in errors} == {"requeue"}
        assert any("would not run after a requeue with attempts reset. Its status would be 'dead', which its"
                   " system does not take." in f.message for f in errors)


@pytest.mark.parametrize(("when_null", "due", "why"), [
    ("now", None, None), ("now", "2026-01-01T00:00:00+00:00", None),
    ("never", None, "Its system ignores it: its due time is NULL."),
    ("now", "soon", "Its system ignores it: its due time is not a time."),
])
def test_a_due_time_that_a_requeue_leaves_as_it_is_still_counts(
    tmp_path: Path, when_null: str, due: str | None, why: str | None
) -> None:
    kept = MAPPING.replace("next_run: run_at", f"next_run: {{column: run_at, when_null: {when_null}}}").replace("run_at: {time: due}, ", "")
    with sqlite_queue(tmp_path / "q.db", DDL, mapping(kept)) as queue:
        queue.insert("jobs", failed_at="2026-01-01T00:00:00+00:00", tries=2, paused=0, run_at=due, error="no")
        with operating(queue.open(), tmp_path) as ann:
            plan = ann.plan(Filter.parse("condition:terminal"))
            assert plan.skipped == ({} if why is None else {why: 1})
            errors = [f for f in ann.backend.check(RealClock()) if f.severity is Severity.ERROR]
            assert len(errors) == (why is not None) * 2, "with attempts kept and reset"
            if why is None:
                ann.apply(plan)
                (item,) = next(_pages(ann.backend))
                assert item.verdict.will_run_again
