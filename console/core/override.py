"""Overrides: a confirmed plan while it is applied, chunk by chunk, and afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, assert_never

from console.core.backend import Action, OutcomeKind
from console.core.capabilities import ActionSpec


class OverrideState(StrEnum):
    """The state of an override. A finished one cannot be resumed."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FINISHED = "finished"

    @property
    def over(self) -> bool:
        return self is OverrideState.FINISHED


class Request(StrEnum):
    """What another process can ask of a running override."""

    PAUSE = "pause"
    STOP = "stop"
    CONTINUE = "continue"


class ItemOutcome(NamedTuple):
    """The recorded outcome of one item. `not_applied` means that it is still to be done."""

    ordinal: int
    key: str
    outcome: str
    detail: str


NOT_APPLIED = "not_applied"


class Intent(NamedTuple):
    """The durable announcement of a write: these ordinals of this backend get their after-image, computed at `at`."""

    seq: int
    override_id: str
    plan_id: str
    backend: str
    ranges: tuple[tuple[int, int], ...]
    """First and last ordinal, both included. One range, unless some items are tried again."""
    at: datetime


@dataclass(frozen=True, slots=True)
class Override:
    """What the trail knows about an override."""

    override_id: str
    plan_id: str
    state: OverrideState
    started_at: datetime
    who: str
    reason: str
    ticket: str | None
    counts: dict[str, int] = field(default_factory=dict)
    owner: str = ""
    alive: bool = False
    """Whether the process that runs it is still alive."""
    heartbeat: datetime | None = None
    note: str = ""
    confirmed: dict[str, Any] = field(default_factory=dict)
    """The body of its confirmation record."""

    @property
    def action(self) -> str:
        return str(self.confirmed.get("action", ""))


# The words for what an override did to its items, the same in every front end. The trail stores what happened to the
# row (`OutcomeKind`). A person reads what was done: an applied requeue is "requeued", an applied undo is "restored".

SKIPPED = "skipped"
"""An item of the selection that the plan does not change."""
Actions = Mapping[str, ActionSpec]
"""The plugins' own actions by id, as `Session.actions` has them."""
_NONE: Actions = MappingProxyType({})


def outcome_id(outcome: str, action: str) -> str:
    """The name of an outcome in JSON: requeued, restored, applied, changed, rejected, unknown or not_applied."""
    if outcome == NOT_APPLIED:
        return outcome
    kind = OutcomeKind(outcome)
    return past_tense(action) if kind is OutcomeKind.APPLIED else kind.value


def outcome_label(outcome: str, action: str, actions: Actions = _NONE) -> str:
    """The words for an outcome on a screen: "requeued", "changed since the plan"."""
    if outcome == NOT_APPLIED:
        return "not applied"
    kind = OutcomeKind(outcome)
    match kind:
        case OutcomeKind.APPLIED:
            return past_tense(action, actions)
        case OutcomeKind.CHANGED_SINCE:
            return "changed since the plan"
        case OutcomeKind.REJECTED:
            return "rejected"
        case OutcomeKind.UNKNOWN:
            return "outcome unknown"
        case _:
            assert_never(kind)


def past_tense(action: str, actions: Actions = _NONE) -> str:
    """What an applied action did to an item. A plugin's action is "applied", or what the plugin calls it."""
    if action in list(Action):
        return Action(action).done
    return actions[action].done if action in actions else "applied"


def outcome_counts(counts: Mapping[str, int], action: str) -> dict[str, int]:
    """Counts by stored outcome as counts by the JSON name, without zeros, in a fixed order."""
    return {outcome_id(kind, action): counts[kind] for kind in _ORDER if counts.get(kind)}


def outcome_summary(counts: Mapping[str, int], action: str, actions: Actions = _NONE) -> str:
    """Counts in one line: "89 requeued, 2 changed since the plan"; "nothing was changed" when there are none."""
    parts = [f"{counts[kind]} {outcome_label(kind, action, actions)}" for kind in _ORDER if counts.get(kind)]
    return ", ".join(parts) or "nothing was changed"


_ORDER = (*(kind.value for kind in OutcomeKind), NOT_APPLIED)
