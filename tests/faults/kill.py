"""Kill at any moment: a console is killed again and again while it hands items back to live workers.

    python -m tests.faults.kill --items 10000 --kills 200 --seed 1 [--naive] [--points]

Each round is one override. Its process is killed at a random moment, or at a named fault point, and a fresh process
goes on, until the plan is at its end. Then the oracle in the queue's own database is compared with the trail.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.faults import processes
from tests.faults.world import KEEP, QueueFile, final_outcomes, matching

POINTS = {
    "core": ("before_write", "after_write"),
    "trail": ("before_intent", "after_intent", "before_outcome", "after_outcome", "before_state", "after_state"),
}
EVERY_POINT = (*POINTS["core"], *POINTS["trail"])
UNKNOWN = ("after_write", "before_outcome")
"""Where a kill leaves written what is not recorded."""
KILLS_PER_ROUND = 8


@dataclass
class Tally:
    """What a campaign found. All of `lost`, `twice`, `unrecorded` and `wrong` must be 0."""

    seed: int
    kills: int = 0
    rounds: int = 0
    items: int = 0
    lost: int = 0
    """Rows that are gone, or planned items that were not handed back though nothing stood in their way."""
    twice: int = 0
    unrecorded: int = 0
    """Changed in the database, but neither `changed` nor `indeterminate` in the trail."""
    wrong: int = 0
    """Said to be changed, or not known, where the database shows no change; or told of twice."""
    indeterminate: int = 0
    unfinished: int = 0
    broken: int = 0
    """Trails that do not verify."""
    killed_at: dict[str, int] = field(default_factory=dict)
    whole: float = 0.3
    """Seconds a round takes when nobody is killed."""

    @property
    def ok(self) -> bool:
        return not (self.lost or self.twice or self.unrecorded or self.wrong or self.unfinished or self.broken)


def _child(folder: Path, seed: int, *, naive: bool) -> int:
    """A fresh console, forked so that it starts at once."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = processes.carry(folder, "", random.Random(seed).choice([1_000, 5_000, 50_000]), naive)
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
    """The exit status, or None when the time is over first."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.001)
    return None


def prepare(folder: Path, items: int) -> list[str]:
    (folder / "state").mkdir()
    queue = QueueFile.create(folder / "queue.db")
    ids = queue.fill(items, updated=datetime.now(UTC) - timedelta(hours=1))
    queue.forget()
    return ids


def plan(folder: Path) -> None:
    """In a process of its own, so that no connection is carried over a fork."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            console = processes.console_of(folder)
            (folder / "plan").write_text(console.propose(matching("condition:terminal"), KEEP).id)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def check(folder: Path, ids: list[str], tally: Tally, *, naive: bool) -> None:
    queue = QueueFile(folder / "queue.db")
    handed_back = queue.handed_back()
    tally.items += len(ids)
    tally.rounds += 1
    tally.lost += len(set(ids) - set(queue.ids())) + len(set(ids) - handed_back.keys())
    tally.twice += sum(times > 1 for times in handed_back.values())
    if naive:
        told = {id: ["changed"] * times for id, times in queue.run("SELECT task_id, count(*) FROM notes GROUP BY 1")}
    else:
        book = processes.trail_of(folder)
        (override,) = book.overrides()
        told = {key.split("/")[1]: what for key, what in final_outcomes(book, override.op_id).items()}
        tally.unfinished += override.state.value != "finished"
        tally.broken += not book.verify().ok
        book.close()
    said = {id for id, what in told.items() if what[0] in ("changed", "indeterminate")}
    tally.indeterminate += sum(what[0] == "indeterminate" for what in told.values())
    tally.unrecorded += len(handed_back.keys() - said)
    tally.wrong += len(said - handed_back.keys()) + sum(len(what) != 1 for what in told.values())


def random_round(folder: Path, items: int, kills: int, tally: Tally, chance: random.Random, *, naive: bool, workers: int = 2) -> None:
    """One override, killed up to so many times at random moments."""
    ids = prepare(folder, items)
    if not naive:
        plan(folder)
    pids = _workers(folder, workers, chance.randrange(2**31))
    try:
        for _ in range(kills):
            began = time.monotonic()
            child = _child(folder, chance.randrange(2**31), naive=naive)
            status = _wait(child, chance.uniform(0, tally.whole))
            if status is not None:  # it was faster than thought: next time kill earlier
                tally.whole = min(tally.whole, time.monotonic() - began)
                break
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            tally.kills += 1
        _finish(folder, chance, naive=naive)
    finally:
        _end(pids)
    check(folder, ids, tally, naive=naive)


