"""Records the history while the console is open, when no other process does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from console.core.budget import ReadingBudget
from console.core.faults import Fault
from console.core.ports import Stop
from console.core.session import Session

_MINUTE = 60.0


def record_while_open(
    session: Session, budgets: Mapping[str, ReadingBudget], stop: Stop, report: Callable[[str], None]
) -> None:
    """In a thread: record a sample every minute, the first when a minute begins. A fault is reported once."""
    if session.recorder is None or not session.record_history or not session.entries:
        return
    recorder, said = session.recorder(budgets), ""
    while _minute_began(session, stop):
        try:
            recorder.record()
            said = ""
        except Fault as fault:
            if str(fault) != said:
                said = str(fault)
                report(said)


def _minute_began(session: Session, stop: Stop) -> bool:
    """Wait for the next minute; False if the console is closed meanwhile."""
    clock = session.clock
    until = clock.now().timestamp() // _MINUTE * _MINUTE + _MINUTE
    while not stop.requested and (rest := until - clock.now().timestamp()) > 0:
        clock.sleep(min(rest, 1.0))
    return not stop.requested
