"""`causes`: failures counted by cause, across backends."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from console.cli.backend_selection import BackendSelection
from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.render import Shape, chosen_format, note, print_rows
from console.core.backend import Backend
from console.core.cause_count import Cause
from console.core.causes import Causes
from console.core.query import Filter
from console.core.session import Session
from console.core.text import ago, first_line

FIELDS = (
    "cause", "count", "share", "recent", "first_seen", "last_seen", "backends", "recoverable", "runbook", "sample",
    "maybe_more", "overflow",
)
_NEVER = datetime.min.replace(tzinfo=UTC)
_SORTS: dict[str, Callable[[Cause], Any]] = {
    "count": lambda cause: cause.count,
    "recent": lambda cause: (cause.recent, cause.count),
    "last_seen": lambda cause: cause.last or _NEVER,
    "first_seen": lambda cause: cause.first or _NEVER,
}


@dataclass(frozen=True, slots=True)
class CauseRow:
    """A cause with its share of all failures, and what policy and config say about its error."""

    cause: Cause
    share: float
    recoverable: bool | None
    runbook: str | None


def list_causes(args: Namespace, context: CommandContext) -> int:
    filter = Filter.parse(args.where)
    session = context.session()
    selection = BackendSelection(session, args.backend, filter)
    now = session.clock.now()
    causes = Causes(selection.backends, filter, now, session.stop)
    everything = causes.collect()
    found = sorted((cause for cause in everything if not cause.overflow), key=_SORTS[args.sort], reverse=True)
    overflow = [cause for cause in everything if cause.overflow]
    shown = [*found[: args.limit or None], *overflow]
    rows = (_row(cause, causes.rows, selection.backends, session) for cause in shown)
    print_rows(rows, Shape(FIELDS, _record, _columns(now)), args.format)
    code = selection.report(causes.faults, causes.answered)
    if args.limit and len(found) > args.limit:
        note(f"Showing {args.limit} of {len(found)} causes. Use --limit 0 to show all.")
    elif not found and not code and chosen_format(args.format) == "table":
        note("Nothing matches." if args.where else "Nothing needs attention.")
    return code


def _row(cause: Cause, total: int, backends: tuple[Backend, ...], session: Session) -> CauseRow:
    names = {name for name, _ in cause.backends}
    recoverable = None
    if cause.sample:
        recoverable = not any(b.policy.hopeless(cause.sample) for b in backends if b.name in names)
    return CauseRow(cause, cause.count / max(total, 1), recoverable, session.runbook(cause.sample))


def _record(row: CauseRow) -> dict[str, Any]:
    cause = row.cause
    return {
        "cause": cause.signature, "count": cause.count, "share": round(row.share, 4), "recent": cause.recent,
        "first_seen": cause.first, "last_seen": cause.last, "backends": dict(cause.backends),
        "recoverable": row.recoverable, "runbook": row.runbook, "sample": cause.sample,
        "maybe_more": cause.maybe_more, "overflow": cause.overflow,
    }


def _columns(now: datetime) -> tuple[Column[CauseRow], ...]:
    return (
        Column("cause", lambda row: row.cause.signature or "–"),
        Column("count", lambda row: str(row.cause.count), right=True),
        Column("share", lambda row: f"{row.share:.0%}", dropped=5, right=True),
        Column("recent", lambda row: f"+{row.cause.recent}" if row.cause.recent else "", dropped=2, right=True),
        Column("last seen", lambda row: _ago(row.cause.last, now), dropped=4),
        Column("first seen", lambda row: _ago(row.cause.first, now), dropped=6),
        Column("recoverable", lambda row: {True: "yes", False: "✗ no", None: ""}[row.recoverable], dropped=3),
        Column("error", lambda row: _error(row.cause), least=30),
        Column("backends", lambda row: ", ".join(name for name, _ in row.cause.backends), dropped=7, least=12),
        Column("runbook", lambda row: row.runbook or "", dropped=8, least=20),
    )


def _error(cause: Cause) -> str:
    if cause.overflow:
        return "(other causes, too many to list)"
    return first_line(cause.sample) or "(no error text)"


def _ago(at: datetime | None, now: datetime) -> str:
    return ago(now - at) if at is not None else ""
