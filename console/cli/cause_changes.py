"""`causes ack|snooze|assign|note|resolve|reopen`: record what somebody decided about a cause."""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime

from console.cli.backend_selection import DONE
from console.cli.context import CommandContext
from console.cli.render import note, note_fault
from console.core.cause_count import Cause
from console.core.cause_life import CauseStates, Snooze
from console.core.causes import Causes
from console.core.faults import ReadOnlyRefused, Refused, UsageFault
from console.core.query import Filter
from console.core.session import Session
from console.core.text import parse_duration, parse_moment, plural

_DIGITS = frozenset("0123456789abcdef")
_LEAST_DIGITS = 4


def acknowledge(args: Namespace, context: CommandContext) -> int:
    states, cause = _cause(args, context)
    states.acknowledge(cause, args.note)
    return _done("Acknowledged", cause)


def snooze(args: Namespace, context: CommandContext) -> int:
    if args.until is None and not (args.until_doubles or args.until_another_system):
        fix = "Add --until TIME, --until-doubles or --until-another-system."
        raise UsageFault("Nothing would end the snooze", fix=fix)
    session = context.session()
    until = None if args.until is None else _time(args.until, session.clock.now())
    states, cause = _found(session, args.cause)
    states.snooze(cause, Snooze(until, args.until_doubles, args.until_another_system), args.note)
    return _done("Snoozed", cause)


def resolve(args: Namespace, context: CommandContext) -> int:
    states, cause = _cause(args, context)
    states.resolve(cause, args.note)
    return _done("Resolved", cause)


def reopen(args: Namespace, context: CommandContext) -> int:
    states, cause = _cause(args, context)
    states.reopen(cause, args.note)
    return _done("Reopened", cause)


def assign(args: Namespace, context: CommandContext) -> int:
    states, cause = _cause(args, context)
    states.assign(cause, args.owner)
    return _done(f"Assigned to {args.owner}" if args.owner else "Assigned to nobody", cause)


def add_note(args: Namespace, context: CommandContext) -> int:
    states, cause = _cause(args, context)
    states.note(cause, args.text)
    return _done("Noted", cause)


def _done(what: str, cause: Cause) -> int:
    where = ", ".join(name for name, _ in cause.backends)
    failures = f"{cause.count} {plural(cause.count, 'failure')} in {where}" if where else "no failures now"
    note(f"{what}: cause {cause.signature}, {failures}.")
    return DONE


def _cause(args: Namespace, context: CommandContext) -> tuple[CauseStates, Cause]:
    return _found(context.session(), args.cause)


def _found(session: Session, prefix: str) -> tuple[CauseStates, Cause]:
    """The cause with this signature, as its systems show it now. One without failures may be known from before."""
    if session.causes is None:
        raise Refused("This command has no trail")
    if session.read_only:
        raise ReadOnlyRefused("the state of a cause cannot be changed")
    if len(prefix) < _LEAST_DIGITS or not _DIGITS.issuperset(prefix):
        fix = "Write at least 4 of the digits that `retriage causes` prints."
        raise UsageFault(f"'{prefix}' is not a cause", fix=fix)
    counting = Causes(session.backends, Filter.parse(f"cause:{prefix}"), session.clock.now(), session.stop)
    found = counting.collect()
    for name, fault in counting.faults.items():
        note_fault(fault, name)
    if found:
        return session.causes, found[0]
    session.causes.read()
    known = set(session.causes.named)
    if session.history is not None:
        known |= set(session.history.first_seen())
    matching = sorted(signature for signature in known if signature.startswith(prefix))
    if len(matching) > 1:
        raise UsageFault(f"Several causes begin with '{prefix}'", fix=f"{matching[0]} and {matching[1]}, for example.")
    if not matching:
        raise UsageFault(f"No cause begins with '{prefix}'", fix="`retriage causes` lists them.")
    return session.causes, Cause(matching[0], "", 0, 0, None, None, ())


def _time(text: str, now: datetime) -> datetime:
    """A time of the future: ISO-8601, UTC unless it has a zone, or how long from now."""
    try:
        return now + parse_duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        return parse_moment(text)
    except ValueError:
        fix = "Use a duration such as 4h, or a time such as 2026-11-01T12:00Z."
        raise UsageFault(f"--until cannot be '{text}'", fix=fix) from None
