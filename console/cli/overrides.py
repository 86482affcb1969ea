"""`overrides`: what was confirmed, how far it got, and what can still be done about it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from console.cli.doors import Doors
from console.cli.plans import conclude, confirm_and_carry_out, operations_of, preview, record, settle
from console.cli.progress import watching
from console.cli.render import Column, Shape, chosen_format, json_text, note, print_rows, print_text, stdout
from console.core.desk import Desk
from console.core.faults import OverrideRunning, UsageFault
from console.core.override import ItemOutcome, Override
from console.core.ports import Book
from console.core.text import ago, instant


def book_of(desk: Desk) -> Book:
    if desk.book is None:
        raise UsageFault("no trail is configured")
    return desk.book


def list_overrides(args: Namespace, doors: Doors) -> int:
    desk = doors.desk()
    now = desk.clock.now()
    columns: tuple[Column[Override], ...] = (
        Column("override", lambda o: o.op_id),
        Column("state", lambda o: o.state.value),
        Column("started", lambda o: ago(now - o.started_at), right=True),
        Column("who", lambda o: o.who, dropped=1, least=8),
        Column("done", _counted, least=12),
        Column("reason", lambda o: o.reason, least=16),
    )
    found = book_of(desk).overrides(args.limit or None)
    print_rows(found, Shape(_FIELDS, record, columns), args.format)
    return 0


_FIELDS = ("op_id", "plan", "state", "started_at", "who", "reason", "ticket", "counts", "note")


def _counted(override: Override) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(override.counts.items()) if count)


def show_override(args: Namespace, doors: Doors) -> int:
    book = book_of(doors.desk())
    override = book.override(args.override)
    if chosen_format(args.format) in ("json", "jsonl"):
        items = [item._asdict() for item in _items(book, override)] if args.items else None
        stdout().write(json_text({**record(override), **({"items": items} if args.items else {})}) + "\n")
        return 0
    if chosen_format(args.format) == "table":
        for line in _told(override):
            print_text(line)
    if args.items or args.format == "csv":
        print_rows(_items(book, override), _OUTCOMES, args.format)
    return 0


def _told(override: Override) -> Iterator[str]:
    yield f"override {override.op_id}  {override.state.value}{f': {override.note}' if override.note else ''}"
    yield f"  plan     {override.plan_id}"
    yield f"  started  {instant(override.started_at)}"
    yield f"  who      {override.who}"
    yield f"  reason   {override.reason}{f'  [{override.ticket}]' if override.ticket else ''}"
    yield f"  outcome  {_counted(override) or 'nothing yet'}"


def _items(book: Book, override: Override) -> Iterator[ItemOutcome]:
    for batch in book.outcomes(override.op_id):
        yield from batch


_OUTCOMES: Shape[ItemOutcome] = Shape(
    ("ordinal", "key", "outcome", "detail"),
    lambda item: item._asdict(),
    (
        Column("item", lambda item: item.key, least=20),
        Column("outcome", lambda item: item.outcome),
        Column("", lambda item: item.detail, least=10),
    ),
)


def pause(args: Namespace, doors: Doors) -> int:
    operations_of(doors.desk()).pause(args.override)
    note("it pauses after the chunk it is writing")
    return 0


def stop(args: Namespace, doors: Doors) -> int:
    operations_of(doors.desk()).stop(args.override)
    note("it stops after the chunk it is writing; it can be resumed")
    return 0


def resume(args: Namespace, doors: Doors) -> int:
    """Let a paused one go on in its own process, or carry on here with one whose process is gone."""
    desk = doors.desk()
    operations = operations_of(desk)
    operations.require_writable()
    override = operations.book.override(args.override)
    plan = operations.book.plan(override.plan_id)
    try:
        with watching(plan.changes) as watch:
            return conclude(operations.resume(override.op_id, desk.who, desk.whence, desk.stop, watch))
    except OverrideRunning:
        if not operations.book.override(override.op_id).alive:
            raise  # it is another one that runs there
        operations.proceed(override.op_id)
        note("its own process is alive and goes on with it")
        return 0


def undo(args: Namespace, doors: Doors) -> int:
    desk = doors.desk()
    operations = operations_of(desk)
    settle(desk, operations)
    plan = operations.undo(args.override, desk.stop)
    for line in preview(desk, plan):
        note(line)
    return confirm_and_carry_out(args, desk, plan)
