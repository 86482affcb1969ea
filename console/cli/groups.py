"""`groups`: failures by cause, across backends."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from console.cli.doors import Doors
from console.cli.render import Column, Shape, chosen_format, note, print_rows
from console.cli.round import Round
from console.core.backend import Backend
from console.core.desk import Desk
from console.core.grouping import Group
from console.core.groups import Groups
from console.core.query import Filter
from console.core.text import ago, first_line

FIELDS = (
    "signature", "count", "share", "recent", "first_seen", "last_seen", "backends", "recoverable", "runbook", "sample",
)
_NEVER = datetime.min.replace(tzinfo=UTC)
_SORTS: dict[str, Callable[[Group], Any]] = {
    "count": lambda group: group.count,
    "recent": lambda group: (group.recent, group.count),
    "last": lambda group: group.last or _NEVER,
    "first": lambda group: group.first or _NEVER,
}


@dataclass(frozen=True, slots=True)
class Cause:
    """A group with what the config adds to it."""

    group: Group
    share: float
    recoverable: bool | None
    runbook: str | None


def list_groups(args: Namespace, doors: Doors) -> int:
    filter = Filter.parse(args.where)
    desk = doors.desk()
    asked = Round(desk, args.backend, filter)
    now = desk.clock.now()
    groups = Groups(asked.backends, filter, now, desk.stop)
    found = sorted(groups.collect(), key=_SORTS[args.sort], reverse=True)
    shown = found[: args.limit or None]
    causes = (_cause(group, groups.rows, asked.backends, desk) for group in shown)
    print_rows(causes, Shape(FIELDS, _record, _columns(now)), args.format)
    code = asked.conclude(groups.faults, groups.answered)
    if len(found) > len(shown):
        note(f"{len(shown)} of {len(found)} causes; --limit 0 shows all.")
    elif not found and not code and chosen_format(args.format) == "table":
        note("Nothing matches." if args.where else "Nothing needs eyes.")
    return code


def _cause(group: Group, total: int, backends: tuple[Backend, ...], desk: Desk) -> Cause:
    names = {name for name, _ in group.backends}
    recoverable = None
    if group.sample:
        recoverable = not any(b.policy.hopeless(group.sample) for b in backends if b.name in names)
    return Cause(group, group.count / max(total, 1), recoverable, desk.runbook(group.sample))


def _record(cause: Cause) -> dict[str, Any]:
    group = cause.group
    return {
        "signature": group.signature, "count": group.count, "share": round(cause.share, 4), "recent": group.recent,
        "first_seen": group.first, "last_seen": group.last, "backends": dict(group.backends),
        "recoverable": cause.recoverable, "runbook": cause.runbook, "sample": group.sample,
    }


def _columns(now: datetime) -> tuple[Column[Cause], ...]:
    return (
        Column("signature", lambda cause: cause.group.signature or "–"),
        Column("count", lambda cause: str(cause.group.count), right=True),
        Column("share", lambda cause: f"{cause.share:.0%}", dropped=5, right=True),
        Column("1h", lambda cause: f"+{cause.group.recent}" if cause.group.recent else "", dropped=2, right=True),
        Column("last", lambda cause: _age(cause.group.last, now), dropped=4),
        Column("first", lambda cause: _age(cause.group.first, now), dropped=6),
        Column("recoverable", lambda cause: {True: "yes", False: "✗ no", None: ""}[cause.recoverable], dropped=3),
        Column("cause", lambda cause: first_line(cause.group.sample) or "(no error text)", least=30),
        Column("backends", lambda cause: ", ".join(name for name, _ in cause.group.backends), dropped=7, least=12),
        Column("runbook", lambda cause: cause.runbook or "", dropped=8, least=20),
    )


def _age(at: datetime | None, now: datetime) -> str:
    return ago(now - at) if at is not None else ""
