"""`upcoming`: when the next retries are due, per backend and step of time."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from console.cli.backend_selection import BackendSelection
from console.cli.columns import Column, terminal_width
from console.cli.context import CommandContext
from console.cli.history import snapshot_at
from console.cli.render import RowFormat, chosen_format, note, print_rows
from console.cli.repeat import repeated
from console.core.backend import Histogram
from console.core.budget import ReadCosts
from console.core.faults import Fault, UsageFault
from console.core.history import UPCOMING_STEP, UPCOMING_STEPS, Snapshot
from console.core.listing import upcoming
from console.core.query import Filter
from console.core.session import Session
from console.core.text import duration, parse_duration

FIELDS = ("backend", "from", "to", "count")
_MOST_BUCKETS = 1_000
_BAR, _LEAST_BAR = 30, 8
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Slot:
    """A step of time and how many retries are due in it, per backend."""

    label: str
    start: datetime | None
    end: datetime | None
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def show_upcoming(args: Namespace, context: CommandContext) -> int:
    filter = Filter.parse(args.where)
    _until(args.until)
    if args.buckets > _MOST_BUCKETS:
        raise UsageFault(f"--buckets {args.buckets} is too many", fix=f"Use at most {_MOST_BUCKETS}.")
    session = context.session()
    selection = BackendSelection(session, args.backend, filter)
    return repeated(args, session, lambda costs: _print_upcoming(args, session, selection, filter, costs))


def _print_upcoming(
    args: Namespace, session: Session, selection: BackendSelection, filter: Filter, costs: ReadCosts
) -> int:
    now = session.clock.now()
    faults: Mapping[str, Fault]
    if args.at is None:
        until = now + _until(args.until)
        found, faults = upcoming(selection.backends, filter, now, until, args.buckets, costs)
    else:
        then = snapshot_at(session, args.at)
        found, faults = _recorded(then, selection, args), {}
        now = next((one.start for one in found.values()), then.at)
    slots = list(_slots(found, now, args.buckets))
    if chosen_format(args.format) == "table":
        _print_chart(slots, list(found))
    else:
        rows = ((slot, name) for name in found for slot in slots)
        print_rows(rows, RowFormat(FIELDS, _record, ()), args.format)
    return selection.report(faults, found)


def _recorded(then: Snapshot, selection: BackendSelection, args: Namespace) -> dict[str, Histogram]:
    """The retries that were due in the hour after a time of the past, as they were recorded then."""
    if args.where or (_until(args.until), args.buckets) != (UPCOMING_STEP * UPCOMING_STEPS, UPCOMING_STEPS):
        fix = f"The next hour is recorded, in {UPCOMING_STEPS} steps of {duration(UPCOMING_STEP)}."
        raise UsageFault("--where, --until and --buckets cannot be used with --at", fix=fix)
    names = {backend.name for backend in selection.backends}
    kept = {name: system.upcoming for name, system in then.systems.items() if name in names}
    start = min((one.start for one in kept.values() if one is not None), default=then.at)
    return {name: one._replace(start=start) for name, one in kept.items() if one is not None}


def _until(text: str) -> timedelta:
    try:
        until = parse_duration(text)
    except ValueError as error:
        raise UsageFault(f"--until: {error}") from None
    if not timedelta(0) < until <= timedelta(days=366):
        raise UsageFault(f"--until {text} is out of range", fix="Use a duration up to a year, such as 1h or 7d.")
    return until


def _slots(found: Mapping[str, Histogram], now: datetime, buckets: int) -> Iterator[Slot]:
    if not found:
        return
    width = next(iter(found.values())).width
    yield Slot("overdue", None, now, {name: one.before for name, one in found.items()})
    for n in range(buckets):
        counts = {name: one.counts[n] for name, one in found.items()}
        yield Slot(f"in {_offset(width * n)}" if n else "now", now + width * n, now + width * (n + 1), counts)
    yield Slot("later", now + width * buckets, None, {name: one.after for name, one in found.items()})


def _offset(span: timedelta) -> str:
    return duration(timedelta(seconds=round(span.total_seconds())))


def _record(row: tuple[Slot, str]) -> dict[str, Any]:
    slot, name = row
    return {"backend": name, "from": slot.start, "to": slot.end, "count": slot.counts[name]}


def _print_chart(slots: list[Slot], names: list[str]) -> None:
    if not any(slot.total for slot in slots):
        if names:
            note("No retries are due.")
        return
    columns, folded = _fitting(slots, names)
    print_rows(slots, RowFormat((), lambda _: {}, columns), "table")
    if folded:
        note(f"Counted together: {', '.join(folded)}. Use --backend to see one alone.")


def _fitting(slots: list[Slot], names: list[str]) -> tuple[list[Column[Slot]], list[str]]:
    """The columns that fit the terminal, and the backends that had to be counted together.

    Each backend gets a column while there is room. Otherwise the least busy ones share a column, so that a line
    still adds up to its total. A bar takes what room is left.
    """
    from console.cli.table import least_width

    busiest = sorted(names, key=lambda name: -sum(slot.counts[name] for slot in slots))
    columns, folded = _columns(names, []), list[str]()
    while least_width(slots, columns) > terminal_width() and len(folded) < len(names):
        folded.append(busiest.pop())
        columns = _columns([name for name in names if name in busiest], folded)
    # Overdue and later retries are often far more than those of any step, so they do not set the bar's scale.
    most = max((slot.total for slot in slots[1:-1]), default=0)
    length = min(_BAR, terminal_width() - least_width(slots, [*columns, Column("", lambda _: "")]))
    if length >= _LEAST_BAR:
        columns.append(Column("", lambda slot: _bar(slot, most, length)))
    return columns, folded


def _columns(names: list[str], folded: list[str]) -> list[Column[Slot]]:
    def count_column(title: str, counted: list[str]) -> Column[Slot]:
        return Column(title, lambda slot: str(sum(slot.counts[name] for name in counted) or "·"), right=True)

    return [
        Column("due", lambda slot: slot.label),
        Column("at (UTC)", lambda slot: f"{slot.start:%H:%M:%S}" if slot.start else "", dropped=1),
        *(count_column(name, [name]) for name in names),
        *([count_column(f"{len(folded)} more", folded)] if folded else []),
        Column("total", lambda slot: str(slot.total), right=True),
    ]


def _bar(slot: Slot, most: int, length: int) -> str:
    if slot.start is None or slot.end is None or not most:
        return ""
    eighths = round(slot.total / most * length * 8)
    if slot.total and not eighths:
        eighths = 1
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
