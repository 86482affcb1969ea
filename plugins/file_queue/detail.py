"""The details of one task: the content of its files and its full error."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from console.core.text import DETAIL_LIMIT
from console.sql.values import text
from plugins.file_queue.folder import RESULT, Folder, UnreadableFile, parse_name
from plugins.file_queue.index import Index
from plugins.file_queue.rows import Task, parse_object

_RAW = 2_000


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The content of a task's files, as values and as the text that the detail view shows."""

    task: dict[str, Any]
    result: dict[str, Any]
    fields: tuple[tuple[str, str | None], ...]
    names: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, index: Index, task: Task) -> TaskFiles:
        with Folder(index.queue) as queue, Folder(index.results) as results:
            names = [name for name in sorted(queue.names()) if parse_name(name).id == task.id]
            contents = [_fields(queue, name) for name in names]
            result, raw = _fields(results, f"{task.id}{RESULT}")
        shown: list[tuple[str, str | None]] = []
        for name, (fields, unparsed) in zip(names, contents, strict=True):
            prefix = "" if len(names) == 1 else f"{name}: "
            shown += [(f"{prefix}{key}", _shown(value)) for key, value in fields.items()]
            shown += [(f"{prefix}content", unparsed)] if unparsed is not None else []
        shown += [(f"results.{key}", _shown(value)) for key, value in result.items()]
        shown += [("results content", raw)] if raw is not None else []
        first = contents[0][0] if contents else {}
        return cls(first, result, tuple(shown), tuple(("file", name) for name in names))


def _fields(folder: Folder, name: str) -> tuple[dict[str, Any], str | None]:
    """The fields of a JSON file; for any other content, no fields and its first characters."""
    try:
        content = folder.read(name)
    except FileNotFoundError:
        return {}, None
    except UnreadableFile as why:
        return {}, str(why)
    try:
        return parse_object(content), None
    except UnreadableFile:
        return {}, content[:_RAW].decode("utf-8", "replace")


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    shown = value if isinstance(value, str) else json.dumps(value)
    return shown[:DETAIL_LIMIT]


def full_error(files: TaskFiles) -> str | None:
    return text(files.result.get("error")) or None

