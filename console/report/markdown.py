"""Writes a document as Markdown. What would be markup, a link or HTML in a text stays text."""

from __future__ import annotations

import re
from typing import TextIO, assert_never

from console.core.history import Trend, sparkline
from console.core.text import neutralise
from console.report.document import (
    LONGEST_TEXT,
    BarChart,
    Block,
    Cell,
    Document,
    FactList,
    Heading,
    Notes,
    Paragraph,
    Table,
    TrendChart,
    TwoLines,
)

_CELL_STEPS = 24
_MARKUP = re.compile(r"[\\`*_{}\[\]()#|~!^$]")
_AT_START = re.compile(r"^(\s*)([-+>=]|\d+[.)])")
_LINK = re.compile(r"(?i)(:)(?=//)|(?<=www)(\.)|(@)")


def write_markdown(document: Document, out: TextIO) -> None:
    """Write the document piece by piece."""
    for block in document.blocks:
        _write(block, out)


def _text(text: str) -> str:
    """Text that no reader of Markdown takes for anything else."""
    plain = neutralise(text, LONGEST_TEXT).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    plain = _LINK.sub(lambda found: f"\\{found[0]}", _MARKUP.sub(lambda found: f"\\{found[0]}", plain))
    return _AT_START.sub(lambda found: f"{found[1]}\\{found[2]}", plain)


def _write(block: Block, out: TextIO) -> None:
    match block:
        case Heading(level, text):
            out.write(f"{'#' * level} {_text(text)}\n\n")
        case Paragraph(text, warning):
            out.write(f"**{_text(text)}**\n\n" if warning else f"{_text(text)}\n\n")
        case FactList(pairs):
            out.write("".join(f"- {_text(name)}: {_text(value)}\n" for name, value in pairs) + "\n")
        case Notes(lines):
            out.write("".join(f"- {_text(at)} {_text(by)}: {_text(what)}\n" for at, by, what in lines) + "\n")
        case TrendChart(title, trend, events):
            out.write(f"{_text(title)}: `{sparkline(trend.values)}`\n\n")
            out.write("".join(f"- {event.at:%m-%d %H:%M}Z {_text(event.label)}\n" for event in events))
            out.write("\n" if events else "")
        case BarChart(title, histogram):
            out.write(f"{_text(title)}: `{sparkline(histogram.counts)}`\n\n")
        case Table():
            _write_table(block, out)
        case _:
            assert_never(block)


def _write_table(table: Table, out: TextIO) -> None:
    out.write(f"| {' | '.join(_text(name) or ' ' for name in table.columns)} |\n")
    out.write(f"|{'|'.join('---:' if number in table.numbers else '---' for number in range(len(table.columns)))}|\n")
    for row in table.rows:
        out.write(f"| {' | '.join(map(_cell, row))} |\n")
    out.write("\n")


def _cell(cell: Cell) -> str:
    if isinstance(cell, Trend):
        return sparkline(cell.coarser(_CELL_STEPS).values)
    if isinstance(cell, TwoLines):
        text = _text(cell.text)
        return f"{f'**{text}**' if cell.strong else text}{f' ({_text(cell.below)})' if cell.below else ''}"
    return _text(cell or "")
