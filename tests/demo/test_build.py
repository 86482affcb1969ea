"""The sandbox world: the same seed gives the same world, it stays young, and every reading command works on it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from console.__main__ import main
from console.cli.context import DemoOptions
from console.core.query import MOST_VALUES
from console.demo.build import AGES_AFTER, SYSTEMS, open_demo
from console.demo.system import sizes
from console.history.store import open_history
from console.last_looked import note_look
from console.settings import load
from tests.cli.place import Done
from tests.depth import campaign

BASE = datetime(2026, 3, 1, 12, tzinfo=UTC)
TABLES = {
    "payments.db": ["async_tasks"],
    "jobs.db": ["tasks", "results"],
    "analyses.db": ["answer_analysis"],
    "fulfilment.db": ["workflow_steps", "workflow_step_transitions", "task_transitions"],
    "warehouse.db": ["partition_state"],
    "webhooks.db": ["outbox"],
}


def quiet(what: str, done: int, total: int) -> None:
    return


def build(folder: Path, scale: int | None = None, seed: int | None = None, base: datetime | None = None) -> None:
    with ExitStack() as keep:
        open_demo(DemoOptions(str(folder), scale, seed), quiet, keep, base)


def dump(folder: Path) -> dict[str, object]:
    """Everything in the world, as it is stored."""
    world: dict[str, object] = {}
    for file, names in TABLES.items():
        connection = sqlite3.connect(folder / file)
        connection.text_factory = bytes
        for name in names:
            world[name] = connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3, 4").fetchall()
        connection.close()
    for part in ("mail", "raw"):
        for path in sorted((folder / part).rglob("*")):
            if path.is_file():
                world[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return world


def test_the_same_seed_is_the_same_world(tmp_path: Path) -> None:
    for name, seed, base in (("a", 7, BASE), ("b", 7, BASE), ("c", 8, BASE), ("d", 7, BASE + timedelta(days=1))):
        build(tmp_path / name, 400, seed, base)
    worlds = {name: dump(tmp_path / name) for name in "abcd"}
    assert worlds["a"] == worlds["b"]
    assert all(worlds["a"][part] != worlds["c"][part] for part in ("async_tasks", "tasks", "workflow_steps"))
    assert [row[0] for row in worlds["a"]["tasks"]] == [row[0] for row in worlds["d"]["tasks"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("total", [100, 2_000, 1_000_000])
def test_the_parts_share_the_items(total: int) -> None:
    shared = sizes(SYSTEMS, total)
    assert sum(shared.values()) == total
    assert min(shared.values()) > 0


@pytest.fixture
def world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["demo", "--dir", str(tmp_path / "w"), "--no-open"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"{tmp_path / 'w' / 'config.yaml'}\n", "")
    return out.strip()


@pytest.fixture(scope="module")
def read_only_world(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One world for all tests that only read it."""
    folder = tmp_path_factory.mktemp("demo") / "w"
    build(folder)
    return str(folder / "config.yaml")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Done:
    code = main(list(arguments))
    return Done(code, *capsys.readouterr())


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in run(capsys, *arguments).out.splitlines()]


def test_every_reading_command_works_on_it(
    read_only_world: str, capsys: pytest.CaptureFixture[str], thorough: bool
) -> None:
    commands, formats = ("list", "causes", "upcoming", "check"), ("table", "json", "jsonl", "csv")
    for command, format in product(commands, formats) if thorough else zip(commands, formats, strict=True):
        more = ["--limit", "0"] if command == "list" else []
        assert run(capsys, "--config", read_only_world, command, "--format", format, *more).code == 0
    listed = rows(capsys, "--config", read_only_world, "list", "--limit", "0")
    assert {row["condition"] for row in listed} == {"retrying", "failed", "terminal", "stuck", "unknown"}
    assert {row["backend"] for row in listed} == {part.name for part in SYSTEMS}
    for row in listed:
        if "odd" in str(row["id"]):
            assert run(capsys, "--config", read_only_world, "show", str(row["key"]), "--format", "table").code == 0


