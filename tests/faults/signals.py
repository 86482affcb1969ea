"""ssh lost: SIGHUP, SIGTERM or SIGINT in mid-override; the chunk is finished and recorded, the rest can be resumed."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from console.core.override import TERMINAL_GONE, OverrideState
from tests.faults import processes, systems
from tests.faults.world import ORIGIN, WHO, final_outcomes
from tests.patience import PATIENCE, busy

SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
PROMISED, MARGIN = 2.0, 2.0
"""Seconds until it has ended: the promise, and the margin for a busy test machine."""


@dataclass
class Signalled:
    """The trials: `open`, `late`, `unrecorded` and `twice` must be 0."""

    trials: int = 0
    midway: int = 0
    open: int = 0
    """Intents without an outcome, or overrides that are not recorded as stopped."""
    late: int = 0
    slowest: float = 0.0
    unrecorded: int = 0
    unfinished: int = 0
    twice: int = 0

    @property
    def ok(self) -> bool:
        return not (self.open or self.late or self.unrecorded or self.unfinished or self.twice)

    @property
    def counts(self) -> str:
        return (
            f"unrecorded {self.unrecorded}, open {self.open}, twice {self.twice}, unfinished {self.unfinished}, late {self.late},"
            f" slowest {self.slowest:.2f} s, {self.midway} midway"
        )


def trial(kind: str, number: signal.Signals, items: int, total: Signalled, *, naive: bool = False) -> None:
    folder = Path(tempfile.mkdtemp(prefix="retriage-signal-"))
    try:
        system, _ = systems.create(kind, folder, items)
        try:
            if naive:
                _script(system, number, total)
            else:
                _trial(system, number, items, total)
        finally:
            system.drop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _script(system: systems.System, number: signal.Signals, total: Signalled) -> None:
    """A naive script: the signal ends it anywhere, also between a write and the note about it."""
    process = processes.start("carry", str(system.folder), "--naive")
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not system.requeued():
        time.sleep(0.0005)
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    total.trials += 1
    total.unrecorded += len(system.requeued().keys() ^ system.notes().keys())


def _trial(system: systems.System, number: signal.Signals, items: int, total: Signalled) -> None:
    console = processes.console_of(system.folder)
    processes.propose(console, system.folder)
    process = processes.start("carry", str(system.folder), "--chunk", "1")
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and len(system.touched()) < 2:
        time.sleep(0.002)
    process.send_signal(number)
    began = time.monotonic()
    _, said = process.communicate(timeout=PATIENCE)
    took = time.monotonic() - began
    (override,) = console.trail.overrides()
    recorded = final_outcomes(console.trail, override.override_id)
    total.trials += 1
    total.slowest = max(total.slowest, took)
    total.late += took > (PROMISED + MARGIN) * busy()
    total.open += len(console.trail.open_intents(override.override_id))
    total.unrecorded += len({f"{system.name}/{id}" for id in system.requeued()} ^ recorded.keys())
    if process.returncode == 1:
        total.midway += 1
        total.open += override.state is not OverrideState.STOPPED or override.note not in ("Stopped by a signal.", TERMINAL_GONE)
        override = console.resume(override.override_id, WHO, ORIGIN)
    total.unfinished += override.state is not OverrideState.FINISHED or bool(said)
    total.twice += sum(times > 1 for times in system.requeued().values())
    total.unfinished += len(system.requeued()) != items
    processes.close(console)
