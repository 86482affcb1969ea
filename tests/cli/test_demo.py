"""The sandbox world: the same seed gives the same world, and every reading command works on it."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console.__main__ import main
from console.demo.world import build_world
from tests.cli.place import Done

BASE = datetime(2026, 3, 1, 12, tzinfo=UTC)


def quiet(what: str, done: int, total: int) -> None:
    return


def dump(folder: Path) -> dict[str, list[object]]:
    tables = {}
    for file, names in (("payments.db", ["async_tasks"]), ("jobs.db", ["tasks", "results"])):
        connection = sqlite3.connect(folder / file)
        connection.text_factory = bytes
        for name in names:
            tables[name] = connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()
        connection.close()
    return tables


def test_the_same_seed_is_the_same_world(tmp_path: Path) -> None:
    for name, seed, base in (("a", 7, BASE), ("b", 7, BASE), ("c", 8, BASE), ("d", 7, BASE + timedelta(days=1))):
        build_world(str(tmp_path / name), 400, seed, False, quiet, base)
    worlds = {name: dump(tmp_path / name) for name in "abcd"}
    assert worlds["a"] == worlds["b"]
    assert worlds["a"] != worlds["c"]
    assert [row[0] for row in worlds["a"]["tasks"]] == [row[0] for row in worlds["d"]["tasks"]]  # type: ignore[index]
    assert sum(len(worlds["a"][table]) for table in ("async_tasks", "tasks")) == 400


@pytest.fixture
def world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["demo", "--dir", str(tmp_path / "w"), "--no-open"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"{tmp_path / 'w' / 'config.yaml'}\n", "")
    return out.strip()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Done:
    code = main(list(arguments))
    return Done(code, *capsys.readouterr())


def test_every_reading_command_works_on_it(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("list", "groups", "upcoming", "check"):
        for format in ("table", "json", "jsonl", "csv"):
            more = ["--limit", "0"] if command == "list" else []
            assert run(capsys, "--config", world, command, "--format", format, *more).code == 0
    rows = [json.loads(line) for line in run(capsys, "--config", world, "list", "--limit", "0").out.splitlines()]
    assert {row["condition"] for row in rows} == {"retrying", "failed", "terminal", "stuck", "unknown"}
    for row in rows:
        if "odd" in row["id"]:
            assert run(capsys, "--config", world, "show", row["key"], "--format", "table").code == 0


def test_a_storm_is_coming(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in run(capsys, "--config", world, "upcoming", "--backend", "payments").out.splitlines()]
    counts = [row["count"] for row in rows[1:-1]]
    assert max(counts) == max(counts[3:5])
    assert max(counts) > 3 * sum(counts) / len(counts)


def test_it_is_reused_and_reset(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(Path(world).parent)
    before = dump(Path(folder))
    assert run(capsys, "demo", "--dir", folder, "--no-open").code == 0
    assert dump(Path(folder)) == before
    done = run(capsys, "demo", "--dir", folder, "--no-open", "--scale", "300")
    assert done.code == 2
    assert "the world there has 2000 items and seed 1. Add --reset to build another." in done.err
    assert run(capsys, "demo", "--dir", folder, "--no-open", "--scale", "300", "--reset").code == 0
    assert sum(len(dump(Path(folder))[table]) for table in ("async_tasks", "tasks")) == 300


def test_a_half_built_world_is_built_again(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    mark = Path(world).parent / "world.json"
    mark.write_text(mark.read_text().replace("true", "false"))
    Path(world).unlink()
    assert run(capsys, "demo", "--dir", str(mark.parent), "--no-open").code == 0
    assert Path(world).exists()


def test_other_peoples_files_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/precious.txt").write_text("keep")
    for reset in ([], ["--reset"]):
        done = run(capsys, "demo", "--dir", str(tmp_path / "mine"), "--no-open", *reset)
        assert done.code == 2
        assert "has other files in it" in done.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["precious.txt"]


def test_the_default_place_is_the_state_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "demo", "--no-open", "--scale", "200").out == f"{tmp_path}/.local/state/retriage/demo/config.yaml\n"
