"""The only module that writes to stdout and stderr. It makes all text safe for a terminal.

Data comes as an iterable of rows and a `RowFormat` that says how a row looks as JSON, as CSV and in a table.
Rows are printed as they arrive, so a million of them need no more memory than one page.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TextIO, TypeVar

from console.cli.advice import fault_text
from console.cli.columns import Column
from console.core.export import WriteRecord, json_text, record_writer
from console.core.faults import ConfigFault, Fault, UsageFault
from console.core.paths import expanded
from console.core.text import CELL_LIMIT, DETAIL_LIMIT, neutralise, plural

T = TypeVar("T")
_LINE_LIMIT = 2_000
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


class RowFormat(NamedTuple, Generic[T]):
    """How a row is printed: as a record with these fields, or as a table line with these columns."""

    fields: tuple[str, ...]
    record: Callable[[T], Mapping[str, Any]]
    columns: Sequence[Column[T]]


def chosen_format(wanted: str | None) -> str:
    return wanted or ("table" if stdout().isatty() else "jsonl")


def stdout() -> TextIO:
    """Where data goes; nowhere when the process was started without a stdout."""
    stream: TextIO | None = sys.stdout
    return stream if stream is not None else open(os.devnull, "w")  # noqa: PTH123


def flush() -> None:
    """Send what was printed so far."""
    stdout().flush()


def print_rows(rows: Iterable[T], shape: RowFormat[T], wanted: str | None) -> int:
    """Print rows in this format, or in the default one; returns how many there were."""
    counted = _Counted(rows)
    match chosen_format(wanted):
        case "table":
            from console.cli.table import print_table

            print_table(counted, shape.columns, stdout())
        case "json":
            _print_array(counted, shape)
        case "csv":
            _write_each(counted, shape, record_writer("csv", stdout(), shape.fields))
        case _:
            _write_each(counted, shape, record_writer("jsonl", stdout(), shape.fields))
    return counted.number


class _Counted(Generic[T]):
    def __init__(self, rows: Iterable[T]) -> None:
        self._rows = rows
        self.number = 0

    def __iter__(self) -> Iterator[T]:
        for row in self._rows:
            self.number += 1
            yield row


def _write_each(rows: Iterable[T], shape: RowFormat[T], write: WriteRecord) -> None:
    for row in rows:
        write(shape.record(row))


def print_record(record: Mapping[str, Any]) -> None:
    """One JSON object on a line."""
    stdout().write(json_text(record) + "\n")


def _print_array(rows: Iterable[T], shape: RowFormat[T]) -> None:
    before = "[\n"
    for row in rows:
        stdout().write(before + json_text(shape.record(row)))
        before = ",\n"
    stdout().write("[]\n" if before == "[\n" else "\n]\n")


# --- text for people --------------------------------------------------------------------------------


def print_text(text: str, limit: int = CELL_LIMIT) -> None:
    """One line on stdout."""
    stdout().write(neutralise(text, limit) + "\n")


def print_block(text: str, indent: str = "  ") -> None:
    """Several lines on stdout, indented."""
    for line in neutralise(text, DETAIL_LIMIT, multiline=True).split("\n"):
        stdout().write(f"{indent}{line}\n")


def note(text: str) -> None:
    """One line on stderr."""
    print(neutralise(text, _LINE_LIMIT), file=sys.stderr, flush=True)


def ask(question: str) -> str:
    """Ask on stderr and read the answer from stdin."""
    sys.stderr.write(neutralise(question, _LINE_LIMIT))
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def note_fault(fault: Fault, name: str = "") -> None:
    """A fault on stderr: one line, or one for each mistake in a config file."""
    text = fault_text(fault)
    lines = text.splitlines() if isinstance(fault, ConfigFault) else [text]
    for line in lines:
        note(f"retriage: {name}: {line}" if name else f"retriage: {line}")


# --- output that is replaced ------------------------------------------------------------------------


def can_redraw() -> bool:
    """Whether stdout is a terminal that can be cleared."""
    return stdout().isatty() and os.environ.get("TERM", "dumb") != "dumb"


class _Collected(StringIO):
    """Text that will be shown on a terminal."""

    def isatty(self) -> bool:
        return True


class Screen:
    """A terminal on which output replaces the earlier output. What does not fit is counted instead."""

    def __init__(self) -> None:
        self._rows, self._notes = _Collected(), _Collected()

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep what this block prints for `draw`. Notes too, if they go to a terminal."""
        self._rows, self._notes = _Collected(), _Collected()
        with ExitStack() as stack:
            if sys.stderr is not None and sys.stderr.isatty():
                stack.enter_context(redirect_stderr(self._notes))
            stack.enter_context(redirect_stdout(self._rows))
            yield

    def draw(self, last_line: str) -> None:
        """Show what was collected, and this line below it."""
        lines, notes = (text.getvalue().splitlines() for text in (self._rows, self._notes))
        width, height = shutil.get_terminal_size()
        room = height - 1 - sum(_rows_of(line, width) for line in (*notes, last_line))
        used = list(accumulate(_rows_of(line, width) for line in lines[:height]))
        fitting = sum(rows <= room for rows in used)
        if fitting < len(lines):
            fitting = sum(rows < room for rows in used)
        stdout().write(_CLEAR_SCREEN + "".join(f"{line}\n" for line in lines[:fitting]))
        if left := len(lines) - fitting:
            print_text(f"({left} more {plural(left, 'line')}, for which this terminal is too small)")
        stdout().flush()
        for line in notes:
            note(line)
        print_text(last_line)
        stdout().flush()


def _rows_of(line: str, width: int) -> int:
    """How many rows of the terminal a line takes."""
    from rich.text import Text

    return max(-(-Text.from_ansi(line).cell_len // width), 1)


# --- files ------------------------------------------------------------------------------------------


def new_file(path: str) -> TextIO:
    """Create a file that only its owner can read. An existing file is never overwritten."""
    try:
        handle = os.open(expanded(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageFault(f"{path} already exists", fix="Name a new file; nothing is overwritten.") from None
    except OSError as error:
        raise UsageFault(f"Cannot write {path}: {error.strerror}", fix="Name another file.") from None
    return os.fdopen(handle, "w", encoding="utf-8", newline="")
