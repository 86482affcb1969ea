"""Writes items to a new file as JSON lines or CSV."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from pathlib import Path

from console.core.backend import Backend
from console.core.export import FIELDS, Format, record, record_writer
from console.core.faults import BackendFault, Refused
from console.core.item import Item, ItemKey

_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".csv": "csv"}


def named(backends: Sequence[Backend], keys: Sequence[ItemKey], now: datetime) -> Iterable[Item]:
    """These items as they are now, without those that no longer exist."""
    by_name = {backend.name: backend for backend in backends}
    for name, wanted in groupby(sorted(keys), key=lambda key: key.backend):
        if name not in by_name:
            raise BackendFault(where=name, fix="Unmark its items, or try again later.")
        yield from by_name[name].items(list(wanted), now).values()


def write(path: Path, items: Iterable[Item]) -> int:
    """Write the items and return how many. A write that fails leaves no file."""
    if path.suffix not in _FORMATS:
        raise Refused(f"unknown file format: {path}", fix=f"Use a name that ends in {' or '.join(_FORMATS)}.")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise Refused(f"{path} already exists", fix="Choose another name.") from None
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="", errors="backslashreplace") as file:
            write_record = record_writer(_FORMATS[path.suffix], file, FIELDS)
            written = 0
            for item in items:
                write_record(record(item))
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
