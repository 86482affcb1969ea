"""The lines of the table: a promise, its trials, what went wrong, and whether it holds."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple

from tests.faults.kill import Tally
from tests.faults.processes import ROOT


class Line(NamedTuple):
    """One promise on one system; a naive variant that is caught begins with two blanks."""

    promise: str
    trials: int
    found: str
    ok: bool
    items: int = 0
    """How many were requeued under kills, with how many of them `lost`, requeued `twice`, `unrecorded`."""
    lost: int = 0
    twice: int = 0
    unrecorded: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, promise: str, tally: Tally, ok: bool) -> Line:
        found = (
            f"lost {tally.lost}, twice {tally.twice}, unrecorded {tally.unrecorded}, wrong {tally.wrong}, unfinished {tally.unfinished},"
            f" broken {tally.broken}; {tally.items} items in {tally.rounds} overrides, {tally.unknown} unknown"
            + (f", {tally.locked} left out as locked" if tally.locked else "")
        )
        return cls(promise, tally.kills, found, ok, tally.items, tally.lost, tally.twice, tally.unrecorded)

    def text(self) -> str:
        return f"{'pass' if self.ok else 'FAIL'}  {self.promise:<68} {self.trials:>6} trials  {self.found}  ({self.seconds:.0f} s)\n"


@dataclass
class Summary:
    lines: list[Line] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.lines) and all(line.ok for line in self.lines)

    def text(self, seconds: float) -> str:
        promises = [line for line in self.lines if not line.promise.startswith("  ")]
        killed = [line for line in promises if line.items]
        broken = sum(not line.ok for line in self.lines)
        held = f"{broken} of {len(self.lines)} lines FAILED" if broken else f"all {len(promises)} promises held"
        counts = ", ".join(f"{name} {sum(getattr(line, name) for line in killed)}" for name in ("lost", "twice", "unrecorded"))
        return (
            f"{held}, {len(self.lines) - len(promises)} naive variants caught; {sum(line.trials for line in killed)} kills and cuts,"
            f" {sum(line.items for line in killed):_} items, {counts}, in {seconds / 60:.0f} min\n"
        ).replace("_", " ")


Unit = tuple[str, str]
"""One system, or one way, of a part."""


def run_apart(units: Sequence[Unit], jobs: int, options: Sequence[str], idle: Sequence[Unit] = ()) -> Iterator[Line]:
    """So many at a time, each in a process of its own; lines as they come. Those that are `idle` run at the same time, one
    after the other."""
    lines = SimpleQueue[Line | None]()
    busy, quiet_units = ([unit for unit in units if (unit in idle) is quiet] for quiet in (False, True))

    def work(waiting: Iterator[Unit]) -> None:
        while (unit := next(waiting, None)) is not None:
            part, of = unit
            command = [sys.executable, "-m", "tests.faults", "--lines", "--only", part, "--of", of, *options]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                said = Summary()
                for text in process.stdout:
                    said.lines.append(Line(*json.loads(text)))
                    lines.put(said.lines[-1])
            if (said.ok and process.returncode) or not said.lines:  # it ended before it had tried everything
                lines.put(Line(f"{part}: {of}", 0, f"ended early, with {process.returncode}", False))
        lines.put(None)

    shared = iter(busy)
    queues = [*(shared for _ in range(jobs)), iter(quiet_units)]
    for queue in queues:
        threading.Thread(target=work, args=(queue,), daemon=True).start()
    for _ in queues:
        while (line := lines.get()) is not None:
            yield line


def timed(lines: Iterator[Line]) -> Iterator[Line]:
    began = time.monotonic()
    for line in lines:
        yield line._replace(seconds=time.monotonic() - began)
        began = time.monotonic()


def show(lines: Iterator[Line], *, as_json: bool) -> bool:
    """Print each line when it is there, and a summary; returns whether everything holds."""
    summary, began = Summary(), time.monotonic()
    for line in lines:
        summary.lines.append(line)
        sys.stdout.write(json.dumps(line) + "\n" if as_json else line.text())
        sys.stdout.flush()
    if not as_json:
        sys.stdout.write("\n" + summary.text(time.monotonic() - began))
    return summary.ok
