"""`python -m tests.faults [--full]`: promise → trials → what went wrong → pass."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.faults import closed, kill, mutate, rivals, signals

Line = tuple[str, int, str, bool]


def _killed(full: bool, seed: int) -> Iterator[Line]:
    items, kills = (10_000, 200) if full else (500, 8)
    tally = kill.campaign(items, kills, seed, points=kill.EVERY_POINT)
    counts = f"lost {tally.lost}, twice {tally.twice}, unrecorded {tally.unrecorded}, wrong {tally.wrong}, indeterminate {tally.indeterminate}"
    yield f"killed at any moment ({items} items, live workers)", tally.kills, counts, tally.ok and len(tally.killed_at) == 8
    tally = kill.campaign(items, 8, seed, naive=True)
    counts = f"lost {tally.lost}, twice {tally.twice}, unrecorded {tally.unrecorded}"
    yield "the naive writer is caught", tally.kills, counts, bool(tally.twice and tally.unrecorded)


def _mutated(full: bool, seed: int) -> Iterator[Line]:
    total = mutate.Mutated()
    for n in range(100 if full else 6):
        share = 0.01 + 0.99 * n / (99 if full else 5)
        with tempfile.TemporaryDirectory(prefix="retriage-mutate-") as folder:
            mutate.trial(Path(folder), 1_000 if full else 300, share, seed + n, total)
    yield "exactly the confirmed plan (1–100 % mutated)", total.trials, f"outside {total.outside}, unreported {total.unreported}", total.ok


def _closed(full: bool) -> Iterator[Line]:
    for way in closed.WAYS:
        total = closed.trials(way, 100 if full else 2)
        counts = f"changed {total.changed}, late {total.late}, slowest {total.slowest:.2f} s"
        yield f"no change without a durable intent: trail {way}", total.trials, counts, total.ok
    for way, name in (("size", "out of room (RLIMIT_FSIZE)"), ("nobody", "not ours to write"), ("hidden", "not ours to see")):
        count = 100 if full else 1
        answers = []
        for _ in range(count):
            with tempfile.TemporaryDirectory(prefix="retriage-limited-") as folder:
                Path(folder).chmod(0o755)
                answers.append(closed.limited(Path(folder), way))
        changed = sum(rows for _, rows in answers)
        ok = set(answers) == {("TrailUnavailable", 0)}
        yield f"no change without a durable intent: trail {name}", count, f"changed {changed}", ok


def _rivals(full: bool, seed: int) -> Iterator[Line]:
    total = rivals.Rivals()
    for n in range(20 if full else 1):
        rivals.trial(2_000 if full else 400, seed + n, total)
    yield "never fights workers (2 consoles, 4 workers)", total.trials, f"twice {total.twice}, untold {total.untold}, locked {total.locked}", total.ok


def _signals(full: bool) -> Iterator[Line]:
    total = signals.Signalled()
    for n in range(60 if full else 3):
        signals.trial(signals.SIGNALS[n % 3], 2_000, total)
    counts = f"unrecorded {total.unrecorded}, open {total.open}, slowest {total.slowest:.2f} s, {total.midway} midway"
    yield "ssh lost: SIGHUP, SIGTERM, SIGINT", total.trials, counts, total.ok


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the full counts; takes a while")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-kills", action="store_true", help="leave the longest part out")
    given = parser.parse_args()

    def lines() -> Iterator[Line]:
        yield from _mutated(given.full, given.seed)
        yield from _closed(given.full)
        yield from _rivals(given.full, given.seed)
        yield from _signals(given.full)
        if not given.without_kills:
            yield from _killed(given.full, given.seed)

    ok = True
    for promise, trials, found, passed in lines():
        ok = ok and passed
        sys.stdout.write(f"{'pass' if passed else 'FAIL'}  {promise:<62} {trials:>5} trials  {found}\n")
        sys.stdout.flush()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
