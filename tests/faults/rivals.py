"""Two consoles with the same selection, and four workers on the queue: nobody is shown a lock.

    python -m tests.faults.rivals FOLDER PLAN
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from console.core.faults import Fault, OverrideRunning
from tests.faults import processes, systems
from tests.faults.world import confirm, final_outcomes
from tests.patience import PATIENCE


@dataclass
class Rivals:
    """The trials: `twice`, `unrecorded` and `locked` must be 0."""

    trials: int = 0
    items: int = 0
    won: int = 0
    twice: int = 0
    unrecorded: int = 0
    """Requeued items that are not recorded by exactly one of the two overrides."""
    locked: int = 0
    """Processes that were shown an error."""

    @property
    def ok(self) -> bool:
        return self.won == self.items and not (self.twice or self.unrecorded or self.locked)


def apply(folder: Path, plan_id: str) -> None:
    """Apply a plan. While the other console runs, wait, as a person would."""
    console = processes.console_of(folder, chunk=2_000, deadline=10)
    plan = console.trail.plan(plan_id)
    for _ in range(2_000):
        try:
            override = console.carry_out(plan, confirm(plan))
        except OverrideRunning:
            time.sleep(0.01)
        else:
            assert override.state.over, override.note
            return
    raise AssertionError("never had a turn")


def trial(kind: str, items: int, seed: int, total: Rivals, *, naive: bool = False) -> None:
    folder = Path(tempfile.mkdtemp(prefix="retriage-rivals-"))
    try:
        system, ids = systems.create(kind, folder, items)
        try:
            if naive:
                _scripts(system, ids, seed, total)
            else:
                _trial(system, ids, seed, total)
        finally:
            system.drop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _scripts(system: systems.System, ids: list[str], seed: int, total: Rivals) -> None:
    """Two naive scripts at once: they requeue items that failed again twice."""
    workers = [processes.start("work", str(system.folder), str(seed * 10 + n)) for n in range(4)]
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not total.twice:
        for script in [processes.start("carry", str(system.folder), "--naive") for _ in range(2)]:
            script.communicate(timeout=PATIENCE)
        total.twice = sum(times > 1 for times in system.requeued().values())
    for worker in workers:
        worker.terminate()
        worker.communicate(timeout=PATIENCE)
    total.trials += 1
    total.items += len(ids)


def _trial(system: systems.System, ids: list[str], seed: int, total: Rivals) -> None:
    folder = system.folder
    console = processes.console_of(folder)
    plans = [processes.propose(console, folder) for _ in range(2)]
    workers = [processes.start("work", str(folder), str(seed * 10 + n)) for n in range(4)]
    consoles = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.faults.rivals", str(folder), plan.id], cwd=processes.ROOT, text=True, stderr=subprocess.PIPE
        )
        for plan in plans
    ]
    errors = [process.communicate(timeout=PATIENCE)[1] for process in consoles]
    for worker in workers:
        worker.terminate()
    errors += [worker.communicate(timeout=PATIENCE)[1] for worker in workers]
    requeued, taken = system.requeued(), system.taken_first()
    recorded = [final_outcomes(console.trail, override.override_id) for override in console.trail.overrides()]
    total.trials += 1
    total.items += len(ids)
    total.won += len(requeued.keys() | taken)
    total.twice += sum(times > 1 for times in requeued.values())
    said = Counter(key.partition("/")[2] for one in recorded for key, what in one.items() if what == ["applied"])
    total.unrecorded += sum(said[id] != (id in requeued) for id in ids)
    total.locked += sum(bool(text) for text in errors)
    if any(errors):
        sys.stderr.write("".join(errors))
    processes.close(console)


if __name__ == "__main__":
    try:
        apply(Path(sys.argv[1]), sys.argv[2])
    except Fault as fault:
        sys.exit(str(fault))
