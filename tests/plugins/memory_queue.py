"""A queue in memory that hands items back as the contract says, for the suite to be tried on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from console.core.backend import (
    CHANGED,
    Abilities,
    Action,
    Authority,
    Budget,
    Change,
    Draft,
    Flag,
    Image,
    Order,
    Outcome,
    OutcomeKind,
    PageRequest,
    UndoKind,
    image_text,
)
from console.core.faults import ReadOnlyRefused
from console.core.item import Condition, Item, ItemKey
from console.core.policy import RetryPolicy
from console.core.ports import Stop
from console.core.query import Filter, Sort
from console.testing import FrozenClock, Harness, MemoryBackend, Sample, Store

POLICY = RetryPolicy(3, stuck_after=timedelta(minutes=6), unrecoverable=("invalid json",))
LEFT = Outcome(OutcomeKind.CONFLICTED, "is not as it was planned")


class MemoryQueue(MemoryBackend):
    """Its rows' status, attempts, due and updated are the image."""

    abilities = Abilities(
        frozenset({Action.REQUEUE, Action.UNDO}), frozenset(Budget), UndoKind.EXACT, stores_due_time=True,
        guard=("status", "attempts", "updated"), flags=frozenset({Flag.ALLOW_UNRECOVERABLE}),
    )

    def __init__(self, rows: dict[str, dict[str, Any]], *, read_only: bool = False) -> None:
        super().__init__(policy=POLICY)
        self.rows = rows
        self.read_only = read_only
        self.lock = threading.RLock()

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        if isinstance(wanted, Filter):
            if not stop.requested:
                yield [self.draft(item, order) for item in self.page(PageRequest(wanted, now, sort, limit=10**6)).items]
            return
        yield [self.draft(item, order) for item in self.items(wanted, now).values()]

    def draft(self, item: Item, order: Order) -> Draft:
        image = self.image(item.key)
        assert image is not None
        return Draft(str(item.key), "", image_text(image), item.condition, item.signature, self.blocked(item, order))

    def blocked(self, item: Item, order: Order) -> str | None:
        if item.condition not in (Condition.FAILED, Condition.TERMINAL, Condition.STUCK):
            return f"is {item.condition}"
        if item.verdict.recoverable is False and Flag.ALLOW_UNRECOVERABLE not in order.flags:
            return "its error is not recoverable"
        return None

    def image(self, key: ItemKey) -> Image | None:
        row = self.rows.get(key.parts[0]) if len(key.parts) == 1 else None
        if row is None:
            return None
        return tuple(v.isoformat() if isinstance(v := row[name], datetime) else v for name in ("status", "attempts", "due", "updated"))

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        kept = 0 if order.budget is Budget.FRESH else change.before[1]
        return ("ready", kept, due.isoformat(), at.isoformat())

    def swap(self, changes: Sequence[Change], order: Order, authority: Authority) -> Sequence[Outcome]:
        if self.read_only:
            raise ReadOnlyRefused(where=self.place)
        with self.lock:
            return [self.write(change) for change in changes]

    def write(self, change: Change) -> Outcome:
        if self.image(change.keys[0]) != change.before:
            return LEFT
        self.put(change)
        return CHANGED

    def put(self, change: Change) -> None:
        status, attempts, due, updated = change.after
        self.rows[change.keys[0].parts[0]].update(status=status, attempts=attempts, due=_time(due), updated=_time(updated))

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        return [self.image(change.keys[0]) for change in changes]


def _time(text: Any) -> Any:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return text


def harness(kind: type[MemoryQueue]) -> Harness:
    rows: dict[str, dict[str, Any]] = {}
    backend = kind(rows)

    def put(samples: Sequence[Sample]) -> int:
        fit = [s for s in samples if s.max_attempts is None or isinstance(s.max_attempts, int)]
        rows.update({s.id: {**s._asdict(), "payload": "payload 4711"} for s in fit})
        return len(fit)

    def stored() -> Mapping[ItemKey, object]:
        return {ItemKey("memory", (id,)): dict(row) for id, row in rows.items()}

    store = Store(
        stored, lambda key: rows[key.parts[0]].update(status="running", updated=None), lambda key: rows.pop(key.parts[0], None),
        lambda: kind(rows, read_only=True), "payload 4711",
    )
    statuses = ("ready", "running", "failed", "done", "cancelled")
    return Harness(backend, put, statuses, FrozenClock(), backend.references, lambda: repr(rows), store)
