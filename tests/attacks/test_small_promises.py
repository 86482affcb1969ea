"""Promises that one trick each could break: plugins' names, reasons, saved views, test switches, tasks in two files."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from console import registry
from console.cli import commands
from console.core.text import is_blank
from tests.cli.place import Place, environment, failed
from tests.ui.driving import failures, opened, toasts, until
from tests.ui.world import small_world

ROOT = Path(__file__).parents[2]
STRANGER = "class Stranger:\n    options = None\ndef declare(add): raise SystemExit('taken over')\n"


def distribution(folder: Path, name: str, points: str) -> None:
    info = folder / f"{name}-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text(points)
    (folder / "stranger.py").write_text(STRANGER)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = environment(folder)
    env["PYTHONPATH"] = f"{folder / 'site'}:{env['PYTHONPATH']}"
    return subprocess.run(
        [sys.executable, "-m", "console", *arguments], env=env, capture_output=True, text=True, check=False
    )


CLAIMS = "[retriage.backends]\nsqlite_queue = stranger:Stranger\nsql_table = stranger:Stranger\n\n[retriage.commands]\nstate = stranger:declare\nlist = stranger:declare\n"


@pytest.mark.parametrize("name", ["Retriage", "stranger"])
def test_a_stray_distribution_takes_no_plugin_over(place: Place, name: str) -> None:
    distribution(place.folder / "site", name, CLAIMS)
    place.queue("q", failed("a"))
    done = run(place.folder, "--config", str(place.write_config()), "list")
    assert (done.returncode, json.loads(done.stdout)["key"]) == (0, "q/a"), done.stderr
    assert run(place.folder, "state", "--help").returncode == 0
    listed = [json.loads(line) for line in run(place.folder, "plugins").stdout.splitlines()]
    ours = [row for row in listed if row["problem"] is None]
    assert {row["name"] for row in ours} == registry.OWN.keys()
    assert {row["distribution"] for row in ours} == {"retriage"}
    claims = [row for row in listed if row["problem"] is not None]
    assert [(row["name"], row["distribution"], row["capabilities"]) for row in claims] == [
        ("sql_table", name, []), ("sqlite_queue", name, []),
    ]
    assert all("not used" in row["problem"] for row in claims)


DAMAGED = {
    "no METADATA": {"entry_points.txt": CLAIMS.encode()},
    "an empty METADATA": {"METADATA": b"", "entry_points.txt": CLAIMS.encode()},
    "not UTF-8": {"METADATA": b"Name: odd\nVersion: 1\n", "entry_points.txt": b"\xff\xfe[retriage.backends]\n"},
    "a METADATA that is not UTF-8": {"METADATA": b"Name: \xff\xfe\nVersion: \xff\n", "entry_points.txt": CLAIMS.encode()},
    "not entry points": {"METADATA": b"Name: odd\nVersion: 1\n", "entry_points.txt": b"[[[\n= = =\n"},
}


@pytest.mark.parametrize("files", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_distribution_hides_nothing_of_ours_and_of_others(place: Place, files: dict[str, bytes]) -> None:
    info = place.folder / "site" / "odd-0.0.1.dist-info"
    info.mkdir(parents=True)
    for name, content in files.items():
        (info / name).write_bytes(content)
    distribution(place.folder / "site", "sound", "[retriage.backends]\nsound = stranger:Stranger\n")
    place.queue("q", failed("a"))
    config = str(place.write_config())
    for arguments in (["--help"], ["--config", config, "list"], ["--config", config, "check"]):
        done = run(place.folder, *arguments)
        assert done.returncode == 0, done.stderr
    done = run(place.folder, "plugins")
    listed = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["name"] for row in listed if row["distribution"] == "retriage"} == registry.OWN.keys()
    assert [row["distribution"] for row in listed if row["name"] == "sound"] == ["sound"]
    assert "nternal error" not in run(place.folder, "nosuch").stderr


def test_our_own_plugins_are_those_of_the_package() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points["retriage.backends"] == registry.OWN
    assert points["retriage.commands"] == commands.OWN_FAMILIES


INVISIBLE = ["", "\U0001d159", "\ufffc", " \t\n", "\u200b\u200d", "\u2800", "\u00a0\u3000", "\u3164", "\u202e\u2066", "\ufe0f", "\x00\x1b", "\u0301", "\U000e0041", "\U00013441"]


@pytest.mark.parametrize("reason", INVISIBLE)
def test_a_reason_that_nobody_can_see_is_no_reason(reason: str) -> None:
    assert is_blank(reason)
    assert is_blank(f" {reason}\u200b ")
    assert not is_blank(f"{reason}x")


def test_an_override_needs_a_visible_reason(place: Place) -> None:
    place.queue("q", failed("a"))
    done = place.run("requeue", "--key", "q/a", "--reason", "\u200b\u2800", "--confirm", "1")
    assert (done.code, "a reason is required" in done.err) == (3, True)


def test_the_owner_of_a_cause_is_nobody_or_somebody_who_can_be_seen(place: Place) -> None:
    place.queue("q", failed("a"))
    cause = place.run("causes").out.split('"cause": "')[1].split('"')[0]
    assert place.run("causes", "assign", cause, "bo").code == 0
    assert place.run("causes", "assign", cause, "\u2800\u200b").code == 2
    assert '"owner": "bo"' in place.run("causes").out
    assert place.run("causes", "assign", cause, "").code == 0
    assert '"owner": "bo"' not in place.run("causes").out


def test_the_switch_of_the_tests_does_nothing_in_the_product(place: Place) -> None:
    place.queue("q", failed("a"))
    config = place.write_config()
    done = subprocess.run(
        [sys.executable, "-m", "console", "--config", str(config), "requeue", "--key", "q/a", "--reason", "x", "--confirm", "1"],
        env=environment(place.folder) | {"RETRIAGE_FAULT_POINT": "before_intent"}, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    product = [path.read_text() for folder in ("console", "plugins") for path in (ROOT / folder).rglob("*.py")]
    assert not [text for text in product if "FAULT_POINT" in text]


async def test_a_read_only_console_saves_no_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)  # without the dialog, the letters are keys, and one of them exports
    async with opened(small_world(tmp_path, 20, read_only=True)) as pilot:
        await failures(pilot)
        await pilot.press("w")
        await until(pilot, lambda: "Save view is not available: this console is read-only" in toasts(pilot))
        await pilot.press(*"mine", "enter")
        await pilot.pause()
    assert not (tmp_path / "state").exists()
