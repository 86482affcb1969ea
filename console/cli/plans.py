"""`plan`, `apply`, `requeue` and `discard`: select items, show the plan, confirm it and carry it out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, assert_never

from console.cli.advice import with_advice
from console.cli.backend_selection import DONE, SOME_FAILED, BackendSelection, exit_code
from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.progress import override_progress
from console.cli.render import RowFormat, ask, chosen_format, note, note_fault, print_record, print_rows, print_text
from console.core.advice import Step
from console.core.approvals import Approvals
from console.core.backend import Action, Attempts, Flag, Operation, OutcomeKind
from console.core.capabilities import DISCARD_AS
from console.core.confirm import Confirmation, ConfirmationForm
from console.core.faults import BackendFault, NotConfirmed, QueryFault, UsageFault
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import SKIPPED, Override, OverrideState, outcome_counts, outcome_summary
from console.core.pace import Now, parse_pace
from console.core.plan import FIRST_SKIPPED, Marked, Matching, Plan, PlanRow, Selection
from console.core.query import Filter, Sort
from console.core.query_parser import quoted
from console.core.session import Session
from console.core.text import CELL_LIMIT, did_you_mean, instant, is_blank, keep_ends, plural

_REASONS = 8
_TOTALS = 5


def plan(args: Namespace, context: CommandContext) -> int:
    if args.submit and is_blank(args.reason):
        raise UsageFault("--submit needs --reason", fix="Say why with --reason TEXT.")
    session = context.session()
    proposed, code = _planned(args, session)
    if proposed is None:
        return code
    if not session.read_only:
        operations_of(session).record_plan(proposed)
    _print_plan(session, proposed, args)
    if args.submit:
        submit(session, proposed, args.reason, args.ticket)
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
    proposed, code = _planned(args, session)
    if proposed is None:
        return code
    for line in preview(session, proposed):
        note(line)
    return confirm_and_carry_out(args, session, proposed) or code


discard = requeue
"""The same steps; the command's options say which action it is."""


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


def _planned(args: Namespace, session: Session) -> tuple[Plan | None, int]:
    """The plan that the options ask for, and the exit code so far; no plan if a backend did not answer."""
    selection = _selection(args, session)
    code = _report_unopened(session, selection)
    try:
        return _propose(args, session, selection), code
    except BackendFault as fault:
        return None, _report_unread(fault, session, selection)


def _report_unopened(session: Session, selection: Selection) -> int:
    """Print the faults of selected backends that could not be opened; returns the exit code. Raises if there are no
    others: a plan with nothing in it would look as if nothing matched."""
    unopened = {entry.name: entry.fault for entry in session.unavailable if selection.concerns(entry.name)}
    if unopened and not any(selection.concerns(backend.name) for backend in session.backends):
        raise next(iter(unopened.values()))
    for name, fault in unopened.items():
        note_fault(fault, name)
    return exit_code(unopened.values(), answered=True)


def _report_unread(fault: BackendFault, session: Session, selection: Selection) -> int:
    """Print why there is no plan, because a backend did not answer; returns the exit code."""
    note_fault(fault)
    return exit_code([fault], answered=sum(selection.concerns(backend.name) for backend in session.backends) > 1)


def _propose(args: Namespace, session: Session, selection: Selection) -> Plan:
    flags = set(_plugin_switches(args, session))
    if args.include_unrecoverable:
        flags.add(Flag.INCLUDE_UNRECOVERABLE)
    if args.respect_backoff:
        flags.add(Flag.RESPECT_BACKOFF)
    if args.action == Action.DISCARD and Attempts(args.attempts) is not Attempts.KEEP:
        raise UsageFault("A discard does not change the attempts", fix="Leave --attempts out.")
    if args.kind is not None:
        flags.add(_kind_of_discard(args, session))
    operation = Operation(args.action, Attempts(args.attempts), frozenset(flags))
    pace = parse_pace(args.pace)
    return operations_of(session).propose(selection, operation, pace, session.stop)


def _plugin_switches(args: Namespace, session: Session) -> frozenset[str]:
    """The switches of plugins among the options. An option that no backend offers is a mistake."""
    offered = {f"--{id.replace('_', '-')}": id for id in session.switches if not id.startswith(DISCARD_AS)}
    for option in args.switches:
        if option not in offered:
            raise UsageFault(f"Unknown option {option}", fix=did_you_mean(option, offered))
        if args.action not in session.switches[offered[option]].actions:
            raise UsageFault(f"{option} is not an option of a {args.action}", fix="Leave it out.")
    return frozenset(offered[option] for option in args.switches)


def _kind_of_discard(args: Namespace, session: Session) -> str:
    """The switch that `--as` names."""
    if args.action != Action.DISCARD:
        raise UsageFault("--as says how items are discarded", fix="Use it with `discard` or `plan --discard`.")
    kinds = {id.removeprefix(DISCARD_AS): id for id in session.switches if id.startswith(DISCARD_AS)}
    if args.kind not in kinds:
        fix = f"Use one of: {', '.join(kinds)}." if kinds else "Leave --as out: no attached system has such a choice."
        raise UsageFault(f"Unknown value {args.kind!r} of --as", fix=fix)
    return kinds[args.kind]


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
    if proposed.changes and not args.submit:
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
    of = f"of {plan.selected} selected {plural(plan.selected, 'item')}"
    yield f"{_verb(session, plan.operation.action)} {plan.changes} {of}"
    if parts := " · ".join(f"{part.backend} {part.changes}" for part in plan.parts if part.changes):
        yield f"  backend    {parts}"
    yield f"  selected   {plan.selection}"
    if plan.operation.action == Action.REQUEUE:
        yield f"  attempts   {_attempts_words(plan.operation.attempts)}"
        yield f"  pace       {plan.pace}"
    if flags := [session.switches[flag].label for flag in sorted(plan.operation.flags) if flag in session.switches]:
        yield f"  switches   {', '.join(flags)}"
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
    ordered, others = sorted(counted.items(), key=lambda pair: -pair[1]), ""
    if left := sum(times for _, times in ordered[_TOTALS:]):
        others = f" · {left} of {len(ordered) - _TOTALS} others"
    return " · ".join(f"{name} {times}" for name, times in ordered[:_TOTALS]) + others