def _finish(folder: Path, chance: random.Random, *, naive: bool) -> None:
    """Fresh processes until one says that the plan is at its end. A naive one cannot know: it is run as long as
    something is FAILED, as whoever trusts it would, for as long as we look."""
    for _ in range(20 if naive else 5):
        last = _child(folder, chance.randrange(2**31), naive=naive)
        status = _wait(last, 3 if naive else 300)
        if status is None:
            os.kill(last, signal.SIGKILL)
            os.waitpid(last, 0)
        elif status == 0 and not naive:
            return
        if naive:
            time.sleep(0.1)
            if QueueFile(folder / "queue.db").handed_back().most_common(1)[0][1] > 1:
                return


def undisturbed(folder: Path, items: int) -> float:
    prepare(folder, items)
    plan(folder)
    pids = _workers(folder, 2, 1)
    began = time.monotonic()
    os.waitpid(_child(folder, 1, naive=False), 0)
    took = time.monotonic() - began
    _end(pids)
    return took


def _until_taken(folder: Path) -> None:
    """A worker has taken something, so that the after-image alone cannot tell what happened."""
    end = time.monotonic() + 10
    while time.monotonic() < end and not QueueFile(folder / "queue.db").run("SELECT 1 FROM oracle WHERE new_status = 'RUNNING' LIMIT 1"):
        time.sleep(0.01)


def point_round(folder: Path, items: int, point: str, tally: Tally, *, passes: int = 2) -> None:
    """One override, killed at a named point, then brought to its end."""
    ids = prepare(folder, items)
    plan(folder)
    pids = _workers(folder, 2, 1)
    try:
        is_core = point in POINTS["core"]
        named = f"{point}:{passes}"
        first = processes.start(
            "carry", str(folder), "--point", named if is_core else "", "--chunk", "500",
            env={} if is_core else {"RETRIAGE_FAULT_POINT": named},
        )
        first.communicate(timeout=60)
        if first.returncode == -signal.SIGKILL:
            tally.kills += 1
            tally.killed_at[point] = tally.killed_at.get(point, 0) + 1
        if point in UNKNOWN:
            _until_taken(folder)
        _finish(folder, random.Random(1), naive=False)
    finally:
        _end(pids)
    check(folder, ids, tally, naive=False)


def campaign(items: int, kills: int, seed: int, *, naive: bool = False, points: Sequence[str] = (), log: bool = False) -> Tally:
    tally, chance = Tally(seed), random.Random(seed)
    base = Path(tempfile.mkdtemp(prefix="retriage-kill-"))
    try:
        if kills and not naive:
            tally.whole = undisturbed(Path(tempfile.mkdtemp(dir=base)), items)
        while tally.kills < kills and tally.rounds < 4 + kills:
            folder = Path(tempfile.mkdtemp(dir=base))
            random_round(folder, items, min(KILLS_PER_ROUND, kills - tally.kills), tally, chance, naive=naive)
            shutil.rmtree(folder)
            if log:
                sys.stderr.write(f"{tally}\n")
        for point in points:
            folder = Path(tempfile.mkdtemp(dir=base))
            # Only the end of an override changes its state; and of the first chunk workers take at once.
            early = point.endswith("_state") or point in UNKNOWN
            point_round(folder, items, point, tally, passes=1 if early else 3)
            shutil.rmtree(folder)
            if log:
                sys.stderr.write(f"{point}: {tally}\n")
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--naive", action="store_true")
    parser.add_argument("--points", action="store_true", help="at every named point too")
    parser.add_argument("--point", help="at this one")
    parser.add_argument("--log", action="store_true")
    given = parser.parse_args()
    points = EVERY_POINT if given.points else (given.point,) if given.point else ()
    tally = campaign(given.items, given.kills, given.seed, naive=given.naive, points=points, log=given.log)
    sys.stdout.write(json.dumps({**asdict(tally), "ok": tally.ok}) + "\n")
    return 0 if tally.ok else 1


if __name__ == "__main__":
    sys.exit(main())
