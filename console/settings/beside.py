"""Parts of a backend's section that stand in a file of their own, beside the config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from console.core.faults import ConfigFault
from console.core.paths import expanded
from console.settings.section import Section

IN_A_FILE = "in_a_file"
"""A field with this mark in its `json_schema_extra` may name a file instead of being written out."""


def with_files(section: Section, model: type[BaseModel]) -> Section:
    """The section with the content of every file it names, each checked by its own lines first."""
    from console.settings import read_tree

    values, files = dict(section.values), {}
    for name, info in model.model_fields.items():
        key = info.alias or name
        named, part = values.get(key), _part(info)
        if part is None or not isinstance(named, str):
            continue
        path = Path(section.file).parent / expanded(named, ConfigFault, section.where((key,)))
        tree = read_tree(path)
        files[key] = Section(tree.file, (), tree.values, tree.lines)
        files[key].parse(part)
        values[key] = tree.values
    return replace(section, values=values, files=files) if files else section


def _part(info: FieldInfo) -> type[BaseModel] | None:
    extra = info.json_schema_extra
    if not isinstance(extra, dict) or not extra.get(IN_A_FILE):
        return None
    kinds = (info.annotation, *get_args(info.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
