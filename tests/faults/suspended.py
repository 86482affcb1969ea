"""Suspended during an override (a closed lid, a frozen container) until another console takes it over; then woken."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from console.core.faults import Fault, TrailUnavailable
from console.core.operations import Operations
from console.core.override import OverrideState
from tests.faults import processes, systems
from tests.faults.world import ORIGIN, WHO, final_outcomes
from tests.patience import PATIENCE


@dataclass
class Suspended:
    """The trials: `twice`, `unrecorded`, `unfinished` and `broken` must be 0."""

    trials: int = 0
    settled: int = 0
    """Overrides that the other console took over while their process was suspended."""
    late: int = 0
    """Late records: what a process changed after it woke."""
    twice: int = 0
    unrecorded: int = 0
    """Requeued items that are not recorded as changed, or the reverse."""
    unfinished: int = 0
    broken: int = 0

    @property
    def ok(self) -> bool:
        return not (self.twice or self.unrecorded or self.unfinished or self.broken)

    @property
    def counts(self) -> str:
        return (
            f"twice {self.twice}, unrecorded {self.unrecorded}, unfinished {self.unfinished}, broken {self.broken};"
            f" {self.settled} settled meanwhile, {self.late} recorded late"
        )


def trial(kind: str, items: int, seed: int, total: Suspended, *, naive: bool = False) -> None:
    folder = Path(tempfile.mkdtemp(prefix="retriage-suspended-"))
    try:
        system, _ = systems.create(kind, folder, items)
        try:
            total.trials += 1
            if naive:
                _scripts(system, total)
            else:
                _trial(system, items, random.Random(seed), total)
        finally:
            system.drop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _scripts(system: systems.System, total: Suspended) -> None:
    """A naive script that is suspended, and another that does its work meanwhile; the first goes on with its list."""
    first = _midway(system, "--naive")
    _suspend(first)
    worker = processes.start("work", str(system.folder), "1")
    second = processes.start("carry", str(system.folder), "--naive")
    time.sleep(1)
    first.send_signal(signal.SIGCONT)
    for script in (first, second):
        script.communicate(timeout=PATIENCE)
    worker.terminate()
    worker.communicate(timeout=PATIENCE)
    total.twice += sum(times > 1 for times in system.requeued().values())


def _trial(system: systems.System, items: int, chance: random.Random, total: Suspended) -> None:
    console = processes.console_of(system.folder, deadline=0.5)
    plan = processes.propose(console, system.folder)
    process = _midway(system, "--chunk", "1")
    while process.poll() is None:
        time.sleep(chance.random() * 0.02)
        if _suspend(process):
            taken = _taken(console, system.folder)
            process.send_signal(signal.SIGCONT)
            if taken:
                total.settled += 1
                break
    process.communicate(timeout=PATIENCE)
    try:
        override = processes.bring_to_its_end(system.folder, console)
    except Fault:
        total.unfinished += 1
        return
    recorded = final_outcomes(console.trail, override.override_id)
    requeued = system.requeued()
    total.twice += sum(times > 1 for times in requeued.values())
    total.unrecorded += len({f"{system.name}/{id}" for id in requeued} ^ {key for key, said in recorded.items() if "applied" in said})
    total.unfinished += override.state is not OverrideState.FINISHED or len(recorded) != plan.changes or len(requeued) != items
    total.broken += not console.trail.verify().ok  # type: ignore[attr-defined]
    total.late += sum(record.kind == "late" for record in console.trail.records(limit=100_000))  # type: ignore[attr-defined]
    processes.close(console)


def _midway(system: systems.System, *options: str) -> subprocess.Popen[str]:
    process = processes.start("carry", str(system.folder), *options)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and len(system.requeued()) < 2:
        time.sleep(0.002)
    return process


def _suspend(process: subprocess.Popen[str]) -> bool:
    """Suspend the process; False if it had ended."""
    process.send_signal(signal.SIGSTOP)
    while process.poll() is None:
        if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.001)
    return False


def _taken(console: Operations, folder: Path) -> bool:
    """A minute goes by, for the trail; the other console looks for what is unresolved, as at every start."""
    try:
        with closing(sqlite3.connect(folder / "state" / "trail.db", timeout=0.05, isolation_level=None)) as trail:
            trail.execute("UPDATE lease SET heartbeat = '2001-01-01T00:00:00.000000Z'")
        console.settle_unresolved(WHO, ORIGIN)
    except (sqlite3.OperationalError, TrailUnavailable):
        return False  # it holds the lock of the trail while it is suspended
    return console.trail.overrides()[0].state is not OverrideState.RUNNING
