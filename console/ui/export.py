"""Writes items or the trail to a new file as JSON lines or CSV."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TextIO, get_args

from console.core.backend import Backend
from console.core.export import FIELDS, Format, record, record_writer
from console.core.faults import BackendFault, Refused
from console.core.item import Item, ItemKey
from console.core.override import outcome_id
from console.core.paths import expanded
from console.core.ports import Trail
from console.core.reconcile import final_outcomes

_OVERRIDE_FIELDS = ("key", "outcome", "detail", "result", "cause")
_FORMATS: dict[str, Format] = {f".{name}": name for name in get_args(Format)}


def named(backends: Sequence[Backend], keys: Sequence[ItemKey], now: datetime) -> Iterable[Item]:
    """These items as they are now, without those that no longer exist."""
    by_name = {backend.name: backend for backend in backends}
    for name, wanted in groupby(sorted(keys), key=lambda key: key.backend):
        if name not in by_name:
            raise BackendFault(where=name, fix="Unmark its items, or try again later.")
        yield from by_name[name].items(list(wanted), now).values()


def checked_path(text: str) -> Path:
    """The path that was typed, without `~`, if its name ends in a format that can be written."""
    path = expanded(text, Refused)
    format_of(path)
    return path


def format_of(path: Path) -> Format:
    if path.suffix not in _FORMATS:
        raise Refused(f"unknown file format: {path}", fix=f"Use a name that ends in {' or '.join(_FORMATS)}.")
    return _FORMATS[path.suffix]


def write(path: Path, items: Iterable[Item]) -> int:
    """Write the items and return how many. A write that fails leaves no file."""

    def write_items(out: TextIO) -> int:
        write_record = record_writer(format_of(path), out, FIELDS)
        written = 0
        for item in items:
            write_record(record(item))
            written += 1
        return written

    format_of(path)
    return write_with(path, write_items)


def write_with(path: Path, write: Callable[[TextIO], int]) -> int:
    """Create a file and let `write` fill it; returns what that returns. A write that fails leaves no file."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise Refused(f"{path} already exists", fix="Choose another name.") from None
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="", errors="backslashreplace") as file:
            return write(file)
    except BaseException as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError):
            raise _unwritable(path, error) from None
        raise


def write_override(path: Path, trail: Trail, override_id: str) -> int:
    """Write the outcome of each item of an override, and its result if that is on record."""
    action = trail.override(override_id).action
    results = {one.ordinal: one for batch in trail.item_results(override_id) for one in batch}

    def write_items(out: TextIO) -> int:
        write_record = record_writer(format_of(path), out, _OVERRIDE_FIELDS)
        found = final_outcomes(trail, override_id)
        for item in found:
            result = results.get(item.ordinal)
            write_record(
                {
                    "key": item.key,
                    "outcome": outcome_id(item.outcome, action),
                    "detail": item.detail,
                    "result": result.result.value if result else None,
                    "cause": result.cause if result else None,
                }
            )
        return len(found)

    return write_with(path, write_items)


def _unwritable(path: Path, error: OSError | ValueError) -> Refused:
    return Refused(f"{path} cannot be written: {error.strerror if isinstance(error, OSError) else error}")
