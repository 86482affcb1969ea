"""Sidekiq itself decides: what it reports of its jobs, and what its processor runs."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from console.core import recovery
from console.core.backend import Action, Authority, Operation, OutcomeKind, PageRequest
from console.core.item import Condition, ItemKey
from console.core.query import Filter
from console.core.recovery import Result, result_of
from plugins.sidekiq import SidekiqQueues
from tests.depth import in_depth
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.redis.sidekiq_store import open_sidekiq
from tests.plugins.redis.test_sidekiq import change
from tests.real_systems.libraries import ruby

APP = Path(__file__).with_name("sidekiq_app.rb")
STATES = {
    "dead": {Condition.TERMINAL}, "retry": {Condition.RETRYING}, "scheduled": {Condition.WAITING},
    "queued": {Condition.WAITING, Condition.RETRYING},
}


class Sidekiq:
    """Debian's Sidekiq on one database."""

    def __init__(self, url: str) -> None:
        path, _, db = url.removeprefix("unix://").partition("?db=")
        self._place = [path, db]

    def _command(self, *arguments: object) -> list[str]:
        command, *rest = map(str, arguments)
        return [*ruby("ruby-sidekiq"), str(APP), command, *self._place, *rest]

    def run(self, *arguments: object) -> Any:
        done = subprocess.run(self._command(*arguments), capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def add(self, prefix: str, number: int, **options: object) -> None:
        self.run("add", prefix, number, json.dumps(options))

    @contextmanager
    def serving(self, number: int = 1) -> Iterator[None]:
        """Its own processors, as processes of their own."""
        started = [
            subprocess.Popen(self._command("serve"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(number)
        ]
        try:
            for process in started:
                assert process.stdout is not None
                assert process.stdout.readline().strip() == "true"
            yield
        finally:
            for process in started:
                process.communicate(timeout=PATIENCE)


@pytest.fixture
def sidekiq(url: str) -> Sidekiq:
    return Sidekiq(url)


@pytest.fixture
def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, protocol=2)


def until(happened: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def fail(sidekiq: Sidekiq, client: redis.Redis, number: int) -> None:
    """Jobs that have died, and jobs that wait for a retry."""
    client.set("test:broken", 1)
    sidekiq.add("dead", number, retry=0)
    sidekiq.add("retrying", number, retry=5)
    with sidekiq.serving():
        until(lambda: (client.zcard("dead"), client.zcard("retry")) == (number, number), "not all of them failed")
    client.delete("test:broken", "test:executions")


def items(backend: SidekiqQueues) -> dict[str, Any]:
    page = backend.page(PageRequest(Filter.parse("condition:*"), backend.now(), limit=10_000))
    return {item.key.id: item for item in page.items}


def executions(client: redis.Redis) -> Counter[str]:
    return Counter(line.decode().partition(" ")[0] for line in client.lrange("test:executions", 0, -1))


def test_every_job_reads_as_sidekiq_reports_it(sidekiq: Sidekiq, client: redis.Redis, url: str) -> None:
    fail(sidekiq, client, 80)
    sidekiq.add("later", 60, at=time.time() + 3600)
    sidekiq.add("waiting", 60)
    reported, backend = sidekiq.run("report"), open_sidekiq(url)
    shown = items(backend)
    assert shown.keys() == reported.keys()
    assert len(reported) == 280
    disagreements = []
    for id, job in reported.items():
        item = shown[id]
        count = job["retry_count"]
        due = item.verdict.next_retry_at if job["state"] in ("retry", "scheduled") else None
        said = (item.type, item.error, item.condition in STATES[job["state"]], item.attempts, due and due.timestamp())
        made = 0 if job["error"] is None else 1 if count is None else count + 1
        expected = (job["type"], job["error"], True, made, job["at"] if due else None)
        if said[:4] != expected[:4] or abs((said[4] or 0) - (expected[4] or 0)) > 0.001:
            disagreements.append((id, said, expected))
    assert not disagreements, disagreements[:2]
    assert backend.counts(Filter.parse("condition:terminal"), backend.now())[Condition.TERMINAL].value == 80


def test_requeued_jobs_run_exactly_once(sidekiq: Sidekiq, client: redis.Redis, url: str) -> None:
    fail(sidekiq, client, 40)
    backend = open_sidekiq(url)
    at = backend.now()
    with sidekiq.serving(2):
        changes, kinds = change(backend)
        assert kinds == [OutcomeKind.APPLIED] * 80, "dead jobs, and retries that are pulled forward"
        until(lambda: len(executions(client)) == 80, "not all of them ran")
    assert set(executions(client).values()) == {1}
    assert sidekiq.run("report") == {}
    gone = backend.items([one.keys[0] for one in changes], at)
    assert {result_of(gone.get(one.keys[0]), at) for one in changes} == {Result.NOT_KNOWN}, "until it has been missing for a minute"


@pytest.mark.parametrize("count", in_depth([60, 1_000], quick=[60]))
def test_the_result_is_what_its_handlers_did(
    sidekiq: Sidekiq, client: redis.Redis, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Every fourth job fails again. What succeeds vanishes."""
    monkeypatch.setattr(recovery, "GONE_FOR", recovery.GONE_FOR / 60)
    client.set("test:broken", 1)
    sidekiq.add("dead", count, retry=0)
    jobs = {f"dead-{n}" for n in range(count)}
    with sidekiq.serving():
        until(lambda: client.zcard("dead") == count, "not all of them failed")
    client.delete("test:broken", "test:executions")
    failing = set(sorted(jobs)[::4])
    client.sadd("test:failing", *failing)
    with operating(open_sidekiq(url), tmp_path) as ann:
        override = ann.apply(ann.plan(Filter.parse("condition:terminal")))
        watch = ann.operations.watch(override.override_id)
        with sidekiq.serving(2):
            until(lambda: executions(client).keys() == jobs, "not all of them ran")
            until(lambda: not watch.look(asked=True).open, "an item is open")
        found = {result: {ItemKey.parse(one.key).parts[-1] for batch in watch.items(result) for one in batch} for result in Result}
        assert {result: some for result, some in found.items() if some} == {
            Result.RECOVERED: jobs - failing, Result.FAILED_AGAIN: failing
        }


def test_an_undo_restores_the_jobs_for_sidekiq(sidekiq: Sidekiq, client: redis.Redis, url: str) -> None:
    fail(sidekiq, client, 20)
    before, backend = sidekiq.run("report"), open_sidekiq(url)
    changes, _ = change(backend)
    assert {job["state"] for job in sidekiq.run("report").values()} == {"queued"}
    undo = [one._replace(before=one.after, after=one.before) for one in changes]
    who = Authority("ann", "why", None, "o2", backend.now())
    assert {one.kind for one in backend.compare_and_set(undo, Operation(Action.UNDO), who)} == {OutcomeKind.APPLIED}
    assert sidekiq.run("report") == before
    assert executions(client) == {}