@campaign
def test_every_backend_bears_the_widest_filter(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(world)
    path.write_text(path.read_text().replace("console:\n", "console:\n  deadline: 2m\n", 1))  # this machine may be busy
    for field, value in (("", "word"), ("key:", "a/b/c/")):
        where = field + ",".join(f"{value}{n}" for n in range(MOST_VALUES))
        assert run(capsys, "--config", world, "list", f"--where={where}").code == 0


def test_every_plugin_is_in_it(read_only_world: str, capsys: pytest.CaptureFixture[str]) -> None:
    installed = {str(row["name"]) for row in rows(capsys, "plugins")}
    used = {line.split('"')[1] for line in Path(read_only_world).read_text().splitlines() if line.startswith("    plugin:")}
    on_redis = {"rq", "sidekiq", "bullmq", "celery"}
    assert used == installed - on_redis, "a demo that no console has open has no Redis"


def test_a_storm_is_coming(read_only_world: str, capsys: pytest.CaptureFixture[str]) -> None:
    due = rows(capsys, "--config", read_only_world, "upcoming", "--backend", "payments")
    counts = [int(str(row["count"])) for row in due[1:-1]]
    assert max(counts) == max(counts[6:8])
    assert max(counts) > 3 * sum(counts) / len(counts)


def test_the_incident_has_its_causes(read_only_world: str, capsys: pytest.CaptureFixture[str]) -> None:
    throttled, timeouts, *_, expired = rows(capsys, "--config", read_only_world, "causes")
    assert "429 Too Many Requests" in str(throttled["sample"])
    assert set(throttled["backends"]) == {"payments", "fulfilment"}  # type: ignore[call-overload]
    assert throttled["recoverable"] is True
    assert "invalid API key" in str(expired["sample"])
    assert set(expired["backends"]) == {"jobs", "mail"}  # type: ignore[call-overload]
    assert expired["recoverable"] is False
    assert (expired["state"], expired["owner"], len(expired["notes"])) == ("acknowledged", "bo", 2)  # type: ignore[arg-type]
    assert (timeouts["state"], timeouts["by"]) == ("regressed", "cy")


def test_there_is_a_past(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A week of history, in which the regressed cause was there, then gone, then came back."""
    last_week = rows(capsys, "--config", world, "causes", "--at", "6d")
    assert any("ERR_TIMEOUT" in str(cause["sample"]) for cause in last_week)
    resolved = rows(capsys, "--config", world, "causes", "--at", "1d")
    assert resolved
    assert not any("ERR_TIMEOUT" in str(cause["sample"]) for cause in resolved)
    history = load(Path(world)).history.store_url()
    store = open_history(history, read_only=True)
    now = datetime.now(UTC)
    assert [mark.by for mark in store.marks(now - timedelta(days=7), now)] == ["cy", "deploy-bot"]
    trends = store.system_trends(now - timedelta(days=7), now - timedelta(hours=1), 7 * 24)
    assert all(value is not None for trend in trends.values() for value in trend.values[2:])
    store.close()
    done = run(capsys, "--config", world, "trail", "verify")
    assert (done.code, done.out.splitlines()[0]) == (0, "Intact: 4 records")


def test_what_the_deploy_broke_began_after_it(read_only_world: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Both systems that use the renamed column, and nothing else."""
    causes = [one for one in rows(capsys, "--config", read_only_world, "causes", "--limit", "0") if one["began_after"]]
    assert [list(one["backends"]) for one in causes] == [["jobs"], ["warehouse"]]  # type: ignore[call-overload]
    for one in causes:
        assert "invoices.customer_ref" in str(one["sample"])
        assert (one["state"], one["began_after"]) == ("new", "billing v2.7.1: renames invoices.customer_ref")


def test_it_is_reused_and_reset(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(Path(world).parent)
    before = dump(Path(folder))
    assert run(capsys, "demo", "--dir", folder, "--no-open").code == 0
    assert dump(Path(folder)) == before
    done = run(capsys, "demo", "--dir", folder, "--no-open", "--scale", "300")
    assert done.code == 2
    assert "The demo there has scale 2000, seed 1 and speed 12. Add --reset to rebuild it." in done.err
    assert run(capsys, "demo", "--dir", folder, "--no-open", "--scale", "300", "--reset").code == 0
    assert len(dump(Path(folder))["async_tasks"]) < 300  # type: ignore[arg-type]


def test_an_aged_world_is_built_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "w"
    build(folder, 300, 5, datetime.now(UTC) - AGES_AFTER - timedelta(hours=9))
    (folder / "trail.db").write_text("of the old world")
    done = run(capsys, "demo", "--dir", str(folder), "--no-open")
    assert done.code == 0
    assert done.err.startswith("The demo was 9h25m")
    mark = json.loads((folder / "demo.jsonl").read_text().splitlines()[0])
    assert (mark["scale"], mark["seed"]) == (300, 5)
    assert (folder / "trail.db").read_bytes().startswith(b"SQLite format 3")


def test_a_world_that_is_open_elsewhere_is_not_rebuilt(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(Path(world).parent)
    with ExitStack() as keep:
        assert open_demo(DemoOptions(folder), quiet, keep).owned
        done = run(capsys, "demo", "--dir", folder, "--no-open", "--reset")
        assert (done.code, done.err) == (
            2, f"retriage: The demo in {folder} is open in another console. "
            "Close that one first.\n",
        )
        done = run(capsys, "demo", "--dir", folder, "--no-open")
        assert (done.code, done.err) == (0, "Another console has this demo open and runs its workers.\n")
    assert run(capsys, "demo", "--dir", folder, "--no-open", "--reset").code == 0


def test_what_the_console_keeps_in_the_demo_does_not_stop_a_rebuild(
    world: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(world).parent
    note_look(datetime.now(UTC), folder)
    (folder / "views.json").write_text("{}")
    assert run(capsys, "demo", "--dir", str(folder), "--no-open", "--reset").code == 0
    assert not (folder / "last-looked").exists()


def test_a_half_built_world_is_built_again(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    mark = Path(world).parent / "demo.jsonl"
    mark.write_text(mark.read_text().removesuffix('{"redis": false}\n'))
    Path(world).unlink()
    assert run(capsys, "demo", "--dir", str(mark.parent), "--no-open").code == 0
    assert Path(world).exists()


def test_other_peoples_files_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/precious.txt").write_text("keep")
    for reset in ([], ["--reset"]):
        done = run(capsys, "demo", "--dir", str(tmp_path / "mine"), "--no-open", *reset)
        assert done.code == 2
        assert "contains 'precious.txt', which this demo did not make" in done.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["precious.txt"]


def test_the_default_place_is_the_state_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert run(capsys, "demo", "--no-open", "--scale", "200").out == f"{tmp_path}/.local/state/retriage/demo/config.yaml\n"
