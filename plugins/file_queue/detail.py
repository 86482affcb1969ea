"""One task in full: both its files as they are, and the last attempt as they tell it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.core.item import Attempt, Item
from console.core.text import DETAIL_LIMIT
from console.sql.values import text
from plugins.file_queue.folder import RESULT, Folder, Unusable, parse
from plugins.file_queue.index import Index
from plugins.file_queue.rows import Task, parse_object

_RAW = 2_000


@dataclass(frozen=True, slots=True)
class Native:
    """The keys of the task file and of the result file, as values and as text."""

    task: dict[str, Any]
    result: dict[str, Any]
    shown: tuple[tuple[str, str | None], ...]
    files: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, index: Index, task: Task) -> Native:
        with Folder(index.queue) as queue, Folder(index.results) as results:
            names = [name for name in sorted(queue.names()) if parse(name).id == task.id]
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
    """The file's keys, or the beginning of what it holds instead."""
    try:
        content = folder.read(name)
    except FileNotFoundError:
        return {}, None
    except Unusable as why:
        return {}, str(why)
    try:
        return parse_object(content), None
    except Unusable:
        return {}, content[:_RAW].decode("utf-8", "replace")


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    shown = value if isinstance(value, str) else json.dumps(value)
    return shown[:DETAIL_LIMIT]


def full_error(native: Native) -> str | None:
    return text(native.result.get("error")) or None


def history(native: Native, item: Item, decode: Callable[[Any], datetime | None]) -> tuple[Attempt, ...]:
    """This queue keeps the last attempt only."""
    if item.attempts <= 0:
        return ()
    began, ended = decode(native.task.get("last_attempt_at")), decode(native.result.get("finished_at"))
    took = ended - began if began and ended and ended >= began else None
    error = full_error(native)
    return (Attempt(item.attempts, began or ended, "failed" if error else item.native_status.lower(), error, took),)
