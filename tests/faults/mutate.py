"""Exactly the confirmed plan: a share of the items is changed between preview and apply.

The naive variant writes the previewed changes without comparing, and must be caught.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from console.core.backend import Change, Outcome, Requeues
from console.core.operations import Operations
from tests.faults import processes, systems
from tests.faults.world import confirm, outcomes, planned


@dataclass
class Mutated:
    """The trials: both numbers must be 0."""

    trials: int = 0
    outside: int = 0
    """Items touched that were not in the plan, or were changed since."""
    unreported: int = 0
    """Changed items that were not reported as changed, or untouched ones that were not requeued."""
    changed: int = 0

    @property
    def ok(self) -> bool:
        return not (self.outside or self.unreported)


def _without_looking(backend: Requeues) -> None:
    """Write each change without comparing."""
    guarded = backend.compare_and_set

    def compare_and_set(changes: Sequence[Change], *rest: object) -> Sequence[Outcome]:
        now = zip(changes, backend.images(changes), strict=True)
        return guarded([change if image is None else change._replace(before=image) for change, image in now], *rest)  # type: ignore[arg-type]

    backend.compare_and_set = compare_and_set  # type: ignore[method-assign]


def trial(kind: str, folder: Path, items: int, part: float, seed: int, total: Mutated, *, naive: bool = False) -> None:
    chance = random.Random(seed)
    system, ids = systems.create(kind, folder, items)
    try:
        console = processes.console_of(folder)
        if naive:
            _without_looking(console.backends[system.name])  # type: ignore[arg-type]
        _trial(system, ids, console, part, chance, total)
        processes.close(console)
    finally:
        system.drop()


def _trial(system: systems.System, ids: list[str], console: Operations, part: float, chance: random.Random, total: Mutated) -> None:
    plan = processes.propose(console, system.folder, limit=len(ids) * 2 // 3)
    units: dict[str, set[str]] = {}
    for row in planned(console, plan):
        units.setdefault(row.unit or row.key, set()).add(row.key.partition("/")[2])
    wanted = set().union(*units.values())
    mutated = set(chance.sample(ids, max(1, round(len(ids) * part))))
    system.mutate(sorted(mutated), chance)
    system.forget()
    override = console.carry_out(plan, confirm(plan))
    recorded = {key.partition("/")[2]: what for key, (what, _) in outcomes(console, override).items()}
    spoilt = set().union(*(unit for unit in units.values() if unit & mutated))
    allowed = wanted - spoilt
    total.trials += 1
    total.changed += len(mutated)
    total.outside += len(system.touched() - allowed)
    total.unreported += sum(recorded[id] != "changed" for id in spoilt)
    total.unreported += sum(recorded[id] != "applied" for id in allowed)
    total.unreported += len(allowed ^ set(system.requeued()))
