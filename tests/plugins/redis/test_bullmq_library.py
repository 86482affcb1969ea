"""BullMQ itself decides: what it reports of its jobs, and what its workers run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
import redis

from console.core.backend import Action, Attempts, Authority, Change, Operation, Outcome, OutcomeKind, PageRequest
from console.core.item import Condition, Item, ItemKey
from console.core.ports import Never
from console.core.query import NATURAL, Filter
from console.core.recovery import Result, result_of
from plugins.bullmq import BullMq
from plugins.bullmq.jobs import DELAY_UNIT
from tests.depth import in_depth
from tests.patience import PATIENCE
from tests.plugins.redis.bullmq_store import open_bullmq
from tests.plugins.redis.node import Bull
from tests.promises import Record

STATES = {
    Condition.TERMINAL: {"failed"}, Condition.RETRYING: {"delayed", "waiting", "prioritized"}, Condition.DONE: {"completed"},
    Condition.WAITING: {"delayed", "waiting", "prioritized", "waiting-children"}, Condition.RUNNING: {"active"},
}


@pytest.fixture
def bull(url: str) -> Bull:
    return Bull(url)


@pytest.fixture
def client(url: str) -> Iterator[redis.Redis]:
    found = redis.Redis.from_url(url)
    yield found
    found.close()


@pytest.fixture
def backend(url: str, bull: Bull) -> Iterator[BullMq]:
    opened = open_bullmq(url)
    yield opened
    opened.close()


def items(backend: BullMq, text: str = "condition:*") -> dict[str, Item]:
    page = backend.page(PageRequest(Filter.parse(text), backend.now(), limit=100_000))
    return {item.key.parts[1]: item for item in page.items}


def change(
    backend: BullMq, action: str = Action.REQUEUE, attempts: Attempts = Attempts.KEEP, ids: Sequence[str] = ()
) -> tuple[list[Change], list[Outcome]]:
    at, operation, changes = backend.now(), Operation(action, attempts), []
    wanted = [ItemKey("jobs", ("mail", id)) for id in ids] or Filter()
    for batch in backend.drafts(wanted, NATURAL, operation, at, Never()):
        for draft in batch:
            if draft.skipped is None:
                planned = Change("", (ItemKey.parse(draft.key),), draft.before or (), ())
                changes.append(planned._replace(after=backend.after(planned, operation, at, at)))
    return changes, list(backend.compare_and_set(changes, operation, Authority("ann", "why", None, "o1", at)))


def kinds(outcomes: list[Outcome]) -> Counter[OutcomeKind]:
    return Counter(outcome.kind for outcome in outcomes)


def executions(client: redis.Redis) -> Counter[str]:
    return Counter(line.decode().partition(" ")[0] for line in client.lrange("test:executions", 0, -1))


def test_every_job_reads_as_bullmq_reports_it(bull: Bull, client: redis.Redis, backend: BullMq) -> None:
    client.set("test:broken", 1)
    bull.add("failed", 60)
    bull.add("retrying", 60, attempts=4, backoff={"type": "exponential", "delay": 600_000})
    bull.add("hopeless", 30, attempts=3, removeOnFail={"age": 3600})
    bull.run("work")
    client.delete("test:broken")
    bull.add("done", 60)
    bull.run("work")
    bull.add("later", 60, delay=3_600_000)
    bull.add("urgent", 60, priority=2)
    bull.add("waiting", 60)
    shown, reported = items(backend), bull.run("report")
    assert shown.keys() == reported.keys()
    assert len(reported) == 390
    disagreements = []
    for id, job in reported.items():
        item = shown[id]
        said = (
            item.type, item.attempts, item.max_attempts, item.error, int((item.created_at or item.read_at).timestamp() * 1000),
            item.executed_at and int(item.executed_at.timestamp() * 1000), job["state"] in STATES[item.condition],
        )
        expected = (job["name"], job["attemptsMade"], max(job["attempts"], 1), job["failedReason"], job["timestamp"], job["processedOn"], True)
        if said != expected:
            disagreements.append((id, said, expected))
    assert not disagreements, disagreements[:2]
    assert Counter(item.condition for item in shown.values()) == {
        Condition.TERMINAL: 90, Condition.RETRYING: 60, Condition.DONE: 60, Condition.WAITING: 180,
    }
    for id, job in reported.items():
        if id.startswith("retrying"):
            due = shown[id].verdict.next_retry_at
            assert due is not None
            assert abs(due.timestamp() * 1000 - (job["processedOn"] + 600_000)) < 60_000
    soon = items(backend, "expires<2h")
    assert {id.partition("-")[0] for id in soon} == {"hopeless"}
    detail = backend.item(ItemKey("jobs", ("mail", "failed-0")), backend.now())
    assert "at Worker.work" in (detail.error or ""), "the stack trace"
    assert "secret" not in str(detail.native)


def test_requeued_jobs_run_exactly_once(bull: Bull, client: redis.Redis, backend: BullMq) -> None:
    client.set("test:broken", 1)
    bull.add("job", 80)
    bull.add("urgent", 20, priority=3)
    bull.run("work")
    client.delete("test:broken", "test:executions")
    at = backend.now()
    with bull.workers(2):
        _, outcomes = change(backend)
        assert kinds(outcomes) == {OutcomeKind.APPLIED: 100}
        end = time.monotonic() + PATIENCE
        while client.zcard("bull:mail:completed") < 100:
            assert time.monotonic() < end, "not all of them ran"
            time.sleep(0.05)
    assert Counter(executions(client).values()) == {1: 100}
    assert Counter(result_of(item, at) for item in items(backend).values()) == {Result.RECOVERED: 100}


@pytest.mark.parametrize("number", in_depth([8, 660], quick=[8]))
def test_what_is_predicted_to_run_is_run_by_bullmq_and_nothing_else(
    bull: Bull, client: redis.Redis, backend: BullMq, number: int, promises: Record
) -> None:
    client.set("test:broken", 1)
    bull.add("failed", number)
    bull.add("retrying", number, attempts=4, backoff={"type": "fixed", "delay": 600_000})
    bull.run("work")
    client.delete("test:broken")
    bull.add("done", number)
    bull.run("work")
    bull.add("later", number, delay=3_600_000)
    bull.add("urgent", number, priority=2)
    bull.add("waiting", number)
    chosen = {f"{name}-{n}" for name in ("failed", "retrying") for n in range(0, number, 2)}
    assert kinds(change(backend, ids=sorted(chosen))[1]) == {OutcomeKind.APPLIED: len(chosen)}
    predicted = {id: item.verdict.will_run_again for id, item in items(backend).items()}
    model = {id for id, job in bull.run("report").items() if job["state"] in ("waiting", "prioritized", "delayed")}
    client.delete("test:executions")
    for id, score in client.zrange("bull:mail:delayed", 0, -1, withscores=True):
        client.zadd("bull:mail:delayed", {id: score - DELAY_UNIT * 86_400_000})  # a day later
    bull.run("work")
    ran = executions(client)
    promises("BullMQ, by its own worker", predicted, ran.keys())
    assert set(ran) == model
    assert set(ran.values()) == {1}
    assert chosen <= model
    assert len(predicted) == 6 * number


def test_attempts_are_kept_or_reset(bull: Bull, client: redis.Redis, backend: BullMq) -> None:
    client.set("test:broken", 1)
    bull.add("job", 2, attempts=2)
    bull.run("work")
    assert {item.attempts for item in items(backend).values()} == {2}
    change(backend)
    bull.run("work")
    assert Counter(executions(client).values()) == {3: 2}, "one more try"
    assert {item.attempts for item in items(backend).values()} == {3}
    change(backend, attempts=Attempts.RESET)
    bull.run("work")
    assert Counter(executions(client).values()) == {5: 2}, "two more"


def test_a_delayed_retry_is_pulled_forward_and_undone(bull: Bull, client: redis.Redis, backend: BullMq) -> None:
    client.set("test:broken", 1)
    bull.add("job", 3, attempts=2, backoff={"type": "fixed", "delay": 600_000})
    bull.run("work")
    before = {id: item._replace(read_at=item.created_at) for id, item in items(backend).items()}
    changes, outcomes = change(backend)
    assert kinds(outcomes) == {OutcomeKind.APPLIED: 3}
    undo = [one._replace(before=one.after, after=one.before) for one in changes]
    who = Authority("ann", "why", None, "o2", backend.now())
    assert kinds(list(backend.compare_and_set(undo, Operation(Action.UNDO), who))) == {OutcomeKind.APPLIED: 3}
    after = {id: item._replace(read_at=item.created_at) for id, item in items(backend).items()}
    assert [after[id]._replace(verdict=before[id].verdict) for id in before] == list(before.values())
    client.delete("test:broken")
    change(backend)
    bull.run("work")
    assert {job["state"] for job in bull.run("report").values()} == {"completed"}
    assert Counter(executions(client).values()) == {2: 3}


def test_an_undo_restores_the_job_for_bullmq(bull: Bull, client: redis.Redis, backend: BullMq) -> None:
    client.set("test:broken", 1)
    bull.add("job", 5)
    bull.run("work")
    before = bull.run("report")
    changes, _ = change(backend, attempts=Attempts.RESET)
    assert {job["state"] for job in bull.run("report").values()} == {"waiting"}
    undo = [one._replace(before=one.after, after=one.before) for one in changes]
    who = Authority("ann", "why", None, "o2", backend.now())
    assert kinds(list(backend.compare_and_set(undo, Operation(Action.UNDO), who))) == {OutcomeKind.APPLIED: 5}
    assert bull.run("report") == before
    bull.run("work")
    assert Counter(executions(client).values()) == {1: 5}, "none of them ran again"


def test_a_paused_queue_is_honoured(bull: Bull, client: redis.Redis, backend: BullMq) -> None:
    client.set("test:broken", 1)
    bull.add("job", 1)
    bull.run("work")
    client.delete("test:broken")
    bull.run("pause")
    (draft,) = next(iter(backend.drafts([ItemKey("jobs", ("mail", "job-0"))], NATURAL, Operation(), backend.now(), Never())))
    assert draft.warning is not None
    assert draft.warning.text == "Queue 'mail' is paused; it runs once it is resumed."
    change(backend)
    assert items(backend)["job-0"].verdict.will_run_again is None
    bull.run("resume")
    bull.run("work")
    assert executions(client)["job-0"] == 2


def test_a_discard_removes_the_job(bull: Bull, client: redis.Redis, backend: BullMq) -> None:
    client.set("test:broken", 1)
    bull.add("job", 4)
    bull.run("work")
    _, outcomes = change(backend, Action.DISCARD)
    assert kinds(outcomes) == {OutcomeKind.APPLIED: 4}
    assert bull.run("report") == {}
    assert not list(client.scan_iter("*job-*"))
