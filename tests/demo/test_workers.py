"""The workers of the demo's systems: some items recover, others fail again, and a canary shows which."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from console.__main__ import main
from console.cli.context import DemoOptions
from console.demo.build import open_demo


@pytest.fixture
def config(tmp_path: Path) -> Iterator[str]:
    with ExitStack() as keep:
        built = open_demo(DemoOptions(str(tmp_path / "w")), lambda *_: None, keep)
        built.start_workers(keep)
        yield str(built.config)


def requeue(config: str, where: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    """Plan it, then apply exactly that; the exit code, and all that was said."""
    order = ["--where", where, "--pace", "canary 5", "--limit", "20", *more]
    main(["--config", config, "plan", *order, "--format", "json"])
    plan = json.loads(capsys.readouterr().out)
    code = main(["--config", config, "apply", plan["plan_id"], "--reason", "try", "--confirm", str(plan["changes"])])
    return code, "".join(capsys.readouterr())


def watched(config: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The results of the items of the last override."""
    main(["--config", config, "overrides", "list", "--limit", "1", "--format", "jsonl"])
    override = json.loads(capsys.readouterr().out)["override_id"]
    main(["--config", config, "overrides", "watch", override, "--format", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_was_throttled_succeeds_so_the_canary_lets_the_rest_follow(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = requeue(config, "backend:payments condition:terminal error~429", capsys)
    assert code == 0
    assert "finished" in output
    found = watched(config, capsys)
    assert found["results"]["recovered"] >= 15
    assert found["results"]["recovered"] + found["results"]["failed_again"] == 20
    assert found["same_cause"] == 0, "whatever fails again has another error, such as an expired card"


def test_what_needs_the_expired_key_comes_back_so_the_canary_stops(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "backend:jobs condition:terminal error~401"
    code, output = requeue(config, where, capsys, "--include-unrecoverable")
    assert code == 1
    assert "Canary failed: " in output
    assert "failed again with the same error (limit 20 %)" in output
    assert re.search(r"Cause: [0-9a-f]{8} \(\d\)", output), "its signature: error text never enters the trail"
    found = watched(config, capsys)
    assert found["same_cause"] == found["results"]["failed_again"] == 5


def test_they_are_ours_wherever_the_person_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "console/demo").mkdir(parents=True)
    for part in ("console", "console/demo"):
        (tmp_path / part / "__init__.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    with ExitStack() as keep:
        built = open_demo(DemoOptions(str(tmp_path / "w")), lambda *_: None, keep)
        built.start_workers(keep)
        code, _ = requeue(str(built.config), "backend:payments condition:terminal error~429", capsys)
    assert code == 0


@pytest.mark.parametrize("where", [
    "backend:mail condition:terminal error~timed", "backend:webhooks condition:terminal error~503",
    "backend:warehouse condition:failed error~COUNT",
])
def test_the_other_systems_take_back_what_is_theirs(
    config: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = requeue(config, where, capsys)
    assert ("finished" in output) == (code == 0)
    assert "did not run in time" not in output
