"""What the manual says about the product is true: tables, fields, keys, links, files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from console import registry
from console.actions.catalogue import CATALOGUE
from console.cli.parser import build_parser
from console.core.query import Filter
from console.ui.actions import key_words
from plugins.sql_table.presets import preset_names
from tests.docs import systems
from tests.docs.pages import PAGES, README, ROOT

CONCEPTS = (ROOT / "docs/concepts.md").read_text()
CONFIGURATION = (ROOT / "docs/configuration.md").read_text()
TEXT = README.read_text()


def part(text: str, heading: str) -> str:
    """What stands below a heading, up to the next of its level or a higher one."""
    level = heading.split(" ")[0]
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.S | re.M)
    assert found, f"there is no section {heading}"
    return found[1]


def first_cells(text: str) -> list[str]:
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")]


def commands() -> set[str]:
    choices = next(action.choices for action in build_parser("0")._actions if isinstance(action.choices, dict))
    return set(choices)


# --- README ---------------------------------------------------------------------------------------------------


def test_the_two_commands_come_first() -> None:
    shell = re.findall(r"```sh\n(.*?)```", TEXT, re.S)
    assert [line.split("#")[0].strip() for line in shell[0].splitlines()] == ["./run demo", "./run test"]
    assert TEXT.index("./run demo") < 1200


def test_the_readme_has_the_ten_most_used_keys_and_commands() -> None:
    rows = first_cells(part(TEXT, "## The ten keys you need"))
    keys = {key_words(action.key) for action in CATALOGUE} | {"ctrl+p"}
    assert len(rows) == 10
    for row in rows:
        assert set(re.findall("`([^`]+)`", row)) <= keys, row
    named = [re.match(r"`retriage (\w+)", row) for row in first_cells(part(TEXT, "## The ten commands you need"))]
    assert len(named) == 10
    assert {found[1] for found in named if found} <= commands()


def test_every_preset_is_named() -> None:
    shown = re.sub("[^a-z]", "", part(TEXT, "## Connect your own system").lower())
    variant = re.compile("(_failed)?(_sqlite|_mysql|_postgres)?$")
    shipped = {re.sub("[^a-z]", "", variant.sub("", path.stem)) for path in (ROOT / "plugins/sql_table/presets").glob("*.yaml")}
    assert [name for name in shipped if name not in shown] == []


# --- every page -----------------------------------------------------------------------------------------------

LINKS = [(path, target) for path in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text())]


@pytest.mark.parametrize(("page", "target"), [(p, t) for p, t in LINKS if "://" not in t], ids=str)
def test_every_link_leads_somewhere(page: Path, target: str) -> None:
    file, _, anchor = target.partition("#")
    path = (page.parent / file) if file else page
    assert path.exists()
    if anchor:
        titles = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
        assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


MENTIONED = sorted({w for p in PAGES for w in re.findall(r"`(?:retriage|\./run) ([a-z]+)", p.read_text())})


@pytest.mark.parametrize("word", MENTIONED)
def test_every_command_that_is_mentioned_exists(word: str) -> None:
    assert word in {*commands(), "test", "check"}


FILES = sorted(
    {
        (path, name)
        for path in PAGES
        if "commands-and-keys" not in path.name
        for name in re.findall(r"`((?:console|plugins|tests|docs|benchmarks|screenshots)/[\w./-]*)`", path.read_text())
    }
)


@pytest.mark.parametrize(("page", "name"), FILES, ids=str)
def test_every_file_that_is_named_exists(page: Path, name: str) -> None:
    assert (ROOT / name).exists()


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "docs/README.md").read_text()
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert [name for name in pages if f"]({name})" not in contents] == []


def test_every_decision_is_listed_with_its_title() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text()
    for path in sorted((ROOT / "docs/decisions").glob("0*.md")):
        number, title = path.read_text().splitlines()[0].removeprefix("# ").split(": ", 1)
        assert f"| [{number}]({path.name}) | {title} |" in index
        assert re.findall(r"^## (.+)$", path.read_text(), re.M) == ["Situation", "Decision", "Consequences"]


def test_the_changelog_begins_with_the_next_version() -> None:
    titles = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert titles[0] in ("Unreleased", version)


# --- concepts -------------------------------------------------------------------------------------------------


def test_every_condition_is_explained() -> None:
    from console.core.item import NEEDS_ATTENTION, Condition

    rows = [line.split("|") for line in part(CONCEPTS, "## Items and conditions").splitlines() if line.startswith("| `")]
    shown = {row[1].strip(" `"): row[3].strip() == "yes" for row in rows}
    assert shown == {condition.value: condition in NEEDS_ATTENTION for condition in Condition}


TERMS = [t for cell in first_cells(part(CONCEPTS, "## The query language")) for t in re.findall("`([^`]+)`", cell)]


@pytest.mark.parametrize("term", TERMS)
def test_every_term_of_the_query_language_parses(term: str) -> None:
    assert str(Filter.parse(term))


def test_every_field_of_the_query_language_is_shown() -> None:
    from console.core.query import Field

    shown = {re.match(r"-?(\w+)[:~<>]", term)[1] for term in TERMS if re.match(r"-?(\w+)[:~<>]", term)}  # type: ignore[index]
    assert {field.value for field in Field} - shown <= {"text"}


def test_the_fields_of_an_item_are_those_of_the_code() -> None:
    from console.core.export import FIELDS

    shown = re.search(r"exactly these fields: `([^`]+)`", CONCEPTS)
    assert shown
    assert tuple(shown[1].replace("\n", " ").split(", ")) == FIELDS


def test_no_exit_code_is_missing() -> None:
    assert re.findall(r"^\| (\d) \|", CONCEPTS, re.M) == ["2", "5", "3", "4", "1", "0"]


# --- configuration --------------------------------------------------------------------------------------------


def test_every_config_key_is_explained_and_in_the_example() -> None:
    from console.settings.models import ConsoleSettings, PolicySettings

    models = [ConsoleSettings, PolicySettings, *(registry.load(plugin.name).options for plugin in registry.available())]
    wanted = {field.alias or name for model in models for name, field in model.model_fields.items()}
    explained = {name for cell in first_cells(CONFIGURATION) for name in re.findall("`([^`]+)`", cell)}
    assert wanted - explained == set()
    example = (ROOT / "config.example.yaml").read_text()
    assert wanted - set(re.findall(r"(?:^|[\s{,])(\w+):", example)) == set()


def test_the_defaults_of_the_console_are_those_of_the_code() -> None:
    from console.settings.models import ConsoleSettings

    rows = [line.split("|") for line in part(CONFIGURATION, "## The console section").splitlines() if line.startswith("| `")]
    for name, shown in ((row[1].strip(" `"), row[2].strip()) for row in rows):
        default = ConsoleSettings.model_fields[name].get_default(call_default_factory=True)
        if shown.startswith("`"):
            given = ConsoleSettings.model_validate({name: _value(shown.strip("`"))})
            assert getattr(given, name) == default, name
        else:
            assert not default, name


def _value(text: str) -> object:
    return {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)


# --- sandbox --------------------------------------------------------------------------------------------------


def test_what_is_said_of_the_sandbox_is_true() -> None:
    from console.demo.build import AGES_AFTER, SCALE, SPEED, SYSTEMS

    section = " ".join((ROOT / "docs/sandbox.md").read_text().split())
    numbers = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    assert f"builds {numbers[len(SYSTEMS)]} small systems" in section
    assert f"about {SCALE:,} items".replace(",", " ") in section
    assert f"`--speed` ({SPEED})" in section
    assert f"a five-minute delay is {300 // SPEED} seconds" in section
    assert f"older than {AGES_AFTER.total_seconds() / 60:.0f} minutes" in section


# --- docs/systems.md ------------------------------------------------------------------------------------------


def test_the_table_of_systems_is_what_the_plugins_say() -> None:
    assert systems.PAGE.read_text() == systems.page(), "run python -m tests.docs"
    own = {plugin.name for plugin in registry.available() if plugin.distribution == "retriage"}
    assert {plugin for plugin, _ in systems.rows()} == own
    assert {name for name in preset_names() if f"(preset: {name})" not in systems.page()} == set()

