"""RQ itself decides: what it reports of its jobs, and what its workers run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from rq import Queue, Retry, SimpleWorker
from rq.job import Job, JobStatus
from rq.registry import (
    CanceledJobRegistry,
    DeferredJobRegistry,
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
)

from console.core.backend import Action, Authority, Change, Count, Draft, Operation, Outcome, OutcomeKind, PageRequest
from console.core.item import Condition, Item, ItemKey
from console.core.ports import Never
from console.core.query import NATURAL, Filter
from console.core.recovery import Result, result_of
from plugins.rq import RqQueues
from tests.patience import PATIENCE
from tests.plugins.redis import rq_app
from tests.plugins.redis.rq_store import open_rq

ROOT = Path(__file__).parents[3]
ALL = Filter.parse("condition:*")
REGISTRIES = {
    FailedJobRegistry: {Condition.TERMINAL},
    ScheduledJobRegistry: {Condition.RETRYING, Condition.WAITING},
    StartedJobRegistry: {Condition.RUNNING, Condition.STUCK},
    DeferredJobRegistry: {Condition.WAITING},
    FinishedJobRegistry: {Condition.DONE},
    CanceledJobRegistry: {Condition.CANCELLED},
}


@pytest.fixture
def client(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    monkeypatch.setenv("TEST_REDIS", url)
    found = redis.Redis.from_url(url)
    yield found
    found.close()


@pytest.fixture
def backend(url: str) -> Iterator[RqQueues]:
    opened = open_rq(url)
    yield opened
    opened.close()


def items(backend: RqQueues, filter: Filter = ALL) -> dict[str, Item]:
    page = backend.page(PageRequest(filter, backend.now(), limit=100_000))
    assert page.next is None
    return {item.key.parts[0]: item for item in page.items}


def drafts(backend: RqQueues, ids: list[str] | None = None, action: str = Action.REQUEUE) -> list[Draft]:
    wanted = Filter() if ids is None else [ItemKey("jobs", (id,)) for id in ids]
    found = backend.drafts(wanted, NATURAL, Operation(action), backend.now(), Never())
    return [draft for batch in found for draft in batch]


def change(backend: RqQueues, ids: list[str] | None = None, action: str = Action.REQUEUE) -> tuple[list[Change], list[Outcome]]:
    """Plan and write; returns the planned changes and their outcomes."""
    at, operation, changes = backend.now(), Operation(action), []
    for draft in drafts(backend, ids, action):
        if draft.skipped is None:
            planned = Change("", (ItemKey.parse(draft.key),), draft.before or (), ())
            changes.append(planned._replace(after=backend.after(planned, operation, at, at)))
    return changes, list(backend.compare_and_set(changes, operation, Authority("ann", "why", None, "o1", at)))


def burst(client: redis.Redis, *queues: str) -> None:
    """RQ's own worker, in this process, until the queues are empty."""
    SimpleWorker([Queue(name, connection=client) for name in queues or ("default",)], connection=client).work(burst=True, logging_level="ERROR")


@contextmanager
def workers(url: str, number: int = 1) -> Iterator[None]:
    """RQ's own workers as processes of their own."""
    environment = {**os.environ, "TEST_REDIS": url, "PYTHONPATH": str(ROOT), "RQ_REDIS_URL": url}
    command = [sys.executable, "-m", "rq.cli", "worker", "default", "--with-scheduler", "--quiet", "-w", "rq.worker.SimpleWorker"]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(PATIENCE)


def executions(client: redis.Redis) -> Counter[str]:
    return Counter(line.decode().partition(" ")[0] for line in client.lrange(rq_app.EXECUTIONS, 0, -1))


def until(happened: object, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.05)


# --- reading -----------------------------------------------------------------------------------------------


