"""`overrides`: list and show overrides, and pause, stop, resume or undo one."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping

from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.plans import (
    confirm_and_carry_out,
    operations_of,
    override_record,
    preview,
    reconcile,
    report_result,
)
from console.cli.progress import override_progress
from console.cli.render import Shape, chosen_format, note, print_record, print_rows, print_text
from console.core.backend import Action, OutcomeKind
from console.core.faults import OverrideRunning, UsageFault
from console.core.override import ItemOutcome, Override, outcome_id, outcome_label, outcome_summary
from console.core.ports import Trail
from console.core.reconcile import final_outcomes
from console.core.recovery import ItemResult, Result, ResultCounts
from console.core.session import Session
from console.core.text import ago, instant

_FIELDS = ("override_id", "plan_id", "state", "started_at", "who", "reason", "ticket", "counts", "note")


def trail_of(session: Session) -> Trail:
    if session.trail is None:
        raise UsageFault("No trail is configured")
    return session.trail


def list_overrides(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    now = session.clock.now()
    columns: tuple[Column[Override], ...] = (
        Column("override", lambda o: o.override_id),
        Column("state", lambda o: o.state.value),
        Column("started", lambda o: ago(now - o.started_at), right=True),
        Column("who", lambda o: o.who, dropped=1, least=8),
        Column("result", lambda o: outcome_summary(o.counts, o.action), least=12),
        Column("reason", lambda o: o.reason, least=16),
    )
    found = trail_of(session).overrides(args.limit or None)
    print_rows(found, Shape(_FIELDS, override_record, columns), args.format)
    if not found and chosen_format(args.format) == "table":
        note("No overrides yet.")
    return 0


def show_override(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    trail = trail_of(session)
    override = trail.override(args.override)
    found, counts = _results(session, override)
    items = final_outcomes(trail, override.override_id)
    shape = _item_shape(override.action, found)
    if chosen_format(args.format) in ("json", "jsonl"):
        listed = {"items": [shape.record(item) for item in items]} if args.items else {}
        print_record({**override_record(override), "results": _result_record(counts), **listed})
        return 0
    if chosen_format(args.format) == "table":
        for line in _lines(override, counts):
            print_text(line)
    if args.items or args.format == "csv":
        print_rows(items, shape, args.format)
    return 0


def _results(session: Session, override: Override) -> tuple[dict[int, ItemResult], ResultCounts]:
    """What became of the requeued items, by ordinal. Empty for an override that requeued nothing."""
    found: dict[int, ItemResult] = {}
    counts = ResultCounts()
    if override.action == Action.REQUEUE and override.counts.get(OutcomeKind.APPLIED):
        for batch in operations_of(session).results(override.override_id):
            counts.add(batch)
            found.update((one.ordinal, one) for one in batch)
    return found, counts


def _result_record(counts: ResultCounts) -> dict[str, int] | None:
    return {result.value: counts.counts[result] for result in Result} if counts.total else None


def _lines(override: Override, counts: ResultCounts) -> Iterator[str]:
    yield f"Override {override.override_id}: {override.state.value}"
    if override.note:
        yield f"  {override.note}"
    yield f"  plan     {override.plan_id}"
    yield f"  started  {instant(override.started_at.replace(microsecond=0))}"
    yield f"  who      {override.who}"
    yield f"  reason   {override.reason}"
    if override.ticket:
        yield f"  ticket   {override.ticket}"
    yield f"  written  {outcome_summary(override.counts, override.action)}"
    if counts.total:
        yield f"  result   {counts.summary()}"


def _item_shape(action: str, found: Mapping[int, ItemResult]) -> Shape[ItemOutcome]:
    def result(item: ItemOutcome) -> ItemResult | None:
        return found.get(item.ordinal) if item.outcome == OutcomeKind.APPLIED else None

    def record(item: ItemOutcome) -> dict[str, object]:
        one = result(item)
        outcome = {**item._asdict(), "outcome": outcome_id(item.outcome, action)}
        return {**outcome, "result": one.result.value if one else None, "cause": one.cause if one else None}

    return Shape(
        (*ItemOutcome._fields, "result", "cause"),
        record,
        (
            Column("key", lambda item: item.key, least=20),
            Column("outcome", lambda item: outcome_label(item.outcome, action)),
            Column("result", lambda item: one.result.label if (one := result(item)) else ""),
            Column("", lambda item: item.detail or (one.detail if (one := result(item)) else ""), least=10),
        ),
    )


def pause(args: Namespace, context: CommandContext) -> int:
    operations_of(context.session()).pause(args.override)
    note("Asked it to pause. It finishes the items it is writing first.")
    return 0


def stop(args: Namespace, context: CommandContext) -> int:
    operations_of(context.session()).stop(args.override)
    note("Asked it to stop. It finishes the items it is writing first, and can be resumed.")
    return 0


def resume(args: Namespace, context: CommandContext) -> int:
    """Continue a paused override in its own process, or here when that process is gone."""
    session = context.session()
    operations = operations_of(session)
    operations.require_writable()
    override = operations.trail.override(args.override)
    plan = operations.trail.plan(override.plan_id)
    try:
        with override_progress(plan.changes) as watch:
            return report_result(
                operations.resume(override.override_id, session.who, session.origin, session.stop, watch)
            )
    except OverrideRunning:
        if not operations.trail.override(override.override_id).alive:
            raise  # another override is running there
        operations.proceed(override.override_id)
        note("Asked its own process, which is still running, to continue.")
        return 0


def undo(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    operations = operations_of(session)
    reconcile(session, operations)
    plan = operations.undo(args.override, session.stop)
    for line in preview(session, plan):
        note(line)
    return confirm_and_carry_out(args, session, plan)
