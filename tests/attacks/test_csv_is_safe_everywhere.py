"""Text of other systems reaches neither a terminal as control bytes nor a spreadsheet as a formula, in any locale."""

from __future__ import annotations

import ast
import csv
import io
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.core.export import record_writer
from tests.cli.place import Place, failed

ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b31m\u202eexe\u200b\r\n;=HYPERLINK(1)"


def hostile_place(place: Place) -> None:
    """A queue whose trigger refuses a row with a message full of controls."""
    path = place.queue("q", failed("a", HOSTILE), failed(HOSTILE.replace("\0", ""), "x"))
    with sqlite3.connect(path) as connection:
        connection.create_function("message", 0, lambda: HOSTILE)
        quoted = HOSTILE.replace("'", "''")
        connection.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON async_tasks WHEN old.task_id = 'a' BEGIN"
            f" SELECT RAISE(ABORT, '{quoted}'); END"
        )
    connection.close()


def test_a_triggers_message_reaches_no_terminal(place: Place) -> None:
    hostile_place(place)
    done = place.run("requeue", "--all", "--reason", f"{HOSTILE} because", "--confirm", "2")
    assert "1 rejected" in done.err
    for command in (
        ["trail", "export", "--format", "csv", "--items"], ["trail", "export", "--items"],
        *(["trail", "list", "--format", form] for form in ("table", "json", "jsonl", "csv")),
        *(["overrides", "list", "--format", form] for form in ("table", "json", "csv")),
        *(["list", "--format", form, "--where", "condition:*"] for form in ("table", "json", "csv")),
        *(["causes", "--format", form, "--where", "condition:*"] for form in ("table", "json", "csv")),
        *(["report", "--format", form] for form in ("markdown", "html")), ["metrics"],
    ):
        assert place.run(*command).out  # `Done` fails on any control byte
    override = place.run("overrides", "list").out.split('"override_id": "')[1].split('"')[0]
    for form in ("table", "json", "csv"):
        assert "SELECT" not in place.run("overrides", "show", override, "--items", "--format", form).err
    target = place.folder / "trail.csv"
    assert place.run("trail", "export", "--format", "csv", "--items", "--output", str(target)).code == 0
    assert not [char for char in target.read_text() if ord(char) < 32 and char != "\n"]


SIGNS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
FORMULAS = ["=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1+1", "＋1", "－1", "＠SUM(A1)"]


@pytest.mark.parametrize("start", FORMULAS)
@pytest.mark.parametrize("before", ["", "x;", "x; ", 'x;"', "x\t", "x,", 'x;""', "x|", ";;"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_no_cell_is_a_formula_whatever_the_separator(before: str, start: str, separator: str) -> None:
    out = io.StringIO()
    record_writer("csv", out, ("a", "b", "c"))({"a": before + start, "b": before + start, "c": "end"})
    for row in csv.reader(io.StringIO(out.getvalue()), delimiter=separator):
        for cell in row:
            assert not cell.startswith((*SIGNS, "\t", "\r"))
    for piece in out.getvalue().split(";"):  # a comma file in a semicolon locale: quotes within a cell mean nothing
        assert not piece.lstrip(' "').startswith(SIGNS), piece


def test_cells_with_a_separator_are_quoted_and_read_back() -> None:
    out = io.StringIO()
    cells = {"a": "x;y", "b": 'say "no"', "c": -3, "d": "plain", "e": "=1", "f": "a|b", "g": ""}
    record_writer("csv", out, tuple(cells))(cells)
    line = out.getvalue().splitlines()[1]
    assert line == '"x;y","say ""no""","-3",plain,"\'=1","a|b",'
    assert list(csv.reader([line])) == [["x;y", 'say "no"', "-3", "plain", "'=1", "a|b", ""]]


# --- there is no other way out ---------------------------------------------------------------------

MAY_WRITE = {
    "console/cli/render.py",  # neutralises
    "console/__main__.py",  # flushes, and closes a broken pipe
    "console/cli/parser.py",  # help texts of our own
    "console/demo/server.py",  # a pipe to its parent process
}


def ways_out(tree: ast.AST) -> Iterator[str]:
    """Every use of a standard stream, a descriptor of one, or something that writes to one."""
    asked = {  # whether a stream is a terminal is a question, not a way out
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "isatty"
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute() if id(node) in asked:
                pass
            case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr" | "__stdout__" | "__stderr__" as name):
                yield f"sys.{name}"
            case ast.ImportFrom(module="sys", names=names):
                yield from (f"sys.{one.name}" for one in names if one.name.strip("_") in ("stdout", "stderr"))
            case ast.Call(func=ast.Name(id="print" | "input" as name)):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="write" | "dup2" | "fdopen" as name),
                          args=[ast.Constant(value=1 | 2), *_]):
                yield f"os.{name}"
            case ast.Constant(value="/dev/tty" | "/dev/stdout" | "/dev/stderr" as name):
                yield name
            case ast.Import(names=names) if any(one.name in ("warnings", "csv") for one in names):
                yield "warnings or csv"
            case ast.Attribute(attr="basicConfig" | "StreamHandler" | "lastResort" as name):
                yield f"logging.{name}"
            case ast.Call(func=ast.Name(id="Console"), keywords=words) if not words:
                yield "rich"


def test_nothing_but_render_writes_to_a_standard_stream() -> None:
    found = {
        str(path.relative_to(ROOT)): sorted(set(ways))
        for folder in ("console", "plugins") for path in sorted((ROOT / folder).rglob("*.py"))
        if (ways := list(ways_out(ast.parse(path.read_text()))))
    }
    assert found.keys() - MAY_WRITE == set(), found


def test_the_lint_finds_each_way_out() -> None:
    ways = [
        "print('x')", "import sys\nsys.stdout.write('x')", "from sys import stdout", "import os\nos.write(1, b'x')",
        "open('/dev/tty')", "import csv", "logging.basicConfig()", "Console().print('x')", "input('x')",
    ]
    assert all(list(ways_out(ast.parse(way))) for way in ways)


def test_stdout_itself_is_given_only_to_writers_that_neutralise() -> None:
    """`stdout()` of render is the raw stream. `trail` passes it to the one CSV and JSON writer, `report` to writers that
    neutralise. `map` and `attach` ask whether it is a terminal. `completion` and `metrics` write text of our own."""
    users = {
        str(path.relative_to(ROOT)) for path in (ROOT / "console").rglob("*.py")
        if any(isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "stdout"
               for node in ast.walk(ast.parse(path.read_text())))
    }
    assert users == {f"console/cli/{name}.py" for name in ("render", "trail", "map", "completion", "report", "metrics", "attach")}
