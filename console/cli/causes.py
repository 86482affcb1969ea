"""`causes`: failures counted by cause, across backends, with the state and the trend of each cause."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from console.cli.backend_selection import BackendSelection
from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.history import snapshot_at
from console.cli.render import RowFormat, chosen_format, note, note_fault, print_rows
from console.cli.repeat import repeated
from console.core.backend import Backend
from console.core.budget import ReadCosts
from console.core.cause_count import Cause
from console.core.cause_life import UNKNOWN_LIFE, CauseLife, CauseState, CauseStates
from console.core.causes import Causes
from console.core.faults import Fault
from console.core.history import MINUTE, NEAR_A_MARK, Mark, Trend, causes_then, mark_before, sparkline
from console.core.query import Filter
from console.core.session import Session
from console.core.text import ago, first_line, plural
from console.last_looked import last_looked, note_look

FIELDS = (
    "cause", "count", "exact", "share", "recent", "first_seen", "last_seen", "backends", "recoverable", "runbook",
    "sample", "maybe_more", "overflow", "state", "since", "by", "owner", "notes", "trend", "new_to_you", "began_after",
)
_TREND = timedelta(hours=24)
_STEPS = 12
_NEVER = datetime.min.replace(tzinfo=UTC)
_SORTS: dict[str, Callable[[Cause], Any]] = {
    "count": lambda cause: cause.count,
    "recent": lambda cause: (cause.recent, cause.count),
    "last_seen": lambda cause: cause.last or _NEVER,
    "first_seen": lambda cause: cause.first or _NEVER,
}


@dataclass(frozen=True, slots=True)
class CauseRow:
    """A cause with its share of all failures, what policy and config say about its error, its state and its trend."""

    cause: Cause
    share: float
    recoverable: bool | None
    runbook: str | None
    life: CauseLife
    trend: Trend | None
    """Failures of the last day, if they were recorded."""
    new_to_you: bool
    """First seen since this user last looked."""
    began_after: Mark | None
    """The deploy mark shortly before it was first seen."""


@dataclass(frozen=True, slots=True)
class _Past:
    """What the trail and the history know about causes. Where one of them cannot be read, its part is missing."""

    states: CauseStates | None
    first_seen: Mapping[str, datetime]
    trends: Mapping[str, Trend]
    marks: Sequence[Mark]
    looked: datetime | None
    at: datetime | None

    def life(self, cause: Cause) -> CauseLife:
        if self.states is None or cause.signature is None:
            return UNKNOWN_LIFE
        return self.states.life(cause, self.first_seen.get(cause.signature), self.at)


def list_causes(args: Namespace, context: CommandContext) -> int:
    filter = Filter.parse(args.where)
    session = context.session()
    selection = BackendSelection(session, args.backend, filter)
    looked = last_looked(_folder(session))  # once: with --watch, what is new stays new until it ends
    return repeated(args, session, lambda costs: _print_causes(args, session, selection, (filter, looked), costs))


def _print_causes(
    args: Namespace, session: Session, selection: BackendSelection, query: tuple[Filter, datetime | None],
    costs: ReadCosts,
) -> int:
    filter, looked = query
    now = session.clock.now()
    if args.at is None:
        counting = Causes(
            selection.backends, filter, now, session.stop, costs=costs.meters, hold_limit=costs.hold_limit
        )
        everything, rows, at = counting.collect(), counting.rows, None
        faults: Mapping[str, Fault] = counting.faults
        answered: Collection[str] = counting.answered
    else:
        then = snapshot_at(session, args.at)
        everything = causes_then(then, [backend.name for backend in selection.backends], filter)
        rows, at, faults, answered = sum(cause.count for cause in everything), then.at, {}, then.systems
    past = _past(session, everything, at, looked)
    lives = {cause.signature: past.life(cause) for cause in everything if not cause.overflow}
    found = sorted((cause for cause in everything if not cause.overflow), key=_SORTS[args.sort], reverse=True)
    found.sort(key=lambda cause: lives[cause.signature].state.is_listed_last)
    overflow = [cause for cause in everything if cause.overflow]
    shown = [*found[: args.limit or None], *overflow]
    lines = [_row(cause, rows, selection.backends, session, past) for cause in shown]
    print_rows(lines, RowFormat(FIELDS, _record, _columns(at or now)), args.format)
    code = selection.report(faults, answered)
    if args.limit and len(found) > args.limit:
        note(f"Showing {args.limit} of {len(found)} causes. Use --limit 0 to show all.")
    elif not found and not code and chosen_format(args.format) == "table":
        note("Nothing matches." if args.where else "Nothing needs attention.")
    _note_regressed(shown, lives)
    _note_quiet(found, lives)
    if at is None and chosen_format(args.format) == "table" and not session.read_only:
        note_look(now, _folder(session))
    return code


def _past(session: Session, causes: Iterable[Cause], at: datetime | None, looked: datetime | None) -> _Past:
    """What is known from before. A trail or history that cannot be read is reported, and its columns stay empty."""
    states, first_seen, trends = session.causes, dict[str, datetime](), dict[str, Trend]()
    marks: Sequence[Mark] = ()
    end = (at or session.clock.now()) + MINUTE  # with the minute itself
    try:
        if states is not None:
            states.read()
    except Fault as fault:
        note_fault(fault)
        states = None
    try:
        if session.history is not None:
            first_seen = dict(session.history.first_seen())
            wanted = [cause.signature for cause in causes if cause.signature]
            trends = dict(session.history.cause_trends(end - _TREND, end, _STEPS, wanted)) if first_seen else {}
            marks = session.history.marks(min(first_seen.values(), default=end) - NEAR_A_MARK, end)
    except Fault as fault:
        note_fault(fault)
    return _Past(states, first_seen, trends, marks, looked, at)


def _folder(session: Session) -> Path | None:
    """Where it is noted when this user last looked. The demo has a folder of its own."""
    return None if session.views_file is None else session.views_file.parent


def _note_regressed(shown: Sequence[Cause], lives: Mapping[str | None, CauseLife]) -> None:
    """Say what had resolved the causes that are back."""
    for cause in shown:
        life = lives.get(cause.signature, UNKNOWN_LIFE)
        if life.state is CauseState.REGRESSED:
            note(f"{cause.signature}: {life.detail}.")


def _note_quiet(found: Sequence[Cause], lives: Mapping[str | None, CauseLife]) -> None:
    """Say how much is listed last, and why: nothing is hidden without its count."""
    quiet = [cause for cause in found if lives[cause.signature].state.is_listed_last]
    if not quiet:
        return
    states = Counter(lives[cause.signature].state.value for cause in quiet)
    failures = sum(cause.count for cause in quiet)
    kinds = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    note(f"Listed last: {kinds}, with {failures} {plural(failures, 'failure')}.")


def _row(cause: Cause, total: int, backends: tuple[Backend, ...], session: Session, past: _Past) -> CauseRow:
    names = {name for name, _ in cause.backends}
    recoverable = None
    if cause.sample:
        recoverable = not any(b.policy.hopeless(cause.sample) for b in backends if b.name in names)
    life = past.life(cause)
    new = past.looked is not None and life.first_seen is not None and life.first_seen > past.looked
    trend, mark = past.trends.get(cause.signature or ""), mark_before(life.first_seen or cause.first, past.marks)
    share, runbook = cause.count / max(total, 1), session.runbook(cause.sample)
    return CauseRow(cause, share, recoverable, runbook, life, trend, new, mark)


def _record(row: CauseRow) -> dict[str, Any]:
    cause, life = row.cause, row.life
    return {
        "cause": cause.signature, "count": cause.count, "exact": cause.exact, "share": round(row.share, 4),
        "recent": cause.recent, "first_seen": life.first_seen or cause.first, "last_seen": cause.last,
        "backends": dict(cause.backends),
        "recoverable": row.recoverable, "runbook": row.runbook, "sample": cause.sample,
        "maybe_more": cause.maybe_more, "overflow": cause.overflow,
        "state": None if cause.signature is None else life.state.value, "since": life.since, "by": life.by,
        "owner": life.owner, "notes": [{"at": one.at, "by": one.by, "text": one.text} for one in life.notes],
        "trend": None if row.trend is None else list(row.trend.values), "new_to_you": row.new_to_you,
        "began_after": None if row.began_after is None else row.began_after.text,
    }


def _columns(now: datetime) -> tuple[Column[CauseRow], ...]:
    return (
        Column("cause", lambda row: row.cause.signature or "–"),
        Column("count", lambda row: f"{row.cause.sign}{row.cause.count}", right=True),
        Column("state", _state, dropped=1),
        Column("share", lambda row: f"{row.share:.0%}", dropped=5, right=True),
        Column("recent", lambda row: f"+{row.cause.recent}" if row.cause.recent else "", dropped=2, right=True),
        Column("24h", lambda row: sparkline(row.trend.values) if row.trend else "", dropped=4),
        Column("owner", lambda row: row.life.owner, dropped=3),
        Column("last seen", lambda row: _ago(row.cause.last, now), dropped=4),
        Column("first seen", lambda row: _ago(row.life.first_seen or row.cause.first, now), dropped=6),
        Column("began after", _mark, dropped=6, least=12, optional=True),
        Column("recoverable", lambda row: {True: "yes", False: "✗ no", None: ""}[row.recoverable], dropped=3),
        Column("error", lambda row: _error(row.cause), least=30),
        Column("backends", lambda row: ", ".join(name for name, _ in row.cause.backends), dropped=7, least=12),
        Column("runbook", lambda row: row.runbook or "", dropped=8, least=20),
    )


def _state(row: CauseRow) -> str:
    if row.cause.signature is None:
        return ""
    return f"{row.life.state.value} *" if row.new_to_you else row.life.state.value


def _mark(row: CauseRow) -> str:
    return "" if row.began_after is None else row.began_after.text


def _error(cause: Cause) -> str:
    if cause.overflow:
        return "(other causes, too many to list)"
    return first_line(cause.sample) or "(no error text)"


def _ago(at: datetime | None, now: datetime) -> str:
    return ago(now - at) if at is not None else ""
