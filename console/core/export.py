"""Items and records as CSV or JSON lines. Nothing else writes CSV: the commands, the console and the trail use this."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TextIO

from console.core.item import Item
from console.core.text import csv_cell, csv_text, instant

_NEEDS_QUOTES = re.compile(r"""^[=+\-@＝＋－＠'\s]|[,;|"\t\r\n]""")
Format = Literal["csv", "jsonl"]
WriteRecord = Callable[[Mapping[str, Any]], object]

FIELDS = (
    "key", "backend", "id", "type", "native_status", "condition", "attempts", "max_attempts", "next_retry_at",
    "will_run_again", "why", "error", "cause", "recoverable", "created_at", "updated_at", "expires_at",
)
"""The fields of an item, the same in every output format and export."""


def record(item: Item) -> dict[str, Any]:
    """The values of `FIELDS`, in that order."""
    verdict = item.verdict
    return {
        "key": str(item.key),
        "backend": item.key.backend,
        "id": "/".join(item.key.parts),
        "type": item.type,
        "native_status": item.native_status,
        "condition": verdict.condition.value,
        "attempts": item.attempts,
        "max_attempts": item.max_attempts,
        "next_retry_at": verdict.next_retry_at,
        "will_run_again": verdict.will_run_again,
        "why": verdict.why,
        "error": item.error,
        "cause": item.signature,
        "recoverable": verdict.recoverable,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
        "expires_at": item.expires_at,
    }


def record_writer(format: Format, out: TextIO, fields: Sequence[str]) -> WriteRecord:
    """A function that writes one record to `out`. CSV gets its header at once; no cell can start a formula."""
    if format == "jsonl":
        return lambda record: out.write(json_text(record) + "\n")
    out.write(_line(fields))
    return lambda record: out.write(_line(_cell(record.get(field)) for field in fields))


def _line(cells: Iterable[str]) -> str:
    return ",".join(map(_quoted, cells)) + "\n"


def _quoted(cell: str) -> str:
    """The cell in quotes if a spreadsheet of any locale could split it or take it for a formula."""
    return '"' + cell.replace('"', '""') + '"' if _NEEDS_QUOTES.search(cell) else cell


def json_text(value: object) -> str:
    """JSON in ASCII, so that nothing in it can control a terminal."""
    return json.dumps(value, default=_json_value, ensure_ascii=True)


def _json_value(value: object) -> object:
    if isinstance(value, datetime):
        return instant(value)
    raise TypeError(f"{type(value).__name__} is not data")


def _cell(value: object) -> str:
    match value:
        case None | str() | int() | float() | datetime():
            return csv_text(value)
        case _:
            return csv_cell(json_text(value))
