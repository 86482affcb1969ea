"""`python -m tests.faults [--full] [--jobs N] [--only PART…]`: a table of promises with their trials, what went wrong, and whether each holds."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults import audit, closed, frozen, hangup, kill, mutate, rivals, signals, soak, suite, suspended, tamper
from tests.faults.systems import DISCARDS, KINDS, ON_SERVERS
from tests.faults.table import Line, Unit, run_apart, show, timed

OVERRIDES = {
    "sqlite_queue": 300, "sqlite_queue-tasks": 111, "file_queue": 20, "partition_store": 10, "postgres_analyses": 25, "workflow_steps": 15,
    "sql_table": 15, "sql_table-statements": 4, "sql_table-mysql": 10, "rq": 10, "sidekiq": 10, "bullmq": 10,
}
OVERRIDES = {kind: count for kind, count in OVERRIDES.items() if kind in KINDS}
"""Overrides per system: 530 in all. Each requeues 10 000 items to live workers and is killed at least once."""
DISCARDED = {
    "sqlite_queue discard": 30, "sqlite_queue-tasks discard": 20, "file_queue discard": 6, "partition_store discard": 6,
    "postgres_analyses discard": 10, "workflow_steps discard": 6, "sql_table discard": 10, "sql_table-statements discard": 6,
    "sql_table-delete discard": 6, "rq discard": 6, "sidekiq discard": 6, "bullmq discard": 6,
}
DISCARDED = {kind: count for kind, count in DISCARDED.items() if kind in DISCARDS}
"""Discards per system: 100 in all, each of 10 000 items."""
LIMITED = {"out of room": "size", "not ours to write": "nobody", "not ours to see": "hidden"}


class Order(NamedTuple):
    full: bool
    seed: int

    def count(self, full: int, short: int) -> int:
        return full if self.full else short


def killed(order: Order, kind: str) -> Iterator[Line]:
    overrides = order.count(OVERRIDES[kind], 2)
    tally = kill.campaign(kind, order.count(10_000, 300), overrides, order.seed, overrides=overrides)
    yield Line.of(f"killed at any moment: {kind}", tally, tally.ok and tally.struck >= overrides)
    if order.full and kind in ("postgres_analyses", "workflow_steps"):
        tally = kill.campaign(kind, 1_000, 100, order.seed)
        yield Line.of(f"killed a hundred times: {kind}", tally, tally.ok and tally.kills >= 100)
    tally = kill.campaign(kind, order.count(1_000, 300), 0, order.seed, points=kill.EVERY_POINT)
    yield Line.of(f"killed at every named point: {kind}", tally, tally.ok and len(tally.killed_at) == len(kill.EVERY_POINT))
    tally = kill.campaign(kind, 300, 6, order.seed, naive=True)
    yield Line.of(f"  the naive writer is caught: {kind}", tally, tally.caught)


def discarded(order: Order, kind: str) -> Iterator[Line]:
    """Discards under the same faults. Where they can be undone, they are, and every row must be as before."""
    overrides = order.count(DISCARDED[kind], 2)
    tally = kill.campaign(kind, order.count(10_000, 300), overrides, order.seed, overrides=overrides)
    yield Line.of(f"killed at any moment: {kind}", tally, tally.ok and tally.struck >= overrides)
    yield Line(f"  and undone exactly: {kind}", tally.undone, f"not restored {tally.not_restored}", not tally.not_restored)
    tally = kill.campaign(kind, order.count(1_000, 300), 0, order.seed, points=kill.EVERY_POINT)
    yield Line.of(f"killed at every named point: {kind}", tally, tally.ok and len(tally.killed_at) == len(kill.EVERY_POINT))
    yield from mutated(order, kind)
    yield from rivalled(order, kind)


def cut(order: Order, kind: str) -> Iterator[Line]:
    cuts = order.count(100, 4)
    tally = kill.campaign(kind, order.count(2_000, 300), cuts, order.seed, cut=True)
    yield Line.of(f"connections cut in mid-chunk: {kind}", tally, tally.ok and not tally.unknown and tally.kills >= cuts)


def mutated(order: Order, kind: str) -> Iterator[Line]:
    total, count = mutate.Mutated(), order.count(20, 2)
    for n in range(count):
        with tempfile.TemporaryDirectory(prefix="retriage-mutate-") as folder:
            mutate.trial(kind, Path(folder), order.count(500, 100), 0.01 + 0.99 * n / (count - 1), order.seed + n, total)
    counts = f"outside {total.outside}, unreported {total.unreported}; {total.changed} changed"
    yield Line(f"exactly the confirmed plan (1–100 % mutated): {kind}", total.trials, counts, total.ok)
    if kind in ("sqlite_queue", "sqlite_queue discard"):
        total = mutate.Mutated()
        with tempfile.TemporaryDirectory(prefix="retriage-mutate-") as folder:
            mutate.trial(kind, Path(folder), 200, 0.5, order.seed, total, naive=True)
        counts = f"outside {total.outside}, unreported {total.unreported}"
        yield Line("  the naive writer is caught", total.trials, counts, bool(total.outside))


def untrailed(order: Order, what: str) -> Iterator[Line]:
    """One way in which the trail becomes unusable, on one queue; or, for a system, that it is deleted."""
    if what in LIMITED:
        yield _limited(order, what)
        return
    kind, way, most = (what, "deleted", 10) if what in KINDS else ("sqlite_queue", what, 100)
    total = closed.trials(kind, way, order.count(most, 2))
    yield Line(f"no change without a durable intent: trail {way}: {kind}", total.trials, str(total), total.ok)
    if what == "deleted":
        total = closed.trials(kind, way, 1, naive=True)
        yield Line("  the console that goes on without is caught", total.trials, f"changed {total.changed}", bool(total.changed))


def _limited(order: Order, what: str) -> Line:
    total = closed.Closed()
    for _ in range(order.count(100, 1)):
        with tempfile.TemporaryDirectory(prefix="retriage-limited-") as folder:
            Path(folder).chmod(0o755)
            closed.limited(Path(folder), LIMITED[what], total)
    return Line(f"no change without a durable intent: trail {what}", total.trials, str(total), total.ok)


def rivalled(order: Order, kind: str) -> Iterator[Line]:
    total = rivals.Rivals()
    for n in range(order.count(4, 1)):
        rivals.trial(kind, order.count(1_000, 200), order.seed + n, total)
    counts = f"twice {total.twice}, unrecorded {total.unrecorded}, locked {total.locked}; {total.won} of {total.items} won"
    yield Line(f"never fights workers (2 consoles, 4 workers): {kind}", total.trials, counts, total.ok)
    if kind == "sqlite_queue":
        total = rivals.Rivals()
        rivals.trial(kind, 200, order.seed, total, naive=True)
        yield Line("  two naive scripts are caught", total.trials, f"twice {total.twice}", bool(total.twice))


def signalled(order: Order, kind: str) -> Iterator[Line]:
    total = signals.Signalled()
    for n in range(order.count(12, 1)):
        signals.trial(kind, signals.SIGNALS[n % 3], 2_000, total)
    yield Line(f"ssh lost (SIGHUP, SIGTERM, SIGINT): {kind}", total.trials, total.counts, total.ok)
    if kind == "sqlite_queue":
        for what, hangs in (("closed in mid-override", False), ("hanging in mid-override, then SIGTERM", True)):
            total = signals.Signalled()
            for _ in range(order.count(6, 1)):
                hangup.trial(total, hangs=hangs)
            yield Line(f"ssh lost (the terminal of a console {what})", total.trials, total.counts, total.ok and total.midway > 0)
        total = signals.Signalled()
        while not total.unrecorded and total.trials < 20:
            signals.trial(kind, signals.SIGNALS[1], 2_000, total, naive=True)
        yield Line("  the naive script is caught", total.trials, f"unrecorded {total.unrecorded}", bool(total.unrecorded))


def slept(order: Order, kind: str) -> Iterator[Line]:
    total, trials = suspended.Suspended(), order.count(12, 1)
    for n in range(trials):
        suspended.trial(kind, order.count(1_000, 300), order.seed + n, total)
    yield Line(f"suspended in mid-override and settled by another: {kind}", total.trials, total.counts, total.ok and total.settled == trials)
    if kind == "sqlite_queue":
        total = suspended.Suspended()
        while not total.twice and total.trials < 10:
            suspended.trial(kind, 300, order.seed, total, naive=True)
        yield Line("  a naive script that wakes is caught", total.trials, f"twice {total.twice}", bool(total.twice))


def tampered(order: Order, _: str) -> Iterator[Line]:
    total = tamper.trials(order.count(1_000, 100), order.seed)
    yield Line("tampering is found", total.trials, f"missed {total.missed}", total.ok)
    missed = total.missed_by_naive
    yield Line("  looking at the numbers alone is not enough", total.trials, f"missed {missed}", bool(missed))


def froze(order: Order, _: str) -> Iterator[Line]:
    total = frozen.Frozen()
    for n in range(order.count(20, 2)):
        frozen.trial(total, warm=n % 2 == 0)
    counts = f"silent {total.silent}, late {total.late}, slowest {total.slowest:.1f} s, others p95 {total.p95 * 1000:.0f} ms"
    yield Line("frozen backend (SIGSTOP on PostgreSQL)", total.trials, counts, total.ok)
    shown = suite.run(suite.FROZEN)
    yield Line("frozen backend: keys, its card, quit in a real terminal", shown.trials, f"failed {shown.failed}{shown.said}", shown.ok)


def audited(_order: Order, _: str) -> Iterator[Line]:
    total = suite.run(suite.AUDIT, "readonly or read_only")
    yield Line("audit mode writes nothing (every action, every raw bypass)", total.trials, f"failed {total.failed}{total.said}", total.ok)
    left = audit.files_left_by_a_naive_reader()
    yield Line("  a reader that only asks for mode=ro is caught", 1, f"files left {left}", bool(left))


def untouched(_order: Order, _: str) -> Iterator[Line]:
    total = suite.run(suite.RAW_DATA)
    yield Line("raw data is immutable (tree hash before and after)", total.trials, f"failed {total.failed}{total.said}", total.ok)
    by_tree, by_contents = audit.raw_data_written_again()
    found = "found by the tree hash" if by_tree else "not found"
    yield Line("  bytes put back as they were are caught", 1, found, by_tree and not by_contents)


def soaked(order: Order, _: str) -> Iterator[Line]:
    """The soak. Memory is judged only at the full count: a short run is all warm-up."""
    total = soak.Soaked()
    soak.trial(order.count(100, soak.FEWEST), order.count(10_000, 1_000), total)
    counts = (
        f"{total.refreshes} refreshes, {total.resizes} resizes, {sum(total.opened.values())} openings of {len(total.opened)} screens,"
        f" each at least {min(total.opened.values())} times; memory {total.growth - 1:+.1%} at {total.memory[-1]:.0f} MB,"
        f" left behind {len(total.left)}; {total.tally.items} items requeued meanwhile, lost {total.tally.lost}, twice {total.tally.twice},"
        f" unrecorded {total.tally.unrecorded}"
    )
    ok = not total.left and total.tally.ok and (total.flat or not order.full)
    yield Line("soak: memory stays flat, nothing is left behind", total.turns, counts, ok)
    total = soak.Soaked()
    soak.trial(soak.FEWEST, 500, total, naive=True)
    yield Line("  a console that keeps its pages is caught", total.turns, f"memory {total.growth - 1:+.1%}", not total.flat)


ONE = ("",)
PARTS: dict[str, tuple[Callable[[Order, str], Iterator[Line]], Sequence[str]]] = {
    "soak": (soaked, ONE),
    "kill": (killed, sorted(KINDS, key=lambda kind: -OVERRIDES[kind])),
    "discard": (discarded, list(DISCARDS)),
    "signals": (signalled, list(KINDS)),
    "suspended": (slept, list(KINDS)),
    "cut": (cut, ON_SERVERS),
    "rivals": (rivalled, list(KINDS)),
    "mutate": (mutated, list(KINDS)),
    "closed": (untrailed, [*LIMITED, *closed.WAYS, *(kind for kind in KINDS if kind != "sqlite_queue")]),
    "frozen": (froze, ONE),
    "audit": (audited, ONE),
    "raw": (untouched, ONE),
    "tamper": (tampered, ONE),
}
"""The parts, the longest first, so that a long one does not run alone at the end."""
WAITING: Sequence[Unit] = (("closed", "hung"), ("closed", "locked"), ("frozen", ""))
"""Parts that only wait for deadlines. They run at the same time as the others."""
MEMORY, ROOM = Path("/dev/shm"), 4 << 30


def _in_memory() -> None:
    """A killed process is no power cut: what it wrote is there for whoever comes next, on a disk or not. So no trial waits
    for a disk, where there is a file system in memory with room, and nobody has said where else."""
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the full counts; takes a while")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--of", nargs="+", metavar="SYSTEM", help="only these systems, or ways")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at a time, each in a process of its own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lines", action="store_true", help="as JSON, a line each")
    given = parser.parse_args()
    units: list[Unit] = [(part, of) for part in given.only for of in PARTS[part][1] if given.of is None or of in given.of]
    _in_memory()
    if given.jobs > 1:
        options = ["--seed", str(given.seed), *(["--full"] if given.full else [])]
        lines = run_apart(units, given.jobs, options, WAITING)
    else:
        order = Order(given.full, given.seed)
        lines = (line for part, of in units for line in timed(PARTS[part][0](order, of)))
    return 0 if show(lines, as_json=given.lines) else 1


if __name__ == "__main__":
    sys.exit(main())
