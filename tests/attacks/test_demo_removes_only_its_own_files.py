"""`demo` removes only files that it made itself, writes only into a private folder of its own, and never in read-only mode."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from console.__main__ import main
from console.demo.folder import _is_private

OTHER_USER = 54_321


def demo(folder: Path, *more: str, read_only: bool = False) -> int:
    return main([*(["--read-only"] if read_only else []), "demo", "--no-open", "--scale", "100", "--dir", str(folder), *more])


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def world(tmp_path: Path) -> Path:
    assert demo(tmp_path / "w") == 0
    return tmp_path / "w"


MARKERS = [
    ("demo.json", "{}"),
    ("demo.json", '{"scale": 1, "seed": 1, "speed": 1, "base": "2026-01-01T00:00:00+00:00", "ready": true, "version": 3}'),
    ("demo.jsonl", "{}"),
    ("demo.jsonl", ""),
    ("demo.jsonl", '{"made_by": "retriage demo"}\n"thesis.txt"\n'),
]


@pytest.mark.parametrize(("name", "content"), MARKERS)
def test_a_file_with_the_markers_name_does_not_make_a_folder_a_demo(tmp_path: Path, name: str, content: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / name).write_text(content)
    (folder / "thesis.txt").write_text("three years of work")
    before = everything(folder)
    for more in ([], ["--reset"]):
        for read_only in (False, True):
            assert demo(folder, *more, read_only=read_only) in (2, 3)
    assert everything(folder) == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_pipe_in_place_of_the_marker_is_not_waited_for(tmp_path: Path, read_only: bool) -> None:
    os.mkfifo(tmp_path / "demo.jsonl")
    assert demo(tmp_path, read_only=read_only) in (2, 3)
    assert (tmp_path / "demo.jsonl").is_fifo()


@pytest.mark.parametrize("place", ["thesis.txt", "mail/queue/thesis.task", "mail/thesis.txt", "raw/thesis.txt", "new/thesis.txt"])
def test_a_file_that_somebody_added_stays_and_stops_the_rebuild(
    world: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (world / place).parent.mkdir(exist_ok=True)
    (world / place).write_text("three years of work")
    before = everything(world)
    capsys.readouterr()
    assert demo(world, "--reset") == 2
    assert place.partition("new/")[2] or place in capsys.readouterr().err
    assert everything(world) == before


def test_a_copied_marker_does_not_make_another_folder_a_demo(world: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for path in world.glob("demo.*"):
        shutil.copy(path, mine)
    assert (mine / "demo.jsonl").exists()
    (mine / "config.yaml").write_text("my own config")
    assert demo(mine, "--reset") == 2
    assert (mine / "config.yaml").read_text() == "my own config"


def test_names_in_the_marker_cannot_reach_out_of_the_folder(world: Path, tmp_path: Path) -> None:
    outside = tmp_path / "thesis.txt"
    outside.write_text("three years of work")
    (world / "link").symlink_to(tmp_path)
    with (world / "demo.jsonl").open("a") as marker:
        for name in ("../thesis.txt", str(outside), "link/thesis.txt", "link"):
            marker.write(json.dumps(name) + "\n")
    demo(world, "--reset")
    assert outside.read_text() == "three years of work"


def test_a_link_in_place_of_a_file_is_removed_and_not_followed(world: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "thesis.txt").write_text("three years of work")
    shutil.rmtree(world / "raw")
    (world / "raw").symlink_to(target)
    (world / "payments.db").unlink()
    (world / "payments.db").symlink_to(target / "thesis.txt")
    demo(world, "--reset")
    assert everything(target) == {"thesis.txt": b"three years of work"}


def test_a_demo_in_use_is_rebuilt_with_all_that_its_systems_left(world: Path) -> None:
    """The workers rename task files, and a killed one leaves files under private names."""
    queue = world / "mail" / "queue"
    task = sorted(queue.glob("mail-*.done"))[0]
    id = task.name.removesuffix(".done")
    task.rename(queue / f"{id}.running")
    for name in (f"{id}.done.0123456789ab.retriage", f"{id}.0123456789ab.retriage-new"):
        (queue / name).write_text("{}")
    (world / "mail" / "results" / f".{id}.0123456789ab.tmp").write_text("{}")
    for name in ("trail.db", "trail.db-wal", "trail.db-shm", "payments.db-wal", "anchors", "workers.log"):
        (world / name).write_text("of the old demo")
    assert demo(world, "--reset") == 0
    assert not (world / "anchors").exists()
    assert not (queue / f"{id}.running").exists()


@pytest.mark.parametrize("after", [1, 3, 8, 20])
def test_a_build_that_was_killed_is_removed_and_built_again(tmp_path: Path, after: int) -> None:
    """Every name is in the marker before the file exists, so that a kill leaves no file that looks like a stranger's."""
    folder = tmp_path / "w"
    pid = os.fork()
    if pid == 0:
        created, opened = 0, os.open

        def counting(*args: object, **options: object) -> int:
            nonlocal created
            if isinstance(args[1], int) and args[1] & os.O_EXCL:
                created += 1
                if created > after:
                    os._exit(9)
            return opened(*args, **options)  # type: ignore[arg-type]

        os.open = counting  # type: ignore[assignment]
        demo(folder)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert demo(folder) == 0
    assert (folder / "config.yaml").exists()


