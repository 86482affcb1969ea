"""Never fights workers: two consoles on one selection, four workers on the queue, nobody is shown a lock.

    python -m tests.faults.rivals FOLDER PLAN
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from console.core.faults import Fault, OverrideRunning
from tests.faults import processes
from tests.faults.world import KEEP, QueueFile, confirm, final_outcomes, matching


@dataclass
class Rivals:
    """`twice`, `untold` and `locked` must be 0."""

    trials: int = 0
    items: int = 0
    won: int = 0
    twice: int = 0
    untold: int = 0
    """Items handed back that not exactly one of the two overrides says to have changed."""
    locked: int = 0
    """Processes that were shown an error."""

    @property
    def ok(self) -> bool:
        return self.won == self.items and not (self.twice or self.untold or self.locked)


def apply(folder: Path, plan_id: str) -> None:
    """Apply a plan; while the other console is at it, wait one's turn as a person would."""
    console = processes.console_of(folder, chunk=2_000, deadline=10)
    plan = console.book.plan(plan_id)
    for _ in range(2_000):
        try:
            override = console.carry_out(plan.id, confirm(plan))
        except OverrideRunning:
            time.sleep(0.01)
        else:
            assert override.state.over, override.note
            return
    raise AssertionError("never had a turn")


def trial(items: int, seed: int, total: Rivals) -> None:
    folder = Path(tempfile.mkdtemp(prefix="retriage-rivals-"))
    try:
        (folder / "state").mkdir()
        queue = QueueFile.create(folder / "queue.db")
        ids = queue.fill(items, updated=datetime.now(UTC) - timedelta(hours=1))
        queue.forget()
        console = processes.console_of(folder)
        plans = [console.propose(matching("condition:terminal"), KEEP) for _ in range(2)]
        workers = [processes.start("work", str(folder), str(seed * 10 + n)) for n in range(4)]
        consoles = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.faults.rivals", str(folder), plan.id], cwd=processes.ROOT, text=True, stderr=subprocess.PIPE
            )
            for plan in plans
        ]
        said = [process.communicate(timeout=100)[1] for process in consoles]
        for worker in workers:
            worker.terminate()
        said += [worker.communicate(timeout=60)[1] for worker in workers]
        handed_back = queue.handed_back()
        told = [final_outcomes(console.book, override.op_id) for override in console.book.overrides()]
        total.trials += 1
        total.items += len(ids)
        total.won += len(handed_back)
        total.twice += sum(times > 1 for times in handed_back.values())
        total.untold += sum(sum(one[f"queue/{id}"] == ["changed"] for one in told) != 1 for id in ids)
        total.locked += sum(bool(text) for text in said)
        if any(said):
            sys.stderr.write("".join(said))
        console.book.close()  # type: ignore[attr-defined]
        console.backends["queue"].close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        apply(Path(sys.argv[1]), sys.argv[2])
    except Fault as fault:
        sys.exit(str(fault))
