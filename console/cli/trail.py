"""`trail`: the record of every override and refusal, and whether it is intact."""

from __future__ import annotations

import sys
from argparse import Namespace

from console.cli.doors import Doors
from console.cli.files import new_file
from console.cli.overrides import book_of
from console.cli.render import Column, Shape, json_text, note, print_rows, print_text, stdout
from console.core.audit import Record
from console.core.faults import TrailBroken, UsageFault
from console.core.override import Intent
from console.core.text import instant

_ALL = 2**62
_FIELDS = ("seq", "kind", "at", "body", "prev", "hash")


def list_records(args: Namespace, doors: Doors) -> int:
    book = book_of(doors.desk())
    found = book.newest(limit=args.limit or _ALL)
    print_rows(found, Shape(_FIELDS, _record, _COLUMNS), args.format)
    return 0


def _record(record: Record) -> dict[str, object]:
    return {"seq": record.seq, "kind": record.kind, "at": record.at, "body": record.body, "prev": record.prev,
            "hash": record.hash}


def _said(record: Record, *names: str) -> str:
    return " · ".join(str(record.body[name]) for name in names if record.body.get(name))


_COLUMNS: tuple[Column[Record], ...] = (
    Column("seq", lambda r: str(r.seq), right=True),
    Column("at", lambda r: instant(r.at.replace(microsecond=0)), dropped=2),
    Column("kind", lambda r: r.kind),
    Column("override", lambda r: _said(r, "op_id"), dropped=1),
    Column("", lambda r: _said(r, "backend", "action", "state", "why", "counts", "items", "by", "reason"), least=24),
)


def show_record(args: Namespace, doors: Doors) -> int:
    book = book_of(doors.desk())
    record = next(iter(book.records(after=args.seq - 1, limit=1)), None)
    if record is None or record.seq != args.seq:
        raise UsageFault(f"there is no record {args.seq}")
    stdout().write(json_text(_record(record)) + "\n")
    return 0


def verify(args: Namespace, doors: Doors) -> int:
    desk = doors.desk()
    anchors = args.anchor or desk.anchor_file
    found = book_of(desk).verified(anchors)
    if not found.ok:
        raise TrailBroken(f"record {found.first_bad}: {found.what}",
                          fix="Keep the file as it is; compare it with a backup.")
    print_text(f"intact: {found.records} records{', anchored' if anchors else ''}")
    return 0


def export(args: Namespace, doors: Doors) -> int:
    book = book_of(doors.desk())
    form = args.format or "jsonl"
    if not args.output:
        count = book.export(sys.stdout, form, items=args.items)
    else:
        with new_file(args.output) as file:
            count = book.export(file, form, items=args.items)
    note(f"{count} records exported")
    return 0


def unresolved(args: Namespace, doors: Doors) -> int:
    found = book_of(doors.desk()).unresolved()
    print_rows(found, Shape(("seq", "op_id", "backend", "items", "at"), _intent, _INTENTS), args.format)
    return 0


def _size(intent: Intent) -> int:
    return sum(last - first + 1 for first, last in intent.ranges)


def _intent(intent: Intent) -> dict[str, object]:
    return {"seq": intent.seq, "op_id": intent.op_id, "backend": intent.backend, "items": _size(intent),
            "at": intent.at}


_INTENTS: tuple[Column[Intent], ...] = (
    Column("record", lambda i: str(i.seq), right=True),
    Column("override", lambda i: i.op_id),
    Column("backend", lambda i: i.backend),
    Column("items", lambda i: str(_size(i)), right=True),
    Column("announced", lambda i: instant(i.at)),
)