def all_states(client: redis.Redis, number: int) -> None:
    """Jobs in every state that RQ has, made by RQ."""
    queue, other = Queue(connection=client), Queue("mail", connection=client)
    client.set("test:broken", 1)
    for n in range(number):
        queue.enqueue(rq_app.work, f"failed-{n}", job_id=f"failed-{n}", failure_ttl=3600 if n % 2 else None)
        queue.enqueue(rq_app.work, f"retrying-{n}", job_id=f"retrying-{n}", retry=Retry(max=3, interval=[600, 1200, 2400]))
    burst(client)
    client.delete("test:broken")
    for n in range(number):
        queue.enqueue(rq_app.work, f"done-{n}", job_id=f"done-{n}", result_ttl=3600)
        other.enqueue(rq_app.work, f"mail-{n}", job_id=f"mail-{n}", result_ttl=-1)
    burst(client, "default", "mail")
    for n in range(number):
        waiting = queue.enqueue(rq_app.work, f"waiting-{n}", job_id=f"waiting-{n}")
        queue.enqueue(rq_app.work, f"deferred-{n}", job_id=f"deferred-{n}", depends_on=waiting)
        other.enqueue_in(timedelta(hours=1), rq_app.work, f"scheduled-{n}", job_id=f"scheduled-{n}")
        other.enqueue(rq_app.work, f"cancelled-{n}", job_id=f"cancelled-{n}").cancel()
    worker = SimpleWorker([queue], connection=client, name="w")
    for n in range(number // 2):
        job = queue.enqueue(rq_app.work, f"running-{n}", job_id=f"running-{n}")
        queue.remove(job)
        worker.prepare_execution(job) if hasattr(worker, "prepare_execution") else worker.prepare_job_execution(job)
        worker.execution = None


def test_every_job_reads_as_rq_reports_it(client: redis.Redis, backend: RqQueues) -> None:
    all_states(client, 40)
    shown = items(backend)
    reported: dict[str, tuple[Job, set[Condition], datetime | None]] = {}
    for name in ("default", "mail"):
        queue = Queue(name, connection=client)
        for kind, conditions in REGISTRIES.items():
            registry = kind(queue=queue)
            for id in registry.get_job_ids(cleanup=False):
                score = client.zscore(registry.key, id)
                timed = kind in (FailedJobRegistry, FinishedJobRegistry) and score is not None and 0 < score < 1e11
                reported[id] = Job.fetch(id, client), conditions, datetime.fromtimestamp(score, UTC) if timed else None
        for id in queue.get_job_ids():
            reported[id] = Job.fetch(id, client), {Condition.WAITING, Condition.RETRYING}, None
    assert shown.keys() == reported.keys()
    assert len(reported) == 40 * 8 + 20
    disagreements = []
    for id, (job, conditions, expires) in reported.items():
        item = shown[id]
        latest = job.latest_result()
        error = latest.exc_string if latest is not None and latest.type.name == "FAILED" else None
        said = (item.native_status, item.error, item.created_at, item.expires_at, item.type, item.condition in conditions)
        expected = (job.get_status().value, error, job.created_at, expires, "tests.plugins.redis.rq_app.work", True)
        if said != expected:
            disagreements.append((id, said, expected))
    assert not disagreements, disagreements[:2]
    by_condition = Counter(item.condition for item in shown.values())
    assert by_condition == {
        Condition.TERMINAL: 40, Condition.RETRYING: 40, Condition.DONE: 80, Condition.WAITING: 120,
        Condition.CANCELLED: 40, Condition.RUNNING: 20,
    }
    counts = backend.counts(ALL, backend.now())
    assert {c: n.value for c, n in counts.items() if n.value} == by_condition
    retrying = shown["retrying-0"]
    due = ScheduledJobRegistry(queue=Queue(connection=client)).get_scheduled_time("retrying-0")
    assert retrying.verdict.next_retry_at == due
    assert retrying.max_attempts == retrying.attempts + 2, "two of three retries are left"


def test_the_details_have_every_result_that_rq_has_kept(client: redis.Redis, backend: RqQueues) -> None:
    client.set("test:broken", 1)
    job = Queue(connection=client).enqueue(rq_app.work, "a", job_id="a")
    burst(client)
    job.requeue()
    burst(client)
    detail = backend.item(ItemKey("jobs", ("a",)), backend.now())
    assert detail.item.attempts == 2
    assert [attempt.outcome for attempt in detail.attempts] == ["failed", "failed"]
    assert all("upstream said 503 for a" in (attempt.error or "") for attempt in detail.attempts)
    assert detail.error == job.latest_result().exc_string
    assert "data" not in dict(detail.native), "the payload is pickled, and never read"


# --- requeue, undo, discard --------------------------------------------------------------------------------


def test_requeued_jobs_run_exactly_once(client: redis.Redis, url: str, backend: RqQueues) -> None:
    queue = Queue(connection=client)
    client.set("test:broken", 1)
    ids = [queue.enqueue(rq_app.work, f"j{n}", job_id=f"j{n}").id for n in range(60)]
    burst(client)
    client.delete("test:broken", rq_app.EXECUTIONS)
    at = backend.now()
    with workers(url, 2):
        _, outcomes = change(backend)
        assert Counter(outcome.kind for outcome in outcomes) == {OutcomeKind.APPLIED: 60}
        until(lambda: len(executions(client)) == 60, "not all of them ran")
        until(lambda: len(FinishedJobRegistry(queue=queue)) == 60, "not all of them finished")
    assert set(executions(client).values()) == {1}
    assert Counter(result_of(item, at) for item in items(backend).values()) == {Result.RECOVERED: 60}
    assert not FailedJobRegistry(queue=queue).get_job_ids()
    assert {Job.fetch(id, client).get_status() for id in ids} == {JobStatus.FINISHED}


def test_a_job_that_fails_again_is_seen(client: redis.Redis, backend: RqQueues) -> None:
    client.set("test:broken", 1)
    Queue(connection=client).enqueue(rq_app.work, "a", job_id="a")
    burst(client)
    at = backend.now()
    change(backend)
    assert result_of(items(backend)["a"], at) is Result.NOT_RUN_YET
    burst(client)
    assert result_of(items(backend)["a"], at) is Result.FAILED_AGAIN


def test_a_scheduled_retry_is_pulled_forward(client: redis.Redis, backend: RqQueues) -> None:
    queue = Queue(connection=client)
    client.set("test:broken", 1)
    queue.enqueue(rq_app.work, "a", job_id="a", retry=Retry(max=3, interval=3600))
    burst(client)
    assert items(backend)["a"].condition is Condition.RETRYING
    client.delete("test:broken")
    assert [outcome.kind for outcome in change(backend)[1]] == [OutcomeKind.APPLIED]
    assert not ScheduledJobRegistry(queue=queue).get_job_ids()
    burst(client)
    assert (executions(client)["a"], items(backend)["a"].condition) == (2, Condition.DONE)


def test_an_undo_restores_the_job_for_rq(client: redis.Redis, backend: RqQueues) -> None:
    queue = Queue(connection=client)
    client.set("test:broken", 1)
    queue.enqueue(rq_app.work, "a", job_id="a", failure_ttl=7200)
    burst(client)
    before, expires = client.hgetall("rq:job:a"), client.zscore("rq:failed:default", "a")
    changes, _ = change(backend)
    assert client.ttl("rq:job:a") == -1, "a job in the queue must not expire"
    undo = [one._replace(before=one.after, after=one.before) for one in changes]
    operation, who = Operation(Action.UNDO), Authority("ann", "why", None, "o2", backend.now())
    assert [one.kind for one in backend.compare_and_set(undo, operation, who)] == [OutcomeKind.APPLIED]
    assert (client.hgetall("rq:job:a"), client.zscore("rq:failed:default", "a")) == (before, expires)
    assert 0 < client.ttl("rq:job:a") <= 7200
    burst(client)
    assert executions(client)["a"] == 1, "it does not run again"
    client.delete("test:broken")
    Job.fetch("a", client).requeue()
    burst(client)
    assert executions(client)["a"] == 2, "RQ itself can still requeue it"


def test_an_undo_comes_too_late_once_a_worker_has_it(client: redis.Redis, backend: RqQueues) -> None:
    client.set("test:broken", 1)
    Queue(connection=client).enqueue(rq_app.work, "a", job_id="a")
    burst(client)
    changes, _ = change(backend)
    client.delete("test:broken")
    burst(client)
    undo = [one._replace(before=one.after, after=one.before) for one in changes]
    who = Authority("ann", "why", None, "o2", backend.now())
    assert [one.kind for one in backend.compare_and_set(undo, Operation(Action.UNDO), who)] == [OutcomeKind.CHANGED_SINCE]
    assert items(backend)["a"].condition is Condition.DONE


def test_a_discard_is_what_rq_calls_cancel(client: redis.Redis, backend: RqQueues) -> None:
    queue = Queue(connection=client)
    client.set("test:broken", 1)
    for name, retry in (("a", None), ("b", Retry(max=2, interval=600))):
        queue.enqueue(rq_app.work, name, job_id=name, retry=retry)
    burst(client)
    changes, outcomes = change(backend, action=Action.DISCARD)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.APPLIED] * 2
    assert {Job.fetch(id, client).get_status() for id in "ab"} == {JobStatus.CANCELED}
    assert sorted(CanceledJobRegistry(queue=queue).get_job_ids()) == ["a", "b"]
    assert not FailedJobRegistry(queue=queue).get_job_ids()
    assert not ScheduledJobRegistry(queue=queue).get_job_ids()
    undo = [one._replace(before=one.after, after=one.before) for one in changes]
    who = Authority("ann", "why", None, "o2", backend.now())
    assert {one.kind for one in backend.compare_and_set(undo, Operation(Action.UNDO), who)} == {OutcomeKind.APPLIED}
    assert FailedJobRegistry(queue=queue).get_job_ids() == ["a"]
    assert ScheduledJobRegistry(queue=queue).get_job_ids() == ["b"]


