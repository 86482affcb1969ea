"""A console on a store: plans, confirmations and a trail in a file, as the command line opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from console.core.backend import Operation
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import Override
from console.core.pace import parse_pace
from console.core.plan import Marked
from console.process import SystemClock
from console.trail.leases import owner_token
from console.trail.store import open_trail
from plugins.partition_store import PartitionStore
from tests.faults.world import ORIGIN, WHO, confirm

__all__ = ["ORIGIN", "WHO", "carry_out", "console_on", "last_outcomes"]


@contextmanager
def console_on(backend: PartitionStore, folder: Path, reach: Callable[[str], None] = lambda _: None) -> Iterator[Operations]:
    (folder / "trail").mkdir(mode=0o700, exist_ok=True)
    trail = open_trail(f"sqlite:///{folder}/trail/trail.db", read_only=False, anchor=None, clock=SystemClock())
    try:
        yield Operations({backend.name: backend}, trail, SystemClock(), owner=owner_token(), reach=reach)
    finally:
        trail.close()


def carry_out(operations: Operations, operation: Operation, *keys: ItemKey, pace: str = "now") -> Override:
    plan = operations.propose(Marked(keys), operation, parse_pace(pace))
    assert plan.changes == len(keys), plan.skipped
    return operations.carry_out(plan, confirm(plan))


def last_outcomes(operations: Operations, override_id: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for batch in operations.trail.outcomes(override_id):
        for outcome in batch:
            found.setdefault(outcome.key, []).append(outcome.outcome)
    return found
