"""What Sidekiq's source says: its JSON stays as it is, its own retry is followed, and it would have lost jobs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import pytest
import redis

from console.core.backend import GONE, Action, Attempts, Authority, Change, Count, Operation, OutcomeKind, PageRequest
from console.core.item import Condition, ItemKey
from console.core.ports import Never
from console.core.query import NATURAL, Filter
from plugins.sidekiq import SidekiqQueues
from plugins.sidekiq.payload import Payload, spans
from tests.plugins.redis.sidekiq_store import open_sidekiq

BIG = '"args":[18446744073709551617,{},[],1.10,"\\u00fc \\/ \\"}"]'
DEAD = (
    '{"retry":25,"queue":"mail","backtrace":true,' + BIG + ',"class":"Wrapper","wrapped":"MailJob","jid":"%s",'
    '"created_at":1762771200000,"enqueued_at":1762771200001,"error_message":"connection refused","error_class":'
    '"Net::Timeout","failed_at":1762771201000,"retry_count":25,"retried_at":1762771300000}'
)


@pytest.fixture
def client(url: str) -> redis.Redis:
    found = redis.Redis.from_url(url, protocol=2)
    found.sadd("queues", "mail")
    return found


def change(
    backend: SidekiqQueues, action: str = Action.REQUEUE, attempts: Attempts = Attempts.KEEP
) -> tuple[list[Change], list[OutcomeKind]]:
    at, operation, changes = backend.now(), Operation(action, attempts), []
    for batch in backend.drafts(Filter(), NATURAL, operation, at, Never()):
        for draft in batch:
            if draft.skipped is None:
                planned = Change("", (ItemKey.parse(draft.key),), draft.before or (), ())
                changes.append(planned._replace(after=backend.after(planned, operation, at, at)))
    outcomes = backend.compare_and_set(changes, operation, Authority("ann", "why", None, "o1", at))
    return changes, [outcome.kind for outcome in outcomes]


def test_only_the_changed_values_of_a_job_are_written(client: redis.Redis, url: str) -> None:
    client.zadd("dead", {DEAD % "a": time.time()})
    backend = open_sidekiq(url)
    _, kinds = change(backend)
    assert kinds == [OutcomeKind.APPLIED]
    assert client.zcard("dead") == 0
    (pushed,) = client.lrange("queue:mail", 0, -1)
    enqueued = json.loads(pushed)["enqueued_at"]
    assert pushed.decode() == (DEAD % "a").replace('"retry_count":25', '"retry_count":24').replace(
        '"enqueued_at":1762771200001', f'"enqueued_at":{enqueued}'
    )
    assert abs(enqueued / 1000 - time.time()) < 60
    assert client.smembers("queues") == {b"mail"}


def test_a_reset_starts_the_whole_schedule_again(client: redis.Redis, url: str) -> None:
    client.zadd("dead", {DEAD % "a": time.time()})
    change(open_sidekiq(url), attempts=Attempts.RESET)
    (pushed,) = client.lrange("queue:mail", 0, -1)
    assert json.loads(pushed)["retry_count"] is None, "Sidekiq counts from the beginning where it finds no count"


def test_an_undo_restores_every_byte(client: redis.Redis, url: str) -> None:
    died, due = 1762771300.25, time.time() + 3600.5
    client.zadd("dead", {DEAD % "a": died})
    client.zadd("retry", {(DEAD % "b").replace(',"enqueued_at":1762771200001', ""): due})
    before = [client.zrange(key, 0, -1, withscores=True) for key in ("dead", "retry")]
    backend = open_sidekiq(url)
    changes, kinds = change(backend)
    assert kinds == [OutcomeKind.APPLIED] * 2
    assert client.llen("queue:mail") == 2
    undo = [one._replace(before=one.after, after=one.before) for one in changes]
    outcomes = backend.compare_and_set(undo, Operation(Action.UNDO), Authority("ann", "why", None, "o2", backend.now()))
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.APPLIED}
    assert [client.zrange(key, 0, -1, withscores=True) for key in ("dead", "retry")] == before
    assert client.llen("queue:mail") == 0


def test_jobs_with_one_score_are_not_confused(client: redis.Redis, url: str) -> None:
    """Sidekiq's own retry removes every job with the score and adds the others again."""
    client.zadd("dead", {DEAD % name: 1762771300.0 for name in "abcde"})
    backend = open_sidekiq(url)
    operation, at = Operation(), backend.now()
    (draft,) = next(iter(backend.drafts([ItemKey("jobs", ("c",))], NATURAL, operation, at, Never())))
    planned = Change("", (ItemKey.parse(draft.key),), draft.before or (), ())
    planned = planned._replace(after=backend.after(planned, operation, at, at))
    (outcome,) = backend.compare_and_set([planned], operation, Authority("ann", "why", None, "o1", at))
    assert outcome.kind is OutcomeKind.APPLIED
    assert sorted(json.loads(name)["jid"] for name in client.zrange("dead", 0, -1)) == ["a", "b", "d", "e"]


