"""`python -m tests.faults [--full] [--only WORD…]`: promise → trials → what went wrong → pass."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults import closed, frozen, kill, mutate, rivals, signals, tamper
from tests.faults.systems import KINDS, ON_POSTGRES

Line = tuple[str, int, str, bool]
KILLS = {
    "sqlite_queue": 150, "sqlite_queue-tasks": 50, "file_queue": 50, "partition_store": 50, "postgres_analyses": 100, "workflow_steps": 100,
}
"""500 in all, each while 10 000 items are handed back to live workers."""


def _counts(tally: kill.Tally) -> str:
    return (
        f"lost {tally.lost}, twice {tally.twice}, unrecorded {tally.unrecorded}, wrong {tally.wrong}, unfinished {tally.unfinished},"
        f" broken {tally.broken}; {tally.items} items in {tally.rounds} overrides, {tally.indeterminate} indeterminate"
    )


def killed(full: bool, seed: int) -> Iterator[Line]:
    for kind in KINDS:
        items, kills = (10_000, KILLS[kind]) if full else (300, 4)
        tally = kill.campaign(kind, items, kills, seed)
        yield f"killed at any moment: {kind}", tally.kills, _counts(tally), tally.ok and tally.kills >= kills
    for kind in KINDS if full else ["sqlite_queue"]:
        tally = kill.campaign(kind, 1_000 if full else 200, 0, seed, points=kill.EVERY_POINT)
        yield f"killed at every named point: {kind}", tally.kills, _counts(tally), tally.ok and len(tally.killed_at) == 8
    for kind in KINDS:
        tally = kill.campaign(kind, 300, 6, seed, naive=True)
        yield f"  the naive writer is caught: {kind}", tally.kills, _counts(tally), bool(tally.twice and tally.unrecorded)


def cut(full: bool, seed: int) -> Iterator[Line]:
    for kind in ON_POSTGRES:
        tally = kill.campaign(kind, 2_000 if full else 300, 100 if full else 4, seed, cut=True)
        ok = tally.ok and not tally.indeterminate and tally.kills >= (100 if full else 4)
        yield f"connections cut in mid-chunk: {kind}", tally.kills, _counts(tally), ok


def mutated(full: bool, seed: int) -> Iterator[Line]:
    for kind in KINDS:
        total, count = mutate.Mutated(), 20 if full else 2
        for n in range(count):
            with tempfile.TemporaryDirectory(prefix="retriage-mutate-") as folder:
                mutate.trial(kind, Path(folder), 500 if full else 100, 0.01 + 0.99 * n / (count - 1), seed + n, total)
        counts = f"outside {total.outside}, unreported {total.unreported}; {total.changed} changed"
        yield f"exactly the confirmed plan (1–100 % mutated): {kind}", total.trials, counts, total.ok
    total = mutate.Mutated()
    with tempfile.TemporaryDirectory(prefix="retriage-mutate-") as folder:
        mutate.trial("sqlite_queue", Path(folder), 200, 0.5, seed, total, naive=True)
    yield "  the naive writer is caught", total.trials, f"outside {total.outside}, unreported {total.unreported}", bool(total.outside)


def untrailed(full: bool, _seed: int) -> Iterator[Line]:
    for way in closed.WAYS:
        for kind in KINDS if way == "deleted" else ["sqlite_queue"]:
            total = closed.trials(kind, way, (100 if kind == "sqlite_queue" else 10) if full else 2)
            counts = f"changed {total.changed}, late {total.late}, slowest {total.slowest:.2f} s"
            yield f"no change without a durable intent: trail {way}: {kind}", total.trials, counts, total.ok
    for way, name in (("size", "out of room"), ("nobody", "not ours to write"), ("hidden", "not ours to see")):
        answers = []
        for _ in range(100 if full else 1):
            with tempfile.TemporaryDirectory(prefix="retriage-limited-") as folder:
                Path(folder).chmod(0o755)
                answers.append(closed.limited(Path(folder), way))
        ok = set(answers) == {("TrailUnavailable", 0)}
        yield f"no change without a durable intent: trail {name}", len(answers), f"changed {sum(rows for _, rows in answers)}", ok
    total = closed.trials("sqlite_queue", "deleted", 1, naive=True)
    yield "  the console that goes on without is caught", total.trials, f"changed {total.changed}", bool(total.changed)


def rivalled(full: bool, seed: int) -> Iterator[Line]:
    for kind in KINDS:
        total = rivals.Rivals()
        for n in range(4 if full else 1):
            rivals.trial(kind, 1_000 if full else 200, seed + n, total)
        counts = f"twice {total.twice}, untold {total.untold}, locked {total.locked}; {total.won} of {total.items} won"
        yield f"never fights workers (2 consoles, 4 workers): {kind}", total.trials, counts, total.ok
    total = rivals.Rivals()
    rivals.trial("sqlite_queue", 200, seed, total, naive=True)
    yield "  two naive scripts are caught", total.trials, f"twice {total.twice}", bool(total.twice)


def signalled(full: bool, _seed: int) -> Iterator[Line]:
    for kind in KINDS:
        total = signals.Signalled()
        for n in range(12 if full else 1):
            signals.trial(kind, signals.SIGNALS[n % 3], 2_000, total)
        counts = f"unrecorded {total.unrecorded}, open {total.open}, twice {total.twice}, slowest {total.slowest:.2f} s, {total.midway} midway"
        yield f"ssh lost (SIGHUP, SIGTERM, SIGINT): {kind}", total.trials, counts, total.ok
    total = signals.Signalled()
    while not total.unrecorded and total.trials < 20:
        signals.trial("sqlite_queue", signals.SIGNALS[1], 2_000, total, naive=True)
    yield "  the naive script is caught", total.trials, f"unrecorded {total.unrecorded}", bool(total.unrecorded)


def tampered(full: bool, seed: int) -> Iterator[Line]:
    total = tamper.trials(1_000 if full else 100, seed)
    yield "tampering is found", total.trials, f"missed {total.missed}", total.ok
    yield "  looking at the numbers alone is not enough", total.trials, f"missed {total.missed_by_naive}", bool(total.missed_by_naive)


def froze(full: bool, _seed: int) -> Iterator[Line]:
    total = frozen.Frozen()
    for n in range(20 if full else 2):
        frozen.trial(total, warm=n % 2 == 0)
    counts = f"silent {total.silent}, late {total.late}, slowest {total.slowest:.1f} s, others p95 {total.p95 * 1000:.0f} ms"
    yield "frozen backend (SIGSTOP on PostgreSQL)", total.trials, counts, total.ok


PARTS: dict[str, Callable[[bool, int], Iterator[Line]]] = {
    "tamper": tampered, "mutate": mutated, "closed": untrailed, "rivals": rivalled, "signals": signalled, "frozen": froze, "cut": cut,
    "kill": killed,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the full counts; takes a while")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    ok = True
    for name in given.only:
        began = time.monotonic()
        for promise, trials, found, passed in PARTS[name](given.full, given.seed):
            ok = ok and passed
            took, began = time.monotonic() - began, time.monotonic()
            sys.stdout.write(f"{'pass' if passed else 'FAIL'}  {promise:<68} {trials:>5} trials  {found}  ({took:.0f} s)\n")
            sys.stdout.flush()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
