"""`state`: a partition store's operator commands, in the words of whoever runs the pipeline.

What is written goes the way of every requeue: a plan, its preview, a confirmation, the trail.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

from console.cli.doors import Doors
from console.cli.items import STYLES, attempts_text, condition_text, next_text, print_item
from console.cli.partitions import Wanted, partition_store
from console.cli.plans import confirm_and_carry_out, operations_of, preview, settle
from console.cli.render import Column, Shape, note, print_rows
from console.cli.round import exit_code
from console.core.backend import Action, Backend, Budget, Flag, Order, Requeues
from console.core.desk import Desk
from console.core.faults import UsageFault
from console.core.fields import FIELDS, record
from console.core.item import Condition, Detail, Item, ItemKey
from console.core.listing import Listing
from console.core.plan import Matching, Selection
from console.core.query import Filter, Sort
from console.core.release import parse_release
from console.core.text import ago, first_line, instant

_NOT_HERE = {Flag.BACK_OFF: "its validator is not this console's and would not wait; use --release instead"}


# --- looking ----------------------------------------------------------------------------------------


def inspect(args: Namespace, doors: Doors) -> int:
    """One partition with all there is to say, or a list of them and how many are in which condition."""
    desk = doors.desk()
    backend = partition_store(desk, args.backend)
    wanted = Wanted.of(args, backend.name)
    keys = wanted.keys
    if len(keys) == 1:
        return print_item(desk, keys[0], args.format)
    filter = wanted.filter("condition:*")
    code = _print_list(args, desk, backend, filter)
    counts = backend.counts(filter, backend.now(), None)
    found = ((condition, counts.get(condition)) for condition in Condition)
    words = ", ".join(f"{count} {condition}" for condition, count in found if count and count.value)
    note(f"{sum(count.value for count in counts.values())} partitions: {words or 'none'}")
    return code


def terminal(args: Namespace, doors: Doors) -> int:
    """What nobody retries any more, and why."""
    desk = doors.desk()
    backend = partition_store(desk, args.backend)
    return _print_list(args, desk, backend, Wanted.of(args, backend.name).filter("condition:terminal"))


def _print_list(args: Namespace, desk: Desk, backend: Backend, filter: Filter) -> int:
    now = backend.now()
    limit = args.limit or None
    listing = Listing((backend,), filter, now, Sort(), limit, desk.stop)
    printed = print_rows(listing, Shape(FIELDS, record, _columns(now)), args.format)
    if limit is not None and printed == limit:
        note(f"At most {limit} are shown; --limit 0 shows all.")
    return exit_code(listing.faults.values(), bool(listing.answered))


def _columns(now: datetime) -> tuple[Column[Item], ...]:
    return (
        Column("partition", lambda item: item.key.id),
        Column("status", lambda item: item.native_status or "no row"),
        Column("condition", condition_text, lambda item: STYLES.get(item.condition, "")),
        Column("tries", attempts_text, right=True),
        Column("next", lambda item: next_text(item, now), dropped=3),
        Column("why", lambda item: item.verdict.why, least=20),
        Column("error", lambda item: first_line(item.error or ""), dropped=2, least=20),
        Column("updated", lambda item: ago(now - item.updated_at) if item.updated_at else "", dropped=4),
    )


# --- history ----------------------------------------------------------------------------------------


class _Event(NamedTuple):
    at: datetime | None
    what: str
    detail: str = ""


def history(args: Namespace, doors: Doors) -> int:
    """Everything known to have happened to one partition, and what comes next."""
    desk = doors.desk()
    backend = partition_store(desk, args.backend)
    keys = Wanted.of(args, backend.name).keys
    if len(keys) != 1:
        raise UsageFault(
            "a history is of one partition",
            fix="Name --source, --customer-id, --query-name and --logical-date, or --key.",
        )
    detail = backend.item(keys[0], backend.now())
    events = sorted(_past(detail, desk, keys[0]), key=lambda event: (event.at is not None, event.at))
    print_rows([*events, *_ahead(detail)], Shape(_Event._fields, _Event._asdict, _EVENTS), args.format)
    return 0


def _past(detail: Detail, desk: Desk, key: ItemKey) -> Iterator[_Event]:
    for one in detail.attempts:
        number = "" if one.number is None else f"attempt {one.number} "
        yield _Event(one.at, f"{number}{one.outcome}", one.error or "")
    for at, what in desk.book.history_of(str(key)) if desk.book is not None else ():
        yield _Event(at, "override", what)


def _ahead(detail: Detail) -> Iterator[_Event]:
    verdict = detail.item.verdict
    if not verdict.will_run_again:
        yield _Event(None, "no retry is scheduled", verdict.why)
        return
    yield _Event(verdict.next_retry_at, "next retry", "; ".join(detail.schedule) or verdict.why)


_EVENTS: tuple[Column[_Event], ...] = (
    Column("at", lambda event: instant(event.at.replace(microsecond=0)) if event.at else "–"),
    Column("what", lambda event: event.what, least=20),
    Column("", lambda event: first_line(event.detail), least=20),
)


# --- acting -----------------------------------------------------------------------------------------


def retry(args: Namespace, doors: Doors) -> int:
    flags = {Flag.CLEAR_TERMINAL: args.clear_terminal, Flag.BACK_OFF: args.back_off}
    order = Order(Action.REQUEUE, Budget(args.budget), frozenset(flag for flag, on in flags.items() if on))
    return _act(args, doors, order)


def reprocess(args: Namespace, doors: Doors) -> int:
    return _act(args, doors, Order(Action.REPROCESS), "condition:done")


def mark_terminal(args: Namespace, doors: Doors) -> int:
    return _act(args, doors, Order(Action.MARK_TERMINAL), "condition:failed,terminal")


def clear_terminal(args: Namespace, doors: Doors) -> int:
    return _act(args, doors, Order(Action.CLEAR_TERMINAL), "condition:terminal")


def pause(args: Namespace, doors: Doors) -> int:
    return _act(args, doors, Order(Action.PAUSE), "condition:waiting,retrying,failed")


def unpause(args: Namespace, doors: Doors) -> int:
    return _act(args, doors, Order(Action.UNPAUSE), "condition:*")


def backfill(args: Namespace, doors: Doors) -> int:
    """A range of days as explicit pending rows, newest first. A named series is filled whether or not it is
    known yet; otherwise the gaps that the configured range shows are."""

    def choose(wanted: Wanted, desk: Desk) -> Selection:
        if wanted.is_series:
            return wanted.days(desk.clock.now().date(), desk.limits.max_items)
        wanted.require_narrow(args.all)
        return Matching(wanted.filter("condition:waiting"), Sort(), args.limit or None, everything=True)

    return _carry(args, doors, Order(Action.BACKFILL), choose)


def _act(args: Namespace, doors: Doors, order: Order, conditions: str = "") -> int:
    def choose(wanted: Wanted, _desk: Desk) -> Selection:
        return wanted.selection(conditions, limit=args.limit or None, everything=args.all)

    return _carry(args, doors, order, choose)


def _carry(args: Namespace, doors: Doors, order: Order, choose: Callable[[Wanted, Desk], Selection]) -> int:
    desk = doors.desk()
    operations = operations_of(desk)
    settle(desk, operations)
    backend = partition_store(desk, args.backend)
    _require_able(backend, order)
    selection = choose(Wanted.of(args, backend.name), desk)
    plan = operations.propose(selection, order, parse_release(args.release), desk.stop)
    for line in preview(desk, plan):
        note(line)
    return confirm_and_carry_out(args, desk, plan)


def _require_able(backend: Backend, order: Order) -> None:
    assert isinstance(backend, Requeues)
    for flag in order.flags - backend.abilities.flags:
        raise UsageFault(f"{backend.name}: {_NOT_HERE[flag]}")
