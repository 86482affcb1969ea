"""Plans: what is selected, frozen, shown and confirmed before anything is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from console.core.advice import Advice
from console.core.backend import Image, Operation
from console.core.faults import PlanAltered
from console.core.item import ItemKey
from console.core.pace import Pace, packed_pace
from console.core.query import NATURAL, Filter, Sort

PLAN_LIFETIME = timedelta(minutes=15)
FIRST_SKIPPED = -1_000_000_000
_ID_DIGITS = 12
BLOCK_ITEMS = 5_000
"""The largest number of rows in one block."""
_NONE = type(None)
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode



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
    """Everything that matches when the plan is made: the first `limit` in sort order, or all of it."""

    filter: Filter
    sort: Sort = NATURAL
    limit: int | None = None
    everything: bool = False
    """The operator wants everything, although nothing narrows the selection."""

    def concerns(self, backend: str) -> bool:
        return self.filter.for_backend(backend) is not None

    def __str__(self) -> str:
        text = str(self.filter) or "everything that needs attention"
        return text if self.limit is None else f"the first {self.limit} of: {text}"


Selection = Marked | Matching


@dataclass(frozen=True, slots=True)
class BackendPart:
    """The part of a plan in one backend. Its changes have the ordinals `first` to `first + changes - 1`."""

    backend: str
    place: str
    first: int
    selected: int
    changes: int
    guard: tuple[str, ...] = ()
    deletes: bool = False
    """Its changes delete the items."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A frozen plan without its rows, which stay in the trail."""

    nonce: str
    """A random text, so that two plans never have the same hash. Its rows are stored under it while it is made."""
    created_at: datetime
    expires_at: datetime
    operation: Operation
    pace: Pace
    selection: str
    parts: tuple[BackendPart, ...]
    by_condition: dict[str, int] = field(default_factory=dict)
    by_cause: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason → how many."""
    warnings: dict[str, int] = field(default_factory=dict)
    advice: dict[str, Advice] = field(default_factory=dict)
    """What can be done about a reason or a warning, by its text."""
    undo_of: str | None = None
    hash: str = ""

    @property
    def id(self) -> str:
        """The short name. It comes from the hash, so that no other plan can have it."""
        return self.id_of(self.hash)

    @staticmethod
    def id_of(hash: str) -> str:
        """The id of the plan with this hash."""
        return f"p{hash[:_ID_DIGITS]}"

    @property
    def selected(self) -> int:
        return sum(part.selected for part in self.parts)

    @property
    def changes(self) -> int:
        """How many items would change. This is the number that a person confirms."""
        return sum(part.changes for part in self.parts)

    @property
    def deletes(self) -> bool:
        """Whether it deletes items, which cannot be undone."""
        return any(part.deletes and part.changes for part in self.parts)

    def body(self) -> dict[str, Any]:
        """Everything that the hash covers beside the rows, as JSON values. The expiry is not part of it."""
        return {
            "nonce": self.nonce,
            "created_at": self.created_at.isoformat(),
            "action": str(self.operation.action),
            "attempts": self.operation.attempts.value,
            "flags": sorted(map(str, self.operation.flags)),
            "pace": str(self.pace),
            "exact_pace": packed_pace(self.pace),
            "selection": self.selection,
            "undo_of": self.undo_of,
            "parts": [
                {
                    "backend": s.backend,
                    "place": s.place,
                    "first": s.first,
                    "selected": s.selected,
                    "changes": s.changes,
                    "guard": list(s.guard),
                    "deletes": s.deletes,
                }
                for s in self.parts
            ],
            "by_condition": self.by_condition,
            "by_cause": self.by_cause,
            "skipped": self.skipped,
            "warnings": self.warnings,
            "advice": {text: list(advice) for text, advice in self.advice.items()},
        }


# The rows of a plan are stored and hashed some thousand together, as one JSON text. Nothing ever asks for a single row,
# and one database row for each would double the time it takes to make a plan.


class PlanRow(NamedTuple):
    """One item of a plan.

    Items that will change are numbered from 0 without gaps, so an item's ordinal is also its place in the schedule.
    Skipped items are numbered from FIRST_SKIPPED on, below zero.
    """

    ordinal: int
    key: str
    unit: str
    before: Image | None
    skipped: str | None = None
    warning: str | None = None


class Block(NamedTuple):
    """Consecutive rows of a plan: `items` rows, the first with the ordinal `first`."""

    first: int
    items: int
    body: bytes

    def digest(self) -> tuple[int, bytes]:
        """How many rows it has, and a digest of them."""
        return self.items, hashlib.sha256(self.body).digest()


Digests = Mapping[int, tuple[int, bytes]]
"""Every block of a plan: the ordinal of its first row → its digest."""


def pack(
    first: int,
    keys: Sequence[str],
    units: Sequence[str],
    befores: Sequence[Image | None],
    reasons: Sequence[str | None],
    warnings: Sequence[str | None],
) -> Block:
    """Consecutive rows as one block; `first` is the ordinal of the first row. Most warnings are the same few texts."""
    texts = list(dict.fromkeys(warnings))
    number = {text: n for n, text in enumerate(texts)}
    columns = [keys, units, befores, reasons, texts, list(map(number.__getitem__, warnings))]
    return Block(first, len(keys), _encode(columns).encode())


def unpack(block: Block) -> list[PlanRow]:
    """The rows of a block; `PlanAltered` if `pack` did not write it."""
    try:
        keys, units, befores, reasons, texts, numbers = json.loads(block.body)
        _require({str}, keys, units)
        _require({list, _NONE}, befores)
        _require({str, _NONE}, reasons, texts)
        _require({int}, numbers)
        if min(numbers, default=0) < 0:
            raise ValueError(numbers)
        images = [None if before is None else tuple(before) for before in befores]
        ordinals = range(block.first, block.first + block.items)
        warnings = [texts[n] for n in numbers]
        return list(map(PlanRow._make, zip(ordinals, keys, units, images, reasons, warnings, strict=True)))
    except (ValueError, TypeError, IndexError, RecursionError):
        raise PlanAltered("its rows cannot be read") from None


def _require(kinds: set[type], *columns: Any) -> None:
    if not all(set(map(type, column)) <= kinds for column in columns):
        raise TypeError(kinds)


def canonical(value: object) -> str:
    """The one JSON text for a value: sorted keys, no spaces, no NaN, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


class PlanHash:
    """SHA-256 over the changes in order, the skipped items in order, and the plan's body."""

    def __init__(self) -> None:
        self._changes = hashlib.sha256()
        self._skipped = hashlib.sha256()

    def add(self, block: Block) -> None:
        digest = self._skipped if block.first < 0 else self._changes
        digest.update(f"{block.first} {block.items} {len(block.body)}\n".encode())
        digest.update(block.body)

    def seal(self, plan: Plan) -> str:
        whole = hashlib.sha256(self._changes.digest() + self._skipped.digest())
        whole.update(canonical(plan.body()).encode())
        return whole.hexdigest()
