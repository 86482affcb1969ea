"""What all systems show now, without asking them if somebody has just recorded it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from console.core.faults import HistoryUnavailable, Refused
from console.core.history import Snapshot
from console.core.session import Session

_FRESH = timedelta(minutes=3)
"""A sample counts as the present if it is not older than this."""


def present(session: Session, sample: Callable[[], Snapshot] | None = None) -> Snapshot:
    """What was recorded in the last minutes, which costs the systems nothing, or else what they show now.

    `sample` reads it; without one it is read once, whatever it costs.
    """
    with suppress(HistoryUnavailable):  # then the systems themselves are asked
        known = None if session.history is None else session.history.recorded()
        if session.history is not None and known and timedelta(0) <= session.clock.now() - known[1] < _FRESH:
            found = session.history.snapshot(session.clock.now())
            if all(name in found.systems or name in found.faults for name in session.names):
                return _of(session.names, found)
    sample = sample or session.sample
    if sample is None:
        raise Refused("There are no systems to read")
    return sample()


def _of(names: Sequence[str], then: Snapshot) -> Snapshot:
    """Without the systems that are no longer in the config."""
    faults = {name: why for name, why in then.faults.items() if name in names}
    return replace(then, missing=tuple(name for name in then.missing if name in names), faults=faults)
