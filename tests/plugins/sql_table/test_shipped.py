"""What ships beside the code: presets, their notes, the schema for editors, the manual of the format."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from plugins.sql_table import handing_back, mapping
from plugins.sql_table.editors import SCHEMA, editor_schema
from plugins.sql_table.mapping import Options, TableMapping
from plugins.sql_table.shipped import mapping_of, preset, preset_names, preset_text
from tests.plugins.sql_table.systems import SYSTEMS

FOLDER = Path(mapping.__file__).parent


def test_there_are_nine_and_each_is_tested() -> None:
    assert preset_names() == tuple(sorted(SYSTEMS))
    assert len(preset_names()) == 9


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_notes_of_one_page_that_say_what_it_does(name: str) -> None:
    notes = (FOLDER / "presets" / f"{name}.md").read_text()
    for heading in ("**Reads**", "**A requeue", "**Budget**", "**Traps.**"):
        assert heading in notes
    assert len(notes.splitlines()) <= 40
    requeue = preset(name).requeue
    assert requeue is not None
    for budget in ("keep", "fresh"):
        offered = getattr(requeue.budgets, budget) is not None
        assert (f"{budget}" in notes.partition("**Budget**")[2].partition("**Traps")[0]) == offered
    undone = "Undo is exact" if requeue.function is None and not requeue.statements else "cannot be undone"
    assert undone in notes


@pytest.mark.parametrize("name", preset_names())
def test_the_schema_for_editors_takes_every_preset(name: str) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(preset_text(name)))


@pytest.mark.parametrize("wrong", [
    {}, {"table": "a", "key": "b"}, {"table": "a", "key": [], "status": {"column": "c"}},
    {"table": "a", "key": "b", "status": {"column": "c", "redy": ["x"]}},
    {"table": "a", "key": "b", "status": {"column": "c"}, "max_attempts": 0},
])
def test_the_schema_for_editors_refuses_what_the_models_refuse(wrong: object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(wrong)


def test_the_schema_for_editors_is_that_of_the_models() -> None:
    assert SCHEMA.read_text() == editor_schema(), "run python -m plugins.sql_table.editors"


def test_the_manual_names_every_key() -> None:
    manual = (FOLDER / "MAPPING.md").read_text()
    models = [
        model for module in (mapping, handing_back) for model in vars(module).values()
        if isinstance(model, type) and issubclass(model, BaseModel)
    ]
    keys = {info.alias or name for model in models for name, info in model.model_fields.items()} - {"constant", "value"}
    words = set(re.findall(r"\w+", manual))
    assert keys - words == set()
    assert set(preset_names()) <= words


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(table:.*?)```", (FOLDER / "MAPPING.md").read_text(), re.S))
def test_the_manuals_example_is_a_mapping(block: str) -> None:
    TableMapping.model_validate(yaml.safe_load(block))


def test_a_preset_is_laid_over_with_what_tables_are_called_here() -> None:
    found = mapping_of(Options.model_validate({
        "url": "x", "preset": "solid_queue", "schema": "jobs", "tables": {"solid_queue_jobs": "sq", "solid_queue_failed_executions": "f"},
        "time_zone": "Europe/Berlin",
    }))
    assert (found.schema_, found.table, found.joins["failed"].table, found.joins["failed"].schema_) == ("jobs", "sq", "f", "jobs")
    assert found.time_zone == "Europe/Berlin"
    assert preset("solid_queue").table == "solid_queue_jobs"
