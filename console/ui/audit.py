"""What the screens need to know from the trail: overrides with their results, and refused actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, assert_never

from console.core import faults
from console.core.backend import OutcomeKind
from console.core.override import Override, OverrideState
from console.core.ports import Record, Trail
from console.ui.cells import Cell

_NEWEST = 500
_TAKEOVER = "takeover"
_REFUSAL = "refusal"


class Refusal(NamedTuple):
    """An action that was refused."""

    at: datetime
    seq: int
    why: str
    detail: str
    reason: str
    who: str


@dataclass(frozen=True, slots=True)
class AuditLog:
    """The newest overrides and refusals, and how overrides belong together."""

    overrides: Sequence[Override] = ()
    refusals: Sequence[Refusal] = ()
    unresolved: frozenset[str] = frozenset()
    """The overrides with an intent whose outcome is not known."""
    takeovers: Mapping[str, str] = field(default_factory=dict)
    """Override → who continued it after its console was gone."""

    def state(self, override: Override) -> Cell:
        """The state of an override in a word or two."""
        if override.override_id in self.unresolved:
            return Cell("! unresolved", "error")
        if override.state is OverrideState.RUNNING and not override.alive:
            return Cell("! abandoned", "error")  # recorded as running, but its process is gone
        if override.undone_by:
            restored = sum(_applied(o) for o in self.overrides if o.override_id in override.undone_by)
            return Cell("↶ undone" if restored >= _applied(override) else "↶ partly undone", "muted")
        if override.override_id in self.takeovers and override.state is OverrideState.FINISHED:
            return Cell("✓ taken over", "good")
        return state_cell(override.state)


def state_cell(state: OverrideState) -> Cell:
    match state:
        case OverrideState.RUNNING:
            return Cell("▸ running", "calm")
        case OverrideState.QUEUED:
            return Cell("… queued", "muted")
        case OverrideState.PAUSED:
            return Cell("‖ paused", "warning")
        case OverrideState.STOPPED:
            return Cell("■ stopped", "warning")
        case OverrideState.FINISHED:
            return Cell("✓ finished", "good")
        case _:
            assert_never(state)


def _applied(override: Override) -> int:
    return override.counts.get(OutcomeKind.APPLIED, 0)


def read_audit_log(trail: Trail, limit: int = _NEWEST) -> AuditLog:
    records = trail.newest(limit=limit)
    return AuditLog(
        trail.overrides(limit),
        [_refusal(record) for record in records if record.kind == _REFUSAL],
        frozenset(intent.override_id for intent in trail.unresolved()),
        {str(r.body.get("override_id")): _login(r.body) for r in records if _is_takeover(r)},
    )


def _is_takeover(record: Record) -> bool:
    """Whether another process continued an override after its own had ended. After a stop, that is only a resume."""
    return record.kind == _TAKEOVER and record.body.get("previous_state") == OverrideState.RUNNING


def _login(body: Mapping[str, object]) -> str:
    return str(body.get("by", ""))


def _refusal(record: Record) -> Refusal:
    body = record.body
    why, detail, reason = (str(body.get(name, "")) for name in ("why", "detail", "reason"))
    return Refusal(record.at, record.seq, _sentence(why), detail, reason, _login(body))


def _sentence(kind: str) -> str:
    """The sentence of the fault class with this name; the name itself if it is unknown."""
    fault = getattr(faults, kind, None)
    known = isinstance(fault, type) and issubclass(fault, faults.Fault)
    return (fault.__doc__ or kind).removeprefix("Refused: ") if known else kind
