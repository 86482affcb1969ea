"""Hooks are called by the command that carries an override out, resumes or watches it, and never change its exit code."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.place import Place, failed

ITEMS = 5


@pytest.fixture
def calls(place: Place) -> Path:
    """The file into which the hook `chat` writes what it gets. The hook `pager` is not for overrides."""
    calls = place.folder / "calls.jsonl"
    code = f"import sys; open({str(calls)!r}, 'a').write(sys.stdin.read() + chr(10))"
    hook = json.dumps([sys.executable, "-c", code])
    place.console = (
        "alerts:\n  overrides: [chat]\n"
        f"  hooks:\n    chat: {{command: {hook}, timeout: 10m}}\n    pager: {{command: {hook}, timeout: 10m}}\n"
    )
    place.queue("q", *(failed(f"t{n}") for n in range(ITEMS)))
    return calls


def received(calls: Path) -> list[dict[str, Any]]:
    return [alert for line in calls.read_text().splitlines() for alert in json.loads(line)["alerts"]]


def requeue(place: Place) -> str:
    done = place.run("requeue", "--where", "condition:terminal", "--reason", "r", "--confirm", str(ITEMS))
    assert done.code == 0
    op: str = json.loads(place.run("overrides", "list").out)["override_id"]
    return op


def test_the_end_of_an_override_and_of_its_watch_call_the_hook_once(place: Place, calls: Path) -> None:
    op = requeue(place)
    (ended,) = received(calls)
    assert (ended["kind"], ended["override"], ended["bad"]) == ("override_finished", op, False)
    assert ended["text"] == f"Override {op} finished: {ITEMS} requeued"
    with sqlite3.connect(place.folder / "q.db") as connection:
        connection.execute(
            "UPDATE async_tasks SET status = 'FAILED', last_error = 'secret-4711', attempts = attempts + 1,"
            " updated_at = strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now')"
        )
    connection.close()
    for _ in range(2):
        assert place.run("overrides", "watch", op).code == 1
    _, over = received(calls)
    assert (over["kind"], over["override"], over["bad"]) == ("watch_ended", op, True)
    assert over["text"] == f"Override {op}: 0 of {ITEMS} recovered, {ITEMS} failed again"
    assert "secret-4711" not in calls.read_text(), "a hook gets no error text of an override"


def test_a_hook_that_fails_is_reported_and_changes_no_exit_code(place: Place, calls: Path) -> None:
    hook = json.dumps([sys.executable, "-c", "import sys; sys.exit('no line')"])
    place.console = f"alerts:\n  overrides: [chat]\n  hooks:\n    chat: {{command: {hook}, timeout: 10m}}\n"
    done = place.run("requeue", "--where", "condition:terminal", "--reason", "r", "--confirm", str(ITEMS))
    assert done.code == 0
    assert "retriage: Hook chat" in done.err
    assert "no line" in done.err
    assert not calls.exists()


def test_a_hook_that_is_not_there_is_a_mistake_of_the_config(place: Place, calls: Path) -> None:
    place.console = place.console.replace("[chat]", "[caht]")
    done = place.run("requeue", "--where", "condition:terminal", "--reason", "r", "--confirm", str(ITEMS))
    assert (done.code, calls.exists()) == (2, False)
    assert "there is no hook 'caht'" in done.err
