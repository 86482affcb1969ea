"""Messages from workers and the app to the screens. Workers only post; the handlers own the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from datetime import datetime

    from console.core.backend import Count
    from console.core.cause_count import Cause
    from console.core.cause_life import CauseLife
    from console.core.causes import Causes
    from console.core.events import OverrideEvent
    from console.core.faults import Fault
    from console.core.history import Trend
    from console.core.item import Detail
    from console.core.override import Override
    from console.core.plan import Plan
    from console.core.proposals import Proposal
    from console.ui.audit import AuditLog
    from console.ui.cells import Cell
    from console.ui.preview import PlannedItem
    from console.ui.system_past import SystemPast


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
class SystemPastReady(Message):
    """The last day of the systems, and until when."""

    past: SystemPast
    end: datetime


@dataclass
class TopCausesReady(Message):
    """The causes of all systems, with their states and trends, and what was read for it."""

    causes: Sequence[Cause]
    lives: Mapping[str, CauseLife]
    trends: Mapping[str, Trend]
    counting: Causes


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
    items: Sequence[PlannedItem]
    fault: Fault | None = None


class OverrideProgressed(Message):
    """The override of this console has made progress."""


@dataclass
class TrailReady(Message):
    """The newest overrides and refusals."""

    log: AuditLog
    fault: Fault | None = None


@dataclass
class ProposalsReady(Message):
    """The newest proposals."""

    proposals: Sequence[Proposal]
    refusals: Mapping[str, str]
    """Why this person may not approve an open one, by its id."""
    own: frozenset[str] = frozenset()
    """The ids of the proposals that this person has submitted."""
    fault: Fault | None = None


@dataclass
class OverrideReady(Message):
    """An override as the trail has it now."""

    override: Override


@dataclass
class OverrideItemsReady(Message):
    """Items of an override: key, what happened, and a detail."""

    items: Sequence[tuple[str, Cell, str]]


@dataclass
class HookFailed(Message):
    """A hook could not be called, and why."""

    why: str


@dataclass
class OverrideHappened(Message):
    """An override has ended, was stopped or taken over, or its watch has ended."""

    event: OverrideEvent
