"""Bad input: one clear line, the right exit code, nothing lost, and the other backends go on."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL
from tests.cli.place import Place, at, failed

HOSTILE = [
    "\x1b[2J\x1b]0;title\x07", "\x1b]52;c;cm0gLXJmIH4=\x07", "\x1b]8;;https://x.example\x07y\x1b]8;;\x07", "\x9b31m \x85",
    "\u202ereversed\u202c", "zero\u200bwidth\u200d", "e" + "\u0301" * 1_000, "[@click=app.quit]x[/] [/x] [link=y]list[int]",
    '{"a": [1, {"b": null}]}', "two\nlines\r\n\tand tabs", "=cmd|' /C calc'!A0", "\U000e0041 tags", "bell\x07del\x7f",
]


def broken_missing(place: Place, path: Path) -> None:
    return


def broken_text(place: Place, path: Path) -> None:
    path.write_text("this is not a database, but long enough to be looked at " * 100)


def broken_directory(place: Place, path: Path) -> None:
    path.mkdir()


def broken_columns(place: Place, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE async_tasks (task_id TEXT, state TEXT)")
    connection.close()


def broken_table(place: Place, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE something (else_ TEXT)")
    connection.close()


def broken_bytes(place: Place, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript(ASYNC_TASKS_DDL)
        connection.executemany("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [failed(str(n)) for n in range(500)])
    connection.close()
    content = bytearray(path.read_bytes())
    content[100:] = b"\xa5" * (len(content) - 100)
    path.write_bytes(content)


BROKEN = [
    (broken_missing, "Cannot connect: there is no such file. Check the path in the url."),
    (broken_text, "Cannot connect: the file is not an SQLite database"),
    (broken_directory, "Cannot connect: this is a directory, not a database file"),
    (broken_columns, "The schema does not match: table 'async_tasks' has no column task_type, "),
    (broken_table, "The schema does not match: there is no table 'async_tasks'."),
    (broken_bytes, "Cannot connect: the database file is damaged"),
]


@pytest.mark.parametrize(("spoil", "said"), BROKEN, ids=[spoil.__name__ for spoil, _ in BROKEN])
@pytest.mark.parametrize("command", ["list", "causes", "upcoming"])
def test_a_broken_place_is_named_and_the_others_go_on(
    place: Place, spoil: Callable[[Place, Path], None], said: str, command: str
) -> None:
    path = place.folder / "bad.db"
    spoil(place, path)
    place.attach("bad")
    place.queue("good", failed("a"))
    done = place.run(command)
    assert done.code == 1
    assert done.err.startswith(f"retriage: bad: {path}: {said}")
    assert done.err.count("\n") == 1
    assert '"good' in done.out
    alone = place.run(command, "--backend", "bad")
    assert (alone.code, alone.out) == (4, "")
    assert place.run("show", "bad/1").code == 4
    assert place.run(command, "--backend", "good").code == 0


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_locked_file_is_reported_within_the_deadline(place: Place) -> None:
    path = place.queue("busy", failed("a"))
    place.queue("good", failed("b"))
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdin
        assert holder.stdout.readline() == "held\n"
        done = place.run("list")
        alone = place.run("check", "--backend", "busy")
        holder.stdin.close()
    assert done.code == 1
    assert done.err == f"retriage: busy: {path}: The system is busy: another process holds its lock (database is locked)\n"
    assert '"good/b"' in done.out
    assert alone.code == 4
    assert place.run("list").code == 0, "it is read again once the lock is gone"


def test_odd_rows_are_shown_and_say_what_is_odd(place: Place) -> None:
    place.queue(
        "odd", failed("nulls", None, None, "FAILED", task_type=None, entity_id=None, created_at=None, updated_at=None),
        failed("times", status="PENDING", attempts=1, next_run_at="yesterday", created_at="12:30", updated_at="0000-00-00"),
        failed("negative", attempts=-7), failed("huge", attempts=2**62), failed("word", attempts="many"),
        failed("late", status="PENDING", attempts=1, next_run_at="9999-12-31T23:59:59.999999-12:00"),
    )
    done = place.run("list")
    found = {row["id"]: row for row in map(json.loads, done.out.splitlines())}
    assert (done.code, done.err) == (0, "")
    assert set(found) == {"nulls", "times", "negative", "huge", "word", "late"}
    assert (found["nulls"]["attempts"], found["nulls"]["error"], found["nulls"]["updated_at"]) == (0, None, None)
    assert (found["times"]["will_run_again"], found["times"]["next_retry_at"]) == (False, None)
    assert found["times"]["why"] == "its system ignores it: next_run_at is not a time"
    assert (found["negative"]["attempts"], found["huge"]["attempts"]) == (0, 2**62)
    for id in found:
        for format in ("table", "json"):
            assert place.run("show", f"odd/{id}", "--format", format).code == 0
    assert "attempts is -7, read as 0" in place.run("show", "odd/negative", "--format", "table").out
    for command in ("list", "causes", "upcoming"):
        for format in ("table", "csv", "json"):
            assert place.run(command, "--format", format).code == 0


def test_an_unknown_status_is_shown_as_it_is(place: Place) -> None:
    free = ASYNC_TASKS_DDL.replace("CHECK (status IN ('PENDING', 'RUNNING', 'DONE', 'FAILED'))", "")
    place.queue("odd", failed("a", status="ON \x1b[5mHOLD"), failed("b", status=None), failed("c", status=b"\xff"), ddl=free)
    found = {row["id"]: row for row in map(json.loads, place.run("list").out.splitlines())}
    assert {row["condition"] for row in found.values()} == {"unknown"}
    assert found["a"]["native_status"] == "ON \x1b[5mHOLD"
    assert found["a"]["why"].startswith("unknown status")
    assert set(found) == {"a", "b", "c"}
    assert "? unknown" in place.run("list", "--format", "table").out
    assert "ON ␛[5mHOLD" in place.run("show", "odd/a", "--format", "table").out


def test_twenty_megabytes_of_error_do_not_matter(place: Place) -> None:
    place.queue("odd", failed("a", "ERR: " + "x" * 20_000_000), failed("b", "ERR: " + "\x1b" * 20_000_000))
    for command in ("list", "causes"):
        for format in ("table", "jsonl", "csv", "json"):
            done = place.run(command, "--format", format)
            assert (done.code, len(done.out) < 100_000) == (0, True)
    shown = place.run("show", "odd/a", "--format", "table")
    assert (shown.code, len(shown.out) < 300_000) == (0, True)
    assert "(cut at 200000 characters)" in shown.out
    assert place.run("show", "odd/b", "--format", "json").code == 0


def test_invalid_utf8_is_readable_and_its_neighbours_too(place: Place) -> None:
    path = place.queue("odd", failed("good", "ERR: fine"))
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO async_tasks VALUES (CAST(? AS TEXT), 'T', 'e', 'FAILED', 4, ?, CAST(? AS TEXT), ?, ?)",
            (b"id\xff", at(-1), b"ERR: \xff\xfe\x80 bytes", at(-1), at(-1)),
        )
    connection.close()
    for format in ("table", "json", "csv", "jsonl"):
        for command in ("list", "causes"):
            done = place.run(command, "--format", format)
            assert (done.code, done.err) == (0, "")
    keys = {json.loads(line)["key"] for line in place.run("list").out.splitlines()}
    assert keys == {"odd/good", "odd/id%FF"}
    assert place.run("show", "odd/id%FF", "--format", "table").code == 0


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_never_reaches_the_terminal_raw(place: Place, text: str) -> None:
    """`Done` itself fails on any control byte."""
    place.queue("odd", failed(f"id {text}", text, task_type=text, entity_id=text))
    (key,) = [json.loads(line)["key"] for line in place.run("list").out.splitlines()]
    for arguments in (["list"], ["causes"], ["show", key]):
        for format in ("table", "json", "jsonl", "csv"):
            assert place.run(*arguments, "--format", format).code == 0
    assert json.loads(place.run("show", key).out)["error"] == text
    csv = place.run("list", "--format", "csv").out
    assert ",=cmd" not in csv
    assert place.run("list", "--where", text).code in (0, 2)
    assert place.run("show", text).code in (1, 2)


# --- places that are none

NO_HOME = "No such home folder: ~nobody-here/x. Write the whole path."


@pytest.mark.parametrize(("arguments", "said"), [
    (("trail", "export", "--output", "/nope/x"), "Cannot write /nope/x: No such file or directory. Name another file."),
    (("trail", "export", "--output", "{config}"), "{config} already exists. Name a new file; nothing is overwritten."),
    (("trail", "export", "--output", "~nobody-here/x"), NO_HOME),
    (("trail", "verify", "--anchor", "~nobody-here/x"), NO_HOME),
    (("map", "one", "--output", "~nobody-here/x"), NO_HOME),
    (("map", "one", "--output", "/nope/x"), "Cannot write /nope/x: No such file or directory. Name another file."),
    (("map", "sqlite:///~nobody-here/x"), NO_HOME),
    (("--config", "~nobody-here/x", "list"), NO_HOME),
    (("demo", "--no-open", "--dir", "~nobody-here/x"), NO_HOME),
    (("demo", "--no-open", "--dir", "/dev/null/x"), "Cannot use /dev/null/x: Not a directory. Choose another --dir."),
])
def test_a_place_that_is_none_is_one_line_and_exit_2(place: Place, arguments: tuple[str, ...], said: str) -> None:
    place.queue("one", failed("a"))
    done = place.run(*(word.format(config=place.config) for word in arguments))
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].endswith(f" {said.format(config=place.config)}")
    assert not list(place.folder.rglob("crash*"))


def test_a_named_file_without_its_home_is_reported_with_its_line(place: Place) -> None:
    place.sections["made"] = '  made: {plugin: sql_table, url: "sqlite:////x.db", mapping: ~nobody-here/x}\n'
    done = place.run("list")
    assert done.err.splitlines() == [
        f"retriage: made: {place.config}:4: {NO_HOME}"
    ]


def test_the_environments_config_without_its_home_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from console.__main__ import main

    monkeypatch.setenv("RETRIAGE_CONFIG", "~nobody-here/x")
    assert main(["list"]) == 2
    assert NO_HOME in capsys.readouterr().err


# --- the config, and no config


def test_no_config_offers_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    from console.__main__ import main

    for arguments in ([], ["list"], ["check"]):
        assert main(arguments) == 2
        assert "`retriage demo`" in capsys.readouterr().err


def test_the_advice_names_the_place_that_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from console.__main__ import main

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert main(["list"]) == 2
    assert f"Create {tmp_path}/xdg/retriage/config.yaml, name one with --config" in capsys.readouterr().err


def test_the_help_names_the_places_that_are_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    from console.__main__ import main

    assert main(["--help"]) == 0
    default = "default: $RETRIAGE_CONFIG, else retriage/config.yaml in $XDG_CONFIG_HOME or ~/.config"
    assert default in " ".join(capsys.readouterr().out.split())


def test_a_missing_mapping_is_not_reported_as_a_missing_config(place: Place) -> None:
    place.sections["made"] = '  made: {plugin: sql_table, url: "sqlite:////x.db", mapping: nowhere.yaml}\n'
    assert place.run("list").err.endswith("No such file. A relative path starts at the config's folder.\n")


def test_a_bad_config_names_line_and_key(place: Place) -> None:
    place.console = "  refesh: 5s\n  confirm_from: 0\n"
    place.queue("one")
    done = place.run("list")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        f"retriage: {place.config}:3: console.refesh: unknown key. Did you mean 'refresh'?",
        f"retriage: {place.config}:4: console.confirm_from: must be at least 1",
    ]


def test_a_mistake_in_one_backends_keys_is_reported_and_the_others_go_on(place: Place) -> None:
    place.queue("good", failed("a"))
    place.attach("typo", more=", urll: x")
    place.sections["alien"] = "  alien: {plugin: sqlite_queu}\n"
    done = place.run("list")
    assert done.code == 2
    assert '"good/a"' in done.out
    assert "urll: unknown key. Did you mean 'url'?" in done.err
    assert "No such plugin is installed. Did you mean 'sqlite_queue'?" in done.err


def test_a_config_without_backends(place: Place) -> None:
    done = place.run("list")
    assert (done.code, done.out) == (2, "")
    assert "No backend is configured" in done.err


def test_a_file_that_comes_back_is_found_again(place: Place) -> None:
    place.attach("late")
    assert place.run("list").code == 4
    place.queue("late", failed("a"))
    time.sleep(0.01)
    assert place.run("list").code == 0
