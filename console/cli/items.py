"""`list` and `show`: items as rows, and one item in full."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from console.actions.tones import COLOURS, tone
from console.cli.backend_selection import NONE_ANSWERED, BackendSelection
from console.cli.columns import Column, terminal_width
from console.cli.context import CommandContext
from console.cli.render import RowFormat, chosen_format, note, note_fault, print_block, print_rows, print_text
from console.cli.repeat import repeated
from console.core.budget import ReadCosts
from console.core.export import FIELDS, record
from console.core.faults import BackendFault
from console.core.item import Attempt, Detail, Item, ItemKey
from console.core.listing import Listing
from console.core.query import Filter, Sort
from console.core.session import Session
from console.core.text import (
    DETAIL_LIMIT,
    FAR,
    ago,
    countdown,
    duration,
    first_line,
    instant,
    neutralise,
)

_RUNS_AGAIN = {True: "yes, by itself", False: "no, not by itself", None: "cannot tell"}


def condition_text(item: Item) -> str:
    return f"{item.condition.symbol} {item.condition}"


def condition_colour(item: Item) -> str:
    """As on the screens."""
    return COLOURS[tone(item.condition)]


def attempts_text(item: Item) -> str:
    return f"{item.attempts}/{'∞' if item.max_attempts is None else item.max_attempts}"


def next_text(item: Item, now: datetime) -> str:
    window = item.verdict.next_retry
    if item.verdict.will_run_again is None:
        return "not known"
    if window is None:
        return ""
    low, high = window.earliest - now, window.latest - now
    if high <= timedelta(0):
        return "due"
    if low >= FAR:
        return f"{window.earliest:%Y-%m-%d}"
    return f"in {countdown(low)}" if window.exact else f"in {countdown(low)}–{countdown(high)}"


def expiry_text(item: Item, now: datetime) -> str:
    if item.expires_at is None:
        return ""
    left = item.expires_at - now
    if left >= FAR:
        return f"{item.expires_at:%Y-%m-%d}"
    return f"in {countdown(left)}" if left > timedelta(0) else "any time now"


def columns(now: datetime) -> tuple[Column[Item], ...]:
    return (
        Column("key", lambda item: str(item.key)),
        Column("condition", condition_text, condition_colour),
        Column("attempts", attempts_text, dropped=2, right=True),
        Column("next", lambda item: next_text(item, now), dropped=3),
        Column("expires", lambda item: expiry_text(item, now), dropped=6, optional=True),
        Column("error", lambda item: first_line(item.error or ""), least=24),
        Column("updated", lambda item: ago(now - item.updated_at) if item.updated_at else "", dropped=4),
        Column("type", lambda item: item.type, dropped=5, least=10),
    )


# --- list -------------------------------------------------------------------------------------------


def list_items(args: Namespace, context: CommandContext) -> int:
    filter, sort = Filter.parse(args.where), Sort.parse(args.sort)
    session = context.session()
    selection = BackendSelection(session, args.backend, filter)
    return repeated(args, session, lambda costs: _print_items(args, session, selection, (filter, sort), costs))


def _print_items(
    args: Namespace, session: Session, selection: BackendSelection, query: tuple[Filter, Sort], costs: ReadCosts
) -> int:
    filter, sort = query
    now, limit = session.clock.now(), args.limit or None
    most = None if limit is None else limit + 1
    listing = Listing(selection.backends, filter, now, sort, most, session.stop, costs=costs)
    rows = _Limited(listing, limit)
    printed = print_rows(rows, RowFormat(FIELDS, record, columns(now)), args.format)
    code = selection.report(listing.faults, listing.answered)
    if rows.more:
        note(f"Showing the first {limit}. Use --limit 0 to show all, or --where to narrow the list.")
    elif not printed and not code and chosen_format(args.format) == "table":
        note("Nothing matches." if args.where else "Nothing needs attention.")
    return code


class _Limited:
    """Yields the first `limit` rows and then knows whether there are more."""

    def __init__(self, rows: Iterable[Item], limit: int | None) -> None:
        self._rows = rows
        self._limit = limit
        self.more = False

    def __iter__(self) -> Iterator[Item]:
        for number, row in enumerate(self._rows):
            if number == self._limit:
                self.more = True
                return
            yield row


# --- show -------------------------------------------------------------------------------------------


def show_item(args: Namespace, context: CommandContext) -> int:
    key = ItemKey.parse(args.key)
    session = context.session()
    return repeated(args, session, lambda costs: print_item(session, key, args.format, costs))


def print_item(session: Session, key: ItemKey, wanted: str | None, costs: ReadCosts | None = None) -> int:
    """Print one item in full; returns the exit code."""
    now, costs = session.clock.now(), costs or ReadCosts()
    try:
        backend = session.backend(key.backend)
        with costs.of(key.backend):
            detail = backend.item(key, now)
    except BackendFault as fault:
        note_fault(fault, key.backend)
        return NONE_ANSWERED
    overrides = session.trail.history_of(str(key)) if session.trail is not None else ()
    if chosen_format(wanted) == "table":
        _print_detail(detail, overrides, session, now)
        return 0
    fields = (*FIELDS, "notes", "schedule", "history", "overrides", "native")
    print_rows([detail], RowFormat(fields, lambda one: _full_record(one, overrides), ()), wanted)
    return 0


def _full_record(detail: Detail, overrides: Iterable[tuple[datetime, str]]) -> dict[str, Any]:
    return {
        **record(detail.item), "error": detail.error, "notes": list(detail.item.notes),
        "schedule": list(detail.schedule),
        "history": [
            {"number": one.number, "at": one.at, "outcome": one.outcome, "error": one.error,
             "took_seconds": one.took.total_seconds() if one.took is not None else None}
            for one in detail.attempts
        ],
        "overrides": [{"at": at, "what": what} for at, what in overrides],
        "native": dict(detail.native), **({"extra": dict(detail.extra)} if detail.extra else {}),
    }


def _print_detail(
    detail: Detail, overrides: Iterable[tuple[datetime, str]], session: Session, now: datetime
) -> None:
    item = detail.item
    print_text(str(item.key), DETAIL_LIMIT)
    _print_pairs(_facts(detail, session, now))
    _section("next", detail.schedule, str)
    _section("notes", item.notes, str)
    _section("attempts", detail.attempts, _attempt_text)
    _section("overrides", overrides, lambda one: f"{instant(one[0].replace(microsecond=0))}  {one[1]}")
    if detail.error:
        print_text("error")
        print_block(detail.error)
        if len(detail.error) >= DETAIL_LIMIT:
            print_text(f"  (cut at {DETAIL_LIMIT} characters)")
    print_text("native row")
    _print_pairs((name, "NULL" if value is None else value) for name, value in (*detail.native, *detail.extra))


def _facts(detail: Detail, session: Session, now: datetime) -> Iterator[tuple[str, str]]:
    item, verdict = detail.item, detail.item.verdict
    yield "condition", f"{condition_text(item)}: {verdict.why}"
    yield "runs again", _RUNS_AGAIN[verdict.will_run_again]
    yield "type", item.type
    yield "status", item.native_status
    yield "attempts", attempts_text(item)
    if verdict.next_retry is not None:
        yield "next retry", f"{instant(verdict.next_retry.earliest)} ({next_text(item, now)})"
    if verdict.recoverable is not None:
        yield "recoverable", "yes" if verdict.recoverable else "no"
    if item.expires_at is not None:
        yield "expires", f"{instant(item.expires_at)} ({expiry_text(item, now)}): its system deletes it then"
    for name, at in (("created", item.created_at), ("updated", item.updated_at)):
        if at is not None:
            yield name, f"{instant(at)} ({ago(now - at)})"
    if item.signature is not None:
        yield "cause", item.signature
    if item.error and (page := session.runbook(item.error)):
        yield "runbook", page


def _attempt_text(attempt: Attempt) -> str:
    number = "?" if attempt.number is None else str(attempt.number)
    at = instant(attempt.at) if attempt.at else "time unknown"
    took = f", took {duration(attempt.took)}" if attempt.took is not None else ""
    error = f": {first_line(attempt.error)}" if attempt.error else ""
    return f"{number}  {at}  {attempt.outcome}{took}{error}"


def _print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """One line each, cut to the terminal's width; `--format json` has the whole values."""
    lines = [(neutralise(name), value) for name, value in pairs]
    width = max((len(name) for name, _ in lines), default=0)
    room = max(terminal_width() - width - 4, 20)
    for name, value in lines:
        print_text(f"  {name.ljust(width)}  {neutralise(value, room)}", DETAIL_LIMIT)


def _section(title: str, rows: Iterable[Any], text: Callable[[Any], str]) -> None:
    lines = [text(row) for row in rows]
    if lines:
        print_text(title)
        for line in lines:
            print_text(f"  {line}")
