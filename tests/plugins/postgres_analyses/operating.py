"""An operator with one backend and a real trail."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from console.core.backend import Operation
from console.core.confirm import Confirmation, Origin, Who
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import Override
from console.core.plan import Marked, Matching, Plan
from console.core.query import Filter
from console.trail.leases import owner_token
from console.trail.store import TrailStore, open_trail

KEEP = Operation()
ANN = Who(1000, "ann", "Ann A.")
HERE = Origin("host", "pts/1", "", 4711, "0.1.0")


class RealClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Operator:
    """Makes plans, carries them out, and reads their outcomes."""

    def __init__(self, backend: Any, trail: TrailStore, **options: Any) -> None:
        self.backend = backend
        self.trail = trail
        self.operations = Operations(
            {backend.name: backend}, trail, RealClock(), **({"owner": owner_token()} | options)
        )

    def plan(self, *wanted: Any, operation: Operation = KEEP) -> Plan:
        """A plan of these items (ids or parts of keys), or of what a filter finds."""
        if len(wanted) == 1 and isinstance(wanted[0], Filter):
            return self.operations.propose(Matching(wanted[0]), operation)
        return self.operations.propose(Marked(tuple(self.key(parts) for parts in wanted)), operation)

    def key(self, parts: Any) -> ItemKey:
        given = parts if isinstance(parts, tuple) else (parts,)
        return ItemKey(self.backend.name, tuple(map(str, given)))

    def apply(self, plan: Plan) -> Override:
        return self.operations.carry_out(plan, Confirmation(ANN, HERE, "disk is back", plan.changes))

    def requeue(self, *wanted: Any, operation: Operation = KEEP) -> Override:
        return self.apply(self.plan(*wanted, operation=operation))

    def outcomes(self, override: Override) -> Counter[tuple[str, str]]:
        return Counter(
            (outcome.outcome, outcome.detail) for batch in self.trail.outcomes(override.override_id) for outcome in batch
        )


@contextmanager
def operating(backend: Any, folder: Path, **options: Any) -> Iterator[Operator]:
    trail = open_trail(f"sqlite:///{folder}/state/trail.db", read_only=False, anchor=None, clock=RealClock())
    try:
        yield Operator(backend, trail, **options)
    finally:
        trail.close()
        backend.close()
