"""An operator at work on one backend, with a real trail."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from console.core.backend import Order
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import Override
from console.core.plan import Confirmation, Marked, Matching, Plan, Whence, Who
from console.core.query import Filter
from console.trail.owner import owner_token
from console.trail.store import TrailBook, open_book

KEEP = Order()
ANN = Who(1000, "ann", "Ann A.")
HERE = Whence("host", "pts/1", "", 4711, "0.1.0")


class RealClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Operator:
    """Proposes, confirms what was proposed, and looks up what became of it."""

    def __init__(self, backend: Any, book: TrailBook, **options: Any) -> None:
        self.backend = backend
        self.book = book
        self.operations = Operations(
            {backend.name: backend}, book, RealClock(), **({"owner": owner_token()} | options)
        )

    def plan(self, *wanted: Any, order: Order = KEEP) -> Plan:
        """A plan of these items (ids or parts of keys), or of what a filter finds."""
        if len(wanted) == 1 and isinstance(wanted[0], Filter):
            return self.operations.propose(Matching(wanted[0]), order)
        return self.operations.propose(Marked(tuple(self.key(parts) for parts in wanted)), order)

    def key(self, parts: Any) -> ItemKey:
        given = parts if isinstance(parts, tuple) else (parts,)
        return ItemKey(self.backend.name, tuple(map(str, given)))

    def apply(self, plan: Plan) -> Override:
        return self.operations.carry_out(plan.id, Confirmation(ANN, HERE, "disk is back", plan.changes))

    def requeue(self, *wanted: Any, order: Order = KEEP) -> Override:
        return self.apply(self.plan(*wanted, order=order))

    def outcomes(self, override: Override) -> Counter[tuple[str, str]]:
        return Counter(
            (outcome.outcome, outcome.detail) for batch in self.book.outcomes(override.op_id) for outcome in batch
        )


@contextmanager
def operating(backend: Any, folder: Path, **options: Any) -> Iterator[Operator]:
    book = open_book(f"sqlite:///{folder}/state/trail.db", read_only=False, anchor=None, clock=RealClock())
    try:
        yield Operator(backend, book, **options)
    finally:
        book.close()
        backend.close()
