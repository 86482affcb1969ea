"""What each queue really does, found by running it: verdicts and plans must not promise anything else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from console.core.backend import Attempts, Operation
from console.core.confirm import Confirmation
from console.core.item import Item
from console.core.pace import parse_pace
from console.core.plan import Marked
from console.testing import Sample
from tests.plugins.postgres_analyses.operating import ANN, HERE, Operator
from tests.plugins.sql_table import test_traps as traps
from tests.plugins.sql_table.conftest import At
from tests.plugins.sql_table.systems import solid_execution
from tests.plugins.sql_table.test_traps import LAST_TRY, NAIVE, RESET
from tests.plugins.sql_table.world import NOW, Queue, as_json

ONE_MORE = "Max attempts is raised by one: one more try, then terminal again."


def inserted(queue: Queue, table: str, **values: Any) -> Any:
    names, marks = ", ".join(values), ", ".join(["?"] * len(values))
    return queue.one(f"INSERT INTO {table} ({names}) VALUES ({marks}) RETURNING id", *values.values())[0]


def item_of(ann: Operator, *parts: Any) -> Item:
    key = ann.key(tuple(parts))
    return ann.backend.items([key], ann.backend.now())[key]


class TestOban:
    def test_a_paced_job_is_scheduled_and_only_a_due_one_is_available(self, at: At) -> None:
        queue, ann = at("oban")
        ids = [inserted(queue, "oban_jobs", state="discarded", worker="W", attempt=20, discarded_at=NAIVE) for _ in range(4)]
        ann.requeue(ids[0])
        keys = tuple(ann.key(id) for id in ids[1:])
        plan = ann.operations.propose(Marked(keys), Operation(), parse_pace("over 2h"))
        ann.operations.carry_out(plan, Confirmation(ANN, HERE, "disk is back", plan.changes))
        states = queue.run("SELECT state::text, scheduled_at > timezone('UTC', now()) FROM oban_jobs ORDER BY scheduled_at", [])
        assert states[0] == ("available", False)
        assert set(states[1:]) == {("scheduled", True)}

    def test_a_requeue_clears_the_unique_states_and_undo_restores_them(self, at: At) -> None:
        queue, ann = at("oban")
        id = inserted(queue, "oban_jobs", state="discarded", worker="W", attempt=20, discarded_at=NAIVE,
                      meta=as_json({"uniq_bmp": [1, 2], "x": 1}))
        plain = inserted(queue, "oban_jobs", state="discarded", worker="W", attempt=20, discarded_at=NAIVE, meta=None)
        override = ann.requeue(id, plain)
        assert queue.run("SELECT meta FROM oban_jobs ORDER BY id", []) == [({"uniq_bmp": [], "x": 1},), ({"uniq_bmp": []},)]
        ann.apply(ann.operations.undo(override.override_id))
        assert queue.one("SELECT meta FROM oban_jobs WHERE id = ?", id) == ({"uniq_bmp": [1, 2], "x": 1},)

    def test_nobody_can_tell_when_a_suspended_job_runs(self, at: At) -> None:
        queue, ann = at("oban")
        item = item_of(ann, inserted(queue, "oban_jobs", state="suspended", worker="W"))
        assert (item.condition.value, item.verdict.will_run_again) == ("waiting", None)
        assert item.verdict.why == "Suspended: it runs only after something else releases it."

    def test_the_errors_of_the_python_port_are_read(self, at: At) -> None:
        queue, ann = at("oban")
        queue.run("ALTER TABLE oban_jobs ALTER errors DROP DEFAULT, ALTER errors TYPE jsonb USING array_to_json(errors)::jsonb", [])
        errors = [{"at": "2026-11-10T11:00:00Z", "attempt": n, "error": f"no {n}"} for n in (1, 2)]
        id = inserted(queue, "oban_jobs", state="retryable", worker="W", attempt=2, errors=as_json(errors))
        detail = ann.backend.item(ann.key(id), NOW)
        assert detail.item.error == "no 2"
        assert [(a.number, a.error) for a in detail.attempts] == [(1, "no 1"), (2, "no 2")]


class TestPgBoss:
    def job(self, queue: Queue, **values: Any) -> Any:
        given = {"name": "mail", "state": "failed", "retry_limit": 2, "retry_count": 2, "started_on": NOW, "completed_on": NOW}
        return inserted(queue, "pgboss.job", **{**given, **values})

    def test_a_requeued_job_is_kept_for_another_14_days(self, at: At) -> None:
        queue, ann = at("pg_boss")
        old, kept = self.job(queue, keep_until=NOW), self.job(queue, keep_until=NOW + timedelta(days=900))
        override = ann.requeue(("mail", old), ("mail", kept))
        left = "SELECT keep_until - start_after >= interval '14 days', keep_until FROM pgboss.job WHERE id = ?"
        assert queue.one(left, old)[0] is True
        assert queue.one(left, kept) == (True, NOW + timedelta(days=900))
        ann.apply(ann.operations.undo(override.override_id))
        assert queue.one("SELECT keep_until FROM pgboss.job WHERE id = ?", old) == (NOW,)

    def test_a_job_given_up_with_tries_left_gets_all_of_them(self, at: At) -> None:
        queue, ann = at("pg_boss")
        early = self.job(queue, retry_limit=5, retry_count=0)
        assert ann.plan(("mail", early)).warnings == {"Was given up with attempts left: it gets all of them, not one more try.": 1}

    def test_a_job_with_a_copy_in_the_dead_letter_queue_is_warned_of(self, at: At) -> None:
        queue, ann = at("pg_boss")
        copied = self.job(queue, dead_letter="dead")
        why = "pg-boss has put a copy of it into its dead-letter queue: both may run."
        assert ann.plan(("mail", copied)).warnings == {f"{ONE_MORE} {why}": 1}

    def test_nobody_can_tell_when_a_blocked_job_runs(self, at: At) -> None:
        queue, ann = at("pg_boss")
        item = item_of(ann, "mail", self.job(queue, state="blocked", completed_on=None, started_on=None, retry_count=0))
        assert (item.condition.value, item.verdict.will_run_again) == ("waiting", None)

    @pytest.mark.parametrize(("state", "output", "error"), [
        ("failed", {"message": "no route", "stack": "…"}, "no route"),
        ("failed", {"value": "just a string"}, "just a string"),
        ("failed", {"value": {"message": "job failed by timeout in active state"}}, "job failed by timeout in active state"),
        ("completed", {"message": "sent", "value": 7}, None),
    ])
    def test_the_error_is_the_message_and_a_result_is_none(self, at: At, state: str, output: Any, error: str | None) -> None:
        queue, ann = at("pg_boss")
        assert item_of(ann, "mail", self.job(queue, state=state, output=as_json(output))).error == error


class TestGraphileWorker:
    job = traps.TestGraphile.job

    def in_queue(self, queue: Queue, ago: str, **values: Any) -> int:
        line = inserted(queue, "graphile_worker._private_job_queues", queue_name="one", locked_by="w")
        queue.run(f"UPDATE graphile_worker._private_job_queues SET locked_at = now() - interval '{ago}'", [])
        return self.job(queue, job_queue_id=line, **values)

    @pytest.mark.parametrize(("ago", "why"), [
        ("5 hours", "Its queue is locked by a dead worker. It will not run until a running worker releases that lock."),
        ("5 minutes", "Its queue is locked. It will not run until its worker ends, or for 4 h if that worker is dead."),
    ])
    def test_a_job_of_a_locked_queue_is_not_promised(self, at: At, ago: str, why: str) -> None:
        queue, ann = at("graphile_worker")
        id = self.in_queue(queue, ago, attempts=1)
        item = item_of(ann, id)
        assert (item.condition.value, item.verdict.will_run_again, item.verdict.why) == ("retrying", None, why)
        queue.run("UPDATE graphile_worker._private_jobs SET attempts = 25", [])
        assert ann.plan(id, operation=RESET).warnings == {f"Attempts start again: the whole schedule again. {why}": 1}

    def test_when_a_job_was_updated_is_unknown_and_its_last_attempt_is_known(self, at: At) -> None:
        queue, ann = at("graphile_worker")
        item = item_of(ann, self.job(queue, attempts=2, run_at=NOW + timedelta(seconds=7.389056)))
        assert item.updated_at is None
        assert item.executed_at is not None
        assert abs(item.executed_at - NOW) < timedelta(milliseconds=1)


class TestQue:
    job = traps.TestQue.job

    def test_sixteen_executions_are_allowed_and_a_done_job_has_one(self, at: At) -> None:
        queue, ann = at("que")
        done, retried = self.job(queue, 0, finished_at=NOW), self.job(queue, 3, run_at=NOW + timedelta(days=3000))
        item = item_of(ann, done)
        assert (item.attempts, item.max_attempts) == (1, 16)
        assert item_of(ann, retried).updated_at is None


class TestGoodJob:
    def test_a_row_lock_means_running(self, at: At) -> None:
        queue, ann = at("good_job")
        owner = "00000000-0000-4000-8000-00000000000f"
        common = {"performed_at": NAIVE, "created_at": NAIVE, "updated_at": NAIVE, "executions_count": 1, "locked_by_id": owner,
                  "locked_at": NAIVE, "job_class": "M"}
        by_row, by_advisory = (inserted(queue, "good_jobs", lock_type=kind, **common) for kind in (1, 0))
        assert item_of(ann, by_row).condition.value == "running"
        assert item_of(ann, by_advisory).condition.value == "retrying"


class TestSolidQueue:
    job = traps.TestSolidQueue.job

    def test_a_claimed_job_of_a_dead_process_is_stuck(self, at: At) -> None:
        queue, ann = at("solid_queue")
        ids = []
        for ago in ("1 minute", "10 minutes", None):
            id = self.job(queue)
            queue.run("DELETE FROM solid_queue_failed_executions", [])
            process = None if ago is None else inserted(
                queue, "solid_queue_processes", kind="Worker", last_heartbeat_at=NAIVE, pid=7, name=f"w{id}", created_at=NAIVE)
            if ago is not None:
                queue.run(f"UPDATE solid_queue_processes SET last_heartbeat_at = timezone('UTC', now()) - interval '{ago}'"
                          " WHERE id = ?", [process])
            queue.insert("solid_queue_claimed_executions", job_id=id, process_id=process, created_at=NAIVE)
            ids.append(id)
        items = [item_of(ann, id) for id in ids]
        assert [item.condition.value for item in items] == ["running", "stuck", "stuck"]
        assert items[1].verdict.why == "Its process is dead: no heartbeat for 5 min."

    def test_nobody_can_tell_when_a_blocked_job_runs(self, at: At) -> None:
        queue, ann = at("solid_queue")
        id = self.job(queue)
        queue.run("DELETE FROM solid_queue_failed_executions", [])
        solid_execution(queue, id, "blocked", Sample("", None, 0), NAIVE)
        assert item_of(ann, id).verdict.will_run_again is None


class TestProcrastinate:
    def job(self, queue: Queue, ago: str | None, **values: Any) -> Any:
        worker = None
        if ago is not None:
            ((worker,),) = queue.run("INSERT INTO procrastinate_workers DEFAULT VALUES RETURNING id", [])
            queue.run(f"UPDATE procrastinate_workers SET last_heartbeat = now() - interval '{ago}' WHERE id = ?", [worker])
        given = {"queue_name": "default", "task_name": "mail", "status": "doing", "worker_id": worker, **values}
        return inserted(queue, "procrastinate_jobs", **given)

    def test_a_job_of_a_dead_worker_is_stuck_at_once_and_can_be_requeued(self, at: At) -> None:
        queue, ann = at("procrastinate")
        alive, dead = self.job(queue, "1 second"), self.job(queue, "1 minute")
        assert (item_of(ann, alive).condition.value, item_of(ann, alive).attempts) == ("running", 1)
        item = item_of(ann, dead)
        assert (item.condition.value, item.verdict.why) == ("stuck", "Its worker is dead: no heartbeat for 30 s.")
        assert ann.outcomes(ann.requeue(dead, alive)) == {("applied", ""): 1}
        assert queue.one("SELECT status::text FROM procrastinate_jobs WHERE id = ?", dead) == ("todo",)

    def test_a_lock_of_a_dead_job_holds_the_others(self, at: At) -> None:
        queue, ann = at("procrastinate")
        self.job(queue, "1 minute", lock="one")
        waiting = self.job(queue, None, status="todo", lock="one")
        assert item_of(ann, waiting).verdict.will_run_again is None


class TestDelayedJob:
    @pytest.mark.parametrize(("handler", "type"), [
        ("--- !ruby/object:Delayed::PerformableMethod\nobject: !ruby/object:User\n  raw_attributes:\n    id: 7\n"
         "method_name: :send_mail\nargs: []\n", "User#send_mail"),
        ("--- !ruby/object:Delayed::PerformableMailer\nobject: !ruby/class 'UserMailer'\nmethod_name: :welcome\nargs: []\n",
         "UserMailer#welcome"),
    ])
    def test_a_delayed_call_is_named_by_its_object_and_method(self, at: At, handler: str, type: str) -> None:
        queue, ann = at("delayed_job")
        assert item_of(ann, inserted(queue, "delayed_jobs", handler=handler, attempts=1)).type == type

    @pytest.mark.parametrize("attempts", [Attempts.KEEP, Attempts.RESET])
    def test_a_plan_warns_that_a_class_may_allow_fewer_attempts(self, at: At, attempts: Attempts) -> None:
        queue, ann = at("delayed_job")
        id = inserted(queue, "delayed_jobs", handler="--- !ruby/object:Mail\n", attempts=25, failed_at=NAIVE)
        effect = LAST_TRY if attempts is Attempts.KEEP else "Attempts start again: the whole schedule again."
        fewer = "A job's class can set fewer attempts than 25; the table does not show that."
        assert ann.plan(id, operation=Operation(attempts=attempts)).warnings == {f"{effect} {fewer}": 1}
