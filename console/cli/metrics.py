"""`metrics`: the figures of all systems once, as OpenMetrics text."""

from __future__ import annotations

import os
import stat
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from console.cli.backend_selection import DONE, NONE_ANSWERED, SOME_FAILED
from console.cli.context import CommandContext
from console.cli.render import note, note_fault, stdout
from console.core.cause_life import CauseState
from console.core.faults import ConfigFault, Fault, UsageFault
from console.core.history import Snapshot
from console.core.openmetrics import Gauge, Sample, openmetrics
from console.core.override import OverrideState
from console.core.paths import expanded
from console.core.session import Session
from console.core.text import duration
from console.report.present import present

MOST_CAUSES = 100
"""Only the largest causes have a line of their own, so that a scraper does not drown in labels."""
_FIRST = b"# TYPE retriage_"
"""How every output begins."""
_AHEAD = (timedelta(minutes=5), timedelta(minutes=15), timedelta(hours=1))


def metrics(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    if not session.entries:
        raise ConfigFault("No backend is configured", where=session.config, fix="Add one, or try `retriage demo`.")
    then = present(session)
    text = openmetrics(_gauges(session, then))
    if args.output:
        _replace(expanded(args.output), text)
    else:
        stdout().write(text)
    for name, why in then.faults.items():
        note(f"retriage: {name}: {why}")
    if not then.missing:
        return DONE
    return SOME_FAILED if set(session.names) - set(then.missing) else NONE_ANSWERED


def _gauges(session: Session, then: Snapshot) -> Iterator[Gauge]:
    yield Gauge("retriage_backend_up", "Whether a system answered.", [
        ({"backend": name}, float(name not in then.missing)) for name in session.names
    ])
    systems = {name: system for name, system in then.systems.items() if name in session.names}
    yield Gauge("retriage_items", "Items per system and condition.", [
        ({"backend": name, "condition": condition.value}, float(count.value))
        for name, system in systems.items() for condition, count in system.counts.items()
    ])
    yield Gauge("retriage_items_exact", "Whether the items of a system were counted, not estimated.", [
        ({"backend": name}, float(all(count.exact for count in system.counts.values())))
        for name, system in systems.items()
    ])
    yield Gauge("retriage_retries_due", "Retries due within a time from now, including overdue ones.", [
        ({"backend": name, "within": duration(ahead)}, float(due.before + sum(due.counts[: ahead // due.width])))
        for name, system in systems.items() if (due := system.upcoming) is not None for ahead in _AHEAD
    ])
    named = [cause for cause in then.causes if cause.signature]
    yield Gauge("retriage_cause_failures", f"Failures of the {MOST_CAUSES} largest causes, per system.", [
        ({"cause": str(cause.signature), "backend": name}, float(count))
        for cause in named[:MOST_CAUSES] for name, count in cause.backends
    ])
    yield Gauge("retriage_sample_timestamp_seconds", "When these figures were read.", [
        ({"backend": name}, float(int(system.as_of.timestamp()))) for name, system in systems.items()
    ], "seconds")
    try:
        yield Gauge("retriage_causes", "Causes per state.", _states(session, then))
        yield from _trail(session)
    except Fault as fault:
        note_fault(fault)


def _states(session: Session, then: Snapshot) -> list[Sample]:
    states, first_seen = session.causes, session.history.first_seen() if session.history is not None else {}
    if states is None:
        return []
    states.read()
    counted = Counter(
        states.life(cause, first_seen.get(cause.signature)).state for cause in then.causes if cause.signature
    )
    return [({"state": state.value}, float(counted[state])) for state in CauseState]


def _trail(session: Session) -> Iterator[Gauge]:
    if session.trail is None:
        return
    counted = Counter(override.state for override in session.trail.overrides())
    yield Gauge("retriage_overrides", "Overrides per state.", [
        ({"state": state.value}, float(counted[state])) for state in OverrideState
    ])
    newest = next(iter(session.trail.newest(limit=1)), None)
    yield Gauge("retriage_trail_records", "Records of the trail.", [({}, float(newest.seq if newest else 0))])


def _is_ours(path: Path) -> bool:
    """Whether a file may be replaced: it does not exist, is empty, or was written by this command."""
    with suppress(FileNotFoundError), os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read(len(_FIRST)) in (b"", _FIRST)
    return True


def _replace(path: Path, text: str) -> None:
    """Write the file in one step: a collector may read it at any time."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        if not _is_ours(path):
            raise UsageFault(f"{path} exists and does not contain metrics of Retriage", fix="Name another file.")
        with suppress(FileNotFoundError):
            temporary.unlink()
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        raise UsageFault(f"Cannot write {path}: {error.strerror}", fix="Name another file.") from None
