"""The presets, their notes, the schema for editors and the manual of the format."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from plugins.sql_table import change_schema, mapping
from plugins.sql_table.json_schema import SCHEMA, editor_schema
from plugins.sql_table.mapping import Options
from plugins.sql_table.presets import mapping_of, preset, preset_names, preset_text
from tests.plugins.sql_table.systems import SYSTEMS

FOLDER = Path(mapping.__file__).parent
MANUAL = (FOLDER.parents[1] / "docs/mapping.md").read_text()


def test_every_preset_is_tested() -> None:
    assert preset_names() == tuple(sorted(SYSTEMS))
    assert len(preset_names()) == 19


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_notes_of_one_page_that_say_what_it_does(name: str) -> None:
    notes = (FOLDER / "presets" / f"{name}.md").read_text()
    for heading in ("**Reads**", "**A requeue", "**A discard", "**Attempts**", "**Traps.**"):
        assert heading in notes
    assert len(notes.splitlines()) <= 40
    requeue = preset(name).requeue
    if requeue is None:
        assert "**A requeue is not offered.**" in notes
        assert "**A discard is not offered.**" in notes
        return
    for attempts in ("keep", "reset"):
        offered = getattr(requeue.attempts, attempts) is not None
        assert (f"{attempts}" in notes.partition("**Attempts**")[2].partition("**Traps")[0]) == offered
    undone = "Undo is exact" if requeue.function is None and not requeue.statements else "cannot be undone"
    assert undone in notes
    discard = preset(name).discard
    assert discard is not None
    said = notes.partition("**A discard")[2].partition("**Attempts**")[0]
    assert ("deletes" in said and "always typed" in said) == discard.delete
    by_update = not discard.delete and discard.function is None and not discard.statements
    assert ("Its undo\nis exact" in said or "Its undo is exact" in said) == by_update
    assert ("cannot be undone" in said) != by_update


@pytest.mark.parametrize("name", preset_names())
def test_the_schema_for_editors_accepts_every_preset(name: str) -> None:
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


def test_the_schema_for_editors_is_up_to_date() -> None:
    assert SCHEMA.read_text() == editor_schema(), "run python -m plugins.sql_table.json_schema"


def test_the_manual_names_every_key() -> None:
    models = [
        model for module in (mapping, change_schema) for model in vars(module).values()
        if isinstance(model, type) and issubclass(model, BaseModel)
    ]
    keys = {info.alias or name for model in models for name, info in model.model_fields.items()} - {"constant", "value"}
    words = set(re.findall(r"\w+", MANUAL))
    assert keys - words == set()
    assert set(preset_names()) <= words


def test_tables_of_a_preset_can_have_other_names() -> None:
    found = mapping_of(Options.model_validate({
        "url": "x", "preset": "solid_queue", "schema": "jobs", "tables": {"solid_queue_jobs": "sq", "solid_queue_failed_executions": "f"},
        "time_zone": "Europe/Berlin",
    }))
    assert (found.schema_, found.table, found.joins["failed"].table, found.joins["failed"].schema_) == ("jobs", "sq", "f", "jobs")
    assert found.time_zone == "Europe/Berlin"
    assert preset("solid_queue").table == "solid_queue_jobs"
