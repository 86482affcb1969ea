"""Promise: Retriage deletes and overwrites only files of its own, and a test names every place that could."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.confirm import Limits
from console.core.faults import Refused
from console.core.ports import Never
from console.core.session import Session
from console.last_looked import last_looked, note_look
from console.testing import NOON, FrozenClock
from console.ui.views import SavedViews
from tests.cli.place import Place, environment, failed

ROOT = Path(__file__).parents[2]

ALLOWED = {
    "console/attach.py": "replaces the user's config by itself with lines added, after asking",
    "console/cli/metrics.py": "replaces the metrics that it wrote before, in the file that the user named",
    "console/demo/folder.py": "removes the demo's own files, by the list in its marker",
    "console/demo/redis_server.py": "the demo's own Redis, in a new folder below /tmp",
    "console/demo/server.py": "the demo's own PostgreSQL, in a new folder below /tmp",
    "console/demo/workers.py": "the log of the demo's workers, in the demo's folder",
    "console/ui/export.py": "removes the new file whose export failed",
    "console/xdg.py": "replaces the user's own saved views, and their mark of the last look",
    "console/trail/anchor.py": "appends to the file that the config names",
    "plugins/file_queue/folder.py": "moves and removes task files; `Mover` is the only user",
    "plugins/file_queue/index_file.py": "replaces and removes its own index of task files, in the user's private cache folder",
    "plugins/sql_table/json_schema.py": "a developer's tool that writes the schema in the checkout",
}
"""Every module that removes, renames, truncates or overwrites a file, and what it does."""
CALLS = {"unlink", "rmtree", "rmdir", "remove", "removedirs", "rename", "renames", "write_text", "write_bytes", "truncate", "copyfile", "copytree", "copy2", "move"}
ON_PATHS = {"remove", "rename", "truncate", "move", "copy2"}
"""Names that other objects have too: only `os.`, `shutil.` and paths count."""


def dangerous(path: Path) -> Iterator[str]:
    """What in a module could delete a file or write over one."""
    tree = ast.parse(path.read_text())
    parts = {id(side) for node in ast.walk(tree) if isinstance(node, ast.BinOp) for side in (node.left, node.right)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "O_TRUNC":
            yield "O_TRUNC"
        if isinstance(node, ast.BinOp) and id(node) not in parts:
            flags = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
            if "O_CREAT" in flags and "O_EXCL" not in flags:
                yield "O_CREAT without O_EXCL"
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if node.func.attr in CALLS and (node.func.attr not in ON_PATHS or owner in ("os", "shutil")):
                yield node.func.attr
            if node.func.attr == "replace" and (owner == "os" or (len(node.args) == 1 and not node.keywords)):
                yield "replace"  # that of a text has two arguments, that of a time has keywords
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        given = [*node.args, *(word.value for word in node.keywords if word.arg == "mode")]
        modes = [arg.value for arg in given if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if name == "open" and any(set(mode) <= set("rwabt+") and set(mode) & set("wa+") for mode in modes):
            yield f"open {modes}"


def test_every_place_that_could_delete_or_overwrite_is_known() -> None:
    found = {
        str(path.relative_to(ROOT)): sorted(set(dangerous(path)))
        for folder in ("console", "plugins") for path in (ROOT / folder).rglob("*.py")
    }
    # render.py opens /dev/null where there is no standard output.
    assert {name for name, calls in found.items() if calls} - {"console/cli/render.py"} == ALLOWED.keys()
    assert found["console/cli/render.py"] == ["open ['w']"]


def test_the_search_finds_each_way(tmp_path: Path) -> None:
    ways = ["p.unlink()", "os.remove(p)", "shutil.rmtree(p)", "os.replace(a, b)", "temporary.replace(p)", "p.write_text('')", "open(p, 'w')", "p.open('wb')", "p.open(mode='r+')", "open(p, 'a')", "Path(x).replace(p)", "os.open(p, os.O_RDWR | os.O_CREAT)", "os.open(p, os.O_TRUNC)", "os.rename(a, b)", "os.truncate(p, 0)"]
    for way in ways:
        (tmp_path / "m.py").write_text(way)
        assert list(dangerous(tmp_path / "m.py")), way


@pytest.mark.parametrize("arguments", [("trail", "export", "--output"), ("map", "q.db", "--output")], ids=lambda arguments: arguments[0])
@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_an_output_file_is_always_a_new_one(place: Place, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], kind: str) -> None:
    place.queue("q", failed("a"))
    monkeypatch.chdir(place.folder)
    other, wanted = place.folder / "thesis", place.folder / "out"
    if kind == "file":
        wanted.write_text("thesis")
    else:
        if kind == "link":
            other.write_text("thesis")
        wanted.symlink_to(other)
    assert place.run(*arguments, "out").code == 2
    assert other.exists() == (kind == "link")
    assert kind == "dangling link" or wanted.read_text() == "thesis"


def test_metrics_replace_only_metrics(place: Place) -> None:
    place.queue("q", failed("a"))
    wanted = place.folder / "retriage.prom"
    for _ in range(2):
        assert place.run("metrics", "--output", str(wanted)).code == 0
    assert wanted.read_text().startswith("# TYPE retriage_")
    wanted.write_text("thesis")
    refused = place.run("metrics", "--output", str(wanted))
    assert (refused.code, wanted.read_text()) == (2, "thesis")
    assert "does not contain metrics of Retriage" in refused.err


def test_metrics_do_not_wait_for_a_pipe(place: Place) -> None:
    place.queue("q", failed("a"))
    os.mkfifo(place.folder / "pipe")
    assert place.run("metrics", "--output", str(place.folder / "pipe")).code == 2
    assert (place.folder / "pipe").is_fifo()


# --- a state folder that two users share --------------------------------------------------------------

AS = """
import os, sys
from console.__main__ import main
warm_up, uid, state, words = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
out, sys.stdout = sys.stdout, open(os.devnull, "w")
main(["--config", warm_up, *words])  # loads all modules: the other user may have no access to them
main(["--config", warm_up, "trail", "verify"])
sys.stdout = out
os.setgid(uid)
os.setuid(uid)
os.environ["XDG_STATE_HOME"] = state
sys.stderr.write("-----")
sys.exit(main(words))
"""


def run_as(place: Place, uid: int, *arguments: str) -> tuple[int, str, str]:
    """A command as this user: exit code, output and messages."""
    alone = Place(place.folder / f"alone-{uid}", place.capsys)
    alone.folder.mkdir(exist_ok=True)
    alone.attach("q", f"sqlite:///{shutil.copy(place.folder / 'q.db', alone.folder)}")
    env = environment(alone.folder) | {"RETRIAGE_CONFIG": str(place.folder / f"{uid}.yaml")}
    done = subprocess.run(
        [sys.executable, "-c", AS, str(alone.write_config()), str(uid), str(place.folder / "shared"), *arguments], env=env, cwd=ROOT,
        capture_output=True, text=True, check=False,
    )
    return done.returncode, done.stdout, done.stderr.partition("-----")[2]


@pytest.fixture
def in_tmp(capsys: pytest.CaptureFixture[str]) -> Iterator[Place]:
    """A place that other users can reach: pytest keeps its own folders private."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Place(Path(folder), capsys)


