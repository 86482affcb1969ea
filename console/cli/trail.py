"""`trail`: the audit log of overrides and refusals, and its integrity check."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.overrides import trail_of
from console.cli.render import RowFormat, chosen_format, new_file, note, print_record, print_rows, print_text, stdout
from console.core import faults
from console.core.override import Intent, outcome_summary
from console.core.ports import Record
from console.core.recovery import ResultCounts
from console.core.text import duration, instant, plural

_ALL = 2**62
_FIELDS = ("seq", "kind", "at", "body", "prev", "hash")
_SUBJECTS = ("backend", "action", "state", "change", "cause")
_INTENT_FIELDS = ("seq", "override_id", "backend", "items", "at")


def list_records(args: Namespace, context: CommandContext) -> int:
    trail = trail_of(context.session())
    found = trail.newest(limit=args.limit or _ALL)
    print_rows(found, RowFormat(_FIELDS, Record._asdict, _COLUMNS), args.format)
    if not found and chosen_format(args.format) == "table":
        note("The trail is empty.")
    return 0


_COLUMNS: tuple[Column[Record], ...] = (
    Column("seq", lambda r: str(r.seq), right=True),
    Column("at", lambda r: instant(r.at.replace(microsecond=0)), dropped=2),
    Column("kind", lambda r: r.kind),
    Column("override", lambda r: str(r.body.get("override_id", "")), dropped=1),
    Column("", lambda r: _summary(r.body), least=24),
)


def _summary(body: Mapping[str, Any]) -> str:
    """The facts of a record in words; each kind of record has some of them."""
    counts = body.get("counts")
    behind = body.get("clock_behind")
    facts = [
        *(str(body[name]).replace("_", " ") for name in _SUBJECTS if body.get(name)),
        _fault_words(str(body.get("why", ""))),
        outcome_summary(counts, str(body.get("action", ""))) if isinstance(counts, Mapping) else "",
        _result_words(body) if "results" in body else "",
        f"items: {body['items']}" if isinstance(body.get("items"), int) and counts is None else "",
        f"record {body['seq']} in {body.get('place')}" if "seq" in body else "",
        f"the clock was {duration(timedelta(seconds=behind))} behind the record before" if behind else "",
        f"undo of {body['undo_of']}" if body.get("undo_of") else "",
        *(str(body[name]) for name in ("failed", "note", "text", "by", "reason") if body.get(name)),
    ]
    return " · ".join(filter(None, facts))


def _result_words(body: Mapping[str, Any]) -> str:
    with suppress(KeyError, TypeError, ValueError, AttributeError):  # an edited record
        return ResultCounts.of_record(body).summary()
    return ""


def _fault_words(name: str) -> str:
    """The sentence of the fault that a refusal names."""
    fault = getattr(faults, name, None)
    return fault.__doc__ or name if isinstance(fault, type) and issubclass(fault, faults.Fault) else name


def show_record(args: Namespace, context: CommandContext) -> int:
    trail = trail_of(context.session())
    record = next(iter(trail.records(after=args.seq - 1, limit=1)), None)
    if record is None or record.seq != args.seq:
        raise faults.UsageFault(f"The trail has no record {args.seq}", fix="`retriage trail list` shows the newest.")
    print_record(record._asdict())
    return 0


def verify(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    anchors = args.anchor or session.anchor_file
    found = trail_of(session).verified(anchors)
    if not found.ok:
        raise faults.TrailBroken(
            f"record {found.first_bad}: {found.what}", fix="Do not change it; compare it with a backup."
        )
    if not found.records:
        print_text("The trail has no records. Nothing was verified.")
        return 0
    print_text(f"Intact: {found.records} {plural(found.records, 'record')}")
    print_text(found.anchor_summary)
    return 0


def export(args: Namespace, context: CommandContext) -> int:
    trail = trail_of(context.session())
    if not args.output:
        count = trail.export(stdout(), args.format, items=args.items)
    else:
        with new_file(args.output) as file:
            count = trail.export(file, args.format, items=args.items)
    note(f"Exported {count} {plural(count, 'record')}.")
    return 0


def unresolved(args: Namespace, context: CommandContext) -> int:
    found = trail_of(context.session()).unresolved()
    print_rows(found, RowFormat(_INTENT_FIELDS, _intent_record, _INTENTS), args.format)
    if not found and chosen_format(args.format) == "table":
        note("Every write has a recorded outcome.")
    return 0


def _size(intent: Intent) -> int:
    return sum(last - first + 1 for first, last in intent.ranges)


def _intent_record(intent: Intent) -> dict[str, object]:
    return {
        "seq": intent.seq, "override_id": intent.override_id, "backend": intent.backend, "items": _size(intent),
        "at": intent.at,
    }


_INTENTS: tuple[Column[Intent], ...] = (
    Column("seq", lambda i: str(i.seq), right=True),
    Column("override", lambda i: i.override_id),
    Column("backend", lambda i: i.backend),
    Column("items", lambda i: str(_size(i)), right=True),
    Column("at", lambda i: instant(i.at)),
)