def test_read_only_builds_nothing_and_opens_what_is_there(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo(tmp_path / "new", read_only=True) == 3
    assert not (tmp_path / "new").exists()
    before = everything(world)
    assert demo(world, "--reset", read_only=True) == 3
    capsys.readouterr()
    assert demo(world, read_only=True) == 0
    assert capsys.readouterr().out == f"{world / 'config.yaml'}\n"
    assert everything(world) == before


# --- the folder is ours alone ----------------------------------------------------------------------


def test_the_folder_and_its_files_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        (tmp_path / "w").mkdir(mode=0o777)
        assert demo(tmp_path / "w") == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o700
    for path in (tmp_path / "w").iterdir():
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = Path("/usr")
    if os.getuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, OTHER_USER, OTHER_USER)
    before = sorted(theirs.iterdir())
    assert demo(theirs) == 2
    assert "belongs to another user" in capsys.readouterr().err
    assert demo(theirs / "below") == 2
    assert sorted(theirs.iterdir()) == before


def test_a_folder_that_everybody_can_replace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a folder where everybody may rename, our folder could be swapped between two steps."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert demo(shared / "w") == 2
    assert "Everybody can rename" in capsys.readouterr().err
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize(("private", "above", "code"), [(False, 0o755, 2), (True, 0o755, 0), (False, 0o700, 0)])
def test_a_folder_that_a_group_can_replace_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], private: bool, above: int, code: int
) -> None:
    """Unless the group is that of its user only, or nobody else gets there."""
    monkeypatch.setattr("console.demo.folder._is_private", lambda _: private)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(above)
        shared = Path(folder) / "shared"
        shared.mkdir()
        shared.chmod(0o775)
        assert demo(shared / "w") == code
        assert ("A group can rename folders in" in capsys.readouterr().err) == (code == 2)
        assert list(shared.iterdir()) == ([] if code else [shared / "w"])


def test_a_group_with_the_name_of_its_user_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {1000: "ann", 100: "users"}
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="ann"))
    monkeypatch.setattr("grp.getgrgid", lambda gid: SimpleNamespace(gr_name=names[gid]))
    for own, private in ((1000, {0, 1000}), (100, {0})):
        monkeypatch.setattr("os.getegid", lambda own=own: own)
        assert {gid for gid in (0, 100, 1000) if _is_private(gid)} == private


@pytest.mark.parametrize("name", ["w", "w/config.yaml", "w/demo.jsonl", "w/payments.db", "w/demo.lock"])
def test_a_link_that_somebody_planted_is_not_written_through(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "victim").write_text("precious")
    if name == "w":
        (tmp_path / "w").symlink_to(target)
    else:
        (tmp_path / "w").mkdir(mode=0o700)
        (tmp_path / name).symlink_to(target / "victim")
    assert demo(tmp_path / "w") == 2
    assert everything(target) == {"victim": b"precious"}


def test_a_link_planted_while_the_demo_is_built_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race itself: the link appears after the folder was looked at and before the config is written."""
    from console.demo import build as module

    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "w"
    real = module.sizes

    def plant(*arguments: object) -> object:
        (folder / "config.yaml").symlink_to(victim)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "sizes", plant)
    assert demo(folder) == 2
    assert victim.read_text() == "precious"


def test_the_help_does_not_suggest_a_shared_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    assert "/tmp" not in capsys.readouterr().out
