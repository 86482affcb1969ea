"""The JSON Schema of the mapping format, shipped as `mapping.schema.json` for editors.

Run `python -m plugins.sql_table.json_schema` after a change of the models.
"""

from __future__ import annotations

import json
from pathlib import Path

from plugins.sql_table.mapping import TableMapping

SCHEMA = Path(__file__).with_name("mapping.schema.json")


def editor_schema() -> str:
    schema = TableMapping.model_json_schema(by_alias=True)
    dialect, title = "https://json-schema.org/draft/2020-12/schema", "Retriage: sql_table mapping"
    whole = {"$schema": dialect, **schema, "title": title}
    return json.dumps(_without_titles(whole), indent=1, ensure_ascii=False) + "\n"


def _without_titles(part: object, *, is_schema: bool = True) -> object:
    """Remove the titles that pydantic generates; they only repeat the keys."""
    if isinstance(part, list):
        return [_without_titles(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _without_titles(value, is_schema=key not in ("properties", "$defs"))
        for key, value in part.items()
        if not (is_schema and key == "title" and isinstance(value, str) and not value.startswith("Retriage"))
    }


if __name__ == "__main__":
    SCHEMA.write_text(editor_schema(), encoding="utf-8")
