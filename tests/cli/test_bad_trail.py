"""Plans and trail files that somebody else has written to: one clear line, the right exit code, nothing changed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.place import Place, failed

ALTERED = "retriage: The stored plan was altered: {id}. Make a new plan; do not apply this one. Run `retriage trail verify`.\n"
BROKEN, UNREADABLE, USAGE = 5, 4, 2


def proposed(place: Place) -> tuple[str, Path, Path]:
    """A plan of one, after an override of another: its id, the trail, the queue."""
    queue = place.queue("q", failed("a"), failed("b"))
    assert place.run("requeue", "--key", "q/a", "--reason", "r", "--confirm", "1").code == 0
    plan = json.loads(place.run("plan", "--key", "q/b").out)
    return plan["plan_id"], next(place.folder.rglob("trail.db")), queue


def edit(trail: Path, sql: str) -> None:
    with closing(sqlite3.connect(trail, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(sql)


def status(queue: Path) -> str:
    with closing(sqlite3.connect(queue)) as connection:
        found: str = connection.execute("SELECT status FROM async_tasks WHERE task_id = 'b'").fetchone()[0]
    return found


PLANS = [
    ("DELETE FROM plan_block", BROKEN, ALTERED),
    *(
        (f"UPDATE {change}", BROKEN, ALTERED)
        for change in (
            "plan SET body = ''", "plan SET body = 'x'", "plan SET body = '[]'", "plan SET body = '{}'", "plan SET body = NULL",
            "plan SET body = x'ff00fe'", "plan SET body = replace(hex(zeroblob(50000)), '0', '[')", "plan SET hash = NULL",
            "plan SET hash = 'x'", "plan SET expires = 'x'", "plan SET expires = NULL", "plan SET seq = 2", "plan SET body = replace(body, '\"now\", 0', '1')",
            "plan SET body = replace(body, 'requeue', 'burn')", "plan_block SET body = x''", "plan_block SET body = x'ffff'",
            "plan_block SET body = '[[1]]'", "plan_block SET items = 99", "plan_block SET items = 'many'", "plan_block SET first = 5",
        )
    ),
    ("UPDATE plan SET stage = 7", USAGE, "retriage: No such plan: '{id}'\n"),
    ("DELETE FROM plan", USAGE, "retriage: No such plan: '{id}'\n"),
    ("UPDATE plan SET seq = NULL", USAGE, "retriage: No such plan: {id} is a draft that was never recorded. Make a new plan.\n"),
    ("DROP TABLE plan", UNREADABLE, "retriage: {trail}: The trail cannot be read: no such table: plan\n"),
]


@pytest.mark.parametrize(("sql", "code", "line"), PLANS, ids=[sql for sql, _, _ in PLANS])
def test_a_plan_that_is_not_what_was_stored_is_not_applied(place: Place, sql: str, code: int, line: str) -> None:
    id, trail, queue = proposed(place)
    edit(trail, sql)
    done = place.run("apply", id, "--reason", "r", "--confirm", "1")
    assert (done.code, done.err) == (code, line.format(id=id, trail=trail))
    assert status(queue) == "FAILED"


@pytest.mark.parametrize("id", ["", "p", "nonsense", "../../etc/passwd", "p' OR 1=1 --", "\x1b[2J", "\udcff", "9" * 5_000])
def test_a_plan_that_is_not_there_is_named(place: Place, id: str) -> None:
    proposed(place)
    place.run("plan", "--key", "q/b")
    done = place.run("apply", id, "--reason", "r", "--confirm", "1")
    assert done.code == USAGE
    assert done.err.startswith("retriage: No such plan: ")
    assert (done.err.count("\n"), len(done.err) < 6_000) == (1, True)


def text(trail: Path) -> None:
    trail.write_text("this is not a database " * 200)


def folder(trail: Path) -> None:
    trail.unlink()
    trail.mkdir()


def cut_off(trail: Path) -> None:
    trail.write_bytes(trail.read_bytes()[:5_000])


def noise(trail: Path) -> None:
    trail.write_bytes(trail.read_bytes()[:100] + b"\xa5" * (trail.stat().st_size - 100))


FILES = [
    (text, "the file is not an SQLite database (file is not a database)"),
    (folder, "this is a directory, not a database file"),
    (cut_off, "the database file is damaged (database disk image is malformed)"),
    (noise, "the database file is damaged (database disk image is malformed)"),
]
ASKED = [["apply", "p1", "--reason", "r", "--confirm", "1"], ["trail", "list"], ["trail", "verify"], ["trail", "export"], ["overrides", "list"]]


@pytest.mark.parametrize(("spoil", "line"), FILES, ids=[spoil.__name__ for spoil, _ in FILES])
@pytest.mark.parametrize("asked", ASKED, ids=" ".join)
def test_a_file_that_is_no_trail_is_broken_and_the_list_goes_on(
    place: Place, spoil: Callable[[Path], None], line: str, asked: list[str]
) -> None:
    _, trail, queue = proposed(place)
    spoil(trail)
    done = place.run(*asked)
    assert (done.code, done.out, done.err) == (BROKEN, "", f"retriage: {trail}: The trail is broken: {line}\n")
    assert (place.run("list").code, status(queue)) == (0, "FAILED")


VERSIONS = [
    ("UPDATE trail_schema SET version = 99", "format 99"), ("UPDATE trail_schema SET version = 'x'", "format x"),
    ("DELETE FROM trail_schema", "no format"),
]


@pytest.mark.parametrize(("sql", "found"), VERSIONS)
def test_tables_of_another_version_are_left_alone(place: Place, sql: str, found: str) -> None:
    id, trail, queue = proposed(place)
    edit(trail, sql)
    for asked in (["apply", id, "--reason", "r", "--confirm", "1"], ["trail", "verify"], ["trail", "list"]):
        done = place.run(*asked)
        assert done.code == UNREADABLE
        message = f"it has {found}, but this version of Retriage needs format "
        assert done.err.startswith(f"retriage: {trail}: The trail cannot be read: {message}")
    assert status(queue) == "FAILED"


RECORDS = [
    ("UPDATE record SET body = 'x'", "trail list", "record 6 cannot be read"),
    ("UPDATE record SET body = 'x' WHERE seq = 2", "trail export", "record 2 cannot be read"),
    ("UPDATE record SET at = 'yesterday' WHERE seq = 3", "trail list", "record 3 cannot be read"),
    ("UPDATE override_state SET counts = 'x'", "overrides list", "the state of override {op} cannot be read"),
    ("UPDATE override_state SET confirmed = '[]'", "overrides list", "the state of override {op} cannot be read"),
    ("UPDATE override_state SET state = 'odd'", "overrides list", "the state of override {op} cannot be read"),
    ("UPDATE override_state SET started = '12:30'", "overrides show {op}", "the state of override {op} cannot be read"),
]


@pytest.mark.parametrize(("sql", "asked", "line"), RECORDS, ids=[sql for sql, _, _ in RECORDS])
def test_what_nobody_can_read_is_a_broken_trail_not_a_crash(place: Place, sql: str, asked: str, line: str) -> None:
    _, trail, _ = proposed(place)
    op = json.loads(place.run("overrides", "list").out)["override_id"]
    edit(trail, sql)
    done = place.run(*asked.format(op=op).split())
    assert (done.code, done.err) == (BROKEN, f"retriage: The trail is broken: {line.format(op=op)}. Run `retriage trail verify`.\n")