# --- what is said ------------------------------------------------------------------------------------------


def test_a_plan_says_that_nobody_would_take_the_jobs(client: redis.Redis, url: str, backend: RqQueues) -> None:
    client.set("test:broken", 1)
    queue = Queue(connection=client)
    queue.enqueue(rq_app.work, "a", job_id="a")
    queue.enqueue(rq_app.work, "b", job_id="b", retry=Retry(max=3, interval=3600))
    burst(client)
    warned = {draft.key: draft.warning.text for draft in drafts(backend) if draft.warning is not None}
    assert warned["jobs/a"] == "No worker listens to queue 'default' now; it runs once one does."
    alone = items(backend)["b"].verdict
    assert (alone.will_run_again, "no RQ scheduler is running" in alone.why) == (None, True)
    queue.enqueue(rq_app.work, "c", job_id="c")
    assert items(backend)["c"].verdict[1:4] == ("No worker listens to queue 'default' now; it runs once one does.", None, None)
    client.set("rq:suspended", 1)
    time.sleep(1.1)
    suspended = "RQ is suspended: its workers take no job until somebody runs `rq resume`."
    assert [draft.warning.text for draft in drafts(backend) if draft.warning is not None] == [suspended] * 2
    assert [items(backend)[id].verdict[1:4] for id in "bc"] == [(suspended, None, None)] * 2
    client.delete("rq:suspended")
    with workers(url):
        until(lambda: client.exists("rq:scheduler-lock:default") and client.scard("rq:workers:default"), "no worker")
        time.sleep(1.1)  # the state of the queues is remembered for a second
        assert items(backend)["b"].verdict.will_run_again is True
        (draft,) = drafts(backend, ["a"])
        assert draft.warning is not None
        assert draft.warning.text == "Attempts are kept: one more try, then terminal."


