"""Kill at any moment: a console is killed again and again while it requeues items while workers run.

    python -m tests.faults.kill --system file_queue --items 10000 --kills 200 --seed 1 [--naive] [--points]

Each round is one override. Its process is killed at a random moment, or at a named fault point, and a fresh process
goes on, until the plan is at its end. Then the oracle in the system's own store is compared with the trail.
With --cut the server ends the console's connections instead, and the same process goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from console.core.backend import Action
from tests.faults import processes, systems
from tests.faults.systems import Raw, System
from tests.faults.world import final_outcomes, left_locked
from tests.patience import PATIENCE

POINTS = {
    "core": ("before_write", "after_write"),
    "trail": ("before_intent", "after_intent", "before_outcome", "after_outcome", "before_state", "after_state"),
}
EVERY_POINT = (*POINTS["core"], *POINTS["trail"])
UNKNOWN = ("after_write", "before_outcome")
"""The fault points after which a write is not on record."""
CUTS_PER_ROUND = 20
CHUNKS = (1_000, 5_000, 50_000)
"""The target of a chunk in microseconds: many small chunks, or few large ones."""


@dataclass
class Tally:
    """The findings of a campaign. `lost`, `twice`, `unrecorded` and `wrong` must be 0."""

    system: str
    seed: int
    kills: int = 0
    rounds: int = 0
    items: int = 0
    lost: int = 0
    """Items that are gone or broken, or that were planned and not requeued without a reason."""
    twice: int = 0
    unrecorded: int = 0
    """Requeued in the store, but neither `applied` nor `unknown` in the trail."""
    wrong: int = 0
    """Recorded as changed or unknown although the store shows no change; or recorded twice."""
    unknown: int = 0
    locked: int = 0
    """Left out and recorded so, because somebody else had locked them."""
    unfinished: int = 0
    broken: int = 0
    """Trails that do not verify, or raw data that has changed."""
    undone: int = 0
    not_restored: int = 0
    """Items that an undo did not restore exactly."""
    killed_at: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    struck: int = 0
    """Overrides that were killed at least once."""
    whole: dict[int, float] = field(default_factory=dict)
    """Seconds an override takes when nobody is killed, by the size of its chunks."""

    @property
    def caught(self) -> bool:
        """Whether the naive variant was caught."""
        return bool(self.twice and self.unrecorded)

    @property
    def ok(self) -> bool:
        wrong = self.lost or self.twice or self.unrecorded or self.wrong
        return not (wrong or self.unfinished or self.broken or self.not_restored)


def _child(folder: Path, chunk: int, *, naive: bool = False) -> int:
    """A new console, forked so that it starts at once."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = processes.carry(folder, "", chunk, naive)
        finally:
            os._exit(code)
    return pid


def _workers(folder: Path, count: int, seed: int) -> list[int]:
    pids = []
    for n in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                processes.work(folder, seed + n)
            finally:
                os._exit(0)
        pids.append(pid)
    return pids


