"""Items to a file: JSON lines or CSV, streamed, never over a file that is there."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

from console.core.backend import Backend
from console.core.faults import BackendFault, Refused
from console.core.fields import FIELDS, record
from console.core.item import Item, ItemKey
from console.core.text import csv_text, instant


def named(backends: Sequence[Backend], keys: Sequence[ItemKey], now: datetime) -> Iterable[Item]:
    """These items as they are now; those that are gone are left out."""
    by_name = {backend.name: backend for backend in backends}
    for name, wanted in groupby(sorted(keys), key=lambda key: key.backend):
        if name not in by_name:
            raise BackendFault(where=name, fix="Unmark its items, or try again when it does.")
        yield from by_name[name].items(list(wanted), now).values()


def write(path: Path, items: Iterable[Item]) -> int:
    """How many were written: all of them, or there is no file."""
    if path.suffix not in _FORMATS:
        raise Refused(f"{path} says no format", fix=f"Choose a name that ends in {' or '.join(_FORMATS)}.")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise Refused(f"{path} is there already", fix="Choose another name.") from None
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="", errors="backslashreplace") as file:
            put = _FORMATS[path.suffix](file)
            written = 0
            for item in items:
                put(record(item))
                written += 1
    except BaseException as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError):
            raise _unwritable(path, error) from None
        raise
    return written


def _unwritable(path: Path, error: OSError | ValueError) -> Refused:
    return Refused(f"{path} cannot be written: {error.strerror if isinstance(error, OSError) else error}")


def _jsonl(file: TextIO) -> Callable[[dict[str, Any]], object]:
    return lambda row: file.write(json.dumps(row, default=instant, ensure_ascii=True) + "\n")


def _csv(file: TextIO) -> Callable[[dict[str, Any]], object]:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(FIELDS)
    return lambda row: writer.writerow(map(csv_text, row.values()))


_FORMATS = {".jsonl": _jsonl, ".csv": _csv}
