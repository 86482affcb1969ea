"""Every example of the manual is run: commands, configs, mappings and code."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from console import registry
from console.__main__ import main
from console.cli.parser import parse
from console.core.session import Unavailable
from console.settings import loads
from plugins.sql_table.mapping import TableMapping
from tests.attacks.test_four_eyes import GRANTS
from tests.docs.pages import INCLUDE, PAGES, README, ROOT, Block, blocks, section, with_code
from tests.docs.reference import page
from tests.patience import PATIENCE

TUTORIAL = "docs/plugins.md"
TERMINAL = "condition:terminal recoverable:yes backend:payments,jobs"

# Commands for people that a test cannot run within itself: they run all tests, or need a network or a person.
BY_HAND = {
    "./run demo", "./run test", "./run tour", "./run check", "./run test --all", ".ci/run", "pre-commit install",
    "python -m benchmarks", "python -m benchmarks --quick", "python -m tests.faults --full --jobs 2",
    "python -m tests.docs", "python -m tests.words", "./run test tests/core -k policy -n0",
}  # fmt: skip


def lines() -> list[tuple[Block, str]]:
    shell = [block for block in blocks("sh") if block.page != TUTORIAL]
    return [(block, line.split("  #")[0].strip()) for block in shell for line in block.text.splitlines() if line.strip()]


COMMANDS = [(block, line) for block, line in lines() if line.startswith("retriage ")]
YAML = [block for block in blocks("yaml") if block.page != TUTORIAL]
CONFIGS = [block for block in YAML if re.search(r"^(backends|console):", block.text, re.M)]
MAPPINGS = [block for block in YAML if block not in CONFIGS]
INCLUDED = {code for path in PAGES for _, _, code in INCLUDE.findall(path.read_text())}


def test_no_example_is_of_a_kind_that_is_not_run() -> None:
    assert {block.language for block in blocks()} <= {"sh", "yaml", "toml", "python", "ini", "sql"}
    assert [line for _, line in lines() if not line.startswith("retriage ") and line not in BY_HAND] == []
    assert len(COMMANDS) >= 20


def test_the_grants_are_those_that_two_people_work_with() -> None:
    (block,) = blocks("sql")
    assert block.text.replace("\n", " ").strip().rstrip(";") == GRANTS.format(role="ann, bob")


# --- commands -------------------------------------------------------------------------------------------------


@dataclass
class Sandbox:
    """A sandbox with one finished override, and what the placeholders of an example stand for in it."""

    config: Path
    capsys: Any = None

    def run(self, *words: str) -> str:
        assert main(["--config", str(self.config), *words]) == 0
        return str(self.capsys.readouterr().out) if self.capsys else ""

    def fill(self, command: str, folder: Path) -> list[str]:
        words = shlex.split(command)[1:]
        known: dict[str, str] = {"DIR": str(folder / "made"), "FILE": str(folder / "file"), "SEQ": "1", "N": "1"}
        if "URL" in words:
            known["URL"] = next(one["url"] for one in yaml.safe_load(self.config.read_text())["backends"].values() if "url" in one)
        if "PLAN" in words:
            plan = json.loads(self.run("plan", "--where", TERMINAL, "--limit", "2", "--format", "json"))
            known |= {"PLAN": plan["plan_id"], "N": str(plan["changes"])}
        if "proposals" in words:
            submitted = self.run(
                "plan", "--where", TERMINAL, "--limit", "2", "--attempts", "reset", "--format", "json", "--submit", "--reason", "r"
            )
            known |= {"PROPOSAL": json.loads(submitted)["plan_id"], "N": str(json.loads(submitted)["changes"])}
        if "OVERRIDE" in words:
            known["OVERRIDE"] = json.loads(self.run("overrides", "list", "--format", "json"))[-1]["override_id"]
        if "CAUSE" in words:
            counted = map(json.loads, self.run("causes", "--format", "jsonl").splitlines())
            known["CAUSE"] = next(one["cause"] for one in counted if one["cause"])
        if "KEY" in words:
            known["KEY"] = json.loads(self.run("list", "--where", TERMINAL, "--format", "jsonl", "--limit", "1"))["key"]
        return [known.get(word, word) for word in words]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "world"
    assert main(["demo", "--dir", str(folder), "--no-open"]) == 0
    config = folder / "config.yaml"
    requeue = ["requeue", "--where", TERMINAL, "--limit", "1", "--confirm", "1", "--reason", "an override to show"]
    assert main(["--config", str(config), *requeue]) == 0
    return config


@pytest.mark.parametrize(("block", "command"), COMMANDS, ids=[f"{block}-{line}" for block, line in COMMANDS])
def test_every_command_runs(
    block: Block, command: str, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("RETRIAGE_CONFIG", str(built))
    monkeypatch.chdir(tmp_path)
    words = Sandbox(built, capsys).fill(command, tmp_path)
    assert main(words) == 0
    assert "".join(capsys.readouterr())


@pytest.mark.parametrize("block", blocks("ini"), ids=str)
def test_every_unit_and_crontab_names_a_command(block: Block) -> None:
    """systemd and cron are not started; what they would start is a command line of ours, without a mistake."""
    started = re.findall(r"(?:^|/| )(retriage .+)$", re.sub(r"^Description=.*$", "", block.text, flags=re.M), re.M)
    assert started
    for command in started:
        parse(shlex.split(command)[1:], "0")


# --- configs and mappings -------------------------------------------------------------------------------------


def open_all(text: str) -> None:
    settings = loads(text)
    opened = registry.open_all(settings)
    assert [entry.name for entry in opened] == [backend.name for backend in settings.backends]
    for entry in opened:
        assert not isinstance(entry, Unavailable), entry
        entry.close()


@pytest.mark.parametrize("block", CONFIGS, ids=str)
def test_every_config_is_valid_and_its_plugins_open(block: Block) -> None:
    open_all(block.text)


def test_the_example_config_is_valid_and_its_plugins_open() -> None:
    open_all((ROOT / "config.example.yaml").read_text())


def test_every_plugin_has_an_example() -> None:
    shown = {backend.plugin for block in CONFIGS for backend in loads(block.text).backends}
    assert shown == {plugin.name for plugin in registry.available()}


@pytest.mark.parametrize("block", MAPPINGS, ids=str)
def test_every_mapping_is_valid(block: Block) -> None:
    part = yaml.safe_load(block.text)
    TableMapping.model_validate({"table": "jobs", "key": "id", **part})


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_every_toml_example_names_an_entry_point(block: Block) -> None:
    (group,) = tomllib.loads(block.text)["project"]["entry-points"]
    assert group in ("retriage.backends", "retriage.commands")


# --- code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [b for b in blocks("python") if b.text not in INCLUDED], ids=str)
def test_every_piece_of_code_works(block: Block) -> None:
    exec(compile(block.text, str(block), "exec"), {})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_included_code_is_that_of_the_file(path: Path) -> None:
    text = path.read_text()
    assert with_code(text) == text, "run: python -m tests.docs"


def test_the_tutorial_includes_every_section_of_the_queue_but_the_details() -> None:
    titles = re.findall(r"^# --- (\d\. .+?) -+$", (ROOT / "console/testing/memory_queue.py").read_text(), re.M)
    shown = [title for path, title, _ in INCLUDE.findall((ROOT / TUTORIAL).read_text())]
    assert shown == titles[:-1]
    assert all(section("console/testing/memory_queue.py", title) for title in titles)


def test_the_reference_is_that_of_the_code() -> None:
    assert (ROOT / "docs/commands-and-keys.md").read_text() == page(), "run: python -m tests.docs"


def test_the_tutorial_can_be_followed(tmp_path: Path) -> None:
    """All its commands in order, in a copy: the template is copied, its tests pass, it is installed and opens."""
    checkout, site, tools = tmp_path / "checkout", tmp_path / "site", tmp_path / "tools"
    (checkout / "console/testing").mkdir(parents=True)
    shutil.copytree(ROOT / "docs/plugin_template", checkout / "docs/plugin_template")
    shutil.copy(ROOT / "console/testing/memory_queue.py", checkout / "console/testing")
    tools.mkdir()
    for name, words in {"python": "", "retriage": " -m console"}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n')
        (tools / name).chmod(0o755)
    (config,) = [block for block in blocks("yaml") if block.page == TUTORIAL]
    (tmp_path / "config.yaml").write_text(config.text)
    (tmp_path / "config.yaml").chmod(0o600)
    script = "set -e\n" + "".join(block.text for block in blocks("sh") if block.page == TUTORIAL)
    done = subprocess.run(
        ["bash", "-c", script], cwd=checkout, capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={
            **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": f"{site}:{ROOT}",
            "PIP_TARGET": str(site), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1",
            "RETRIAGE_CONFIG": str(tmp_path / "config.yaml"), "PYTEST_ADDOPTS": "-p no:cacheprovider -q", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONDONTWRITEBYTECODE": "1",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "my_queue" in done.stdout
    assert "retriage-my-queue" in done.stdout


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 220
