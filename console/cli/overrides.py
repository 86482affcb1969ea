"""`overrides`: list, show and watch overrides, and pause, stop, resume or undo one."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from console.cli.backend_selection import DONE, SOME_FAILED
from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.plans import (
    ask_to_confirm,
    confirm_and_carry_out,
    operations_of,
    override_record,
    preview,
    reconcile,
    report_result,
)
from console.cli.progress import override_progress, watch_progress
from console.cli.render import RowFormat, chosen_format, note, print_record, print_rows, print_text
from console.core.backend import Action, OutcomeKind
from console.core.faults import OverrideRunning, UsageFault
from console.core.override import ItemOutcome, Override, OverrideState, outcome_id, outcome_label, outcome_summary
from console.core.ports import Trail
from console.core.reconcile import final_outcomes
from console.core.recovery import ItemResult, Result, ResultCounts
from console.core.session import Session
from console.core.text import ago, instant
from console.core.watch import WatchProgress

_FIELDS = (
    "override_id", "plan_id", "state", "started_at", "who", "proposed_by", "reason", "ticket", "counts", "note",
    "undo_of", "undone_by", "results",
)
_CAUSES = 8


def trail_of(session: Session) -> Trail:
    if session.trail is None:
        raise UsageFault("No trail is configured")
    return session.trail


def list_overrides(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    now = session.clock.now()
    columns: tuple[Column[Override], ...] = (
        Column("override", lambda o: o.override_id),
        Column("state", lambda o: o.state_label),
        Column("started", lambda o: ago(now - o.started_at), right=True),
        Column("who", lambda o: o.who, dropped=1, least=8),
        Column("result", _result_words, least=12),
        Column("reason", lambda o: o.reason, least=16),
    )
    found = trail_of(session).overrides(args.limit or None)
    print_rows(found, RowFormat(_FIELDS, override_record, columns), args.format)
    if not found and chosen_format(args.format) == "table":
        note("No overrides yet.")
    return 0


def _result_words(override: Override) -> str:
    """The results of its items; until they are recorded, what was written."""
    results = override.results
    return outcome_summary(override.counts, override.action) if results is None else results.summary()


def show_override(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    trail = trail_of(session)
    override = trail.override(args.override)
    watch = operations_of(session).watch(override.override_id)
    found = {one.ordinal: one for batch in watch.read_all() for one in batch}
    items = final_outcomes(trail, override.override_id)
    shape = _item_shape(override.action, found)
    if chosen_format(args.format) in ("json", "jsonl"):
        listed = {"items": [shape.record(item) for item in items]} if args.items else {}
        print_record({**override_record(override), **_progress_record(watch.progress), **listed})
        return DONE
    if chosen_format(args.format) == "table":
        for line in _lines(override, watch.progress):
            print_text(line)
    if args.items or args.format == "csv":
        print_rows(items, shape, args.format)
    return DONE


def watch_override(args: Namespace, context: CommandContext) -> int:
    """Follow an override until each of its items was executed or the watch time ends."""
    session = context.session()
    operations = operations_of(session)
    watch = operations.watch(args.override)
    override = watch.override
    if (results := override.results) is not None:
        note("Its watch has ended. `retriage overrides show` reads the items again.")
        _print_watched(args, override, WatchProgress(override.override_id, results, 0, 0))
        return _watched_code(results, complete=bool(override.result and override.result["complete"]))
    if override.action != Action.REQUEUE:
        raise UsageFault(f"{override.override_id} requeued nothing, so there is nothing to follow")
    with watch_progress(override.counts.get(OutcomeKind.APPLIED, 0)) as show:
        progress = operations.follow(watch, session.stop, show)
    if watch.override.state not in (OverrideState.FINISHED, OverrideState.STOPPED) and progress.over:
        note(f"Its process is gone. To continue it: retriage overrides resume {override.override_id}")
    elif not progress.over:
        note(f"Interrupted. To continue: retriage overrides watch {override.override_id}")
    _print_watched(args, operations.trail.override(override.override_id), progress)
    return _watched_code(progress.counts, complete=progress.complete)


def _watched_code(results: ResultCounts, *, complete: bool) -> int:
    recovered = results.counts[Result.RECOVERED] + results.counts[Result.CHANGED_BY_OTHERS]
    return DONE if complete and recovered == results.total else SOME_FAILED


def _print_watched(args: Namespace, override: Override, progress: WatchProgress) -> None:
    if chosen_format(args.format) != "table":
        print_record({**override_record(override), **_progress_record(progress)})
        return
    for line in _lines(override, progress):
        print_text(line)


def _progress_record(progress: WatchProgress) -> dict[str, Any]:
    """The results of the items, as data."""
    if not progress.total:
        return {"results": None}
    counts = progress.counts
    return {
        "results": {**counts.record(), "not_read": progress.unread},
        "same_cause": counts.same_cause,
        "causes": [{"cause": cause, "items": number} for cause, number in counts.failed_with],
        "last_due_at": progress.last_due_at,
        "watched_until": progress.ends_at,
        "over": progress.over,
    }


def _lines(override: Override, progress: WatchProgress) -> Iterator[str]:
    yield f"Override {override.override_id}: {override.state_label}"
    if note := override.note_beside(progress.counts if progress.counts.total else None):
        yield f"  {note}"
    if override.undo_of:
        yield f"  undo of  {override.undo_of}"
    if selection := override.confirmed.get("selection"):
        yield f"  selected {selection}"
    yield f"  plan     {override.plan_id}"
    yield f"  started  {instant(override.started_at.replace(microsecond=0))}"
    yield f"  who      {override.who}"
    if override.proposed_by:
        yield f"  proposed by {override.proposed_by}"
    yield f"  reason   {override.reason}"
    if override.ticket:
        yield f"  ticket   {override.ticket}"
    yield f"  written  {outcome_summary(override.counts, override.action)}"
    if not progress.total:
        return
    counts = progress.counts
    yield f"  result   {progress.summary()}"
    for cause, number in counts.failed_with[:_CAUSES]:
        yield f"           {number} × {cause[:8]}  {counts.heads.get(cause, '')}"
    if counts.counts[Result.NOT_RUN_YET] and progress.last_due_at is not None:
        yield f"           the last one is due at {instant(progress.last_due_at.replace(microsecond=0))}"
    for backend, why in progress.faults.items():
        yield f"           {backend} cannot be read: {why}"


def _item_shape(action: str, found: Mapping[int, ItemResult]) -> RowFormat[ItemOutcome]:
    def result(item: ItemOutcome) -> ItemResult | None:
        return found.get(item.ordinal) if item.outcome == OutcomeKind.APPLIED else None

    def record(item: ItemOutcome) -> dict[str, object]:
        one = result(item)
        outcome = {**item._asdict(), "outcome": outcome_id(item.outcome, action)}
        return {**outcome, "result": one.result.value if one else None, "cause": one.cause if one else None}

    return RowFormat(
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
    form, count = operations.resume_form(override.override_id), args.confirm
    if form is not None and count is None:
        note(override.note)
        count = ask_to_confirm(form)
    try:
        with override_progress(plan.changes) as watch:
            resumed = operations.resume(
                override.override_id, session.who, session.origin, session.stop, watch, count=count
            )
            return report_result(resumed, watch.heads)
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