def test_a_discard_kills_a_retry_and_deletes_a_dead_job(client: redis.Redis, url: str) -> None:
    client.zadd("dead", {DEAD % "a": time.time()})
    client.zadd("retry", {DEAD % "b": time.time() + 60})
    changes, kinds = change(open_sidekiq(url), Action.DISCARD)
    assert kinds == [OutcomeKind.APPLIED] * 2
    assert {one.keys[0].id: one.after == GONE for one in changes} == {"a": True, "b": False}
    assert [json.loads(name)["jid"] for name in client.zrange("dead", 0, -1)] == ["b"]
    assert client.zcard("retry") == 0


def test_what_a_person_needs_is_read(client: redis.Redis, url: str) -> None:
    died = datetime(2026, 11, 1, tzinfo=UTC)
    client.zadd("dead", {DEAD % "a": died.timestamp(), "not json": died.timestamp() + 1})
    client.sadd("processes", "host:1:x", "host:2:gone")
    client.hset("host:1:x", "info", json.dumps({"queues": ["mail"]}))
    work = {"queue": "mail", "payload": json.dumps({"jid": "r", "class": "MailJob"}), "run_at": int(time.time())}
    client.hset("host:1:x:work", "t1", json.dumps(work))
    client.hset("host:2:gone:work", "t1", json.dumps({**work, "payload": json.dumps({"jid": "s"})}))
    backend = open_sidekiq(url)
    page = backend.page(PageRequest(Filter.parse("condition:*"), backend.now(), limit=10))
    found = {item.key.id: item for item in page.items}
    a = found["a"]
    assert (a.type, a.attempts, a.max_attempts, a.error) == ("MailJob", 26, 26, "Net::Timeout: connection refused")
    assert (a.condition, a.verdict.why) == (Condition.TERMINAL, "26 of 26 attempts used")
    assert a.expires_at == died + timedelta(days=180)
    shortly_before = died + timedelta(days=179, hours=12)
    assert [backend.expiring(shortly_before, timedelta(hours=within)) for within in (11, 13)] == [Count(0), Count(2)]
    assert a.executed_at == datetime.fromtimestamp(1762771300, UTC)
    assert {key: item.condition.value for key, item in found.items() if key in "rs"} == {"r": "running", "s": "stuck"}
    (odd,) = [item for key, item in found.items() if key.startswith("unreadable-")]
    assert odd.notes == ("its data is not a Sidekiq job",)
    assert backend.item(odd.key, backend.now()).native == (("data", "not json"),)


def test_a_dead_set_that_is_nearly_full_is_reported(client: redis.Redis, url: str) -> None:
    from plugins.sidekiq.backend import Options
    from tests.plugins.redis.rq_store import OWN

    client.zadd("dead", {DEAD % n: n for n in range(95)})
    backend = SidekiqQueues.open("jobs", Options(url=url, dead_max=100), OWN, read_only=True, deadline=timedelta(seconds=9))
    (finding,) = [one for one in backend.check(_Clock(backend)) if one.subject == "dead set"]
    assert finding.message.startswith("95 of 100 jobs")


class _Clock:
    def __init__(self, backend: SidekiqQueues) -> None:
        self.now = backend.now

    def sleep(self, seconds: float) -> None:
        """Nobody waits here."""


@pytest.mark.parametrize("text", [
    "{}", '{ "a" : 1 , "b":{"retry_count":7}}', '{"a":[],"retry_count": 7 ,"z":"}"}', '{"retry_count":null}',
    '{"args":[{"retry_count":7}],"retry_count":1}', '{"retry_count":1,"args":["retry_count"],"at":2.50}',
    '{"a":{"retry_count":7},"retry\\u005fcount":1}', '{"a":"\\"retry_count\\":5","retry_count":1e3 }', '{"retry_count":1,"retry_count":2}',
])
def test_json_is_edited_in_place(text: str) -> None:
    payload = Payload(text.encode())
    assert [text[s.value : s.end] for s in spans(text).values()] == [payload.written(name) for name in spans(text)]
    for value in ("3", '"x"'):
        changed = Payload(payload.edited({"retry_count": value}))
        assert changed.fields == {**json.loads(text), "retry_count": json.loads(value)}
        if "retry_count" not in text.partition("retry_count")[2]:
            assert changed.edited({"retry_count": payload.written("retry_count")}) == text.encode()


def test_neighbours_are_edited_and_taken_away_together() -> None:
    payload = Payload(b'{"jid":"a", "retry_count":1 ,"enqueued_at":2.5,"x":0}')
    assert payload.edited({"retry_count": None, "enqueued_at": None}) == b'{"jid":"a" ,"x":0}'
    assert payload.edited({"enqueued_at": "3", "retry_count": "0"}) == b'{"jid":"a", "retry_count":0 ,"enqueued_at":3,"x":0}'
    assert Payload(b'{"retry_count":1,"enqueued_at":2}').edited({"retry_count": None, "enqueued_at": None}) == b"{}"
