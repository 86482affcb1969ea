"""The README is true: its commands run, its config loads, its code works, its tables are those of the catalogues."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from console import registry
from console.__main__ import main
from console.cli.parser import build_parser
from console.core.desk import Unavailable
from console.core.query import Filter
from console.settings import loads
from tests.docs.tables import TABLES, between

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


def test_no_block_is_of_a_kind_that_is_not_tried() -> None:
    assert set(re.findall(r"^```(\w*)$", README, re.M)) == {"sh", "yaml", "toml", "python", ""}
    others = [line for block in blocks("sh")[1:] for line in block.splitlines() if not line.startswith("retriage ")]
    assert others == []


def test_there_are_commands_to_run() -> None:
    assert len(COMMANDS) >= 12


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(
    command: str, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RETRIAGE_CONFIG", str(world))
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


MENTIONED = sorted(set(re.findall(r"`(?:retriage|\./run) ([a-z]+)", README)))


@pytest.mark.parametrize("word", MENTIONED)
def test_every_command_that_is_mentioned_exists(word: str) -> None:
    commands = next(action.choices for action in build_parser("0")._actions if isinstance(action.choices, dict))
    assert word in {*commands, "test", "check"}


@pytest.mark.parametrize("text", blocks("yaml"))
def test_every_config_block_is_valid_and_its_plugins_open(text: str) -> None:
    settings = loads(text)
    opened = registry.open_all(settings)
    assert [entry.name for entry in opened] == [backend.name for backend in settings.backends]
    for entry in opened:
        assert not isinstance(entry, Unavailable), entry
        entry.close()


def test_every_plugin_has_its_config_block() -> None:
    shown = {backend.plugin for text in blocks("yaml") for backend in loads(text).backends}
    assert shown == {plugin.name for plugin in registry.available()}


def test_the_whole_example_config_is_valid_and_its_plugins_open() -> None:
    test_every_config_block_is_valid_and_its_plugins_open((ROOT / "config.example.yaml").read_text())


def test_the_example_config_leaves_no_key_out() -> None:
    from console.settings.models import ConsoleSettings, PolicySettings

    text = (ROOT / "config.example.yaml").read_text()
    models = [ConsoleSettings, PolicySettings, *(registry.load(plugin.name).options for plugin in registry.available())]
    wanted = {field.alias or name for model in models for name, field in model.model_fields.items()}
    assert wanted <= set(re.findall(r"(?:^|[\s{,])(\w+):", text))


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_toml_block_names_an_entry_point(text: str) -> None:
    assert list(tomllib.loads(text)["project"]["entry-points"]) == ["retriage.backends"]


@pytest.mark.parametrize("code", blocks("python"))
def test_every_piece_of_code_works(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("name", list(TABLES))
def test_generated_tables_are_up_to_date(name: str) -> None:
    assert between(name, README)[1].strip("\n") == TABLES[name](), "run: python -m tests.docs.tables"


def test_every_preset_is_named() -> None:
    told = README.split("by a preset (")[1].split(")")[0].lower().replace("\n", " ")
    names = {re.sub(r"[^a-z]", "", name) for name in told.split(",")}
    shipped = {re.sub(r"[^a-z]", "", path.stem) for path in (ROOT / "plugins/sql_table/presets").glob("*.yaml")}
    assert names == shipped


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)h][^)]*)\)", README))
def test_every_file_that_is_linked_exists(target: str) -> None:
    assert (ROOT / target).exists()


def table_after(heading: str) -> list[str]:
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("term", [t for cell in table_after("Query language") for t in re.findall("`([^`]+)`", cell)])
def test_every_term_of_the_query_language_parses(term: str) -> None:
    if term not in (":", "<", "<=", ">", ">="):
        assert str(Filter.parse(term))


def test_the_fields_of_an_item_are_those_of_the_code() -> None:
    from console.core.fields import FIELDS

    told = re.search(r"exactly these fields: `([^`]+)`", README)
    assert told
    assert tuple(told[1].replace("\n", " ").split(", ")) == FIELDS


def test_every_folder_named_exists() -> None:
    for cell in table_after("Where things go"):
        assert (ROOT / cell.strip("`")).exists()


def test_no_exit_code_is_missing() -> None:
    assert re.findall(r"^\| (\d) \|", README, re.M) == ["2", "5", "3", "4", "1", "0"]


def test_what_it_says_of_the_sandbox_world_is_what_the_world_is() -> None:
    from console.demo.world import AGES_AFTER, PARTS, SCALE, SPEED

    section = " ".join(README.split("## The sandbox world\n")[1].split("\n## ")[0].split())
    numbers = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    assert f"builds {numbers[len(PARTS)]} small systems" in section
    assert f"about {SCALE:,} items".replace(",", " ") in section
    assert f"`--speed` ({SPEED})" in section
    assert f"a five-minute delay is {300 // SPEED} seconds" in section
    assert f"older than {AGES_AFTER.total_seconds() / 60:.0f} minutes" in section