def _end(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for pid in pids:
        os.waitpid(pid, 0)


def _wait(pid: int, seconds: float) -> int | None:
    """The exit status; None after the time limit."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.001)
    return None


def apart(act: Callable[[], object]) -> None:
    """Run this in a process of its own, because a forked process must not use the connections of its parent."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def plan(folder: Path) -> None:
    apart(lambda: processes.propose(processes.console_of(folder), folder))


def check(system: System, ids: list[str], tally: Tally, *, naive: bool, reason: str | None = None) -> None:
    """Compare the oracle with the trail; with a `reason`, only with the override that has this reason."""
    folder = system.folder
    requeued, taken = system.requeued(), system.taken_first()
    tally.items += len(ids)
    tally.rounds += 1
    tally.lost += len(set(ids) - system.present())
    left = set(ids) - requeued.keys() - taken
    tally.twice += sum(times > 1 for times in requeued.values())
    if naive:
        recorded = {id: ["applied"] * times for id, times in system.notes().items()}
        said_locked: set[str] = set()
    else:
        trail = processes.trail_of(folder)
        (override,) = (each for each in trail.overrides() if reason in (None, each.reason))
        recorded = {key.partition("/")[2]: what for key, what in final_outcomes(trail, override.override_id).items()}
        said_locked = {id.partition("/")[2] for id in left_locked(trail, override.override_id)}
        tally.unfinished += override.state.value != "finished"
        tally.broken += not trail.verify().ok
        trail.close()
    locked = left & said_locked if system.others_lock_rows else set()
    tally.locked += len(locked)
    tally.lost += len(left - locked)
    said = {id for id, what in recorded.items() if what[0] in ("applied", "unknown")}
    tally.unknown += sum(what[0] == "unknown" for what in recorded.values())
    tally.unrecorded += len(requeued.keys() - said)
    applied = {id for id, what in recorded.items() if what[0] == "applied"}
    tally.wrong += len(applied - requeued.keys()) + len(said - requeued.keys() - taken)
    tally.wrong += sum(len(what) != 1 for what in recorded.values())


def check_undo(system: System, before: dict[str, object], tally: Tally) -> None:
    """Undo the override. Each item that it has certainly changed must be as before."""
    trail = processes.trail_of(system.folder)
    (override,) = trail.overrides()
    recorded = final_outcomes(trail, override.override_id)
    trail.close()
    applied = {key.partition("/")[2] for key, what in recorded.items() if what == ["applied"]}
    apart(lambda: processes.undo(system.folder))
    now = system.snapshot() or {}
    tally.undone += len(applied)
    tally.not_restored += sum(before[id] != now.get(id) for id in applied)


@contextmanager
def world(kind: str, items: int) -> Iterator[tuple[System, list[str]]]:
    """A system in a folder of its own, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="retriage-kill-"))
    try:
        system, ids = systems.create(kind, folder, items)
        try:
            yield system, ids
        finally:
            system.drop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def at_work(folder: Path, count: int, seed: int) -> Iterator[None]:
    pids = _workers(folder, count, seed)
    try:
        yield
    finally:
        _end(pids)


def random_round(items: int, kills: int, tally: Tally, chance: random.Random, *, naive: bool) -> None:
    """One override, killed at most `kills` times at random moments."""
    struck, chunk = tally.kills, chance.choice(CHUNKS)
    longest = tally.whole.get(chunk, 0.3)
    with world(tally.system, items) as (system, ids):
        if not naive:
            plan(system.folder)
        raw = system.raw_hash() if isinstance(system, Raw) else ""
        before = system.snapshot()
        with at_work(system.folder, 2, chance.randrange(2**31)):
            for _ in range(kills):
                child = _child(system.folder, chunk, naive=naive)
                if _wait(child, chance.uniform(0, longest)) is not None:
                    tally.whole[chunk] = longest * 0.8  # it was faster than expected: kill earlier next time
                    break
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                tally.kills += 1
            _finish(system, chunk, naive=naive)
        check(system, ids, tally, naive=naive)
        if before is not None:
            check_undo(system, before, tally)
        tally.struck += tally.kills > struck
        tally.broken += isinstance(system, Raw) and system.raw_hash() != raw


def _finish(system: System, chunk: int, *, naive: bool) -> None:
    """Fresh processes until one says that the plan is at its end. A naive one cannot know: it is run as long as
    something has failed, as whoever trusts it would, for as long as we look."""
    for _ in range(20 if naive else 5):
        last = _child(system.folder, chunk, naive=naive)
        status = _wait(last, 3 if naive else 300)
        if status is None:
            os.kill(last, signal.SIGKILL)
            os.waitpid(last, 0)
        elif status == 0 and not naive:
            return
        if naive:
            time.sleep(0.1)
            if system.requeued().most_common(1)[0][1] > 1:
                return


def undisturbed(kind: str, items: int, chunk: int) -> float:
    with world(kind, items) as (system, _):
        plan(system.folder)
        with at_work(system.folder, 2, 1):
            began = time.monotonic()
            os.waitpid(_child(system.folder, chunk), 0)
            return time.monotonic() - began


def _until_taken(system: System) -> None:
    """Wait until a worker has taken something, so that the after-image alone cannot tell what happened."""
    end = time.monotonic() + 10
    while time.monotonic() < end and not system.taken():
        time.sleep(0.01)


def point_round(items: int, point: str, tally: Tally, *, passes: int = 2) -> None:
    """One override, killed at a named point and then completed."""
    with world(tally.system, items) as (system, ids):
        plan(system.folder)
        with at_work(system.folder, 2, 1):
            is_core = point in POINTS["core"]
            named = f"{point}:{passes}"
            first = processes.start(
                "carry", str(system.folder), "--point", named if is_core else "", "--chunk", "500",
                env={} if is_core else {"RETRIAGE_FAULT_POINT": named},
            )
            first.communicate(timeout=PATIENCE)
            if first.returncode == -signal.SIGKILL:
                tally.kills += 1
                tally.killed_at[point] = tally.killed_at.get(point, 0) + 1
            if point in UNKNOWN and system.operation.action == Action.REQUEUE:
                _until_taken(system)
            _finish(system, CHUNKS[0], naive=False)
        check(system, ids, tally, naive=False)


def cut_round(items: int, cuts: int, tally: Tally, chance: random.Random) -> None:
    """One override whose connections the server ends repeatedly. No workers run."""
    with world(tally.system, items) as (system, ids):
        assert isinstance(system, Cuttable)
        plan(system.folder)
        for _ in range(50):
            child = _child(system.folder, chance.choice(CHUNKS))
            status = None
            while status is None:
                status = _wait(child, chance.uniform(0, max(0.05, tally.whole[CHUNKS[0]] * 2 / cuts)))
                while status is None and tally.kills < tally.asked:
                    if ended := system.cut():
                        tally.kills += ended
                        break
                    status = _wait(child, 0.02)  # it has no connection yet, or none any more
            if status == 0:
                break
        check(system, ids, tally, naive=False)


@runtime_checkable
class Cuttable(Protocol):
    """A system whose server can end the console's connections."""

    def cut(self) -> int: ...


def campaign(
    kind: str, items: int, kills: int, seed: int, *, overrides: int = 0, naive: bool = False, points: Sequence[str] = (), cut: bool = False,
    log: bool = False,
) -> Tally:
    """At least so many kills, and so many overrides that were killed; or give up when they don't come. A naive writer is
    killed on until it is caught: a few moments may all be ones in which it had nothing under way."""
    tally, chance = Tally(kind, seed, asked=kills), random.Random(seed)
    if kills and not naive:
        tally.whole = {chunk: undisturbed(kind, items, chunk) for chunk in (CHUNKS[:1] if cut else CHUNKS)}
    while tally.rounds < 4 + (20 if naive or cut else 2) * kills:
        if tally.kills >= kills and tally.struck >= overrides and (tally.caught or not naive):
            break
        if cut:
            cut_round(items, min(CUTS_PER_ROUND, kills), tally, chance)
        else:
            random_round(items, 6 if naive else 2, tally, chance, naive=naive)
        if log:
            sys.stderr.write(f"{tally}\n")
    for point in points:
        # Only the end of an override changes its state; and of the first chunk workers take at once.
        early = point.endswith("_state") or point in UNKNOWN
        point_round(items, point, tally, passes=1 if early else 3)
        if log:
            sys.stderr.write(f"{point}: {tally}\n")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", choices=[*systems.KINDS, *systems.DISCARDS], default="sqlite_queue")
    parser.add_argument("--cut", action="store_true", help="end connections instead of processes")
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--naive", action="store_true")
    parser.add_argument("--points", action="store_true", help="at every named point too")
    parser.add_argument("--point", help="at this one")
    parser.add_argument("--log", action="store_true")
    given = parser.parse_args()
    points = EVERY_POINT if given.points else (given.point,) if given.point else ()
    tally = campaign(
        given.system, given.items, given.kills, given.seed, naive=given.naive, points=points, cut=given.cut, log=given.log
    )
    sys.stdout.write(json.dumps({**asdict(tally), "ok": tally.ok}) + "\n")
    return 0 if tally.ok else 1


if __name__ == "__main__":
    sys.exit(main())
