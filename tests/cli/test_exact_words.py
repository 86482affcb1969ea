"""What the commands say is complete and exact: warnings, ids, exit codes, and what to do next."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from console.cli.check import _each_once
from console.core.backend import Finding, Severity
from console.core.text import keep_ends
from tests.cli.place import Place, failed

USAGE, REFUSED, NONE_ANSWERED, SOME_FAILED = 2, 3, 4, 1
ONE_MORE = "Attempts are kept: one more try, then terminal."


def out(place: Place, *arguments: str) -> dict[str, Any]:
    done = place.run(*arguments)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_each_item_of_a_plan_has_its_own_warning(place: Place) -> None:
    place.queue("q", failed("a"), failed("b", attempts=2), failed("c", task_type="OTHER"))
    plan = out(place, "plan", "--backend", "q", "--all", "--items")
    assert {item["key"]: (item["skipped"], item["warning"]) for item in plan["items"]} == {
        "q/a": (None, ONE_MORE), "q/b": (None, None),
        "q/c": ("Its system would not take it: its workers take only ANALYZE_EXECUTED.", None),
    }
    shown = place.run("plan", "--backend", "q", "--all", "--items", "--format", "table").out
    assert f"will change. {ONE_MORE}" in shown


def test_a_long_warning_keeps_the_part_that_tells_it_from_others() -> None:
    texts = [f"{'Its task was woken too late and will be moved back to error ' * 6}at 12:{n:02}:00Z." for n in range(3)]
    cut = [keep_ends(text, 200) for text in texts]
    assert [len(text) for text in cut] == [200] * 3
    assert len(set(cut)) == 3
    assert cut[1].endswith("at 12:01:00Z.")
    assert keep_ends("short", 200) == "short"


@pytest.mark.parametrize(("url", "code"), [("mysql://db/app", USAGE), ("nonsense", USAGE)])
@pytest.mark.parametrize("command", ["plan", "requeue"])
def test_a_plan_over_a_backend_that_could_not_be_opened_is_no_success(
    place: Place, url: str, code: int, command: str
) -> None:
    place.attach("broken", url)
    arguments = ["--all", *(["--reason", "x", "--confirm", "0"] if command == "requeue" else [])]
    alone = place.run(command, *arguments)
    assert alone.code == code
    assert alone.out == ""
    assert "broken" in alone.err or "url" in alone.err.lower()
    place.queue("q", failed("a"))
    assert place.run("plan", "--all", "--backend", "broken").code == code
    beside = place.run("plan", "--all")
    assert beside.code != 0
    assert json.loads(beside.out)["changes"] == 1
    assert "broken" in beside.err
    assert place.run("plan", "--all", "--backend", "q").code == 0


@pytest.mark.parametrize("command", ["plan", "requeue", "discard"])
def test_a_plan_over_a_backend_that_does_not_answer_is_no_success(place: Place, command: str) -> None:
    """It was opened: nothing is read before the plan asks."""
    place.queue("gone", failed("a")).unlink()
    place.queue("q", failed("a"))
    arguments = [] if command == "plan" else ["--reason", "x", "--confirm", "1"]
    for options, code in ((["--backend", "gone"], NONE_ANSWERED), ([], SOME_FAILED)):
        done = place.run(command, "--all", *options, *arguments)
        assert (done.code, done.out) == (code, "")
        assert "there is no such file" in done.err


def test_an_undo_that_lost_a_race_names_the_plan_to_apply(place: Place) -> None:
    path = place.queue("q", failed("a"), failed("b"))
    plan = out(place, "plan", "--all")
    assert place.run("apply", plan["plan_id"], "--reason", "fixed", "--confirm", "2").code == 0
    override = out(place, "overrides", "list")["override_id"]
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE async_tasks SET status = 'RUNNING' WHERE task_id = 'a'")
    connection.close()
    lost = place.run("overrides", "undo", override, "--reason", "wrong", "--confirm", "2")
    assert lost.code == REFUSED
    assert "2 confirmed, but the plan changes 1" in lost.err
    (named,) = {line.split("retriage apply ")[1].split("`")[0] for line in lost.err.splitlines() if "`retriage apply p" in line}
    assert place.run("apply", named, "--reason", "wrong", "--confirm", "1").code == 0
    assert status(path, "b") == "FAILED"


def status(path: Path, id: str) -> str:
    with sqlite3.connect(path) as connection:
        ((found,),) = connection.execute("SELECT status FROM async_tasks WHERE task_id = ?", (id,))
    connection.close()
    return str(found)


def test_an_undo_shows_the_errors_of_its_items(place: Place) -> None:
    place.queue("q", failed("a"), failed("b", "ERR_Y: else"))
    plan = out(place, "plan", "--all")
    assert place.run("apply", plan["plan_id"], "--reason", "fixed", "--confirm", "2").code == 0
    override = out(place, "overrides", "list")["override_id"]
    asked = place.run("overrides", "undo", override, "--reason", "wrong")
    causes = next(line for line in asked.err.splitlines() if line.startswith("  cause"))
    assert all(cause in causes for cause in plan["by_cause"])
    assert "no error text" not in causes


def test_the_id_of_an_item_is_plain_and_its_key_encoded(place: Place) -> None:
    place.queue("q", failed("a b/\u00e9%2F"))
    (item,) = (json.loads(line) for line in place.run("list", "--format", "jsonl").out.splitlines())
    assert (item["id"], item["key"]) == ("a b/\u00e9%2F", "q/a%20b%2F%C3%A9%252F")
    assert "id" not in out(place, "plan", "--all")
    assert out(place, "show", item["key"])["id"] == item["id"]


def test_a_finding_is_printed_once() -> None:
    """A missing privilege is found by its own check and again by reading."""
    same = Finding(Severity.ERROR, "privileges", "q.db: it is not readable")
    found = [same, Finding(Severity.OK, "clock", "agrees"), same._replace(subject="reading")]
    assert list(_each_once(found)) == found[:2]
