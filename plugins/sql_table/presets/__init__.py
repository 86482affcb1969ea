"""The mappings that come with Retriage: for each preset a YAML file and a page of notes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import yaml

from console.core.faults import ConfigFault
from plugins.sql_table.mapping import Options, TableMapping


@cache
def preset_names() -> tuple[str, ...]:
    folder = files("plugins.sql_table.presets")
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def preset_text(name: str) -> str:
    """The YAML of a preset; raises ConfigFault for an unknown name."""
    if name not in preset_names():
        raise ConfigFault(f"Unknown preset {name!r}", fix=f"Presets: {', '.join(preset_names())}.")
    return (files("plugins.sql_table.presets") / f"{name}.yaml").read_text(encoding="utf-8")


def title_of(name: str) -> str:
    """The name of the preset's queue, from the first line of its YAML."""
    first = preset_text(name).partition("\n")[0].removeprefix("# ")
    return re.split(r", table|\. See", first)[0]


@cache
def preset(name: str) -> TableMapping:
    return TableMapping.model_validate(yaml.safe_load(preset_text(name)))


def preset_dialect(name: str) -> str:
    """The kind of database that a preset is for."""
    return next((kind for kind in ("sqlite", "mysql") if name.endswith(f"_{kind}")), "postgresql")


def mapping_of(options: Options) -> TableMapping:
    """The mapping that a backend uses."""
    if options.mapping is not None:
        return options.mapping
    assert options.preset is not None
    found = relocated(preset(options.preset), options.schema_, options.tables)
    return found if options.time_zone is None else found.model_copy(update={"time_zone": options.time_zone})


def relocated(mapping: TableMapping, schema: str | None, names: Mapping[str, str]) -> TableMapping:
    """The mapping with its tables in another schema or under other names."""

    def moved(part: object, **more: object) -> dict[str, object]:
        own = getattr(part, "schema_", None)
        return {"schema_": own if schema is None else schema, **more}

    def named(table: str | None) -> str | None:
        return None if table is None else names.get(table, table)

    changes = moved(mapping, table=named(mapping.table))
    changes["joins"] = {
        alias: join.model_copy(update=moved(join, table=named(join.table))) for alias, join in mapping.joins.items()
    }
    if mapping.history is not None:
        changes["history"] = mapping.history.model_copy(
            update=moved(mapping.history, table=named(mapping.history.table))
        )
    for section in ("requeue", "discard"):
        rule = getattr(mapping, section)
        if rule is not None and rule.function is not None:
            function = rule.function.model_copy(update=moved(rule.function))
            changes[section] = rule.model_copy(update={"function": function})
    return mapping.model_copy(update=changes)