def test_a_failed_job_says_when_rq_deletes_it(client: redis.Redis, backend: RqQueues) -> None:
    client.set("test:broken", 1)
    queue = Queue(connection=client)
    queue.enqueue(rq_app.work, "soon", job_id="soon", failure_ttl=3600)
    queue.enqueue(rq_app.work, "late", job_id="late")
    queue.enqueue(rq_app.work, "never", job_id="never", failure_ttl=-1)
    burst(client)
    assert list(items(backend, Filter.parse("expires<6h"))) == ["soon"]
    assert items(backend)["never"].expires_at is None
    counted = [backend.expiring(backend.now(), timedelta(**within)) for within in ({"minutes": 50}, {"hours": 6}, {"days": 400})]
    assert counted == [Count(0), Count(1), Count(2)]


def test_an_abandoned_job_is_stuck_and_left_to_rq(client: redis.Redis, backend: RqQueues) -> None:
    all_states(client, 2)
    for member in client.zrange("rq:wip:default", 0, -1):
        client.zadd("rq:wip:default", {member: time.time() - 60})
    (stuck,) = items(backend, Filter.parse("condition:stuck")).values()
    assert "should have reported" in stuck.verdict.why
    (draft,) = drafts(backend, [stuck.key.parts[0]])
    assert draft.skipped is not None
    assert "RQ itself" in draft.skipped.text
    StartedJobRegistry(queue=Queue(connection=client)).cleanup()
    assert items(backend)[stuck.key.parts[0]].condition is Condition.TERMINAL
