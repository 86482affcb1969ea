"""`plan`, `apply`, `requeue`, `overrides`, `trail`: the write path from the command line, on real files."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli.place import Done, Place, environment, failed, retrying
from tests.patience import PATIENCE

REFUSED, INTERRUPTED, USAGE, BROKEN = 3, 1, 2, 5


def rows(path: Path, columns: str = "task_id, status, attempts") -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    found = connection.execute(f"SELECT {columns} FROM async_tasks ORDER BY task_id").fetchall()
    connection.close()
    return found


def planned(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    plan: dict[str, Any] = json.loads(done.out)
    return plan


@pytest.fixture
def queue(place: Place) -> Path:
    return place.queue("q", failed("a"), failed("b"), failed("c", "ERR_Y: else"), retrying("d", 600))


def test_a_plan_is_shown_and_writes_nothing(place: Place, queue: Path) -> None:
    before = rows(queue, "*")
    plan = planned(place.run("plan", "--where", "condition:terminal", "--attempts", "reset"))
    assert (plan["changes"], plan["selected"], plan["attempts"]) == (3, 3, "reset")
    assert plan["by_condition"] == {"terminal": 3}
    assert len(plan["hash"]) == 64
    assert [plan[name][-1] for name in ("created_at", "expires_at")] == ["Z", "Z"]
    assert rows(queue, "*") == before
    shown = place.run("plan", "--where", "condition:terminal", "--items", "--format", "table").out
    assert shown.count("will change") == 3
    assert "--confirm 3" in shown
    assert place.run("plan", "--where", "condition:terminal", "--format", "csv").code == USAGE


def test_apply_changes_exactly_the_plan(place: Place, queue: Path) -> None:
    plan = planned(place.run("plan", "--where", "error~ERR_X", "--attempts", "reset"))
    done = place.run("apply", plan["plan_id"], "--reason", "fixed", "--ticket", "OPS-1", "--confirm", "2")
    assert done.code == 0, done.err
    assert rows(queue) == [("a", "PENDING", 0), ("b", "PENDING", 0), ("c", "FAILED", 4), ("d", "PENDING", 1)]
    assert "2 requeued" in done.err


def test_a_row_that_changed_since_the_preview_is_not_touched(place: Place, queue: Path) -> None:
    plan = planned(place.run("plan", "--key", "q/a", "--key", "q/b"))
    with sqlite3.connect(queue) as connection:
        connection.execute("UPDATE async_tasks SET updated_at = '2026-01-01T00:00:00+00:00' WHERE task_id = 'a'")
    connection.close()
    done = place.run("apply", plan["plan_id"], "--reason", "fixed", "--confirm", "2")
    assert done.code == INTERRUPTED
    assert "1 requeued, 1 changed since the plan" in done.err
    assert rows(queue)[:2] == [("a", "FAILED", 4), ("b", "PENDING", 4)]
    op = json.loads(place.run("overrides", "list").out)["override_id"]
    shown = json.loads(place.run("overrides", "show", op, "--items").out)
    details = {item["key"]: (item["outcome"], item["detail"]) for item in shown["items"]}
    assert len(details) == len(shown["items"]) == 2, "each item once"
    assert details["q/b"] == ("requeued", "")
    assert {item["key"]: item["result"] for item in shown["items"]} == {"q/a": None, "q/b": "not_run_yet"}
    assert shown["results"]["not_run_yet"] == 1
    assert "result   0 of 1 recovered, 1 not run yet" in place.run("overrides", "show", op, "--format", "table").out
    assert details["q/a"][0] == "changed"
    assert details["q/a"][1].startswith("updated_at is now 2026-01-01T00:00:00+00:00, was ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--confirm", "5"), "Not confirmed: 5 confirmed, but the plan changes 3. Nothing was changed."),
        ((), "Not confirmed. Nothing was changed. Confirm with --confirm 3."),
        (("--confirm", "3", "--reason", "  "), "Not confirmed: a reason is required. Nothing was changed."),
    ],
)
def test_refused_and_on_record(place: Place, queue: Path, arguments: tuple[str, ...], line: str) -> None:
    before = rows(queue, "*")
    done = place.run("requeue", "--where", "condition:terminal", "--reason", "why", *arguments)
    assert done.code == REFUSED
    assert any(said.startswith(f"retriage: {line}") for said in done.err.splitlines())
    assert rows(queue, "*") == before
    assert "refusal" in [json.loads(line)["kind"] for line in place.run("trail", "list").out.splitlines()[:2]]


def test_nothing_narrows_needs_all(place: Place, queue: Path) -> None:
    done = place.run("requeue", "--reason", "why", "--confirm", "4")
    assert done.code == REFUSED
    assert "This would select everything" in done.err
    assert place.run("requeue", "--all", "--reason", "why", "--confirm", "4").code == 0


def test_more_than_allowed_is_refused_with_the_count(place: Place, queue: Path) -> None:
    place.console = "  max_items: 2\n"
    done = place.run("plan", "--where", "condition:terminal")
    assert done.code == REFUSED
    assert "3 items are selected, but a plan may have at most 2" in done.err
    assert planned(place.run("plan", "--where", "condition:terminal", "--limit", "2"))["changes"] == 2


def test_key_and_filter_do_not_mix(place: Place, queue: Path) -> None:
    assert place.run("plan", "--key", "q/a", "--where", "condition:terminal").code == USAGE
    assert place.run("plan", "--key", "nonsense").code == USAGE
    assert place.run("plan", "--where", "condition:terminal", "--pace", "soon").code == USAGE


def test_a_cause_is_one_signature_and_nothing_else(place: Place, queue: Path) -> None:
    signature = json.loads(place.run("causes", "--where", "error~ERR_Y").out)["cause"]
    assert planned(place.run("plan", "--cause", signature))["changes"] == 1
    for wrong in ("", f"{signature} condition:*", f"{signature},7f3a", "*", "7f3"):
        done = place.run("plan", "--where", "condition:terminal", "--cause", wrong)
        assert (done.code, done.out) == (USAGE, ""), wrong
        assert "is not a cause. Write 4 to 12 hex digits, such as 7f3a.\n" in done.err
    assert place.run("plan", "--key", "q/a", "--cause", "").code == USAGE


def test_undo_restores_the_rows(place: Place, queue: Path) -> None:
    before = rows(queue, "*")
    assert place.run("requeue", "--where", "condition:terminal", "--reason", "why", "--confirm", "3").code == 0
    op = json.loads(place.run("overrides", "list").out)["override_id"]
    undone = place.run("overrides", "undo", op, "--reason", "wrong", "--confirm", "3")
    assert (undone.code, undone.err.splitlines()[0]) == (0, "Restore 3 of 3 selected items")
    assert "apply it" not in undone.err
    assert rows(queue, "*") == before


def test_read_only_refuses_every_write_and_stores_nothing(place: Place, queue: Path) -> None:
    before = queue.read_bytes()
    for command in (
        ("requeue", "--key", "q/a", "--reason", "r", "--confirm", "1"),
        ("apply", "p1", "--reason", "r"),
        ("overrides", "stop", "o1"),
        ("overrides", "pause", "o1"),
        ("overrides", "resume", "o1"),
        ("overrides", "undo", "o1", "--reason", "r"),
        ("run", "q"),
    ):
        done = place.run("--read-only", *command)
        assert done.code == REFUSED, command
        assert "This console is read-only" in done.err
    plan = planned(place.run("--read-only", "plan", "--key", "q/a"))
    assert plan["plan_id"] is None
    listed = place.run("--read-only", "plan", "--key", "q/a", "--items", "--format", "table")
    assert (listed.code, listed.err.startswith("--items needs a stored plan")) == (0, True)
    assert plan["changes"] == 1
    assert queue.read_bytes() == before
    assert not list(place.folder.rglob("trail.db*"))
    assert not list(place.folder.glob("q.db-*"))


def test_the_trail_is_verified_and_tampering_named(place: Place, queue: Path) -> None:
    place.console = f'  trail: "sqlite:///{place.folder}/trail.db"\n  anchor: "{place.folder}/anchors"\n'
    assert place.run("requeue", "--where", "condition:terminal", "--reason", "why", "--confirm", "3").code == 0
    intact = place.run("trail", "verify")
    assert (intact.code, intact.out.split(":")[0]) == (0, "Intact")
    with sqlite3.connect(place.folder / "trail.db") as connection:
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f'DROP TRIGGER "{trigger}"')
        connection.execute("UPDATE record SET body = replace(body, 'requeue', 'restore') WHERE seq = 1")
    connection.close()
    broken = place.run("trail", "verify")
    assert broken.code == BROKEN
    assert "The trail is broken: record 1" in broken.err


def test_a_cut_tail_is_found_by_the_anchor(place: Place, queue: Path) -> None:
    place.console = f'  trail: "sqlite:///{place.folder}/trail.db"\n  anchor: "{place.folder}/anchors"\n'
    assert place.run("requeue", "--where", "condition:terminal", "--reason", "why", "--confirm", "3").code == 0
    with sqlite3.connect(place.folder / "trail.db") as connection:
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f'DROP TRIGGER "{trigger}"')
        connection.execute("DELETE FROM record WHERE seq > 1")
        connection.execute("DELETE FROM item_outcome WHERE seq > 1")
    connection.close()
    assert place.run("trail", "verify", "--anchor", str(place.folder / "anchors")).code == BROKEN


def test_an_altered_plan_is_not_applied(place: Place, queue: Path) -> None:
    place.console = f'  trail: "sqlite:///{place.folder}/trail.db"\n'
    plan = planned(place.run("plan", "--key", "q/a"))
    with sqlite3.connect(place.folder / "trail.db") as connection:
        connection.execute("UPDATE plan_block SET body = CAST(replace(CAST(body AS TEXT), 'q/a', 'q/b') AS BLOB)")
    connection.close()
    done = place.run("apply", plan["plan_id"], "--reason", "r", "--confirm", "1")
    assert done.code == BROKEN
    assert rows(queue)[:2] == [("a", "FAILED", 4), ("b", "FAILED", 4)]


def test_export_has_every_record_and_item(place: Place, queue: Path) -> None:
    assert place.run("requeue", "--where", "condition:terminal", "--reason", "=1+1", "--confirm", "3").code == 0
    lines = [json.loads(line) for line in place.run("trail", "export", "--items").out.splitlines()]
    assert [line["kind"] for line in lines].count("item") == 3
    assert {"confirmed", "intent", "outcome", "state"} <= {line["kind"] for line in lines}
    target = place.folder / "out.csv"
    assert place.run("trail", "export", "--format", "csv", "--output", str(target)).code == 0
    assert target.read_text().startswith("seq,kind,at,")
    assert target.stat().st_mode & 0o777 == 0o600


def test_what_it_did_is_shown_on_the_item(place: Place, queue: Path) -> None:
    assert place.run("requeue", "--key", "q/a", "--reason", "provider is back", "--confirm", "1").code == 0
    assert "provider is back" in place.run("show", "q/a", "--format", "table").out


def test_a_prompt_takes_the_typed_number(place: Place, queue: Path) -> None:
    place.console = "  confirm_from: 2\n"
    arguments = ["-m", "console", "--config", str(place.write_config()), "requeue", "--where", "condition:terminal"]
    surroundings: Any = {**environment(place.folder), "TERM": "xterm"}
    for typed, code in (("yes", REFUSED), ("2", REFUSED), ("3", 0)):
        child = pexpect.spawn(sys.executable, [*arguments, "--reason", "r"], env=surroundings, encoding="utf-8", timeout=PATIENCE, use_poll=True)
        child.expect("Type the number to confirm: ")
        child.sendline(typed)
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == code, typed


def test_sigterm_finishes_the_chunk_and_resume_goes_on(place: Place) -> None:
    path = place.queue("q", *(failed(f"t{n:05}") for n in range(4_000)))
    place.console = "  chunk_target: 1ms\n"
    running = place.spawn("requeue", "--where", "condition:terminal", "--reason", "r", "--confirm", "4000")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not any(status == "PENDING" for _, status, _ in rows(path)):
        time.sleep(0.01)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == INTERRUPTED, err
    assert "Stopped by a signal." in err
    op = json.loads(place.run("overrides", "list").out)["override_id"]
    assert f"retriage overrides resume {op}" in err
    assert place.run("overrides", "resume", op).code == 0
    assert {status for _, status, _ in rows(path)} == {"PENDING"}
    shown = json.loads(place.run("overrides", "show", op).out)
    assert shown["counts"] == {"requeued": 4_000}
    assert place.run("trail", "verify").code == 0
