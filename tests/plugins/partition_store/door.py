"""The real door over a store: plans, confirmations and a trail in a file, as the command line lays them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from console.core.backend import Order
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import Override
from console.core.plan import Marked
from console.core.release import parse_release
from console.process import SystemClock
from console.trail.owner import owner_token
from console.trail.store import open_book
from plugins.partition_store import PartitionStore
from tests.faults.world import WHENCE, WHO, confirm

__all__ = ["WHENCE", "WHO", "carry_out", "door", "last_outcomes"]


@contextmanager
def door(backend: PartitionStore, folder: Path, reach: Callable[[str], None] = lambda _: None) -> Iterator[Operations]:
    (folder / "trail").mkdir(mode=0o700, exist_ok=True)
    book = open_book(f"sqlite:///{folder}/trail/trail.db", read_only=False, anchor=None, clock=SystemClock())
    try:
        yield Operations({backend.name: backend}, book, SystemClock(), owner=owner_token(), reach=reach)
    finally:
        book.close()


def carry_out(operations: Operations, order: Order, *keys: ItemKey, release: str = "now") -> Override:
    plan = operations.propose(Marked(keys), order, parse_release(release))
    assert plan.changes == len(keys), plan.blocked
    return operations.carry_out(plan.id, confirm(plan))


def last_outcomes(operations: Operations, op_id: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for batch in operations.book.outcomes(op_id):
        for outcome in batch:
            found.setdefault(outcome.key, []).append(outcome.outcome)
    return found