def _rows(operations: Operations, plan: Plan) -> Iterator[PlanRow]:
    for first, last in ((0, plan.changes - 1), (FIRST_SKIPPED, -1)):
        for batch in operations.trail.rows(plan.id, first, last):
            yield from batch


def _item_records(session: Session, plan: Plan) -> list[dict[str, Any]]:
    return [dict(_ROWS.record(row)) for row in _rows(operations_of(session), plan)]


def _planned_words(row: PlanRow) -> str:
    """What the plan does with one item."""
    if row.skipped:
        return f"skipped: {row.skipped}"
    return f"will change. {row.warning}" if row.warning else "will change"


_ROWS: RowFormat[PlanRow] = RowFormat(
    ("ordinal", "key", "skipped", "warning"),
    lambda row: {"ordinal": row.ordinal, "key": row.key, "skipped": row.skipped, "warning": row.warning},
    (
        Column("key", lambda row: row.key, least=20),
        Column("", lambda row: _planned_words(row), least=30, wraps=True),
    ),
)


# --- confirm and carry out --------------------------------------------------------------------------


def approvals_of(session: Session) -> Approvals:
    if session.approvals is None:
        raise UsageFault("No trail is configured, so there are no proposals")
    return session.approvals


def submit(session: Session, plan: Plan, reason: str, ticket: str | None) -> None:
    """Store a plan as a proposal."""
    proposal = approvals_of(session).submit(plan, reason, ticket)
    expires = instant(proposal.expires_at.replace(microsecond=0))
    items = f"{proposal.items} {plural(proposal.items, 'item')}"
    note(f"Proposal {proposal.plan_id}: {items}, waiting for approval until {expires}.")
    note(f"To approve it: retriage proposals approve {proposal.plan_id} --confirm {proposal.items}")


def confirm_and_carry_out(args: Namespace, session: Session, plan: Plan) -> int:
    operations = operations_of(session)
    if args.submit:
        if args.detach:
            raise UsageFault("--submit and --detach cannot be combined", fix="Approve the proposal with --detach.")
        submit(session, plan, args.reason, args.ticket)
        return DONE
    count = args.confirm if args.confirm is not None else ask_to_confirm(ConfirmationForm(plan, session.limits))
    confirmation = Confirmation(session.who, session.origin, args.reason, count, args.ticket)
    try:
        with override_progress(plan.changes) as watch:
            override = operations.carry_out(plan, confirmation, session.stop, watch, detached=args.detach)
            heads = watch.heads
    except NotConfirmed as fault:
        if fault.advice is not None and fault.advice.step is Step.APPLY_PLAN:
            _keep_for_apply(operations, plan)
        raise
    return report_result(override, heads)


def _keep_for_apply(operations: Operations, plan: Plan) -> None:
    """Record a plan that was refused for its number only: `apply` takes no plan that was never recorded."""
    if operations.trail.planned(plan.id) is None:
        operations.record_plan(plan)


def ask_to_confirm(form: ConfirmationForm) -> int | None:
    """The number of changes confirmed at the terminal; None when nobody confirmed them."""
    if not form.changes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return form.confirmed_count(ask(form.question))


def report_result(override: Override, errors: Iterable[str]) -> int:
    """Print how an override ended; returns the exit code. `errors` are those of a canary's items."""
    if override.state is OverrideState.QUEUED:
        note(f"Override {override.override_id} is queued. A runner carries it out: `retriage runner`.")
        note(f"To follow it: retriage overrides watch {override.override_id}")
        return DONE
    summary = outcome_summary(override.counts, override.action)
    note(f"Override {override.override_id} {override.state.value}: {summary}")
    if override.note:
        note(override.note)
    for error in errors if override.stopped_by_canary else ():
        note(f"  failed again: {error}")
    if override.state is not OverrideState.FINISHED:
        note(f"To continue it: retriage overrides resume {override.override_id}")
    if override.action == Action.REQUEUE and override.counts.get(OutcomeKind.APPLIED):
        note(f"To follow the items: retriage overrides watch {override.override_id}")
    done = override.state is OverrideState.FINISHED
    all_applied = {kind for kind, count in override.counts.items() if count} <= {OutcomeKind.APPLIED.value}
    return DONE if done and all_applied else SOME_FAILED


def override_record(override: Override) -> dict[str, Any]:
    """An override as data."""
    counts = outcome_counts(override.counts, override.action)
    if skipped := sum(override.confirmed.get("skipped", {}).values()):
        counts[SKIPPED] = skipped
    return {
        "override_id": override.override_id, "plan_id": override.plan_id, "state": override.state.value,
        "started_at": override.started_at, "who": override.who, "proposed_by": override.proposed_by,
        "reason": override.reason, "ticket": override.ticket, "counts": counts, "note": override.note or None,
        "undo_of": override.undo_of, "undone_by": list(override.undone_by),
        "results": None if (found := override.results) is None else found.record(),
    }
