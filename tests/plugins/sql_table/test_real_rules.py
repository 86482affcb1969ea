"""What each queue really does, found by running it: verdicts and plans must not promise anything else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

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

    def test_a_job_without_attempts_left_is_not_promised(self, at: At) -> None:
        queue, ann = at("oban")
        spent, fresh = (inserted(queue, "oban_jobs", state="available", worker="W", attempt=n) for n in (20, 19))
        assert item_of(ann, spent).verdict.will_run_again is None
        assert item_of(ann, spent).verdict.why.startswith("No attempts are left. Oban does not take it")
        assert item_of(ann, fresh).verdict.will_run_again is True

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

    def waiting(self, queue: Queue, **values: Any) -> Any:
        given = {"state": "created", "completed_on": None, "started_on": None, "retry_count": 0}
        return self.job(queue, **given, **values)

    def test_nobody_can_tell_when_a_blocked_job_runs(self, at: At) -> None:
        """Blocked is a column of its own. Versions before 12 do not have it."""
        queue, ann = at("pg_boss")
        blocked, free = self.waiting(queue, blocked=True), self.waiting(queue)
        item = item_of(ann, "mail", blocked)
        assert (item.condition.value, item.verdict.will_run_again) == ("waiting", None)
        assert item.verdict.why == "Blocked: it runs only after the jobs that it depends on."
        assert item_of(ann, "mail", free).verdict.will_run_again is True
        queue.run("ALTER TABLE pgboss.job DROP COLUMN blocked", [])
        assert item_of(ann, "mail", blocked).verdict.will_run_again is True

    def test_a_failed_job_holds_those_with_its_key_where_the_order_is_strict(self, at: At) -> None:
        queue, ann = at("pg_boss")
        strict = {"policy": "key_strict_fifo"}
        first = self.job(queue, singleton_key="a", **strict)
        same, other = (self.waiting(queue, singleton_key=key, **strict) for key in "ab")
        usual = self.waiting(queue, singleton_key="a")
        why = "A job with the same key has failed or is not done. It does not run before that one is."
        assert item_of(ann, "mail", same).verdict[1:4] == (why, None, None)
        assert [item_of(ann, "mail", id).verdict.will_run_again for id in (other, usual)] == [True, True]
        assert why not in " ".join(ann.plan(("mail", first)).warnings)

    @pytest.mark.parametrize(("kept_for", "runs"), [("-1 second", None), ("30 minutes", None), ("2 hours", True)])
    def test_a_job_that_is_deleted_before_it_is_due_is_not_promised(self, at: At, kept_for: str, runs: bool | None) -> None:
        queue, ann = at("pg_boss")
        id = self.job(queue, state="retry", completed_on=None)
        queue.run(
            "UPDATE pgboss.job SET start_after = now() + CASE WHEN ? THEN interval '0' ELSE interval '1 hour' END,"
            f" keep_until = now() + interval '{kept_for}'", [kept_for.startswith("-")],
        )
        assert item_of(ann, "mail", id).verdict.will_run_again is runs

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

    def test_nobody_can_tell_when_a_job_with_flags_runs(self, at: At) -> None:
        """`forbiddenFlags` of a worker, which can be a function, says which of them it skips now."""
        queue, ann = at("graphile_worker")
        flagged, none = (self.job(queue, attempts=1, flags=flags) for flags in (as_json({"bulk": True}), as_json({})))
        assert item_of(ann, flagged).verdict.why == "It has flags: a worker does not take it while it forbids one of them."
        assert [item_of(ann, id).verdict.will_run_again for id in (flagged, none)] == [None, True]

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


    def test_a_job_that_no_running_worker_takes_is_not_promised(self, at: At) -> None:
        """Workers of Que 2 leave the jobs of Que 1 alone. They name their version and their queues in a table."""
        queue, ann = at("que")
        old, new, other = (self.job(queue, 3) for _ in range(3))
        queue.run("UPDATE que_jobs SET job_schema_version = 1 WHERE id = ?", [old])
        queue.run("UPDATE que_jobs SET queue = 'other' WHERE id = ?", [other])

        def runs() -> list[bool | None]:
            return [item_of(ann, id).verdict.will_run_again for id in (old, new, other)]

        assert runs() == [True, True, True], "without a worker, nobody knows which will be started"
        queue.insert(
            "que_lockers", pid=7, worker_count=1, worker_priorities=[1], ruby_pid=7, ruby_hostname="h", queues=["default"],
            listening=True, job_schema_version=2,
        )
        assert runs() == [None, True, None]
        assert item_of(ann, old).verdict.why == "None of the running workers takes jobs of its queue and schema version."
        for table in ("que_lockers", "que_jobs"):  # as in the first releases
            queue.run(f"ALTER TABLE {table} DROP COLUMN job_schema_version", [])
        assert runs() == [True, True, None]


class TestGoodJob:
    @pytest.mark.parametrize("paused", [{"queues": ["mail"]}, {"job_classes": ["M"]}, {"labels": ["x", "slow"]}], ids=str)
    def test_nobody_can_tell_when_a_paused_job_runs(self, at: At, paused: Any) -> None:
        queue, ann = at("good_job")
        common = {"created_at": NAIVE, "updated_at": NAIVE, "scheduled_at": NAIVE}
        here = inserted(queue, "good_jobs", job_class="M", queue_name="mail", labels=["slow"], **common)
        bare = inserted(queue, "good_jobs", job_class="N", **common)
        assert [item_of(ann, id).verdict.will_run_again for id in (here, bare)] == [True, True]
        queue.insert("good_job_settings", key="pauses", value=as_json(paused), created_at=NAIVE, updated_at=NAIVE)
        assert item_of(ann, here).verdict[1:4] == ("Paused: it runs once its queue, class or label is unpaused.", None, None)
        assert item_of(ann, bare).verdict.will_run_again is True
        queue.run("UPDATE good_jobs SET finished_at = ?, error = 'no'", [NAIVE])
        (warning,) = ann.plan(here).warnings
        assert warning.endswith("Paused: it runs once its queue, class or label is unpaused.")

    def test_a_row_lock_means_running(self, at: At) -> None:
        queue, ann = at("good_job")
        owner = "00000000-0000-4000-8000-00000000000f"
        queue.run("INSERT INTO good_job_processes (id, created_at, updated_at)"
                  " VALUES (?, timezone('UTC', now()), timezone('UTC', now()))", [owner])
        common = {"performed_at": NAIVE, "created_at": NAIVE, "updated_at": NAIVE, "executions_count": 1, "locked_by_id": owner,
                  "locked_at": NAIVE, "job_class": "M"}
        by_row, by_advisory = (inserted(queue, "good_jobs", lock_type=kind, **common) for kind in (1, 0))
        assert item_of(ann, by_row).condition.value == "running"
        assert item_of(ann, by_advisory).condition.value == "retrying"

    def test_a_row_lock_of_a_dead_process_means_stuck(self, at: At) -> None:
        """No worker takes such a job before another process has found the dead one and released its jobs."""
        queue, ann = at("good_job")
        ids = []
        for ago in ("1 minute", "6 minutes", None):
            owner = uuid4()
            if ago is not None:
                queue.insert("good_job_processes", id=owner, created_at=NAIVE, updated_at=NAIVE)
                queue.run(f"UPDATE good_job_processes SET updated_at = timezone('UTC', now()) - interval '{ago}' WHERE id = ?", [owner])
            ids.append(inserted(
                queue, "good_jobs", job_class="M", lock_type=1, locked_by_id=owner, locked_at=NAIVE, performed_at=NAIVE,
                created_at=NAIVE, updated_at=NAIVE, executions_count=1,
            ))
        items = [item_of(ann, id) for id in ids]
        assert [item.condition.value for item in items] == ["running", "stuck", "stuck"]
        assert items[1].verdict[1:4] == ("Its process is dead: no heartbeat for 5 min.", None, None)

    def test_a_job_without_a_time_is_not_promised(self, at: At) -> None:
        queue, ann = at("good_job")
        id = inserted(queue, "good_jobs", job_class="M", created_at=NAIVE, updated_at=NAIVE)
        why = "It has no scheduled_at: GoodJob 4.8.2 and later do not take it."
        assert item_of(ann, id).verdict[1:4] == (why, None, None)
        queue.run("UPDATE good_jobs SET finished_at = ?, error = 'no'", [NAIVE])
        assert why not in " ".join(ann.plan(id).warnings), "a requeue sets the time"


STUCK: dict[str, tuple[str, str, str, bool | None]] = {
    "river": ("river_job", "kind, args, state, attempt, max_attempts, attempted_at",
              "'k', '{}', 'running', 3, 25, now() - interval '2 hours'", None),
    "oban": ("oban_jobs", "worker, state, attempt, attempted_at",
             "'W', 'executing', 3, timezone('UTC', now()) - interval '2 hours'", None),
    "graphile_worker": ("graphile_worker._private_jobs", "task_id, attempts, locked_at", "1, 3, now() - interval '5 hours'", True),
    "delayed_job": ("delayed_jobs", "handler, attempts, locked_at", "'', 3, timezone('UTC', now()) - interval '5 hours'", True),
    "pgqueuer": ("pgqueuer", "priority, entrypoint, status, heartbeat", "0, 'mail', 'picked', now() - interval '2 hours'", True),
    "procrastinate": ("procrastinate_jobs", "queue_name, task_name, status", "'q', 't', 'doing'", False),
}


@pytest.mark.parametrize("preset", STUCK)
def test_whether_a_stuck_job_runs_again_by_itself(at: At, preset: str) -> None:
    """delayed_job, Graphile Worker and PgQueuer take it again. River's rescuer leaves jobs without a timeout alone, and
    Oban's Lifeline has to be configured."""
    (table, names, values, runs), (queue, ann) = STUCK[preset], at(preset)
    item = item_of(ann, queue.one(f"INSERT INTO {table} ({names}) VALUES ({values}) RETURNING id")[0])
    assert (item.condition.value, item.verdict.will_run_again) == ("stuck", runs)


