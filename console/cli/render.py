"""The only way data reaches stdout, and words reach stderr: nothing a terminal could trip over gets out.

Data comes as an iterable of rows and a `Shape` that says what each row is in JSON and CSV and in a table.
Rows are printed as they arrive, so a million of them need no more memory than one page.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TextIO, TypeVar

from console.core.faults import ConfigFault, Fault
from console.core.text import CELL_LIMIT, DETAIL_LIMIT, csv_cell, csv_text, instant, neutralise

T = TypeVar("T")
_LINE_LIMIT = 2_000
_WIDTH_WITHOUT_TERMINAL = 120


class Column(NamedTuple, Generic[T]):
    """One column of a table: its text, how it may shrink, and when it is left out."""

    title: str
    text: Callable[[T], str]
    style: Callable[[T], str] | None = None
    dropped: int = 0
    """On a narrow terminal the highest goes first; 0 stays."""
    least: int | None = None
    """It may be cut to this width; None shows it whole while anything else can give way."""
    right: bool = False
    wraps: bool = False


class Shape(NamedTuple, Generic[T]):
    """What a row is: a record of these fields, and a line of these columns."""

    fields: tuple[str, ...]
    record: Callable[[T], Mapping[str, Any]]
    columns: Sequence[Column[T]]


def chosen_format(wanted: str | None) -> str:
    return wanted or ("table" if stdout().isatty() else "jsonl")


def stdout() -> TextIO:
    """Where data goes; nowhere when the process was started without one."""
    stream: TextIO | None = sys.stdout
    return stream if stream is not None else open(os.devnull, "w")  # noqa: PTH123


def terminal_width() -> int:
    return shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns


def print_rows(rows: Iterable[T], shape: Shape[T], wanted: str | None) -> int:
    """Print rows in the format asked for; how many there were."""
    counted = _Counted(rows)
    match chosen_format(wanted):
        case "table":
            from console.cli.table import print_table

            print_table(counted, shape.columns, stdout())
        case "json":
            _print_array(counted, shape)
        case "csv":
            _print_csv(counted, shape)
        case _:
            for row in counted:
                stdout().write(json_text(shape.record(row)) + "\n")
    return counted.number


class _Counted(Generic[T]):
    def __init__(self, rows: Iterable[T]) -> None:
        self._rows = rows
        self.number = 0

    def __iter__(self) -> Iterator[T]:
        for row in self._rows:
            self.number += 1
            yield row


def json_text(value: object) -> str:
    """JSON in which every control, and whatever is not ASCII, is escaped."""
    return json.dumps(value, default=_plain, ensure_ascii=True)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return instant(value)
    raise TypeError(f"{type(value).__name__} is not data")


def _print_array(rows: Iterable[T], shape: Shape[T]) -> None:
    before = "[\n"
    for row in rows:
        stdout().write(before + json_text(shape.record(row)))
        before = ",\n"
    stdout().write("[]\n" if before == "[\n" else "\n]\n")


def _print_csv(rows: Iterable[T], shape: Shape[T]) -> None:
    writer = csv.writer(stdout(), lineterminator="\n")
    writer.writerow(shape.fields)
    for row in rows:
        record = shape.record(row)
        writer.writerow([_csv_text(record[field]) for field in shape.fields])


def _csv_text(value: object) -> str:
    match value:
        case None | str() | int() | float() | datetime():
            return csv_text(value)
        case _:
            return csv_cell(json_text(value))


# --- text for people --------------------------------------------------------------------------------


def print_text(text: str, limit: int = CELL_LIMIT) -> None:
    """One line on stdout."""
    stdout().write(neutralise(text, limit) + "\n")


def print_block(text: str, indent: str = "  ") -> None:
    """Several lines on stdout, as they are but harmless."""
    for line in neutralise(text, DETAIL_LIMIT, multiline=True).split("\n"):
        stdout().write(f"{indent}{line}\n")


def note(text: str) -> None:
    """One line on stderr."""
    print(neutralise(text, _LINE_LIMIT), file=sys.stderr, flush=True)


def note_fault(fault: Fault, name: str = "") -> None:
    """What went wrong, on stderr: one line, or one for each mistake in a config file."""
    lines = str(fault).splitlines() if isinstance(fault, ConfigFault) else [str(fault)]
    for line in lines:
        note(f"retriage: {name}: {line}" if name else f"retriage: {line}")
