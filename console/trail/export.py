"""Exporting the trail as text, record by record, however long it is."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any, Protocol, TextIO

from console.core.audit import Record
from console.core.override import ItemOutcome
from console.core.plan import canonical
from console.core.text import csv_cell
from console.trail.history import History
from console.trail.plans import BATCH
from console.trail.record import CONCLUDING, stamp

CSV_HEADER = ("seq", "kind", "at", "ordinal", "key", "outcome", "detail", "body", "prev", "hash")


class _Form(Protocol):
    def record(self, record: Record) -> None: ...

    def item(self, record: Record, item: ItemOutcome) -> None: ...


def export_jsonl(book: History, out: TextIO, *, items: bool = False) -> int:
    """A JSON object per line: each record, if asked for with its item outcomes after it. How many records."""
    return _export(book, _Jsonl(out), items)


def export_csv(book: History, out: TextIO, *, items: bool = False) -> int:
    """The same as a table; no cell can start a formula in a spreadsheet."""
    return _export(book, _Csv(out), items)


def _export(book: History, form: _Form, items: bool) -> int:
    count = 0
    for record in _records(book):
        form.record(record)
        count += 1
        if items and record.kind in CONCLUDING:
            for batch in book.item_outcomes(record.seq):
                for item in batch:
                    form.item(record, item)
    return count


def _records(book: History) -> Iterator[Record]:
    last = 0
    while batch := book.records(after=last, limit=BATCH):
        yield from batch
        last = batch[-1].seq


class _Jsonl:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def record(self, record: Record) -> None:
        seq, kind, at, body, prev, digest = record
        line = {"seq": seq, "kind": kind, "at": stamp(at), "body": body, "prev": prev, "hash": digest}
        self._out.write(json.dumps(line) + "\n")

    def item(self, record: Record, item: ItemOutcome) -> None:
        self._out.write(json.dumps({"seq": record.seq, "kind": "item", **item._asdict()}) + "\n")


class _Csv:
    def __init__(self, out: TextIO) -> None:
        self._writer = csv.writer(out, lineterminator="\n")
        self._writer.writerow(CSV_HEADER)

    def record(self, record: Record) -> None:
        seq, kind, at, body, prev, digest = record
        self._row(seq, kind, stamp(at), "", "", "", "", canonical(body), prev, digest)

    def item(self, record: Record, item: ItemOutcome) -> None:
        ordinal, *texts = item
        self._row(record.seq, "item", stamp(record.at), ordinal, *map(_encodable, texts), "", "", "")

    def _row(self, *cells: Any) -> None:
        self._writer.writerow([cell if isinstance(cell, int) else csv_cell(cell) for cell in cells])


def _encodable(text: str) -> str:
    """A lone surrogate spelled out: no file takes it as it is."""
    return text.encode("utf-8", "backslashreplace").decode()
