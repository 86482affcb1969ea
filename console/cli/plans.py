"""`plan`, `apply`, `requeue`: propose, show, confirm, carry out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from console.cli.doors import Doors
from console.cli.progress import watching
from console.cli.render import Column, Shape, chosen_format, json_text, note, print_rows, print_text, stdout
from console.cli.round import Round
from console.core.backend import Action, Budget, Flag, Order
from console.core.desk import Desk
from console.core.faults import QueryFault, UsageFault
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import Override, OverrideState
from console.core.packing import FIRST_BLOCKED, PlanRow
from console.core.plan import Confirmation, Marked, Matching, Plan, Selection
from console.core.query import Filter, Sort
from console.core.query_parser import quoted
from console.core.release import parse_release
from console.core.text import instant

INTERRUPTED, DONE = 1, 0


def plan(args: Namespace, doors: Doors) -> int:
    desk = doors.desk()
    _print_plan(desk, _proposed(args, desk), args)
    return DONE


def apply(args: Namespace, doors: Doors) -> int:
    desk = doors.desk()
    operations = operations_of(desk)
    settle(desk, operations)
    return confirm_and_carry_out(args, desk, operations.book.plan(args.plan))


def requeue(args: Namespace, doors: Doors) -> int:
    desk = doors.desk()
    operations = operations_of(desk)
    operations.require_writable()
    settle(desk, operations)
    proposed = _proposed(args, desk)
    for line in preview(desk, proposed):
        note(line)
    return confirm_and_carry_out(args, desk, proposed)


def operations_of(desk: Desk) -> Operations:
    if desk.operations is None:
        raise UsageFault("no trail is configured, so nothing can be changed")
    return desk.operations


def settle(desk: Desk, operations: Operations) -> None:
    """What an earlier process left without an outcome is looked up before anything new is written."""
    operations.require_writable()
    for override in operations.settle_unresolved(desk.who, desk.whence):
        note(f"override {override.op_id} was interrupted and is settled now; `retriage overrides resume "
             f"{override.op_id}` goes on with it")


# --- what is selected -------------------------------------------------------------------------------


def _proposed(args: Namespace, desk: Desk) -> Plan:
    flags = {
        Flag.CLEAR_TERMINAL: args.clear_terminal,
        Flag.ALLOW_UNRECOVERABLE: args.allow_unrecoverable,
        Flag.WAKE_TASK: args.wake_task,
    }
    order = Order(Action.REQUEUE, Budget(args.budget), frozenset(flag for flag, on in flags.items() if on))
    release = parse_release(args.release)
    selection = _selection(args, desk)
    return operations_of(desk).propose(selection, order, release, desk.stop)


def _selection(args: Namespace, desk: Desk) -> Selection:
    if args.key:
        if args.where or args.group is not None or args.all or args.limit or args.backend:
            raise UsageFault("--key names the items, so nothing else can select", fix="Leave the rest out.")
        return Marked(tuple(ItemKey.parse(key) for key in args.key))
    filter = Filter.parse(args.where)
    if args.group is not None:
        filter = filter.and_(_cause(args.group))
    if args.backend:
        filter = filter.and_(Filter.parse(f"backend:{','.join(args.backend)}"))
    Round(desk, args.backend, filter)
    return Matching(filter, Sort.parse(args.sort), args.limit or None, args.all)


def _cause(signature: str) -> Filter:
    try:
        return Filter.parse(f"signature:{quoted(signature)}")
    except QueryFault as fault:
        raise UsageFault(f"--group: {fault.detail}", fix=f"{fault.fix}.") from None


# --- what is shown ----------------------------------------------------------------------------------


def _print_plan(desk: Desk, proposed: Plan, args: Namespace) -> None:
    if chosen_format(args.format) != "table":
        stdout().write(json_text(_plan_record(desk, proposed)) + "\n")
        return
    for line in preview(desk, proposed):
        print_text(line)
    if desk.read_only:
        if args.items:
            note("--items lists what is stored, and read-only nothing is; `retriage list` shows what fits now.")
        return
    if proposed.changes:
        print_text(f"apply it:  retriage apply {proposed.id} --reason '…' --confirm {proposed.changes}")
    if args.items:
        print_rows(_rows(operations_of(desk), proposed), _ROWS, "table")


def _plan_record(desk: Desk, plan: Plan) -> dict[str, Any]:
    counted = {"changes": plan.changes, "selected": plan.selected}
    times = {"created_at": plan.created_at, "expires_at": plan.expires_at}
    stored = {"id": None} if desk.read_only else {"hash": plan.hash}
    return {**plan.body(), **times, **counted, **stored}


def preview(desk: Desk, plan: Plan) -> Iterator[str]:
    """What will change and what will not, in totals."""
    budget = f", budget {plan.order.budget}" if plan.order.action is Action.REQUEUE else ""
    what = plan.selection if plan.undo_of else f"{plan.order.action.value} {plan.selection}"
    yield f"{what}{budget}, release {plan.release}"
    shares = " · ".join(f"{share.backend} {share.changes}" for share in plan.shares if share.changes)
    yield f"  would change  {plan.changes} of {plan.selected}{f'  ({shares})' if shares else ''}"
    for words, counted in (("condition", plan.by_condition), ("cause", plan.by_signature)):
        if counted:
            yield f"  by {words:<10} {_totals(counted)}"
    for reason, times in _most(plan.blocked):
        yield f"  blocked       {times}  {reason}"
    for warning, times in _most(plan.warnings):
        yield f"  warning       {times}  {warning}"
    yield from _pacing(desk, plan)
    if desk.read_only:
        yield "  read-only: this is a preview, nothing is stored and it cannot be applied"
        return
    yield f"plan {plan.id}  good until {instant(plan.expires_at.replace(microsecond=0))}"
    yield f"sha256 {plan.hash}"


def _pacing(desk: Desk, plan: Plan) -> Iterator[str]:
    if str(plan.release) == "now":
        return
    for share in plan.shares:
        abilities = getattr(desk.backend(share.backend), "abilities", None)
        if share.changes and abilities is not None and not abilities.stores_due_time:
            yield f"  release       {share.backend} stores no due time: the override paces itself and must keep running"


def _most(counted: Mapping[str, int], shown: int = 8) -> list[tuple[str, int]]:
    ordered = sorted(counted.items(), key=lambda pair: -pair[1])
    left = sum(times for _, times in ordered[shown:])
    return ordered[:shown] + ([(f"{len(ordered) - shown} more", left)] if left else [])


def _totals(counted: Mapping[str, int]) -> str:
    return " · ".join(f"{name} {times}" for name, times in _most(counted, 5))


def _rows(operations: Operations, plan: Plan) -> Iterator[PlanRow]:
    for first, last in ((0, plan.changes - 1), (FIRST_BLOCKED, -1)):
        for batch in operations.book.rows(plan.id, first, last):
            yield from batch


_ROWS: Shape[PlanRow] = Shape(
    ("ordinal", "key", "blocked"),
    lambda row: {"ordinal": row.ordinal, "key": row.key, "blocked": row.blocked},
    (
        Column("item", lambda row: row.key, least=20),
        Column("", lambda row: f"blocked: {row.blocked}" if row.blocked else "will change", least=20),
    ),
)


# --- confirm and carry out --------------------------------------------------------------------------


def confirm_and_carry_out(args: Namespace, desk: Desk, plan: Plan) -> int:
    operations = operations_of(desk)
    count = args.confirm if args.confirm is not None else _asked(desk, plan)
    confirmation = Confirmation(desk.who, desk.whence, args.reason, count, args.ticket)
    with watching(plan.changes) as watch:
        override = operations.carry_out(plan.id, confirmation, desk.stop, watch)
    return conclude(override)


def _asked(desk: Desk, plan: Plan) -> int | None:
    """A person's answer at the terminal: yes for a few, the number itself for many; None without a person."""
    if not plan.changes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    if plan.changes < desk.limits.confirm_from:
        answer = _ask(f"Change {plan.changes} items? [y/N] ")
        return plan.changes if answer.lower() in ("y", "yes") else None
    answer = _ask(f"This changes {plan.changes} items. Type the number to confirm: ")
    return int(answer) if answer.isascii() and answer.isdigit() and len(answer) < 12 else None


def _ask(question: str) -> str:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def conclude(override: Override) -> int:
    """Say how it ended; the exit code."""
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(override.counts.items()) if count) or "nothing done"
    note(f"override {override.op_id} {override.state.value}: {counts}{f' ({override.note})' if override.note else ''}")
    if override.state is not OverrideState.FINISHED:
        note(f"go on with: retriage overrides resume {override.op_id}")
        return INTERRUPTED
    return DONE if {kind for kind, count in override.counts.items() if count} <= {"changed"} else INTERRUPTED


def record(override: Override) -> dict[str, Any]:
    """An override as data."""
    return {
        "op_id": override.op_id, "plan": override.plan_id, "state": override.state.value,
        "started_at": override.started_at, "who": override.who, "reason": override.reason,
        "ticket": override.ticket, "counts": override.counts, "note": override.note or None,
    }
