"""Interleaved measuring: ours and the reference take turns, so that a busy machine is busy for both."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Work = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table. The ratio is the median of the ratios of neighbouring turns."""

    case: str
    ours: float
    reference: float
    ratio: float
    bar: float
    spread: float
    unit: str = "s"
    note: str = ""
    points: tuple[tuple[int, float], ...] = ()
    """Seconds at so many rows, where the ratio is how they grow: an exponent."""

    @property
    def passed(self) -> bool:
        return self.within(1.0)

    def within(self, margin: float) -> bool:
        return self.ratio <= self.bar * margin


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent: seconds on the clock, and of the processors for client and server together."""

    clock: float
    processor: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.clock + other.clock, self.processor + other.processor)


def processor_time(pid: int) -> float:
    """The seconds of processor time that a process and its children have used."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = 0
    for each in (pid, *(child for task in tasks for child in task.read_text().split())):
        with suppress(OSError):  # it has ended, and counts as its parent's now
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            found += sum(map(int, fields[11:15]))
    return found / os.sysconf("SC_CLK_TCK")


def peak_memory() -> float:
    """Of this process alone, in MB. `ru_maxrss` would begin with that of the process that started it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def timed(work: Work) -> float:
    gc.collect()
    gc.disable()
    try:
        return _took(work)
    finally:
        gc.enable()


def _took(work: Work, clock: Clock = time.perf_counter) -> float:
    began = clock()
    work()
    return clock() - began


def compare(
    case: str, bar: float, ours: Work, reference: Work, *, turns: int, note: str = "", clock: Clock = time.perf_counter
) -> Result:
    """Both once to warm up, then `turns` times in turn. Work without waiting can be timed by `time.process_time`."""
    ours()
    reference()
    gc.collect()
    gc.disable()
    try:
        pairs = [(_took(ours, clock), _took(reference, clock)) for _ in range(turns)]
    finally:
        gc.enable()
    return from_pairs(case, bar, pairs, note=note)


def from_pairs(
    case: str, bar: float, pairs: Sequence[tuple[float, float]], *, unit: str = "s", note: str = ""
) -> Result:
    ratios = sorted(own / other for own, other in pairs)
    spread = (ratios[-1] - ratios[0]) / 2 if len(ratios) > 1 else 0.0
    return Result(
        case,
        statistics.median(own for own, _ in pairs),
        statistics.median(other for _, other in pairs),
        statistics.median(ratios),
        bar,
        spread,
        unit,
        note,
    )
