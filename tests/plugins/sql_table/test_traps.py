"""Special rules of each queue, tested with whole overrides."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import procrastinate
import psycopg
import pytest

from console.core.backend import Attempts, Operation, UndoKind
from console.core.query import Filter
from console.sql.guarded import LOCKED
from console.testing import Sample
from plugins.sql_table import mysql_guard
from tests.mariadb import connection
from tests.plugins.sql_table.conftest import At
from tests.plugins.sql_table.systems import solid_execution
from tests.plugins.sql_table.world import NOW, Queue, as_json, naive

RESET = Operation(attempts=Attempts.RESET)
LAST_TRY = "Attempts are kept: one more try, then terminal."
NAIVE = naive(NOW)


def river_job(queue: Queue, state: str = "discarded", attempt: int = 25, unique: str | None = None, **more: Any) -> int:
    values = {
        "state": state, "attempt": attempt, "max_attempts": 25, "args": "{}", "kind": "mail",
        "finalized_at": NOW if state in ("discarded", "completed", "cancelled") else None, "unique_key": unique,
        "unique_states": None if unique is None else "11110101", **more,
    }
    names, marks = ", ".join(values), ", ".join(["?"] * len(values))
    return queue.one(f"INSERT INTO river_job ({names}) VALUES ({marks}) RETURNING id", *values.values())[0]  # type: ignore[no-any-return]


class TestRiver:
    def test_a_row_with_an_active_duplicate_is_rejected_alone(self, at: At) -> None:
        queue, ann = at("river")
        river_job(queue, "available", 0, "one")
        twin, other = river_job(queue, unique="one"), river_job(queue)
        override = ann.requeue(twin, other)
        outcomes = ann.outcomes(override)
        assert outcomes["applied", ""] == 1
        ((kind, detail),) = [key for key in outcomes if key[0] != "applied"]
        assert kind == "rejected"
        assert "river_job_unique_idx" in detail
        assert queue.run("SELECT state::text FROM river_job WHERE id IN (?, ?) ORDER BY id", [twin, other]) == [
            ("discarded",), ("available",)
        ]

    def test_one_more_try_fits_and_no_more(self, at: At) -> None:
        queue, ann = at("river")
        spent, young = river_job(queue), river_job(queue, attempt=3)
        plan = ann.plan(spent, young)
        assert plan.warnings == {
            "Max attempts is raised by one: one more try, then terminal again.": 1,
            "Was given up with attempts left: it gets all of them, not one more try.": 1,
        }
        ann.apply(plan)
        assert queue.run("SELECT max_attempts, attempt, finalized_at FROM river_job ORDER BY id", []) == [
            (26, 25, None), (25, 3, None)
        ]

    def test_running_and_due_jobs_are_skipped(self, at: At) -> None:
        queue, ann = at("river")
        ids = [river_job(queue, state, 3) for state in ("running", "available", "completed", "cancelled")]
        assert ann.plan(*ids).skipped == {
            "Running, within its time limit.": 1, "Already scheduled; runs when due.": 1, "Already done.": 1,
            "Was cancelled.": 1,
        }

    def test_the_last_error_of_the_array_is_shown_and_all_are_history(self, at: At) -> None:
        queue, ann = at("river")
        errors = [as_json({"at": "2026-11-10T11:00:00Z", "attempt": n, "error": f"no {n}", "trace": ""}) for n in (1, 2)]
        id = river_job(queue, "retryable", 2)
        queue.run("UPDATE river_job SET errors = ?::text[]::jsonb[] WHERE id = ?", [errors, id])
        detail = ann.backend.item(ann.key(id), NOW)
        assert detail.item.error == "no 2"
        assert [(a.number, a.error) for a in detail.attempts] == [(1, "no 1"), (2, "no 2")]

    def test_an_override_is_undone_exactly(self, at: At) -> None:
        queue, ann = at("river")
        id = river_job(queue)
        before = queue.one("SELECT * FROM river_job WHERE id = ?", id)
        override = ann.requeue(id)
        assert queue.one("SELECT * FROM river_job WHERE id = ?", id) != before
        ann.apply(ann.operations.undo(override.override_id))
        assert queue.one("SELECT * FROM river_job WHERE id = ?", id) == before


class TestOban:
    def test_a_finished_job_is_never_run_again(self, at: At) -> None:
        queue, ann = at("oban")
        for state, over in (("completed", "completed_at"), ("cancelled", "cancelled_at"), ("discarded", "discarded_at")):
            queue.run(f"INSERT INTO oban_jobs (state, worker, attempt, {over}) VALUES (?, 'W', 20, ?)", [state, NAIVE])
        plan = ann.plan(Filter.parse("condition:* attempts>0"))
        assert (plan.changes, plan.skipped) == (1, {"Already done.": 1, "Was cancelled.": 1})
        ann.apply(plan)
        assert queue.run(
            "SELECT state::text, max_attempts, completed_at, discarded_at, cancelled_at FROM oban_jobs ORDER BY id", []
        ) == [
            ("completed", 20, NAIVE, None, None), ("cancelled", 20, None, None, NAIVE), ("available", 21, None, None, None)
        ]


class TestGoodJob:
    JOB = "00000000-0000-4000-8000-000000000007"

    def job(self, queue: Queue) -> None:
        queue.insert(
            "good_jobs", id=self.JOB, active_job_id=self.JOB, serialized_params=as_json({"executions": 4, "x": 1}),
            finished_at=NAIVE, performed_at=NAIVE, error="ArgumentError: no", created_at=NAIVE, updated_at=NAIVE,
            executions_count=5, job_class="Mail",
        )
        queue.insert("good_job_executions", active_job_id=self.JOB, created_at=NAIVE, updated_at=NAIVE, error="E: first")

    def test_only_the_counter_in_the_payload_changes(self, at: At) -> None:
        queue, ann = at("good_job")
        self.job(queue)
        assert ann.backend.item(ann.key(self.JOB), NOW).attempts[0].error == "E: first"
        override = ann.requeue(self.JOB)
        row = "SELECT serialized_params, finished_at, performed_at, error_event, error FROM good_jobs"
        assert queue.one(row) == ({"executions": 5, "x": 1}, None, None, 3, "ArgumentError: no")
        ann.apply(ann.operations.undo(override.override_id))
        assert queue.one(row) == ({"executions": 4, "x": 1}, NAIVE, NAIVE, None, "ArgumentError: no")

    def test_a_locked_job_is_not_touched(self, at: At) -> None:
        queue, ann = at("good_job")
        self.job(queue)
        plan = ann.plan(self.JOB)
        with psycopg.connect(queue.url) as worker:
            worker.execute(
                "SELECT pg_advisory_lock(('x' || substr(md5('good_jobs-' || %s), 1, 16))::bit(64)::bigint)", [self.JOB]
            )
            assert ann.outcomes(ann.apply(plan)) == {("changed", "a worker holds its lock"): 1}
        assert queue.one("SELECT finished_at FROM good_jobs") == (NAIVE,)


    @pytest.mark.parametrize("id", ["00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"])
    def test_a_held_lock_means_running_whatever_its_sign(self, at: At, id: str) -> None:
        queue, ann = at("good_job")
        queue.insert("good_jobs", id=id, active_job_id=id, performed_at=NAIVE, created_at=NAIVE, updated_at=NAIVE, job_class="M")
        now = ann.backend.now()
        assert ann.backend.items([ann.key(id)], now)[ann.key(id)].native_status == "queued"
        with psycopg.connect(queue.url) as worker:
            worker.execute("SELECT pg_advisory_lock(('x' || substr(md5('good_jobs-' || %s), 1, 16))::bit(64)::bigint)", [id])
            assert ann.backend.items([ann.key(id)], now)[ann.key(id)].condition.value == "running"


class TestSolidQueue:
    def job(self, queue: Queue, key: str | None = None) -> int:
        ((id,),) = queue.run(
            "INSERT INTO solid_queue_jobs (queue_name, class_name, arguments, concurrency_key, created_at, updated_at)"
            " VALUES ('mail', 'Mail', ?, ?, ?, ?) RETURNING id",
            [as_json({"executions": 3, "exception_executions": {"[E]": 3}, "arguments": ["x"]}), key, NAIVE, NAIVE],
        )
        solid_execution(queue, id, "failed", Sample("", None, 0, error="no"), NAIVE)
        return int(id)

    def test_a_job_with_a_concurrency_key_is_skipped(self, at: At) -> None:
        queue, ann = at("solid_queue")
        id = self.job(queue, "Mail/1")
        why = "Has a concurrency key: only the application can take its semaphore. Retry it there."
        assert ann.plan(id, operation=RESET).skipped == {why: 1}

    def test_counters_start_again_and_the_job_moves_to_the_ready_table(self, at: At) -> None:
        queue, ann = at("solid_queue")
        id = self.job(queue)
        assert ann.plan(id).skipped == {"Its own retry always resets attempts.": 1}
        assert ann.outcomes(ann.requeue(id, operation=RESET)) == {("applied", ""): 1}
        assert queue.run("SELECT count(*) FROM solid_queue_failed_executions", []) == [(0,)]
        assert queue.run("SELECT job_id, queue_name FROM solid_queue_ready_executions", []) == [(id, "mail")]
        ((arguments,),) = queue.run("SELECT arguments::jsonb FROM solid_queue_jobs", [])
        assert arguments == {"executions": 0, "exception_executions": {}, "arguments": ["x"]}
        assert ann.backend.abilities.undo is UndoKind.NONE

    def test_a_job_that_was_retried_since_the_plan_is_not_touched(self, at: At) -> None:
        queue, ann = at("solid_queue")
        id = self.job(queue)
        plan = ann.plan(id, operation=RESET)
        queue.run("DELETE FROM solid_queue_failed_executions", [])
        solid_execution(queue, id, "ready", Sample("", None, 0), NAIVE)
        ((kind, _),) = ann.outcomes(ann.apply(plan))
        assert kind == "changed"
        assert queue.run("SELECT count(*) FROM solid_queue_ready_executions", []) == [(1,)]

    def test_a_row_whose_payload_is_not_json_is_rejected_alone(self, at: At) -> None:
        queue, ann = at("solid_queue")
        bad, good = self.job(queue), self.job(queue)
        queue.run("UPDATE solid_queue_jobs SET arguments = ? WHERE id = ?", ['{"executions": 3, ', bad])
        outcomes = ann.outcomes(ann.requeue(bad, good, operation=RESET))
        assert Counter(kind for kind, _ in outcomes.elements()) == {"applied": 1, "rejected": 1}
        assert queue.run("SELECT job_id FROM solid_queue_failed_executions", []) == [(bad,)]


class TestProcrastinate:
    def fail(self, queue: Queue, lock: str | None = None) -> int:
        ((id,),) = queue.run(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, status, attempts, queueing_lock)"
            " VALUES ('default', 'tests.mail', 'failed', 1, ?) RETURNING id", [lock],
        )
        return int(id)

    def test_a_taken_queueing_lock_rejects_one_row_only(self, at: At) -> None:
        queue, ann = at("procrastinate")
        taken, free = self.fail(queue, "one"), self.fail(queue)
        queue.run("INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock) VALUES ('d', 't', 'one')", [])
        outcomes = ann.outcomes(ann.requeue(taken, free))
        assert outcomes["applied", ""] == 1
        ((kind, detail),) = [key for key in outcomes if key[0] != "applied"]
        assert (kind, "queueing_lock" in detail) == ("rejected", True)
        assert queue.run("SELECT status::text, attempts FROM procrastinate_jobs WHERE id IN (?, ?) ORDER BY id", [taken, free]) == [
            ("failed", 1), ("todo", 2)
        ]

    def test_a_real_worker_runs_a_requeued_job(self, at: At) -> None:
        queue, ann = at("procrastinate")
        ran: list[str] = []

        async def work(fails: bool) -> None:
            app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=queue.url))

            @app.task(name="mail")  # type: ignore[untyped-decorator,unused-ignore]
            def mail(to: str) -> None:
                ran.append(to)
                if fails:
                    raise RuntimeError("smtp is down")

            async with app.open_async():
                if fails:
                    await mail.defer_async(to="ann")
                await app.run_worker_async(wait=False, install_signal_handlers=False, listen_notify=False)

        asyncio.run(work(fails=True))
        ((id,),) = queue.run("SELECT id FROM procrastinate_jobs WHERE status = 'failed'", [])
        assert ann.plan(id).warnings == {"The requeue itself counts as one attempt.": 1}
        assert ann.outcomes(ann.requeue(id)) == {("applied", ""): 1}
        asyncio.run(work(fails=False))
        assert ran == ["ann", "ann"]
        assert queue.run("SELECT status::text FROM procrastinate_jobs", []) == [("succeeded",)]
        assert [a.outcome for a in ann.backend.item(ann.key(id), NOW).attempts][-1] == "succeeded"


class TestQue:
    def job(self, queue: Queue, errors: int, **more: Any) -> int:
        names = "".join(f", {name}" for name in more)
        return queue.one(  # type: ignore[no-any-return]
            f"INSERT INTO que_jobs (job_class, error_count, job_schema_version{names})"
            f" VALUES ('Mail', ?, 2{', ?' * len(more)}) RETURNING id", errors, *more.values(),
        )[0]

    def test_kept_attempts_allow_one_more_try(self, at: At) -> None:
        queue, ann = at("que")
        id = self.job(queue, 16, expired_at=NOW)
        plan = ann.plan(id)
        assert plan.warnings == {f"{LAST_TRY} A job's class can set fewer attempts than 16; the table does not show that.": 1}
        ann.apply(plan)
        assert queue.one("SELECT error_count, expired_at FROM que_jobs") == (16, None)
        assert ann.plan(id, operation=RESET).skipped == {"Its system never resets attempts.": 1}

    def test_an_advisory_lock_means_running(self, at: At) -> None:
        queue, ann = at("que")
        id, idle = self.job(queue, 2), self.job(queue, 15, expired_at=NOW)
        plan = ann.plan(idle)
        with psycopg.connect(queue.url) as worker:
            worker.execute("SELECT pg_advisory_lock(%s), pg_advisory_lock(%s)", [id, idle])
            assert ann.plan(id).skipped == {"Running, within its time limit.": 1}
            assert ann.outcomes(ann.apply(plan)) == {("changed", "a worker holds its lock"): 1}
        assert queue.one("SELECT expired_at FROM que_jobs WHERE id = ?", idle) == (NOW,)


class TestDelayedJob:
    def job(self, queue: Queue, **values: Any) -> int:
        given = {"handler": "--- !ruby/object:Mail\n", "attempts": 25, "failed_at": NAIVE, **values}
        names, marks = ", ".join(given), ", ".join(["?"] * len(given))
        return queue.one(f"INSERT INTO delayed_jobs ({names}) VALUES ({marks}) RETURNING id", *given.values())[0]  # type: ignore[no-any-return]

    @pytest.mark.parametrize(
        ("operation", "warning", "attempts"),
        [(Operation(), LAST_TRY, 25), (RESET, "Attempts start again: the whole schedule again.", 0)],
    )
    def test_warnings_for_kept_and_reset_attempts(self, at: At, operation: Operation, warning: str, attempts: int) -> None:
        queue, ann = at("delayed_job")
        plan = ann.plan(self.job(queue), operation=operation)
        assert plan.warnings == {f"{warning} A job's class can set fewer attempts than 25; the table does not show that.": 1}
        ann.apply(plan)
        assert queue.one("SELECT attempts, failed_at FROM delayed_jobs") == (attempts, None)

    def test_the_lock_of_the_last_try_is_removed_and_restored_by_undo(self, at: At) -> None:
        queue, ann = at("delayed_job")
        id = self.job(queue, run_at=NAIVE, locked_at=naive(ann.backend.now()), locked_by="host:web pid:7")
        before = queue.one("SELECT * FROM delayed_jobs")
        override = ann.requeue(id)
        assert queue.one(
            "SELECT failed_at, locked_at, locked_by, run_at <= now() AT TIME ZONE 'UTC' FROM delayed_jobs"
        ) == (None, None, None, True)
        ann.apply(ann.operations.undo(override.override_id))
        assert queue.one("SELECT * FROM delayed_jobs") == before

    def test_a_locked_job_that_has_not_failed_is_running(self, at: At) -> None:
        queue, ann = at("delayed_job")
        now = ann.backend.now()
        working = self.job(queue, failed_at=None, locked_at=naive(now), locked_by="host:web pid:7")
        given_up = self.job(queue, locked_at=naive(now), locked_by="host:web pid:7")
        assert ann.plan(working).skipped == {"Running, within its time limit.": 1}
        plan = ann.plan(given_up)
        queue.run("UPDATE delayed_jobs SET locked_by = 'host:web pid:8' WHERE id = ?", [given_up])
        assert ann.outcomes(ann.apply(plan)) == {
            ("changed", "locked_by is now host:web pid:8, was host:web pid:7"): 1
        }

    def test_the_type_is_read_from_the_handler_and_a_locked_job_is_running(self, at: At) -> None:
        queue, ann = at("delayed_job")
        wrapped = "--- !ruby/object:ActiveJob::QueueAdapters::DelayedJobAdapter::JobWrapper\njob_data:\n  job_class: Invoice\n"
        now = ann.backend.now()
        first = self.job(queue)
        second = self.job(queue, handler=wrapped, failed_at=None, locked_at=naive(now))
        items = ann.backend.items([ann.key(first), ann.key(second)], now)
        assert [(item.type, item.condition.value) for item in items.values()] == [("Mail", "terminal"), ("Invoice", "running")]

    @pytest.mark.parametrize(("let_go_at", "result"), [
        (20, {("applied", ""): 2}), (None, {("applied", ""): 1, ("changed", LOCKED.detail): 1}),
    ])
    def test_a_row_that_a_worker_locks_is_tried_many_times(
        self, at: At, monkeypatch: pytest.MonkeyPatch, let_go_at: int | None, result: Mapping[tuple[str, str], int]
    ) -> None:
        queue, ann = at("delayed_job_mysql")
        locked, free = self.job(queue), self.job(queue)
        plan = ann.plan(locked, free)
        waits: list[float] = []
        with connection(queue.url) as worker, worker.cursor() as cursor:
            worker.begin()
            cursor.execute("SELECT 1 FROM delayed_jobs WHERE id = %s FOR UPDATE", [locked])

            def wait(seconds: float) -> None:
                waits.append(seconds)
                if len(waits) == let_go_at:
                    worker.rollback()

            monkeypatch.setattr(mysql_guard, "time", SimpleNamespace(sleep=wait))
            assert ann.outcomes(ann.apply(plan)) == result
            worker.rollback()
        assert sum(waits) < 3


class TestPgBoss:
    JOB = "00000000-0000-4000-8000-000000000009"

    def test_retry_limit_keeps_its_headroom(self, at: At) -> None:
        queue, ann = at("pg_boss")
        queue.insert(
            "pgboss.job", id=self.JOB, name="a/b mail", state="failed", retry_limit=2, retry_count=2, started_on=NOW,
            completed_on=NOW, output=as_json({"message": "no route", "stack": "…"}),
        )
        key = ann.key(("a/b mail", self.JOB))
        item = ann.backend.items([key], NOW)[key]
        assert (item.attempts, item.max_attempts, item.error) == (3, 3, "no route")
        plan = ann.plan(("a/b mail", self.JOB))
        assert plan.warnings == {"Max attempts is raised by one: one more try, then terminal again.": 1}
        ann.apply(plan)
        assert queue.one("SELECT state::text, retry_limit, retry_count, completed_on FROM pgboss.job") == ("retry", 3, 2, None)


class TestGraphile:
    def job(self, queue: Queue, **values: Any) -> int:
        queue.run("INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('mail') ON CONFLICT DO NOTHING", [])
        given = {"task_id": 1, "attempts": 25, "last_error": "no", **values}
        names, marks = ", ".join(given), ", ".join(["?"] * len(given))
        return queue.one(  # type: ignore[no-any-return]
            f"INSERT INTO graphile_worker._private_jobs ({names}) VALUES ({marks}) RETURNING id", *given.values()
        )[0]

    def test_its_own_function_starts_the_counter_again(self, at: At) -> None:
        queue, ann = at("graphile_worker")
        id = self.job(queue)
        assert ann.plan(id).skipped == {"Its own retry always resets attempts.": 1}
        assert ann.outcomes(ann.requeue(id, operation=RESET)) == {("applied", ""): 1}
        assert queue.one("SELECT attempts, is_available, last_error FROM graphile_worker._private_jobs") == (0, True, "no")

    def test_a_job_that_its_function_would_ignore_is_reported(self, at: At) -> None:
        queue, ann = at("graphile_worker")
        plan = ann.plan(self.job(queue), operation=RESET)
        queue.run("UPDATE graphile_worker._private_jobs SET locked_at = now()", [])
        ((kind, detail),) = ann.outcomes(ann.apply(plan))
        assert (kind, detail.startswith("locked_at is now ")) == ("changed", True)

    def test_an_unexpected_result_of_a_function_is_rolled_back(self, at: At) -> None:
        queue, ann = at("graphile_worker")
        id = self.job(queue)
        plan = ann.plan(id, operation=RESET)
        queue.run(
            "CREATE OR REPLACE FUNCTION graphile_worker.reschedule_jobs(job_ids bigint[], run_at timestamptz DEFAULT NULL,"
            " priority integer DEFAULT NULL, attempts integer DEFAULT NULL, max_attempts integer DEFAULT NULL)"
            " RETURNS SETOF graphile_worker._private_jobs LANGUAGE sql AS $$ UPDATE graphile_worker._private_jobs"
            " SET attempts = 7 WHERE id = ANY (job_ids) RETURNING * $$", [],
        )
        ((kind, detail),) = ann.outcomes(ann.apply(plan))
        assert (kind, detail.startswith("the result differs from the plan: attempts is now 7")) == ("rejected", True)
        assert queue.one("SELECT attempts FROM graphile_worker._private_jobs") == (25,)
