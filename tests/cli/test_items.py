"""`causes`, `upcoming`, `show`, `check`, `plugins`, `completion`."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pexpect
import pytest

from tests.cli.place import Place, at, environment, failed, retrying
from tests.patience import PATIENCE


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


# --- causes


@pytest.fixture
def causes(place: Place) -> Place:
    place.console = '  runbooks: {"Rate Limit": "https://wiki.example/rate"}\n'
    place.queue("one", *(failed(f"a{n}", f"ERR: rate limit, retry after {n}s") for n in range(3)),
                failed("x", "ERR_AUTH: invalid api key"), more=", policy: {unrecoverable: [invalid api key]}")
    place.queue("two", failed("b", "ERR: rate limit, retry after 77s"), failed("n", None))
    return place


def test_groups_count_causes_across_backends(causes: Place) -> None:
    done = causes.run("causes")
    found = rows(done.out)
    assert done.code == 0
    assert [g["count"] for g in found] == [4, 1, 1]
    assert found[0]["backends"] == {"one": 3, "two": 1}
    first = found[0]
    assert (first["share"], first["recent"], first["recoverable"]) == (0.6667, 4, True)
    assert first["runbook"] == "https://wiki.example/rate"
    by_sample = {str(g["sample"]): g for g in found}
    assert by_sample["ERR_AUTH: invalid api key"]["recoverable"] is False
    nothing = next(g for g in found if g["cause"] is None)
    assert (nothing["recoverable"], nothing["runbook"]) == (None, None)
    assert keys_of(causes, str(first["cause"])[:6]) == {"one/a0", "one/a1", "one/a2", "two/b"}


def keys_of(place: Place, signature: str) -> set[object]:
    return {row["key"] for row in rows(place.run("list", "--where", f"cause:{signature}").out)}


def test_causes_as_a_table_and_cut(causes: Place) -> None:
    done = causes.run("causes", "--format", "table", "--limit", "2", "--sort", "recent")
    lines = done.out.splitlines()
    assert len(lines) == 3
    assert "67%" in lines[1]
    assert "✗ no" in done.out or "(no error text)" in done.out
    assert done.err == "Showing 2 of 3 causes. Use --limit 0 to show all.\n"


# --- upcoming


def test_upcoming_counts_per_backend_and_bucket(place: Place) -> None:
    place.queue("one", retrying("a", -5), retrying("b", 400), retrying("c", 410), retrying("d", 9_000))
    place.queue("two", retrying("e", 1_000))
    done = place.run("upcoming", "--until", "30m", "--buckets", "3")
    assert done.code == 0
    counts = {name: [r["count"] for r in rows(done.out) if r["backend"] == name] for name in ("one", "two")}
    assert counts == {"one": [1, 2, 0, 0, 1], "two": [0, 0, 1, 0, 0]}
    first, *middle, last = [r for r in rows(done.out) if r["backend"] == "one"]
    assert (first["from"], last["to"]) == (None, None)
    assert all(str(r["from"]).endswith("Z") and str(r["to"]).endswith("Z") for r in middle)


def test_upcoming_as_a_chart(place: Place) -> None:
    place.queue("one", retrying("b", 400), retrying("c", 410), retrying("d", 1_700))
    lines = place.run("upcoming", "--until", "30m", "--buckets", "3", "--format", "table").out.splitlines()
    assert lines[0].split() == ["due", "at", "(UTC)", "one", "total"]
    assert [line.split()[0] for line in lines[1:]] == ["overdue", "now", "in", "in", "later"]
    assert "█" * 30 in lines[2]
    assert "█" * 15 in lines[4]
    assert "█" not in lines[3]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_a_narrow_chart_leaves_nobody_out(place: Place, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    names = [f"a-queue-named-{word}" for word in ("one", "two", "three", "four", "five", "six")]
    for number, name in enumerate(names):
        place.queue(name, *(retrying(f"{n}", 400) for n in range(number + 1)))
    monkeypatch.setenv("COLUMNS", str(width))
    done = place.run("upcoming", "--until", "30m", "--buckets", "3", "--format", "table")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= width
    shown = [name for name in names if name in lines[0]]
    assert shown == names[len(names) - len(shown):], "the busiest stay"
    *counts, total = [int(word) for word in lines[2].split() if word.isdigit()]
    assert (sum(counts), total) == (21, 21)
    folded = names[:len(names) - len(shown)]
    assert f"  {len(folded)} more" in lines[0]
    assert done.err == f"Counted together: {', '.join(folded)}. Use --backend to see one alone.\n"


def test_the_bar_gives_way_first(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.queue("a-queue-with-a-name", retrying("b", 400))
    for width, bar in ((200, 30), (68, 21), (54, 0)):
        monkeypatch.setenv("COLUMNS", str(width))
        done = place.run("upcoming", "--until", "30m", "--buckets", "3", "--format", "table")
        assert (done.out.count("█"), done.err) == (bar, "")
        assert "a-queue-with-a-name" in done.out


def test_no_retry_is_said(place: Place) -> None:
    place.queue("one", failed("a"))
    done = place.run("upcoming", "--format", "table")
    assert (done.code, done.out, done.err) == (0, "", "No retries are due.\n")


# --- show


def test_show_says_everything(place: Place) -> None:
    place.queue("one", failed("a/b c", "ERR_X: first line\nsecond \x1b[31mline", 2, "PENDING", next_run_at=at(600)))
    done = place.run("show", "one/a%2Fb%20c", "--format", "table")
    assert done.code == 0
    for words in (
        "one/a%2Fb%20c", "↻ retrying: 2 of 4 attempts used, due in", "runs again   yes, by itself", "attempt 3 at",
        "attempt 4 1h after that fails", "then terminal", "  ERR_X: first line\n  second ␛[31mline\n",
        "native row", "entity_id    e-a/b c",
    ):
        assert words in done.out
    one = json.loads(place.run("show", "one/a%2Fb%20c").out)
    assert one["error"] == "ERR_X: first line\nsecond \x1b[31mline"
    assert one["native"]["status"] == "PENDING"
    assert one["history"][0]["number"] == 2
    assert one["schedule"][-1] == "then terminal"
    assert one["overrides"] == []


@pytest.mark.parametrize(("key", "code", "said"), [
    ("nonsense", 2, "retriage: Not an item key: 'nonsense'. A key looks like backend/id. Copy one from `retriage list`.\n"),
    ("tow/1", 2, "retriage: No backend named 'tow'. Configured: one.\n"),
    ("one/nope", 1, "retriage: No such item: one/nope\n"),
])
def test_show_of_what_is_not_there(place: Place, key: str, code: int, said: str) -> None:
    place.queue("one", failed("a"))
    done = place.run("show", key)
    assert (done.code, done.out, done.err) == (code, "", said)


# --- check


def test_check_is_content(place: Place) -> None:
    place.queue("one", failed("a"))
    done = place.run("check")
    found = rows(done.out)
    assert (done.code, done.err) == (0, "")
    assert found[0] == {"backend": None, "subject": "config", "severity": "ok", "message": f"{place.config} is valid", "fix": ""}
    assert {r["subject"] for r in found if r["backend"] == "one"} >= {"reachable", "schema", "guard", "clock", "policy"}
    assert {r["severity"] for r in found} == {"ok"}
    (load,) = [r["message"] for r in found if r["subject"] == "load"]
    assert re.fullmatch(r"an open console takes about \d+\.\d\d s of its time per minute, [\d.]+ s per hour", load)


def test_check_tells_what_an_index_would_make_of_the_load(place: Place) -> None:
    path = place.queue("one", *(failed(n) for n in range(60_000)))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP INDEX idx_async_tasks_status_next_run")
    said = [r["message"] for _ in range(10) for r in rows(place.run("check").out) if r["subject"] == "load"]
    # It is measured, so on a busy machine the difference may not be seen each time.
    assert any(re.search(r"\. The index would make it about \d+\.\d\d s per minute$", load) for load in said), said


def test_check_names_a_policy_that_does_not_do_what_it_says(place: Place) -> None:
    place.queue("one", more=", policy: {max_attempts: 2, delays: [5m, 15m]}")
    done = place.run("check", "--format", "table")
    assert done.code == 0
    assert "! warning" in done.out
    assert "The delay 15m is never used: max_attempts 2 allows 1 retry. Set max_attempts: 3, or remove it." in done.out


def test_check_goes_on_past_a_broken_backend(place: Place) -> None:
    place.attach("gone")
    place.queue("one", failed("a"))
    done = place.run("check")
    assert done.code == 1
    errors = [r for r in rows(done.out) if r["severity"] == "error"]
    assert [(r["backend"], r["fix"]) for r in errors] == [("gone", "Check the path in the url.")]
    assert place.run("check", "--backend", "gone").code == 4
    assert place.run("check", "--backend", "one").code == 0
    place.attach("typo", more=", dialekt: tasks")
    done = place.run("check", "--format", "json")
    assert done.code == 2
    assert any("dialekt: unknown key. Did you mean 'dialect'?" in r["message"] for r in json.loads(done.out))


LOOKS_AND_KEYS = """\
  theme: textual-drak
  keymap:
    failures.reqeue: r
    causes.requeue: ctrl+banana
    failures.sort: f
    trail.verify: f6
