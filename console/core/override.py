"""Overrides: a confirmed plan while it is applied, chunk by chunk, and afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, assert_never

from console.core.backend import Action, OutcomeKind
from console.core.capabilities import ActionSpec
from console.core.recovery import Result, ResultCounts


class OverrideState(StrEnum):
    """The state of an override. A finished one cannot be resumed."""

    QUEUED = "queued"
    """Confirmed; a runner carries it out."""
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FINISHED = "finished"

    @property
    def over(self) -> bool:
        return self is OverrideState.FINISHED


TERMINAL_GONE = "Stopped: its terminal is gone."
INTERRUPTED = "Interrupted."
ABANDONED = "Abandoned."
UNWANTED_STOPS = (TERMINAL_GONE, INTERRUPTED, ABANDONED)
"""The beginnings of the notes of overrides that nobody wanted to stop."""


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
CANARY_NOTE = "Canary "
"""The beginning of the note of an override that its canary stopped. No other note begins like this."""


class Intent(NamedTuple):
    """The durable announcement of a write: these ordinals of this backend get their after-image, computed at `at`."""

    seq: int
    override_id: str
    plan_id: str
    backend: str
    ranges: tuple[tuple[int, int], ...]
    """First and last ordinal, both included. One range, unless some items are tried again."""
    at: datetime
    concluded: int | None = None
    """The record with its outcomes."""


def ranges(ordinals: Sequence[int]) -> list[list[int]]:
    """Ordinals as pairs of first and last: one pair, unless some items are tried again."""
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

    result: dict[str, Any] | None = None
    """The body of its `result` record, with the results of its items. None until a watch has ended."""
    undone_by: tuple[str, ...] = ()
    """The overrides that undo this one, in order."""

    @property
    def action(self) -> str:
        return str(self.confirmed.get("action", ""))

    @property
    def undo_of(self) -> str | None:
        """The override that this one undoes."""
        return self.confirmed.get("undo_of")

    @property
    def results(self) -> ResultCounts | None:
        """The recorded results of its items; None until a watch has ended."""
        return None if self.result is None else ResultCounts.of_record(self.result)

    def note_beside(self, results: ResultCounts | None) -> str:
        """The note; empty where these results say more: after a canary, and after a pace once no item waits."""
        if self.state is not OverrideState.FINISHED or results is None:
            return self.note
        is_over = self.note.startswith("Canary") or not results.counts[Result.NOT_RUN_YET]
        return "" if is_over else self.note

    @property
    def state_label(self) -> str:
        """The state in words: "finished", "stopped", "finished, undone by o1a2"."""
        return f"{self.state}, undone by {', '.join(self.undone_by)}" if self.undone_by else str(self.state)

    @property
    def stopped_by_canary(self) -> bool:
        return self.state is OverrideState.STOPPED and self.note.startswith(CANARY_NOTE)

    @property
    def interrupted(self) -> bool:
        """Whether it could be resumed, and nobody is about to: neither its own process nor a runner."""
        return not self.state.over and not self.alive and self.state is not OverrideState.QUEUED

    @property
    def detached(self) -> bool:
        """Whether it was confirmed for a runner."""
        return bool(self.confirmed.get("detached"))

    @property
    def proposed_by(self) -> str | None:
        """Who proposed it, if it was approved by somebody."""
        found = self.confirmed.get("proposed_by")
        return found if isinstance(found, str) else None


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
