"""Writes a document as one HTML file: no script, nothing fetched, and good on paper.

Every text is made visible first (no control or invisible characters), then escaped. The file forbids scripts and
requests by itself, in case somebody adds one.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TextIO, assert_never

from console.core.history import Trend
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
from console.report.svg import bar_chart, spark, trend_chart

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
_STYLE = """
:root { color-scheme: light; --ink: #1d2733; --quiet: #5d6b7a; --line: #d8dee6; --accent: #0b63b0; --warn: #a4420a; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.5rem; color: var(--ink); background: #fff;
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .3rem 0; }
p.warning { border-left: 3px solid var(--warn); padding-left: .6rem; color: var(--warn); }
table { width: 100%; border-collapse: collapse; margin: .4rem 0; font-size: .93em; }
th { text-align: left; font-weight: 600; color: var(--quiet); white-space: nowrap; }
tr > th { border-bottom: 1px solid var(--line); }
th, td { padding: .3em 1em .3em 0; vertical-align: top; overflow-wrap: break-word; }
th:last-child, td:last-child { padding-right: 0; }
td { border-bottom: 1px solid #eef1f5; } td p { margin: 0; }
td.long { overflow-wrap: anywhere; min-width: 24em; } td.whole { white-space: nowrap; }
td p.strong { color: var(--warn); font-weight: 600; } td p.below { color: var(--quiet); font-size: .88em; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .4rem 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
ul.notes { margin: .2rem 0 .6rem; padding-left: 1.1rem; } ul.notes span { color: var(--quiet); }
figure { margin: .6rem 0; } figcaption { color: var(--quiet); font-size: .85rem; }
svg.chart { width: 100%; height: auto; } svg.spark { display: block; }
.grid { stroke: var(--line); stroke-width: 1; } .axis { fill: var(--quiet); font-size: 11px; }
.area-fill { fill: #0b63b0; fill-opacity: .12; } .area-line { fill: none; stroke: var(--accent); stroke-width: 1.8; }
circle.area-line, circle.spark-line { fill: var(--accent); stroke: none; }
.spark-fill { fill: #0b63b0; fill-opacity: .12; } .spark-line { fill: none; stroke: var(--accent); stroke-width: 1.4; }
.bar { fill: var(--accent); fill-opacity: .75; }
.event { stroke: var(--warn); stroke-width: 1; stroke-dasharray: 3 2; } .label { fill: var(--warn); font-size: 11px; }
@page { size: A4; margin: 14mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  h1 { font-size: 17pt; } h2 { font-size: 12.5pt; } h3 { font-size: 10.5pt; } h2, h3, figcaption { break-after: avoid; }
  tr, figure, dl { break-inside: avoid; } thead { display: table-header-group; }
}
"""


def write_html(document: Document, out: TextIO) -> None:
    """Write the document piece by piece: an override may have very many items."""
    out.write(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{_text(document.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    for block in document.blocks:
        _write(block, out)
    out.write("</body>\n</html>\n")


def _text(text: str) -> str:
    """Text that stays text, in elements and in attributes."""
    return html.escape(neutralise(text, LONGEST_TEXT), quote=True)


def _write(block: Block, out: TextIO) -> None:
    match block:
        case Heading(level, text):
            out.write(f"<h{level}>{_text(text)}</h{level}>\n")
        case Paragraph(text, warning):
            kind = ' class="warning"' if warning else ""
            out.write(f"<p{kind}>{_text(text)}</p>\n")
        case FactList(pairs):
            rows = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in pairs)
            out.write(f"<dl>{rows}</dl>\n" if rows else "")
        case Notes(lines):
            rows = "".join(f"<li><span>{_text(at)} {_text(by)}:</span> {_text(what)}</li>" for at, by, what in lines)
            out.write(f'<ul class="notes">{rows}</ul>\n' if rows else "")
        case TrendChart(title, trend, events):
            _write_figure(title, trend_chart(title, trend, events, _text), out)
        case BarChart(title, histogram):
            _write_figure(title, bar_chart(title, histogram, _text), out)
        case Table():
            _write_table(block, out)
        case _:
            assert_never(block)


def _write_figure(title: str, chart: str, out: TextIO) -> None:
    out.write(f"<figure><figcaption>{_text(title)}</figcaption>{chart}</figure>\n")


def _write_table(table: Table, out: TextIO) -> None:
    heads = "".join(f"<th{_kind(table, number)}>{_text(name)}</th>" for number, name in enumerate(table.columns))
    out.write(f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n")
    for row in table.rows:
        out.write(f"<tr>{_cells(table, row)}</tr>\n")
    out.write("</tbody>\n</table>\n")


def _cells(table: Table, row: Sequence[Cell]) -> str:
    return "".join(f"<td{_kind(table, number)}>{_cell(cell)}</td>" for number, cell in enumerate(row))


def _kind(table: Table, number: int) -> str:
    kinds = {"number": table.numbers, "long": table.long, "whole": table.whole}
    return next((f' class="{kind}"' for kind, columns in kinds.items() if number in columns), "")


def _cell(cell: Cell) -> str:
    if isinstance(cell, Trend):
        return spark(cell)
    if isinstance(cell, TwoLines):
        kind = ' class="strong"' if cell.strong else ""
        below = f'<p class="below">{_text(cell.below)}</p>' if cell.below else ""
        return f"<p{kind}>{_text(cell.text)}</p>{below}"
    return _text(cell or "")