"""
WRONG_LOOKS_AND_KEYS = (
    (3, "theme: Unknown theme 'textual-drak'. Did you mean 'textual-dark'?"),
    (5, "keymap.failures.reqeue: unknown action. Did you mean 'failures.requeue'?"),
    (6, "keymap.causes.requeue: unknown key 'ctrl+banana'. Write a key such as r, R, f5, ctrl+r or space."),
    (7, "keymap.failures.sort: f is already used for failures.views. Choose another key, or change that one too."),
)


def test_check_and_the_console_name_the_lines_of_a_bad_theme_and_keymap(place: Place) -> None:
    place.queue("one", failed("a"))
    place.console = LOOKS_AND_KEYS
    done = place.run("check")
    assert (done.code, done.out) == (2, "")
    lines = [f"{place.config}:{line}: console.{what}" for line, what in WRONG_LOOKS_AND_KEYS]
    assert done.err.splitlines() == [f"retriage: {line}" for line in lines]
    code, said = console_under_a_terminal(place)
    assert code == 2
    assert all(line in said for line in lines)


def console_under_a_terminal(place: Place) -> tuple[int, str]:
    """How it ended, and all it wrote."""
    child = pexpect.spawn(
        sys.executable, ["-m", "console", "--config", str(place.config)], encoding="utf-8", timeout=PATIENCE,
        env={**environment(place.folder), "TERM": "xterm-256color"}, dimensions=(30, 200), use_poll=True,  # type: ignore[arg-type]
    )
    said: str = child.read()
    child.close()
    return child.exitstatus, said


def test_read_only_is_reported(place: Place) -> None:
    place.queue("one", failed("a"))
    assert any(r["subject"] == "mode" for r in rows(place.run("check", "--read-only").out))


# --- plugins, completion


def test_plugins(place: Place) -> None:
    done = place.run("plugins")
    found = {str(row["name"]): row for row in rows(done.out)}
    assert found["sqlite_queue"]["distribution"] == "retriage"
    assert found["sqlite_queue"]["capabilities"] == ["read", "requeue", "discard", "undo", "run"]
    systems = {each["system"]: each for each in found["sql_table"]["systems"]}  # type: ignore[attr-defined]
    assert systems["River (Go) (preset: river)"]["discard"] == "yes"
    assert systems["delayed_job (Rails) (preset: delayed_job)"]["undo"] == "exact, not of a discard"


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_scripts(place: Place, shell: str) -> None:
    done = place.run("completion", shell)
    assert done.code == 0
    assert "upcoming" in done.out
    if shell == "bash" and (bash := shutil.which("bash")):
        assert subprocess.run([bash, "-n"], input=done.out, text=True).returncode == 0


def test_every_command_helps_with_examples(place: Place) -> None:
    listed = place.run("--help").out
    for command in ("demo", "list", "causes", "upcoming", "show", "check", "plugins", "run", "completion"):
        assert f"\n    {command} " in listed
        assert f"examples:\n  retriage {command}" in place.run(command, "--help").out
