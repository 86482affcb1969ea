"""`state`: the operator commands of a partition store.

Every change is made as by `requeue`: a plan, its preview, a confirmation, and records on the trail.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

from console.cli.backend_selection import exit_code
from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.items import attempts_text, condition_colour, condition_text, next_text, print_item
from console.cli.plans import confirm_and_carry_out, operations_of, preview, reconcile
from console.cli.render import RowFormat, note, print_rows
from console.core.backend import Action, Attempts, Backend, Flag, Operation, Requeues
from console.core.export import FIELDS, record
from console.core.faults import UsageFault
from console.core.item import Condition, Detail, Item, ItemKey
from console.core.listing import Listing
from console.core.pace import parse_pace
from console.core.plan import Matching, Selection
from console.core.query import Filter, Sort
from console.core.session import Session
from console.core.text import ago, first_line, instant
from plugins.partition_store.actions import FORCE_PENDING, INCLUDE_TERMINAL, PartitionAction
from plugins.partition_store.commands.selection import PartitionSelection, partition_store

_UNSUPPORTED: dict[str, str] = {Flag.RESPECT_BACKOFF: "its validator cannot wait for a backoff"}


# --- reading ----------------------------------------------------------------------------------------


def inspect(args: Namespace, context: CommandContext) -> int:
    """Show one partition in full, or list several with their counts per condition."""
    session = context.session()
    backend = partition_store(session, args.backend)
    wanted = PartitionSelection.of(args, backend.name)
    keys = wanted.keys
    if len(keys) == 1:
        return print_item(session, keys[0], args.format)
    filter = wanted.filter("condition:*")
    code = _print_list(args, session, backend, filter)
    counts = backend.counts(filter, backend.now(), None)
    found = ((condition, counts.get(condition)) for condition in Condition)
    words = ", ".join(f"{count} {condition}" for condition, count in found if count and count.value)
    note(f"{sum(count.value for count in counts.values())} partitions: {words or 'none'}")
    return code


def terminal(args: Namespace, context: CommandContext) -> int:
    """List terminal partitions, and why they are terminal."""
    session = context.session()
    backend = partition_store(session, args.backend)
    return _print_list(args, session, backend, PartitionSelection.of(args, backend.name).filter("condition:terminal"))


def _print_list(args: Namespace, session: Session, backend: Backend, filter: Filter) -> int:
    now = backend.now()
    limit = args.limit or None
    listing = Listing((backend,), filter, now, Sort(), limit, session.stop)
    printed = print_rows(listing, RowFormat(FIELDS, record, _columns(now)), args.format)
    if limit is not None and printed == limit:
        note(f"Showing the first {limit}. Use --limit 0 to show all.")
    return exit_code(listing.faults.values(), bool(listing.answered))


def _columns(now: datetime) -> tuple[Column[Item], ...]:
    return (
        Column("partition", lambda item: item.key.id),
        Column("status", lambda item: item.native_status or "no row"),
        Column("condition", condition_text, condition_colour),
        Column("attempts", attempts_text, right=True),
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


def history(args: Namespace, context: CommandContext) -> int:
    """Show what happened to one partition, and what comes next."""
    session = context.session()
    backend = partition_store(session, args.backend)
    keys = PartitionSelection.of(args, backend.name).keys
    if len(keys) != 1:
        raise UsageFault(
            "`state history` needs exactly one partition",
            fix="Name --source, --customer-id, --query-name and --logical-date, or --key.",
        )
    detail = backend.item(keys[0], backend.now())
    events = sorted(_past(detail, session, keys[0]), key=lambda event: (event.at is not None, event.at))
    print_rows([*events, *_next(detail)], RowFormat(_Event._fields, _Event._asdict, _EVENTS), args.format)
    return 0


def _past(detail: Detail, session: Session, key: ItemKey) -> Iterator[_Event]:
    for one in detail.attempts:
        number = "" if one.number is None else f"attempt {one.number} "
        yield _Event(one.at, f"{number}{one.outcome}", one.error or "")
    for at, what in session.trail.history_of(str(key)) if session.trail is not None else ():
        yield _Event(at, "override", what)


def _next(detail: Detail) -> Iterator[_Event]:
    verdict = detail.item.verdict
    if not verdict.will_run_again:
        yield _Event(None, "no retry scheduled", verdict.why)
        return
    yield _Event(verdict.next_retry_at, "next retry", "; ".join(detail.schedule) or verdict.why)


_EVENTS: tuple[Column[_Event], ...] = (
    Column("at", lambda event: instant(event.at.replace(microsecond=0)) if event.at else "–"),
    Column("what", lambda event: event.what, least=20),
    Column("", lambda event: first_line(event.detail), least=20),
)


# --- writing ----------------------------------------------------------------------------------------


def retry(args: Namespace, context: CommandContext) -> int:
    flags = {
        INCLUDE_TERMINAL: args.include_terminal_partitions, FORCE_PENDING: args.force_pending,
        Flag.RESPECT_BACKOFF: args.respect_backoff,
    }
    operation = Operation(Action.REQUEUE, Attempts(args.attempts), frozenset(flag for flag, on in flags.items() if on))
    return _act(args, context, operation)


def reprocess(args: Namespace, context: CommandContext) -> int:
    return _act(args, context, Operation(PartitionAction.REPROCESS), "condition:done")


def mark_terminal(args: Namespace, context: CommandContext) -> int:
    return _act(args, context, Operation(PartitionAction.MARK_TERMINAL), "condition:failed,terminal")


def clear_terminal(args: Namespace, context: CommandContext) -> int:
    return _act(args, context, Operation(PartitionAction.CLEAR_TERMINAL), "condition:terminal")


def pause(args: Namespace, context: CommandContext) -> int:
    return _act(args, context, Operation(PartitionAction.PAUSE), "condition:waiting,retrying,failed")


def unpause(args: Namespace, context: CommandContext) -> int:
    return _act(args, context, Operation(PartitionAction.UNPAUSE), "condition:*")


def backfill(args: Namespace, context: CommandContext) -> int:
    """Add days as pending partitions, newest first: of the named series, known or not, or else the gaps of the
    configured range."""

    def choose(wanted: PartitionSelection, session: Session) -> Selection:
        if wanted.is_series:
            return wanted.days(session.clock.now().date(), session.limits.max_items)
        wanted.require_narrow(args.all)
        return Matching(wanted.filter("condition:waiting"), Sort(), args.limit or None, everything=True)

    flags = frozenset({FORCE_PENDING} if args.force_pending else ())
    return _carry(args, context, Operation(PartitionAction.BACKFILL, flags=flags), choose)


def _act(args: Namespace, context: CommandContext, operation: Operation, conditions: str = "") -> int:
    def choose(wanted: PartitionSelection, _session: Session) -> Selection:
        return wanted.selection(conditions, limit=args.limit or None, everything=args.all)

    return _carry(args, context, operation, choose)


def _carry(
    args: Namespace, context: CommandContext, operation: Operation,
    choose: Callable[[PartitionSelection, Session], Selection],
) -> int:
    session = context.session()
    operations = operations_of(session)
    reconcile(session, operations)
    backend = partition_store(session, args.backend)
    _require_able(backend, operation)
    selection = choose(PartitionSelection.of(args, backend.name), session)
    plan = operations.propose(selection, operation, parse_pace(args.pace), session.stop)
    for line in preview(session, plan):
        note(line)
    return confirm_and_carry_out(args, session, plan)


def _require_able(backend: Backend, operation: Operation) -> None:
    assert isinstance(backend, Requeues)
    for flag in operation.flags - backend.abilities.flags:
        raise UsageFault(f"{backend.name}: {_UNSUPPORTED[flag]}", fix="Use --pace instead.")