@pytest.mark.skipif(os.getuid() != 0, reason="becoming two users needs root")
def test_two_users_with_one_state_folder_cannot_write_each_others_trail(in_tmp: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second user is refused: nothing is changed, and the first user's trail stays as it is."""
    place = in_tmp
    monkeypatch.setenv("XDG_STATE_HOME", str(place.folder / "unused"))
    path = place.queue("q", *(failed(str(n)) for n in range(3)))
    shared = place.folder / "shared"
    for open_to_all in (shared, shared / "retriage"):
        open_to_all.mkdir(exist_ok=True)
        open_to_all.chmod(0o777)
    place.folder.chmod(0o777)  # both are workers of the queue, too
    path.chmod(0o666)
    for uid in (1501, 1502):
        config = place.folder / f"{uid}.yaml"
        config.write_text(place.write_config().read_text())
        config.chmod(0o600)
        os.chown(config, uid, uid)
    first = run_as(place, 1501, "requeue", "--key", "q/0", "--attempts", "reset", "--reason", "r", "--confirm", "1")
    assert first[0] == 0, first
    trail = shared / "retriage" / "trail.db"
    before = trail.read_bytes()
    second = run_as(place, 1502, "requeue", "--key", "q/1", "--attempts", "reset", "--reason", "r", "--confirm", "1")
    assert second[0] in (3, 4), second
    assert "trail" in second[2].lower()
    verified = run_as(place, 1502, "trail", "verify")
    assert verified[0] == 4, verified
    assert trail.read_bytes() == before
    assert {json.loads(line)["id"] for line in place.run("list", "--where", "condition:terminal").out.splitlines()} == {"1", "2"}
    assert "can write its folder" in run_as(place, 1501, "check")[1]


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_the_saved_views_and_marks_of_another_user_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    views = SavedViews(Session((), FrozenClock(), Never(), Limits()))
    views.save("mine", "condition:terminal")
    note_look(NOON)
    for path in (tmp_path / "retriage").iterdir():
        os.chown(path, 1501, 1501)
    with pytest.raises(Refused, match="belongs to another user"):
        views.save("other", "condition:stuck")
    note_look(NOON + timedelta(hours=1))
    assert views.saved() == {"mine": "condition:terminal"}
    assert last_looked() == NOON
