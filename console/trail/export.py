"""Exporting the trail as text, record by record, however long it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from console.core.export import Format, record_writer
from console.core.plan import canonical
from console.core.ports import Record
from console.trail.plans import BATCH
from console.trail.reader import TrailReader
from console.trail.record import CONCLUDING, Kind, stamp

FIELDS = ("seq", "kind", "at", "ordinal", "key", "outcome", "detail", "result", "cause", "body", "prev", "hash")


def export(trail: TrailReader, out: TextIO, format: Format, *, items: bool = False) -> int:
    """Write every record, with `items` its item outcomes or results after it; returns the number of records.

    JSON lines hold everything that is needed to verify the trail elsewhere.
    """
    write = record_writer(format, out, FIELDS)
    count = 0
    for record in _records(trail):
        seq, kind, at, body, prev, digest = record
        shown = canonical(body) if format == "csv" else body
        write({"seq": seq, "kind": kind, "at": stamp(at), "body": shown, "prev": prev, "hash": digest})
        count += 1
        if items and kind in CONCLUDING:
            for batch in trail.item_outcomes(seq):
                for item in batch:
                    write({"seq": seq, "kind": "item", "at": stamp(at), **item._asdict()})
        if items and kind == Kind.RESULT:
            for rows in trail.result_rows(seq):
                for ordinal, key, result, cause in rows:
                    named = {"ordinal": ordinal, "key": key, "result": result, "cause": cause or None}
                    write({"seq": seq, "kind": "item", "at": stamp(at), **named})
    return count


def _records(trail: TrailReader) -> Iterator[Record]:
    last = 0
    while batch := trail.records(after=last, limit=BATCH):
        yield from batch
        last = batch[-1].seq
