"""Plans: what is proposed, frozen, shown and confirmed before anything is written."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from console.core.backend import Order
from console.core.item import ItemKey
from console.core.packing import Block
from console.core.person import Whence, Who
from console.core.query import NATURAL, Filter, Sort
from console.core.release import Release

PLAN_LIFETIME = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Marked:
    """Exactly these items."""

    keys: tuple[ItemKey, ...]

    def concerns(self, backend: str) -> bool:
        return any(key.backend == backend for key in self.keys)

    def __str__(self) -> str:
        return f"{len(self.keys)} marked items" if len(self.keys) != 1 else str(self.keys[0])


@dataclass(frozen=True, slots=True)
class Matching:
    """Everything that matches at the moment of proposing: the first `limit` in sort order, or all of it."""

    filter: Filter
    sort: Sort = NATURAL
    limit: int | None = None
    everything: bool = False
    """The operator said that nothing narrowing this is meant."""

    def concerns(self, backend: str) -> bool:
        return self.filter.for_backend(backend) is not None

    def __str__(self) -> str:
        text = str(self.filter) or "everything that needs eyes"
        return text if self.limit is None else f"the first {self.limit} of: {text}"


Selection = Marked | Matching


@dataclass(frozen=True, slots=True)
class Share:
    """A backend's part of a plan: what changes there has the ordinals `first` to `first + changes - 1`."""

    backend: str
    place: str
    first: int
    selected: int
    changes: int
    guard: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A frozen plan without its rows, which stay in the book."""

    id: str
    created_at: datetime
    expires_at: datetime
    order: Order
    release: Release
    selection: str
    shares: tuple[Share, ...]
    by_condition: dict[str, int] = field(default_factory=dict)
    by_signature: dict[str, int] = field(default_factory=dict)
    blocked: dict[str, int] = field(default_factory=dict)
    """Reason → how many."""
    warnings: dict[str, int] = field(default_factory=dict)
    undo_of: str | None = None
    hash: str = ""

    @property
    def selected(self) -> int:
        return sum(share.selected for share in self.shares)

    @property
    def changes(self) -> int:
        """How many items would change: the number a person confirms."""
        return sum(share.changes for share in self.shares)

    def body(self) -> dict[str, Any]:
        """Everything but the hash, as JSON values."""
        return {
            "id": self.id,
            "created_at": self.created_at.isoformat(),
            "expires_at": self.expires_at.isoformat(),
            "action": self.order.action.value,
            "budget": self.order.budget.value,
            "flags": sorted(flag.value for flag in self.order.flags),
            "release": str(self.release),
            "selection": self.selection,
            "undo_of": self.undo_of,
            "shares": [
                {
                    "backend": s.backend,
                    "place": s.place,
                    "first": s.first,
                    "selected": s.selected,
                    "changes": s.changes,
                    "guard": list(s.guard),
                }
                for s in self.shares
            ],
            "by_condition": self.by_condition,
            "by_signature": self.by_signature,
            "blocked": self.blocked,
            "warnings": self.warnings,
        }


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A named person's yes to exactly this many changes, and why."""

    who: Who
    whence: Whence
    reason: str
    count: int | None
    """The number they confirmed; None when nobody did."""
    ticket: str | None = None


def canonical(value: object) -> str:
    """One text for one value: sorted keys, no spaces, no NaN, and nothing a terminal could trip over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


class PlanHash:
    """SHA-256 over what changes in order, what is blocked in order, and the plan's body."""

    def __init__(self) -> None:
        self._changes = hashlib.sha256()
        self._blocked = hashlib.sha256()

    def add(self, block: Block) -> None:
        part = self._blocked if block.first < 0 else self._changes
        part.update(f"{block.first} {block.items} {len(block.body)}\n".encode())
        part.update(block.body)

    def seal(self, plan: Plan) -> str:
        whole = hashlib.sha256(self._changes.digest() + self._blocked.digest())
        whole.update(canonical(plan.body()).encode())
        return whole.hexdigest()
