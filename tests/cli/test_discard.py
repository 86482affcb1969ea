"""`retriage discard` and `plan --discard`, on real files."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli.place import Place, environment, failed, retrying
from tests.patience import PATIENCE

REFUSED, USAGE = 3, 2
OUTBOX = """\
  outbox:
    plugin: sql_table
    url: "sqlite:///{folder}/outbox.db"
    mapping:
      table: outbox
      key: id
      status: {{column: status, ready: [queued], failed: [bounced], done: [sent]}}
      attempts: tries
      max_attempts: 5
      updated: changed
      requeue:
        guard: [status, tries, changed]
        set: {{status: queued}}
        attempts: {{keep: {{effect: last_try}}}}
      discard: {{delete: true}}
"""


def statuses(path: Path) -> dict[str, str]:
    connection = sqlite3.connect(path)
    found = dict(connection.execute("SELECT task_id, status FROM async_tasks").fetchall())
    connection.close()
    return found


@pytest.fixture
def queue(place: Place) -> Path:
    return place.queue("q", failed("a"), retrying("b", 600), retrying("c", 900))


@pytest.fixture
def outbox(place: Place) -> Path:
    path = place.folder / "outbox.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, status TEXT, tries INTEGER, changed TEXT)")
        connection.executemany("INSERT INTO outbox VALUES (?, 'bounced', 1, '2026-11-10T10:00:00+00:00')", [(1,), (2,)])
    connection.close()
    place.sections["outbox"] = OUTBOX.format(folder=place.folder)
    return path


def test_discard_and_undo(place: Place, queue: Path) -> None:
    done = place.run("discard", "--where", "condition:retrying", "--reason", "customer is gone", "--confirm", "2")
    assert done.code == 0, done.err
    assert "Discard 2 of 2 selected items" in done.err
    assert "  pace" not in done.err
    assert "2 discarded" in done.err
    assert statuses(queue) == {"a": "FAILED", "b": "FAILED", "c": "FAILED"}
    override = json.loads(place.run("overrides", "list").out)
    assert override["counts"] == {"discarded": 2}
    shown = json.loads(place.run("overrides", "show", override["override_id"], "--items").out)
    assert {item["outcome"] for item in shown["items"]} == {"discarded"}
    assert shown["results"] is None, "a discarded item is not executed, so there is nothing to follow"
    assert "result" not in place.run("overrides", "show", override["override_id"], "--format", "table").out
    done = place.run("overrides", "undo", override["override_id"], "--reason", "wrong customer", "--confirm", "2")
    assert "2 restored" in done.err
    assert statuses(queue) == {"a": "FAILED", "b": "PENDING", "c": "PENDING"}


def test_what_is_given_up_already_is_skipped(place: Place, queue: Path) -> None:
    done = place.run("discard", "--key", "q/a", "--reason", "why", "--confirm", "1")
    assert done.code == REFUSED
    assert "Already given up by its system; acknowledge the cause instead." in done.err


def test_a_stored_plan_says_that_it_is_a_discard(place: Place, queue: Path) -> None:
    plan = json.loads(place.run("plan", "--discard", "--key", "q/b").out)
    assert (plan["action"], plan["changes"], plan["parts"][0]["deletes"]) == ("discard", 1, False)
    assert place.run("apply", plan["plan_id"], "--reason", "why", "--confirm", "1").code == 0
    assert statuses(queue)["b"] == "FAILED"


@pytest.mark.parametrize(("arguments", "line"), [
    (("plan", "--discard", "--key", "q/b", "--pace", "over 30m"), "A discard has no pace: a discarded item does not run."),
    (("plan", "--discard", "--key", "q/b", "--attempts", "reset"), "A discard does not change the attempts."),
    (("plan", "--key", "q/b", "--as", "resolved"), "--as says how items are discarded."),
    (("plan", "--discard", "--key", "q/b", "--as", "resolved"), "Unknown value 'resolved' of --as."),
    (("discard", "--key", "q/b", "--reason", "x", "--pace", "now"), "Unknown option --pace"),
])
def test_options_that_make_no_sense(place: Place, queue: Path, arguments: tuple[str, ...], line: str) -> None:
    done = place.run(*arguments)
    assert done.code == USAGE
    assert line in done.err


def test_a_switch_of_a_requeue_is_none_of_a_discard(place: Place) -> None:
    place.contract_queue("jobs")
    done = place.run("discard", "--backend", "jobs", "--all", "--include-claimed", "--reason", "x")
    assert done.code == USAGE
    assert "--include-claimed is not an option of a discard. Leave it out." in done.err


def test_deleting_is_said_and_the_number_is_typed(place: Place, outbox: Path) -> None:
    """One item is far below confirm_from, and yes is not enough."""
    surroundings: Any = {**environment(place.folder), "TERM": "xterm"}
    child = pexpect.spawn(
        sys.executable, ["-m", "console", "--config", str(place.write_config()), "discard", "--key", "outbox/1", "--reason", "why"],
        env=surroundings, encoding="utf-8", timeout=PATIENCE, dimensions=(24, 160), use_poll=True,
    )
    child.expect("Its system deletes discarded items. This cannot be undone.")
    child.expect("This deletes 1 item and cannot be undone. Type the number to confirm: ")
    child.sendline("y")
    child.expect("Not confirmed. Nothing was changed.")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == REFUSED
    done = place.run("discard", "--key", "outbox/1", "--reason", "dead letter", "--confirm", "1")
    assert done.code == 0, done.err
    connection = sqlite3.connect(outbox)
    assert connection.execute("SELECT id FROM outbox").fetchall() == [(2,)]
    connection.close()
    override = json.loads(place.run("overrides", "list").out)["override_id"]
    done = place.run("overrides", "undo", override, "--reason", "oops", "--confirm", "1")
    assert done.code == REFUSED
    assert "Its system has deleted it." in done.err
