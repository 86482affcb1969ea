"""What the trail and the history know about causes: their state, owner and notes, and how often they failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import assert_never

from console.core.cause_count import Cause
from console.core.cause_life import UNKNOWN_LIFE, CauseLife, CauseState
from console.core.history import NEAR_A_MARK, Mark, Trend, mark_before
from console.core.session import Session
from console.ui.cells import Cell, thousands

_TREND = timedelta(hours=24)
STEPS = 24
_MARKS = 4


@dataclass(frozen=True, slots=True)
class CausePast:
    """The states and trends of the counted causes. Where there is no trail or no history, they are empty."""

    lives: Mapping[str, CauseLife] = field(default_factory=dict)
    trends: Mapping[str, Trend] = field(default_factory=dict)
    marks: Sequence[Mark] = ()
    """The deploy marks of the last day, and those from before the causes began."""
    looked: datetime | None = None
    """When this user looked at the causes before; None if that is not known."""

    def began_after(self, cause: Cause) -> Mark | None:
        """The mark shortly before it was first seen."""
        return mark_before(self.life(cause).first_seen or cause.first, self.marks)

    def is_new_to_you(self, cause: Cause) -> bool:
        """Whether it was first seen since this user looked before."""
        first = self.life(cause).first_seen
        return self.looked is not None and first is not None and first > self.looked

    def life(self, cause: Cause) -> CauseLife:
        return self.lives.get(cause.signature or "", UNKNOWN_LIFE)

    def trend(self, cause: Cause) -> Trend | None:
        return self.trends.get(cause.signature or "")


def read_past(
    session: Session, causes: Iterable[Cause], now: datetime, at: datetime | None = None,
    looked: datetime | None = None,
) -> CausePast:
    """Read what was recorded since the last time; with `at`, as it was then. Reads only the trail and the history."""
    if session.causes is None:
        return CausePast()
    lives, history = read_lives(session, causes, at), session.history
    if history is None:
        return CausePast(lives, looked=looked)
    trends = history.cause_trends(now - _TREND, now, STEPS, list(lives))
    began = min((life.first_seen for life in lives.values() if life.first_seen is not None), default=now)
    return CausePast(lives, trends, history.marks(min(began - NEAR_A_MARK, now - _TREND), now), looked)


def marks_below(trend: Trend, marks: Iterable[Mark]) -> tuple[str, str]:
    """The deploy marks of a chart as the line below it, and in words."""
    shown = [mark for mark in marks if trend.start <= mark.at < trend.end]
    places = {(mark.at - trend.start) // trend.width for mark in shown}
    row = "".join("▴" if step in places else " " for step in range(len(trend.values)))
    return row, "   ".join(f"{mark.at:%H:%M} {mark.text}" for mark in shown[-_MARKS:])


def read_lives(session: Session, causes: Iterable[Cause], at: datetime | None = None) -> dict[str, CauseLife]:
    """The state of each cause by its signature, read again; empty without a trail."""
    states, history = session.causes, session.history
    if states is None:
        return {}
    states.read()
    first_seen = {} if history is None else history.first_seen()
    named = {cause.signature: cause for cause in causes if cause.signature is not None}
    return {signature: states.life(cause, first_seen.get(signature), at) for signature, cause in named.items()}


def read_trends(session: Session, causes: Iterable[Cause]) -> Mapping[str, Trend]:
    """How often each cause failed in the last day, by its signature; empty without a history."""
    signatures = [cause.signature for cause in causes if cause.signature is not None]
    if session.history is None or not signatures:
        return {}
    now = session.clock.now()
    return session.history.cause_trends(now - _TREND, now, STEPS, signatures)


def state_cell(life: CauseLife) -> Cell:
    """The state of a cause in one word."""
    match life.state:
        case CauseState.NEW:
            return Cell("new", "warning")
        case CauseState.ONGOING:
            return Cell("ongoing", "muted")
        case CauseState.ACKNOWLEDGED:
            return Cell("ack", "calm")
        case CauseState.SNOOZED:
            return Cell("snoozed", "muted")
        case CauseState.RESOLVED:
            return Cell("resolved", "good")
        case CauseState.REGRESSED:
            return Cell("regressed", "error")
        case _:
            assert_never(life.state)


def trend(cause: Cause, now: datetime) -> Cell:
    """The failures of the last hour, and whether that is more or fewer than in the hours before."""
    if not cause.recent:
        return Cell("·", "muted")
    hours = 1.0 if cause.first is None else max((now - cause.first) / timedelta(hours=1), 1.0)
    before = (cause.count - cause.recent) / max(hours - 1, 1.0)
    arrow, tone = ("↑", "warning") if cause.recent > 1.5 * before else ("→", "muted")
    if cause.recent * 2 < before:
        arrow, tone = "↓", "muted"
    return Cell(f"{arrow}{thousands(cause.recent)}", tone)
