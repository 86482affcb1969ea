"""`history`: record samples of all systems, and mark deploys and other events."""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime, timedelta

from console.cli.backend_selection import DONE, NONE_ANSWERED, SOME_FAILED
from console.cli.context import CommandContext
from console.cli.render import note
from console.core.faults import ConfigFault, Fault, ReadOnlyRefused, Refused, UsageFault
from console.core.history import History, Recorder, RecordResult, Snapshot
from console.core.ports import Clock, Stop
from console.core.session import Session
from console.core.text import ago, instant, parse_duration, parse_moment

_MINUTE = 60.0


def history_of(session: Session) -> History:
    """The history of a session that was opened with one."""
    if session.history is None:
        raise Refused("This command has no history")
    return session.history


def recorder_of(session: Session) -> Recorder:
    if session.recorder is None:
        raise ReadOnlyRefused("nothing is recorded")
    return session.recorder(None)


def record(args: Namespace, context: CommandContext) -> int:
    """Record once, or every minute until a signal."""
    session = context.session()
    if not session.entries:
        raise ConfigFault("No backend is configured", where=session.config, fix="Add one, or try `retriage demo`.")
    recorder = recorder_of(session)
    try:
        if args.once:
            return _record_once(recorder)
        note(f"Recording every minute to {history_of(session).place}. SIGTERM or Ctrl-C ends it.")
        _record_until(recorder, session.clock, session.stop)
    finally:
        recorder.release()
    return DONE


def _record_once(recorder: Recorder) -> int:
    result = recorder.record()
    note(f"{result.value[0].upper()}{result.value[1:]}.")
    for name, fault in recorder.faults.items():
        note(f"retriage: {name}: {fault}")
    if result is not RecordResult.RECORDED:
        return SOME_FAILED if result is RecordResult.CLOCK_SET_BACK else DONE
    if not recorder.faults:
        return DONE
    return SOME_FAILED if recorder.answered else NONE_ANSWERED


def _record_until(recorder: Recorder, clock: Clock, stop: Stop) -> None:
    """Record every minute. What goes wrong is reported when it begins, not every minute."""
    said: dict[str, str] = {}
    while not stop.requested:
        now_wrong: dict[str, str] = {}
        try:
            result = recorder.record()
            if result in (RecordResult.CLOCK_SET_BACK, RecordResult.ANOTHER_RECORDS):
                now_wrong[""] = result.value
            now_wrong |= recorder.faults
        except Fault as fault:  # the store is away, or full: try again in a minute
            now_wrong["history"] = str(fault)
        for name, what in now_wrong.items():
            if said.get(name) != what:
                note(f"retriage: {name}: {what}" if name else f"retriage: Not recording: {what}.")
        said = now_wrong
        wait_for_minute(clock, stop)


def wait_for_minute(clock: Clock, stop: Stop) -> None:
    """Wait until the next minute begins, or until `stop`."""
    until = clock.now().timestamp() // _MINUTE * _MINUTE + _MINUTE
    while not stop.requested and (rest := until - clock.now().timestamp()) > 0:
        clock.sleep(min(rest, 1.0))


def mark(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    if session.read_only:
        raise ReadOnlyRefused("a mark cannot be added")
    at = session.clock.now() if args.at is None else moment(args.at, session.clock.now())
    history_of(session).add_mark(args.text, str(session.who), at)
    note(f"Marked {instant(at.replace(microsecond=0))}.")
    return DONE


def moment(text: str, now: datetime) -> datetime:
    """A time of the past from the command line: ISO-8601, UTC unless it has a zone, or how long ago it was."""
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        found = parse_moment(text)
    except ValueError:
        fix = "Use a time such as 2026-11-01T12:00Z, or how long ago it was, such as 2h."
        raise UsageFault(f"'{text}' is not a time", fix=fix) from None
    if found > now + timedelta(minutes=1):
        raise UsageFault(f"{instant(found)} is in the future", fix="Name a time in the past.")
    return found


def snapshot_at(session: Session, text: str) -> Snapshot:
    """The recorded past at a time from the command line. What is missing is reported."""
    history, now = history_of(session), session.clock.now()
    at = moment(text, now)
    known = history.recorded()
    if known is None:
        raise UsageFault("Nothing is recorded yet", fix="Run `retriage history record`, or leave a console open.")
    if not known[0] <= at <= known[1] + timedelta(hours=1):
        fix = f"The history begins at {instant(known[0])} and ends at {instant(known[1])}."
        raise UsageFault(f"Nothing is recorded at {instant(at.replace(microsecond=0))}", fix=fix)
    found = history.snapshot(at)
    for name in found.missing:
        why = found.faults.get(name)
        note(f"retriage: {name}: {f'did not answer: {why}' if why else 'nothing was recorded around that time.'}")
    for name in sorted(found.sampled):
        note(f"{name}: its causes are estimates.")
    times = [system.as_of for system in found.systems.values()]
    if times:
        note(f"As recorded at {instant(min(times))}, {ago(now - min(times))}.")
    return found
