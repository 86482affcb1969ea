"""The README is true: its commands run, its config loads, its tables are complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from console import registry
from console.__main__ import main
from console.cli.parser import build_parser
from console.core.desk import Unavailable
from console.core.query import Filter
from console.settings import loads

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("retriage ")]
FIRST_TWO = [line.split("#")[0].strip() for line in blocks("sh")[0].splitlines()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "world"
    assert main(["demo", "--dir", str(folder), "--no-open"]) == 0
    config = folder / "config.yaml"
    requeue = ["requeue", "--where", "condition:terminal recoverable:yes", "--limit", "1", "--confirm", "1"]
    assert main(["--config", str(config), *requeue, "--reason", "so that the trail has something to tell"]) == 0
    return config


def test_the_two_commands_come_first() -> None:
    assert FIRST_TWO == ["./run demo", "./run test"]
    assert README.index("./run demo") < 800


def test_there_are_commands_to_run() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(
    command: str, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RETRIAGE_CONFIG", str(world))
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("text", blocks("yaml"))
def test_every_config_block_is_valid_and_its_plugins_open(text: str) -> None:
    settings = loads(text)
    opened = registry.open_all(settings)
    assert [entry.name for entry in opened] == [backend.name for backend in settings.backends]
    for entry in opened:
        assert not isinstance(entry, Unavailable)
        entry.close()


def table_after(heading: str) -> list[str]:
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| `")]


def test_the_command_table_is_complete() -> None:
    (commands,) = [action.choices for action in build_parser("0")._actions if isinstance(action.choices, dict)]
    told = [re.match(r"`(\w+)", cell)[1] for cell in table_after("Commands")]  # type: ignore[index]
    assert told == list(commands)


@pytest.mark.parametrize("term", [t for cell in table_after("Query language") for t in re.findall("`([^`]+)`", cell)])
def test_every_term_of_the_query_language_parses(term: str) -> None:
    if term not in (":", "<", "<=", ">", ">="):
        assert str(Filter.parse(term))


def test_the_fields_of_an_item_are_those_of_the_code() -> None:
    from console.cli.items import FIELDS

    told = re.search(r"exactly these fields: `([^`]+)`", README)
    assert told
    assert tuple(told[1].replace("\n", " ").split(", ")) == FIELDS


def test_every_folder_named_exists() -> None:
    for cell in table_after("Where things go"):
        assert (ROOT / cell.strip("`")).exists()


def test_no_exit_code_is_missing() -> None:
    assert re.findall(r"^\| (\d) \|", README, re.M) == ["2", "5", "3", "4", "1", "0"]