class TestRiver:
    def test_nobody_can_tell_when_a_job_of_a_paused_queue_runs(self, at: At) -> None:
        queue, ann = at("river")
        here, there = (traps.river_job(queue, "retryable", 3) for _ in range(2))
        queue.run("UPDATE river_job SET queue = 'mail' WHERE id = ?", [here])
        for name, paused_at in (("mail", NOW), ("default", None)):
            queue.insert("river_queue", name=name, paused_at=paused_at, updated_at=NOW)
        assert item_of(ann, here).verdict[1:4] == ("Its queue is paused: it runs once that is resumed.", None, None)
        assert item_of(ann, there).verdict.will_run_again is True
        queue.run("UPDATE river_job SET state = 'discarded', finalized_at = now()", [])
        (warning,) = ann.plan(here).warnings
        assert warning.endswith("Its queue is paused: it runs once that is resumed.")


class TestSolidQueue:
    job = traps.TestSolidQueue.job

    @pytest.mark.parametrize("preset", ["solid_queue", "solid_queue_sqlite", "solid_queue_mysql"])
    def test_nobody_can_tell_when_a_job_of_a_paused_queue_runs(self, at: At, preset: str) -> None:
        queue, ann = at(preset)
        failed, ready, other = (self.job(queue) for _ in range(3))
        for id in (ready, other):
            queue.run("DELETE FROM solid_queue_failed_executions WHERE job_id = ?", [id])
            solid_execution(queue, id, "ready", Sample("", None, 0), NAIVE)
        queue.run("UPDATE solid_queue_jobs SET queue_name = 'other' WHERE id = ?", [other])
        assert item_of(ann, ready).verdict.will_run_again is True
        queue.insert("solid_queue_pauses", queue_name="mail", created_at=NAIVE)
        assert item_of(ann, ready).verdict[1:4] == ("Its queue is paused: it runs once that is resumed.", None, None)
        assert item_of(ann, other).verdict.will_run_again is True
        (warning,) = ann.plan(failed, operation=RESET).warnings
        assert warning.endswith("Its queue is paused: it runs once that is resumed.")

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

    @pytest.mark.parametrize("preset", ["solid_queue", "solid_queue_sqlite", "solid_queue_mysql"])
    def test_a_scheduled_job_whose_concurrency_limit_is_reached_is_not_promised(self, at: At, preset: str) -> None:
        queue, ann = at(preset)
        busy, free, none = (self.job(queue) for _ in range(3))
        queue.run("DELETE FROM solid_queue_failed_executions", [])
        for id, key, value in ((busy, "a", 0), (free, "b", 1), (none, None, None)):
            solid_execution(queue, id, "scheduled", Sample("", None, 0), NAIVE)
            queue.run("UPDATE solid_queue_jobs SET concurrency_key = ? WHERE id = ?", [key, id])
            if key is not None:
                queue.insert("solid_queue_semaphores", key=key, value=value, expires_at=NAIVE, created_at=NAIVE, updated_at=NAIVE)
        assert [item_of(ann, id).verdict.will_run_again for id in (busy, free, none)] == [None, True, True]
        assert item_of(ann, busy).verdict.why == (
            "The concurrency limit of its key is reached. If it still is when the job is due, the job is blocked or discarded."
        )

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


    def test_a_job_behind_a_later_one_with_its_lock_is_not_promised(self, at: At) -> None:
        """Of the jobs with one lock the first by priority and id has to run first, even if it is due much later."""
        queue, ann = at("procrastinate")

        def todo(priority: int, due: str | None, lock: str | None = "one") -> Any:
            id = self.job(queue, None, status="todo", lock=lock, priority=priority)
            if due:
                queue.run(f"UPDATE procrastinate_jobs SET scheduled_at = now() + interval '{due}' WHERE id = ?", [id])
            return id

        first, behind, ahead, later = todo(0, "1 hour"), todo(0, None), todo(5, "1 minute"), todo(0, "2 hours")
        free = todo(0, None, lock=None)
        why = "A job with the same lock goes first, and that one is due later."
        assert item_of(ann, behind).verdict[1:4] == (why, None, None)
        assert [item_of(ann, id).verdict.will_run_again for id in (first, ahead, later, free)] == [True] * 4
        failed = self.job(queue, None, status="failed", lock="one")
        assert any(why in warning for warning in ann.plan(failed).warnings)


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
