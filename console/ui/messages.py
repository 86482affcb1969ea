"""Messages from workers and the app to the screens. Workers only post; the handlers own the state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from datetime import datetime

    from console.core.backend import Count
    from console.core.cause_count import Cause
    from console.core.causes import Causes
    from console.core.faults import Fault
    from console.core.item import Detail
    from console.core.override import Intent, ItemOutcome, Override
    from console.core.plan import Plan
    from console.ui.audit import Refusal


class HealthChanged(Message):
    """Something new is known about a backend."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


@dataclass
class CountsReady(Message):
    """How many rows match; more if it is not exact or a backend in `silent` did not answer."""

    generation: int
    rows: Count
    silent: Sequence[str]


@dataclass
class CausesReady(Message):
    """The causes found so far, or all of them."""

    generation: int
    causes: Sequence[Cause]
    rows: int
    finished: bool
    faults: Sequence[Fault]
    counting: Causes | None = None
    """What was read, when all of it was."""


@dataclass
class DetailReady(Message):
    """One item, read in full."""

    detail: Detail | None
    fault: Fault | None = None
    overrides: Sequence[tuple[datetime, str]] = ()
    """When overrides changed it, and how."""


@dataclass
class PlanReady(Message):
    """A plan was made, or failed."""

    generation: int
    plan: Plan | None
    items: Sequence[str]
    fault: Fault | None = None


class OverrideProgressed(Message):
    """The override of this console has made progress."""


@dataclass
class TrailReady(Message):
    """The overrides, the refusals and the intents without an outcome."""

    overrides: Sequence[Override]
    refusals: Sequence[Refusal]
    unresolved: Sequence[Intent]
    fault: Fault | None = None


@dataclass
class OutcomesReady(Message):
    """An override and the outcomes of its first items."""

    override: Override
    outcomes: Sequence[ItemOutcome]
    fault: Fault | None = None
