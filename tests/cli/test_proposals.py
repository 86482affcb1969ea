"""`proposals`, `--submit` and `--detach`: what a person types, and what is printed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.place import Place, failed


def submit(place: Place, count: int = 3) -> str:
    done = place.run(
        "requeue", "--where", "condition:terminal", "--limit", str(count), "--attempts", "reset", "--reason", "provider is back", "--submit"
    )
    assert done.code == 0, done.err
    assert f"{count} items, waiting for approval until" in done.err
    return done.err.split("Proposal ")[1].split(":")[0]


def pending(path: Path) -> int:
    with closing(sqlite3.connect(path)) as queue:
        found: int = queue.execute("SELECT count(*) FROM async_tasks WHERE status = 'PENDING'").fetchone()[0]
    return found


def records(place: Place, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.run(*arguments, "--format", "jsonl").out.splitlines()]


@pytest.fixture
def path(place: Place) -> Path:
    return place.queue("jobs", *(failed(str(n)) for n in range(5)))


def test_submit_show_and_approve(place: Place, path: Path) -> None:
    plan = submit(place)
    assert pending(path) == 0
    (listed,) = records(place, "proposals", "list")
    assert (listed["proposal_id"], listed["items"], listed["changes"], listed["state"]) == (plan, 3, {"jobs": 3}, "open")
    (shown,) = records(place, "proposals", "show", plan)
    assert shown["recheck"] == {"same": 3, "changed": 0, "gone": 0, "differing": [], "faults": {}}
    with closing(sqlite3.connect(path)) as queue, queue:
        queue.execute("UPDATE async_tasks SET attempts = 77 WHERE task_id = '4'")
    table = place.run("proposals", "show", plan, "--format", "table").out
    assert "1 of 3 changed since" in table
    assert "jobs/4" in table
    assert "provider is back" in table
    unconfirmed = place.run("proposals", "approve", plan)
    assert unconfirmed.code == 3
    assert "Confirm with --confirm 3." in unconfirmed.err
    wrong = place.run("proposals", "approve", plan, "--confirm", "4")
    assert wrong.code == 3
    assert "Confirm with --confirm 3." in wrong.err
    approved = place.run("proposals", "approve", plan, "--confirm", "3")
    assert approved.code == 1, "one item had changed"
    assert "2 requeued, 1 changed since the plan" in approved.err
    assert pending(path) == 2
    (decided,) = records(place, "proposals", "list", "--all")
    assert (decided["state"], bool(decided["override_id"])) == ("approved", True)
    assert place.run("proposals", "list").out == ""
    assert place.run("proposals", "approve", plan, "--confirm", "3").code == 3
    assert place.run("trail", "verify").code == 0


def test_a_plan_is_submitted_too(place: Place, path: Path) -> None:
    assert place.run("plan", "--key", "jobs/1", "--submit").code == 2
    done = place.run("plan", "--key", "jobs/1", "--attempts", "reset", "--submit", "--reason", "r", "--ticket", "OPS-1", "--format", "json")
    assert done.code == 0, done.err
    (listed,) = records(place, "proposals", "list")
    assert (listed["proposal_id"], listed["ticket"]) == (json.loads(done.out)["plan_id"], "OPS-1")
    again = place.run("apply", listed["proposal_id"], "--reason", "r", "--confirm", "1")
    assert again.code == 3
    assert "waits for its approval" in again.err
    assert pending(path) == 0


def test_reject_and_withdraw(place: Place, path: Path) -> None:
    first, second = submit(place), submit(place, 2)
    assert place.run("proposals", "reject", first, "--reason", "wrong filter").code == 0
    assert place.run("proposals", "withdraw", second).code == 0
    assert [(one["state"], one["note"]) for one in records(place, "proposals", "list", "--all")] == [("withdrawn", None), ("rejected", "wrong filter")]
    assert place.run("proposals", "show", "pffff").code == 2
    assert pending(path) == 0


def test_detach_only_queues(place: Place, path: Path) -> None:
    done = place.run("requeue", "--key", "jobs/1", "--attempts", "reset", "--reason", "r", "--confirm", "1", "--detach")
    assert done.code == 0, done.err
    assert "is queued. A runner carries it out" in done.err
    assert pending(path) == 0
    (override,) = records(place, "overrides", "list")
    assert override["state"] == "queued"
    assert place.run("overrides", "stop", override["override_id"]).code == 0
    assert records(place, "overrides", "list")[0]["state"] == "stopped"
    assert place.run("requeue", "--key", "jobs/1", "--reason", "r", "--submit", "--detach").code == 2


RULES = "permissions:\n  jobs: {requeue: [nobody-here], approve: []}\nlimits:\n  - {backends: [jobs], items: 2, per: 1h}\n"


def test_a_refusal_names_the_line_of_its_rule_and_is_recorded(place: Place, path: Path) -> None:
    place.after = RULES
    refused = place.run("requeue", "--key", "jobs/1", "--attempts", "reset", "--reason", "r", "--confirm", "1")
    assert refused.code == 3
    assert "config.yaml:6: " in refused.err
    assert "may not requeue in jobs. Allowed: nobody-here." in refused.err
    assert records(place, "trail", "list")[0]["body"]["why"] == "NotAllowed"
    assert pending(path) == 0
    table = place.run("check").out
    assert "jobs: requeue: nobody-here; approve: nobody; at most 2 items in 1h" in table
    assert "permissions and limits prevent mistakes" in table


@pytest.mark.parametrize(("text", "words"), [
    ("permissions:\n  jobz: {requeue: [a]}\n", "config.yaml:6: permissions.jobz: there is no such backend. Did you mean 'jobs'?"),
    ("permissions:\n  jobs: {requeues: [a]}\n", "config.yaml:6: permissions.jobs.requeues: unknown key"),
    ("permissions:\n  jobs: {requeue: ann}\n", "config.yaml:6: permissions.jobs.requeue"),
    ("limits:\n  - {backends: [jobs], items: 0, per: 1h}\n", "config.yaml:6: limits[0].items: must be at least 1"),
    ("limits:\n  - {backends: [jobs], items: 5}\n", "config.yaml:6: limits[0].per: required, but missing"),
    ("limits:\n  - {backends: [], items: 5, per: 1h}\n", "config.yaml:6: limits[0].backends: must name at least one backend"),
    ("approvals:\n  - {backends: [jobs], from: 100}\n", "config.yaml:5: approvals: approvals need a trail in PostgreSQL"),
    ("approvals:\n  - {backends: [jobs], from: 100, compare: name}\n", "config.yaml:6: approvals[0].compare"),
])
def test_a_mistake_in_the_rules_names_its_line(place: Place, path: Path, text: str, words: str) -> None:
    place.after = text
    done = place.run("list")
    assert done.code == 2
    assert words in done.err
