"""`overrides watch` in processes of its own: the result is recorded once and has the right counts, whoever is killed."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.place import Place, failed
from tests.patience import PATIENCE
from tests.postgres import running_server

SOME_FAILED = 1
ITEMS = 60
EXPECTED = {"recovered": 40, "failed_again": 20, "running": 0, "not_run_yet": 0, "changed_by_others": 0, "not_known": 0}


@pytest.fixture
def trail_line(request: pytest.FixtureRequest) -> Iterator[str]:
    """The line of the config for the trail, which is an SQLite file unless a test says otherwise."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield ""
        return
    with running_server() as server:
        assert server is not None
        with server.database() as url:
            yield f'  trail: "{url}"\n'


@pytest.fixture
def queue(place: Place, trail_line: str) -> Path:
    place.console = f"  refresh: 300ms\n{trail_line}"
    return place.queue("q", *(failed(f"t{n:03}") for n in range(ITEMS)))


def requeued(place: Place) -> str:
    done = place.run("requeue", "--where", "condition:terminal", "--reason", "r", "--confirm", str(ITEMS))
    assert done.code == 0
    op: str = json.loads(place.run("overrides", "list").out)["override_id"]
    assert f"retriage overrides watch {op}" in done.err
    return op


def work(queue: Path, first: int, last: int) -> None:
    """What the queue's own worker does: every third task fails again, half of those with a new error."""
    connection = sqlite3.connect(queue, timeout=30)
    now = "strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now')"
    for n in range(first, last):
        change = "status = 'DONE', last_error = NULL"
        if n % 3 == 0:
            error = "ERR_X: it broke" if n % 2 else "ERR_CARD: the card was declined"
            change = f"status = 'FAILED', last_error = '{error}'"
        connection.execute(
            f"UPDATE async_tasks SET {change}, attempts = attempts + 1, updated_at = {now} WHERE task_id = ?", (f"t{n:03}",)
        )
    connection.commit()
    connection.close()


def result_records(place: Place) -> list[dict[str, Any]]:
    records = (json.loads(line) for line in place.run("trail", "list", "--limit", "0").out.splitlines())
    return [record for record in records if record["kind"] == "result"]


def said(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        line = process.stderr.readline()
        if words in line:
            return line
    raise AssertionError(f"it never said {words!r}")


def test_watch_shows_progress_on_stderr_and_the_result_as_json(place: Place, queue: Path) -> None:
    op = requeued(place)
    watching = place.spawn("overrides", "watch", op)
    said(watching, f"0 of {ITEMS} recovered, {ITEMS} not run yet")
    work(queue, 0, ITEMS)
    out, _ = watching.communicate(timeout=PATIENCE)
    found = json.loads(out)
    assert watching.returncode == SOME_FAILED
    assert found["results"] == {**EXPECTED, "not_read": 0}
    assert (found["same_cause"], [cause["items"] for cause in found["causes"]]) == (10, [10, 10])
    (record,) = result_records(place)
    assert record["body"]["results"] == EXPECTED
    listed = json.loads(place.run("overrides", "list").out)
    assert listed["results"] == EXPECTED
    words = "40 of 60 recovered, 20 failed again (10 with the same cause)"
    assert words in place.run("overrides", "list", "--format", "table").out
    assert words in place.run("trail", "list", "--format", "table").out
    again = place.run("overrides", "watch", op, "--format", "table")
    assert again.code == SOME_FAILED
    assert f"result   {words}" in again.out
    assert "Its watch has ended." in again.err
    shown = place.run("overrides", "show", op, "--format", "table").out
    assert "ERR_CARD: the card was declined" in shown
    assert "  selected condition:terminal" in shown
    exported = [json.loads(line) for line in place.run("trail", "export", "--items").out.splitlines()]
    items = [line for line in exported if line["kind"] == "item" and line.get("result")]
    assert len(items) == ITEMS
    assert sum(item["result"] == "recovered" for item in items) == EXPECTED["recovered"]
    assert place.run("trail", "verify").code == 0


@pytest.mark.parametrize("trail_line", ["sqlite", "postgres"], indirect=True)
def test_two_watchers_one_of_them_killed_and_a_third_record_one_result(place: Place, queue: Path) -> None:
    op = requeued(place)
    first, second = (place.spawn("overrides", "watch", op) for _ in range(2))
    for process in (first, second):
        said(process, "not run yet")
    work(queue, 0, 30)
    said(first, "30 not run yet")
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=PATIENCE)
    third = place.spawn("overrides", "watch", op)
    said(third, "30 not run yet")
    work(queue, 30, ITEMS)
    for process in (second, third):
        out, err = process.communicate(timeout=PATIENCE)
        assert json.loads(out)["results"] == {**EXPECTED, "not_read": 0}, err
    (record,) = result_records(place)
    assert (record["body"]["results"], record["body"]["items_count"]) == (EXPECTED, ITEMS)
    assert place.run("trail", "verify").code == 0


def test_an_interrupted_watch_says_how_to_go_on_and_records_nothing(place: Place, queue: Path) -> None:
    op = requeued(place)
    watching = place.spawn("overrides", "watch", op)
    said(watching, "not run yet")
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=PATIENCE)
    assert watching.returncode == SOME_FAILED
    assert f"To continue: retriage overrides watch {op}" in err
    assert not result_records(place)
    work(queue, 0, ITEMS)
    assert place.run("--read-only", "overrides", "watch", op).code == SOME_FAILED
    assert not result_records(place), "read-only records nothing"
    assert place.run("overrides", "watch", op).code == SOME_FAILED
    assert len(result_records(place)) == 1


def test_a_watch_of_a_system_that_does_not_answer_says_so_and_ends(place: Place, queue: Path) -> None:
    place.console += "  watch_for: 1s\n"
    place.sections["q"] = place.sections["q"].replace("}\n", ", every: 1s}\n")
    op = requeued(place)
    queue.rename(queue.with_suffix(".away"))
    done = place.run("overrides", "watch", op, "--format", "json")
    assert done.code == SOME_FAILED
    assert "q: does not answer (" in done.err
    found = json.loads(done.out)
    assert (found["results"]["not_known"], found["results"]["not_read"], found["over"]) == (ITEMS, 0, True)
    assert len(result_records(place)) == 1


def test_an_undo_and_what_it_undoes_name_each_other(place: Place, queue: Path) -> None:
    op = requeued(place)
    assert place.run("overrides", "undo", op, "--reason", "wrong", "--confirm", str(ITEMS)).code == 0
    undo, undone = (json.loads(line) for line in place.run("overrides", "list").out.splitlines())
    assert (undo["undo_of"], undone["undone_by"]) == (op, [undo["override_id"]])
    assert f"finished, undone by {undo['override_id']}" in place.run("overrides", "show", op, "--format", "table").out
    shown = place.run("overrides", "show", undo["override_id"], "--format", "table").out
    assert f"undo of  {op}" in shown
    assert "recovered" not in shown, "an undo is not followed"
    assert place.run("overrides", "watch", undo["override_id"]).code == 2
