"""What workers and the app tell the screens. Handlers own the state; workers only post."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from datetime import datetime

    from console.core.faults import Fault
    from console.core.grouping import Group
    from console.core.item import Detail
    from console.core.override import Intent, ItemOutcome, Override
    from console.core.plan import Plan
    from console.ui.audit import Refusal


class HealthChanged(Message):
    """Something about a backend is known that was not before."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


@dataclass
class CountsReady(Message):
    """How many rows the list will have; None: at least that many."""

    generation: int
    rows: int
    exact: bool
    silent: Sequence[str]


@dataclass
class GroupsReady(Message):
    """The groups so far, or all of them."""

    generation: int
    groups: Sequence[Group]
    rows: int
    finished: bool
    faults: Sequence[Fault]


@dataclass
class DetailReady(Message):
    """One item, read in full."""

    detail: Detail | None
    fault: Fault | None = None
    overrides: Sequence[tuple[datetime, str]] = ()
    """What the trail did to it, and when."""


@dataclass
class PlanReady(Message):
    """A plan was frozen, or could not be."""

    generation: int
    plan: Plan | None
    items: Sequence[str]
    fault: Fault | None = None


class RunChanged(Message):
    """An override of this console has moved on."""


@dataclass
class TrailReady(Message):
    """What the trail has: the overrides, the refusals, the intents nobody concluded."""

    overrides: Sequence[Override]
    refusals: Sequence[Refusal]
    unresolved: Sequence[Intent]
    fault: Fault | None = None


@dataclass
class OutcomesReady(Message):
    """An override with the first of its items' outcomes."""

    override: Override
    outcomes: Sequence[ItemOutcome]
    fault: Fault | None = None
