"""Overrides: a confirmed plan being carried out, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from console.core.backend import OutcomeKind
from console.core.columns import Columns


class OverrideState(StrEnum):
    """Where an override stands. Those that are over cannot be resumed."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FINISHED = "finished"

    @property
    def over(self) -> bool:
        return self is OverrideState.FINISHED


class Request(StrEnum):
    """What another process may ask of a running override."""

    PAUSE = "pause"
    STOP = "stop"
    CONTINUE = "continue"


class ItemOutcome(NamedTuple):
    """One item's outcome as it is recorded: `not_applied` items are still to be done."""

    ordinal: int
    key: str
    outcome: str
    detail: str


class ItemOutcomes(Columns[ItemOutcome]):
    """Many outcomes, column by column."""

    __slots__ = ("details", "keys", "ordinals", "outcomes")

    def __init__(
        self, ordinals: Sequence[int], keys: Sequence[str], outcomes: Sequence[str], details: Sequence[str]
    ) -> None:
        self.ordinals = ordinals
        self.keys = keys
        self.outcomes = outcomes
        self.details = details

    @classmethod
    def of(cls, outcomes: Sequence[ItemOutcome]) -> ItemOutcomes:
        if isinstance(outcomes, ItemOutcomes):
            return outcomes
        return cls(*zip(*outcomes, strict=True)) if outcomes else cls((), (), (), ())

    def _columns(self) -> tuple[Sequence[Any], ...]:
        return self.ordinals, self.keys, self.outcomes, self.details

    def _row(self, *values: Any) -> ItemOutcome:
        return ItemOutcome(*values)


NOT_APPLIED = "not_applied"


class Intent(NamedTuple):
    """A durable announcement: these ordinals of this backend go to their after-image, computed at `at`."""

    seq: int
    op_id: str
    plan_id: str
    backend: str
    ranges: tuple[tuple[int, int], ...]
    """First and last ordinal, both included; one range unless some of them are done again."""
    at: datetime


def ranges(ordinals: Sequence[int]) -> list[list[int]]:
    """Ordinals as first-and-last pairs: one pair, unless some are being done again."""
    if ordinals and ordinals[-1] - ordinals[0] == len(ordinals) - 1:
        return [[ordinals[0], ordinals[-1]]]
    pairs: list[list[int]] = []
    for ordinal in ordinals:
        if pairs and pairs[-1][1] == ordinal - 1:
            pairs[-1][1] = ordinal
        else:
            pairs.append([ordinal, ordinal])
    return pairs


@dataclass(frozen=True, slots=True)
class Override:
    """What the book knows of an override."""

    op_id: str
    plan_id: str
    state: OverrideState
    started_at: datetime
    who: str
    reason: str
    ticket: str | None
    counts: dict[str, int] = field(default_factory=dict)
    owner: str = ""
    alive: bool = False
    """Whether its owner is still there to carry it on."""
    heartbeat: datetime | None = None
    note: str = ""
    confirmed: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Progress:
    """Counts while it runs, for whoever watches."""

    op_id: str
    total: int
    counts: dict[OutcomeKind, int] = field(default_factory=lambda: dict.fromkeys(OutcomeKind, 0))
    stage: str = ""
    note: str = ""
    judged_by: datetime | None = None
    """Nothing is written while a canary is watched; by then it is judged, or the override stops."""

    @property
    def done(self) -> int:
        return sum(self.counts.values())
