"""The last day of the systems: from the history, with the deploys, or from the times in the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from console.core.history import History, Mark, Trend
from console.core.item import Condition

DAY = timedelta(hours=24)
STEPS = 96
"""A quarter of an hour each."""
_FAILING = (Condition.FAILED, Condition.TERMINAL, Condition.STUCK, Condition.UNKNOWN)


@dataclass(frozen=True, slots=True)
class SystemPast:
    """How many items failed in each system over a day, and what was deployed. Empty where nothing was recorded."""

    trends: Mapping[str, Trend] = field(default_factory=dict)
    marks: Sequence[Mark] = ()

    def counts(self, name: str, steps: int = STEPS) -> Sequence[int | None]:
        """The failed items of a system, in at most this many steps; None where nothing was recorded. Empty if less than
        half of the day was recorded: then the times in the rows tell more."""
        trend = self.trends.get(name)
        if trend is None or len(trend.known) * 2 < len(trend.values):
            return ()
        return trend.coarser(steps).values

    def total(self, names: Iterable[str]) -> Sequence[int | None]:
        """The failed items of these systems together; None where nothing was recorded about any of them."""
        each = [counts for name in names if (counts := self.counts(name))]
        known = ([value for value in step if value is not None] for step in zip(*each, strict=True))
        return [sum(values) if values else None for values in known]


def read_system_past(history: History, end: datetime) -> SystemPast:
    """The day before `end`. Reads only the history."""
    start = end - DAY
    return SystemPast(history.system_trends(start, end, STEPS, _FAILING), tuple(history.marks(start, end)))
