"""The processes that are killed or suspended: a console that carries out or resumes, and workers.

    python -m tests.faults.processes carry FOLDER [--point NAME[:PASSES]] [--chunk MICROSECONDS] [--naive]
    python -m tests.faults.processes work FOLDER SEED

A folder holds a system with its oracle, `state/trail.db`, and `plan`, the id of the plan to bring to its end.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from console.core import executor
from console.core.confirm import Limits
from console.core.faults import Fault
from console.core.operations import Operations
from console.core.override import Override, OverrideState
from console.core.plan import Plan
from console.core.ports import Stop
from console.process import SystemClock
from console.signals import Signals
from console.trail.leases import owner_token
from console.trail.store import TrailStore, open_trail
from tests import faultpoint
from tests.faults import systems
from tests.faults.world import ORIGIN, WHO, confirm, matching

ROOT = Path(__file__).parent.parent.parent
assert faultpoint  # importing it lets a test say where a child process ends


def trail_of(folder: Path, *, read_only: bool = False) -> TrailStore:
    return open_trail(f"sqlite:///{folder}/state/trail.db", read_only=read_only, anchor=None, clock=SystemClock())


def console_of(
    folder: Path, *, chunk: int = 50_000, reach: Callable[[str], None] = lambda _: None, deadline: float = 30
) -> Operations:
    limits = Limits(max_items=1_000_000, chunk_target=timedelta(microseconds=chunk))
    backend = systems.of(folder).open(timedelta(seconds=deadline))
    return Operations(
        {backend.name: backend}, trail_of(folder), SystemClock(), limits=limits, owner=owner_token(), reach=reach
    )


def close(console: Operations) -> None:
    console.trail.close()  # type: ignore[attr-defined]
    for backend in console.backends.values():
        backend.close()


def propose(console: Operations, folder: Path, limit: int | None = None) -> Plan:
    """Plan all items of the system that can be changed; the id of the plan goes into a file of the folder."""
    system = systems.of(folder)
    plan = console.propose(matching(system.wanted, limit=limit), system.operation)
    (folder / "plan").write_text(plan.id)
    return plan


def bring_to_its_end(folder: Path, console: Operations, stop: Stop | None = None) -> Override:
    """Apply the folder's plan, or resume its override: what a person does after a crash."""
    plan = console.trail.plan((folder / "plan").read_text())
    begun = [override for override in console.trail.overrides() if override.plan_id == plan.id]
    if not begun:
        return console.carry_out(plan, confirm(plan), stop)
    if begun[0].state.over:
        return begun[0]
    return console.resume(begun[0].override_id, WHO, ORIGIN, stop)


def undo(folder: Path) -> None:
    """Undo the folder's override, for every item that is still as it left it."""
    console = console_of(folder)
    (override,) = console.trail.overrides()
    plan = console.undo(override.override_id)
    if plan.changes:
        console.carry_out(plan, confirm(plan))
    close(console)


def naive(folder: Path) -> None:
    """A naive script: it requeues what has failed now, and notes that afterwards."""
    system = systems.of(folder)
    while system.naive():
        pass


def killer(point: str) -> Callable[[str], None]:
    """Kill this process when it reaches a fault point for the n-th time."""
    name, _, count = point.partition(":")
    left = int(count or 1)

    def reach(reached: str) -> None:
        nonlocal left
        if reached == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reach


def carry(folder: Path, point: str, chunk: int, is_naive: bool) -> int:
    if is_naive:
        naive(folder)
        return 0
    signals = Signals()
    executor.FIRST_CHUNK = executor.SMALLEST_CHUNK  # so that few items make many chunks
    with signals.listen():
        console = console_of(folder, chunk=chunk, reach=killer(point))
        (folder / "started").touch()
        try:
            override = bring_to_its_end(folder, console, signals)
        except Fault as fault:
            sys.stderr.write(f"{fault}\n")
            return 10 + fault.exit_code
    return 0 if override.state is OverrideState.FINISHED else 1


def work(folder: Path, seed: int) -> None:
    """The system's own worker. An item takes up to three milliseconds, and three of ten fail again."""
    chance = random.Random(seed)
    signals = Signals()

    def handle(_what: object, _payload: Mapping[str, Any]) -> None:
        time.sleep(chance.random() * 0.003)
        if chance.random() < 0.3:
            raise RuntimeError("upstream timed out")

    class Brisk(SystemClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(min(seconds, 0.02))

    with signals.listen():
        systems.of(folder).work(handle, Brisk(), signals)


def command(*arguments: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """The command line itself."""
    return start(*arguments, env=env, module="console", stdout=subprocess.DEVNULL, **options)


def start(
    *arguments: str, env: Mapping[str, str] | None = None, module: str = "tests.faults.processes", **options: Any
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, text=True, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}, **options,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["carry", "work"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--point", default="")
    parser.add_argument("--chunk", type=int, default=2_000)
    parser.add_argument("--naive", action="store_true")
    given = parser.parse_args()
    if given.what == "work":
        work(given.folder, given.seed)
        return 0
    return carry(given.folder, given.point, given.chunk, given.naive)


if __name__ == "__main__":
    sys.exit(main())
