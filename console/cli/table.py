"""Tables that fit the terminal: columns are left out by priority before anything is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TextIO, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from console.cli.columns import Column, terminal_width
from console.core.text import neutralise

T = TypeVar("T")

_GAP = 2
_BATCH = 500
"""How many rows decide the column widths, and are printed at once."""
_LEAST = 8


def print_table(rows: Iterable[T], columns: Sequence[Column[T]], stream: TextIO) -> None:
    """Print rows as they arrive. The first ones decide which columns are shown and how wide they are."""
    width = terminal_width()
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    source = iter(rows)
    first = list(islice(source, _BATCH))
    if not first:
        return
    columns = [column for column in columns if not column.optional or any(map(column.text, first))]
    cells = _cells(first, columns)
    layout = fit(columns, _natural(columns, cells), width)
    shown = [columns[n] for n, _ in layout]
    console.print(_table(shown, [w for _, w in layout], ([row[n] for n, _ in layout] for row in cells), True))
    for batch in _batches(source):
        lines = ([_cell(column, row) for column in shown] for row in batch)
        console.print(_table(shown, [w for _, w in layout], lines, False))


def least_width(rows: Iterable[T], columns: Sequence[Column[T]]) -> int:
    """The least width a table with all these columns needs."""
    return _needed(range(len(columns)), columns, _natural(columns, _cells(rows, columns)))


def _cells(rows: Iterable[T], columns: Sequence[Column[T]]) -> list[list[Text]]:
    return [[_cell(column, row) for column in columns] for row in rows]


def _natural(columns: Sequence[Column[T]], cells: Sequence[list[Text]]) -> list[int]:
    return [max(cell_len(column.title), *(row[n].cell_len for row in cells)) for n, column in enumerate(columns)]


def _batches(source: Iterator[T]) -> Iterator[list[T]]:
    while batch := list(islice(source, _BATCH)):
        yield batch


def _cell(column: Column[T], row: T) -> Text:
    return Text(neutralise(column.text(row)), style=column.style(row) if column.style else "", end="")


def _table(
    columns: Sequence[Column[T]], widths: Sequence[int], lines: Iterable[list[Text]], header: bool
) -> Table:
    table = Table(box=None, show_header=header, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            Text(column.title), width=width, justify="right" if column.right else "left",
            no_wrap=not column.wraps, overflow="fold" if column.wraps else "ellipsis",
        )
    for line in lines:
        table.add_row(*line)
    return table


def fit(columns: Sequence[Column[T]], natural: Sequence[int], total: int) -> list[tuple[int, int]]:
    """The numbers of the columns that are shown, with the width of each."""
    shown = list(range(len(columns)))
    while _needed(shown, columns, natural) > total:
        droppable = [n for n in shown if columns[n].dropped]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda n: columns[n].dropped))
    widths = {n: _least(columns[n], natural[n]) for n in shown}
    spare = total - _GAP * (len(shown) - 1) - sum(widths.values())
    # Spare room goes first to the columns that need least of it, so that only the longest are cut.
    elastic = sorted((n for n in shown if columns[n].least is not None), key=lambda n: natural[n])
    for n in chain((n for n in reversed(shown) if spare < 0), elastic):
        change = min(spare, natural[n] - widths[n]) if spare > 0 else max(spare, min(_LEAST - widths[n], 0))
        widths[n] += change
        spare -= change
    return [(n, widths[n]) for n in shown]


def _least(column: Column[T], natural: int) -> int:
    return natural if column.least is None else min(natural, column.least)


def _needed(shown: Sequence[int], columns: Sequence[Column[T]], natural: Sequence[int]) -> int:
    return sum(_least(columns[n], natural[n]) for n in shown) + _GAP * (len(shown) - 1)
