"""Verdicts and plans promise exactly what the engine does in a simulated day, and what an independent model does."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import Attempts, Authority, Operation, PageRequest
from console.core.item import Item, ItemKey
from console.core.ports import Never
from console.core.query import Sort
from console.testing import ALL, NOON, FrozenClock
from plugins._contract_queue import POLICY
from plugins.file_queue import FileQueue
from plugins.file_queue.engine import FileTaskQueue
from tests.depth import in_depth
from tests.plugins.file_queue import folders
from tests.plugins.file_queue.model import taken_by
from tests.promises import Record

DAY = timedelta(days=1)
RESET = Operation(attempts=Attempts.RESET, flags=frozenset({"include_claimed"}))
WHO = Authority("ops", "test", None, "o1")
SHAPES = (
    ("PENDING", "task"), ("PENDING", "task"), ("RUNNING", "running"), ("PENDING", "running"), ("FAILED", "done"),
    ("FAILED", "done"), ("SUCCESS", "done"), ("RUNNING", "done"), ("CANCELLED", "done"), ("PAUSED", "task"),
)


def an_eta(chance: random.Random) -> Any:
    at = NOON + timedelta(seconds=chance.randrange(-40_000, 120_000))
    return chance.choice((
        None, at.isoformat(), at.isoformat(), at.isoformat().replace("+00:00", "Z"), at.replace(tzinfo=None).isoformat(),
        at.isoformat().replace("+00:00", "+02:00"), "soon", 17,
    ))


def make(base: Path, items: int, chance: random.Random) -> None:
    for n in range(items):
        status, suffix = chance.choice(SHAPES)
        created = NOON - timedelta(hours=30) + timedelta(seconds=chance.randrange(100_000), microseconds=n)
        folders.write_task(
            base, f"t{n:04}", status, suffix=suffix, attempts=chance.randrange(5), created_at=created.isoformat(),
            schedule={"eta": an_eta(chance)}, updated_at=(NOON - timedelta(seconds=chance.choice((1, 9_000)))).isoformat(),
        )
        if (status, suffix) == ("RUNNING", "done"):
            folders.write_result(base, f"t{n:04}", "SUCCESS", None)


def promised(backend: FileQueue, end: datetime) -> tuple[set[str], list[Item]]:
    items = list(backend.page(PageRequest(ALL, NOON, limit=100_000)).items)
    found = {i.key.id for i in items if i.verdict.will_run_again and (i.verdict.next_retry_at or NOON) <= end}
    return {id for id in found if (backend.base / "queue" / f"{id}.task").exists()}, items


def simulate(base: Path, end: datetime) -> set[str]:
    clock = FrozenClock(NOON)
    queue = FileTaskQueue(base, POLICY, clock, random.Random(2))
    taken: set[str] = set()
    while clock.now() <= end:
        while (task := queue.claim()) is not None:
            taken.add(task.id)
            queue.complete(task)
        clock.tick(timedelta(hours=3))
    return taken


QUICK = [(0, 1_000, False), (0, 150, True)]


@pytest.mark.parametrize(("seed", "items", "blocker"), in_depth([*QUICK, *((n, 1_000, False) for n in range(1, 5))], QUICK))
def test_the_file_queue_takes_what_is_promised(
    tmp_path: Path, seed: int, items: int, blocker: bool, promises: Record
) -> None:
    chance = random.Random(items + blocker + seed)
    base = folders.make(tmp_path / "jobs")
    make(base, items, chance)
    if blocker:
        created = (NOON - timedelta(hours=16)).isoformat()
        folders.write_task(base, "poison", "FAILED", suffix="task", attempts=1, created_at=created, schedule={"eta": None})
    backend = folders.open_queue(base)
    failed = [path.stem for path in (base / "queue").glob("*.done")][::2]
    keys = [ItemKey("files", (id,)) for id in failed]
    drafts = [draft for batch in backend.drafts(keys, Sort(), RESET, NOON, Never()) for draft in batch]
    wanted = [draft.key.removeprefix("files/") for draft in drafts if draft.skipped is None]
    if wanted:
        outcomes = backend.compare_and_set(folders.plan(backend, *wanted, operation=RESET), RESET, WHO)
        assert {outcome.kind for outcome in outcomes} == {"applied"}
    assert bool(wanted) is not blocker, "whatever is behind the blocking file is skipped"
    end = NOON + DAY
    due, shown = promised(backend, end)
    expected = taken_by(base / "queue", end)
    taken = simulate(base, end)
    assert taken == expected, "engine and model"
    promises("file_queue", {item.key.id: item.key.id in due for item in shown}, taken)
    assert set(wanted) <= taken
    assert len(shown) == items + blocker
    assert due
