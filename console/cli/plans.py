"""`plan`, `apply` and `requeue`: select items, show the plan, confirm it and carry it out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from console.cli.advice import with_advice
from console.cli.backend_selection import DONE, SOME_FAILED, BackendSelection, exit_code
from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.progress import override_progress
from console.cli.render import Shape, ask, chosen_format, note, note_fault, print_record, print_rows, print_text
from console.core.advice import Step
from console.core.backend import Action, Attempts, Flag, Operation
from console.core.confirm import Confirmation, ConfirmationForm
from console.core.faults import NotConfirmed, QueryFault, UsageFault
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import SKIPPED, Override, OverrideState, outcome_counts, outcome_summary
from console.core.pace import Now, parse_pace
from console.core.plan import FIRST_SKIPPED, Marked, Matching, Plan, PlanRow, Selection
from console.core.query import Filter, Sort
from console.core.query_parser import quoted
from console.core.session import Session
from console.core.text import CELL_LIMIT, did_you_mean, instant, keep_ends

_REASONS = 8
_TOTALS = 5


def plan(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    selection = _selection(args, session)
    code = _report_unopened(session, selection)
    proposed = _propose(args, session, selection)
    if not session.read_only:
        operations_of(session).record_plan(proposed)
    _print_plan(session, proposed, args)
    return code


def apply(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    operations = operations_of(session)
    reconcile(session, operations)
    return confirm_and_carry_out(args, session, operations.recorded_plan(args.plan))


def requeue(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    operations = operations_of(session)
    reconcile(session, operations)
    selection = _selection(args, session)
    code = _report_unopened(session, selection)
    proposed = _propose(args, session, selection)
    for line in preview(session, proposed):
        note(line)
    return confirm_and_carry_out(args, session, proposed) or code


def operations_of(session: Session) -> Operations:
    if session.operations is None:
        raise UsageFault("No trail is configured, so nothing can be changed")
    return session.operations


def reconcile(session: Session, operations: Operations) -> None:
    """Find out what interrupted overrides really wrote, before anything new is written."""
    operations.require_writable()
    for override in operations.settle_unresolved(session.who, session.origin):
        note(f"Override {override.override_id} was interrupted. What it wrote is now on record. "
             f"To continue it: retriage overrides resume {override.override_id}")


# --- what is selected -------------------------------------------------------------------------------


def _report_unopened(session: Session, selection: Selection) -> int:
    """Print the faults of selected backends that could not be opened; returns the exit code. Raises if there are no
    others: a plan with nothing in it would look as if nothing matched."""
    unopened = {entry.name: entry.fault for entry in session.unavailable if selection.concerns(entry.name)}
    if unopened and not any(selection.concerns(backend.name) for backend in session.backends):
        raise next(iter(unopened.values()))
    for name, fault in unopened.items():
        note_fault(fault, name)
    return exit_code(unopened.values(), answered=True)


def _propose(args: Namespace, session: Session, selection: Selection) -> Plan:
    flags = set(_plugin_switches(args, session))
    if args.include_unrecoverable:
        flags.add(Flag.INCLUDE_UNRECOVERABLE)
    if args.respect_backoff:
        flags.add(Flag.RESPECT_BACKOFF)
    operation = Operation(args.action, Attempts(args.attempts), frozenset(flags))
    pace = parse_pace(args.pace)
    return operations_of(session).propose(selection, operation, pace, session.stop)


def _plugin_switches(args: Namespace, session: Session) -> frozenset[str]:
    """The switches of plugins among the options. An option that no backend offers is a mistake."""
    offered = {f"--{id.replace('_', '-')}": id for id in session.switches}
    for option in args.switches:
        if option not in offered:
            raise UsageFault(f"Unknown option {option}", fix=did_you_mean(option, offered))
    return frozenset(offered[option] for option in args.switches)


def _selection(args: Namespace, session: Session) -> Selection:
    if args.key:
        if args.where or args.cause is not None or args.all or args.limit or args.backend:
            raise UsageFault(
                "--key cannot be combined with --where, --cause, --all, --limit or --backend",
                fix="Use --key alone, or leave it out.",
            )
        return Marked(tuple(ItemKey.parse(key) for key in args.key))
    filter = Filter.parse(args.where)
    if args.cause is not None:
        filter = filter.and_(_cause(args.cause))
    if args.backend:
        filter = filter.and_(Filter.parse(f"backend:{','.join(args.backend)}"))
    BackendSelection(session, args.backend, filter)  # refuses an unknown backend
    return Matching(filter, Sort.parse(args.sort), args.limit or None, args.all)


def _cause(signature: str) -> Filter:
    try:
        return Filter.parse(f"cause:{quoted(signature)}")
    except QueryFault as fault:
        raise UsageFault(f"--cause: {fault.detail}", fix=fault.fix) from None


# --- what is shown ----------------------------------------------------------------------------------


def _print_plan(session: Session, proposed: Plan, args: Namespace) -> None:
    if chosen_format(args.format) != "table":
        items = {} if session.read_only or not args.items else {"items": _item_records(session, proposed)}
        print_record({**_plan_record(session, proposed), **items})
        return
    for line in preview(session, proposed):
        print_text(line)
    if session.read_only:
        if args.items:
            note("--items needs a stored plan, and read-only mode stores none. `retriage list` shows what matches now.")
        return
    if proposed.changes:
        print_text(f"To apply it: retriage apply {proposed.id} --reason '…' --confirm {proposed.changes}")
    if args.items:
        print_rows(_rows(operations_of(session), proposed), _ROWS, "table")


def _plan_record(session: Session, plan: Plan) -> dict[str, Any]:
    body = plan.body()
    del body["nonce"], body["exact_pace"]
    return {
        "plan_id": None if session.read_only else plan.id, **body,
        "created_at": plan.created_at, "expires_at": plan.expires_at,
        "changes": plan.changes, "selected": plan.selected,
        **({} if session.read_only else {"hash": plan.hash}),
    }


def preview(session: Session, plan: Plan) -> Iterator[str]:
    """What will change and what will not, in totals."""
    yield f"{_verb(session, plan.operation.action)} {plan.changes} of {plan.selected} selected items"
    if parts := " · ".join(f"{part.backend} {part.changes}" for part in plan.parts if part.changes):
        yield f"  backend    {parts}"
    yield f"  selected   {plan.selection}"
    if plan.operation.action == Action.REQUEUE:
        yield f"  attempts   {_attempts_words(plan.operation.attempts)}"
    yield f"  pace       {plan.pace}"
    for name, counted in (("condition", plan.by_condition), ("cause", plan.by_cause)):
        if counted:
            yield f"  {name:<10} {_totals(counted)}"
    for reason, times in _most(plan.skipped, _REASONS):
        yield _counted("skipped", times, with_advice(reason, plan.advice))
    for warning, times in _most(plan.warnings, _REASONS):
        yield _counted("warning", times, with_advice(warning, plan.advice))
    yield from _pace_warnings(session, plan)
    if session.read_only:
        yield "Read-only: this preview is not stored and cannot be applied."
        return
    yield f"Plan {plan.id}, valid until {instant(plan.expires_at.replace(microsecond=0))}"
    yield f"SHA-256 {plan.hash}"


def _counted(name: str, times: int, text: str) -> str:
    return keep_ends(f"  {name:<10} {times}: {text}", CELL_LIMIT)


def _verb(session: Session, action: str) -> str:
    """The action as the first word of a sentence. A plugin's own action has the plugin's label."""
    if action in list(Action):
        label = Action(action).label
    else:
        label = session.actions[action].label if action in session.actions else action.replace("_", " ")
    return label[:1].upper() + label[1:]


def _attempts_words(attempts: Attempts) -> str:
    match attempts:
        case Attempts.KEEP:
            return "kept"
        case Attempts.RESET:
            return "reset"
        case _:
            assert_never(attempts)


def _pace_warnings(session: Session, plan: Plan) -> Iterator[str]:
    if isinstance(plan.pace, Now):
        return
    for part in plan.parts:
        abilities = getattr(session.backend(part.backend), "abilities", None)
        if part.changes and abilities is not None and not abilities.stores_due_time:
            yield f"  warning    {part.backend} stores no due times: this command keeps running to pace the items"


def _most(counted: Mapping[str, int], shown: int) -> list[tuple[str, int]]:
    ordered = sorted(counted.items(), key=lambda pair: -pair[1])
    left = sum(times for _, times in ordered[shown:])
    return ordered[:shown] + ([(f"{len(ordered) - shown} others", left)] if left else [])


def _totals(counted: Mapping[str, int]) -> str:
    return " · ".join(f"{name} {times}" for name, times in _most(counted, _TOTALS))


def _rows(operations: Operations, plan: Plan) -> Iterator[PlanRow]:
    for first, last in ((0, plan.changes - 1), (FIRST_SKIPPED, -1)):
        for batch in operations.trail.rows(plan.id, first, last):
            yield from batch


def _item_records(session: Session, plan: Plan) -> list[dict[str, Any]]:
    return [dict(_ROWS.record(row)) for row in _rows(operations_of(session), plan)]


def _fate(row: PlanRow) -> str:
    """What the plan does with one item."""
    if row.skipped:
        return f"skipped: {row.skipped}"
    return f"will change. {row.warning}" if row.warning else "will change"


_ROWS: Shape[PlanRow] = Shape(
    ("ordinal", "key", "skipped", "warning"),
    lambda row: {"ordinal": row.ordinal, "key": row.key, "skipped": row.skipped, "warning": row.warning},
    (
        Column("key", lambda row: row.key, least=20),
        Column("", lambda row: _fate(row), least=30, wraps=True),
    ),
)


# --- confirm and carry out --------------------------------------------------------------------------


def confirm_and_carry_out(args: Namespace, session: Session, plan: Plan) -> int:
    operations = operations_of(session)
    count = args.confirm if args.confirm is not None else _ask_to_confirm(session, plan)
    confirmation = Confirmation(session.who, session.origin, args.reason, count, args.ticket)
    try:
        with override_progress(plan.changes) as watch:
            override = operations.carry_out(plan, confirmation, session.stop, watch)
    except NotConfirmed as fault:
        if fault.advice is not None and fault.advice.step is Step.APPLY_PLAN:
            _keep_for_apply(operations, plan)
        raise
    return report_result(override)


def _keep_for_apply(operations: Operations, plan: Plan) -> None:
    """Record a plan that was refused for its number only: `apply` takes no plan that was never recorded."""
    if operations.trail.planned(plan.id) is None:
        operations.record_plan(plan)


def _ask_to_confirm(session: Session, plan: Plan) -> int | None:
    """The number of changes confirmed at the terminal; None when nobody confirmed them."""
    if not plan.changes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    form = ConfirmationForm(plan, session.limits)
    return form.confirmed_count(ask(form.question))


def report_result(override: Override) -> int:
    """Print how an override ended; returns the exit code."""
    summary = outcome_summary(override.counts, override.action)
    note(f"Override {override.override_id} {override.state.value}: {summary}")
    if override.note:
        note(override.note)
    if override.state is not OverrideState.FINISHED:
        note(f"To continue it: retriage overrides resume {override.override_id}")
        return SOME_FAILED
    return DONE if {kind for kind, count in override.counts.items() if count} <= {"applied"} else SOME_FAILED


def override_record(override: Override) -> dict[str, Any]:
    """An override as data."""
    counts = outcome_counts(override.counts, override.action)
    if skipped := sum(override.confirmed.get("skipped", {}).values()):
        counts[SKIPPED] = skipped
    return {
        "override_id": override.override_id, "plan_id": override.plan_id, "state": override.state.value,
        "started_at": override.started_at, "who": override.who, "reason": override.reason,
        "ticket": override.ticket, "counts": counts, "note": override.note or None,
    }
