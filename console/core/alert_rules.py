"""The rules of alerts, as the config has them. Light, because every command reads the config."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from console.core.text import duration


class RuleKind(StrEnum):
    """What a rule is about."""

    NEW_CAUSE = "new_cause"
    CAUSE_GROWS = "cause_grows"
    STORM_AHEAD = "storm_ahead"
    UNREACHABLE = "unreachable"
    OVERRIDE_STOPPED = "override_stopped"
    TRAIL_BROKEN = "trail_broken"


@dataclass(frozen=True, slots=True)
class Rule:
    """When to alert, and whom."""

    kind: RuleKind
    count: int = 0
    """Failures of a new cause, or retries ahead."""
    factor: float = 0.0
    """How many times as many failures as an hour ago."""
    within: timedelta = timedelta(0)
    """How far ahead retries count."""
    lasting: timedelta = timedelta(0)
    """How long it must hold before it is on."""
    quiet: timedelta = timedelta(hours=1)
    """How long nothing is sent again while it stays on."""
    hooks: tuple[str, ...] | None = None
    """The hooks to call; None for all of them."""

    @property
    def id(self) -> str:
        """The rule as it is written in the config."""
        match self.kind:
            case RuleKind.NEW_CAUSE:
                value = str(self.count)
            case RuleKind.CAUSE_GROWS:
                value = f"{self.factor:g}x"
            case RuleKind.STORM_AHEAD:
                value = f"{self.count} within {duration(self.within)}"
            case RuleKind.UNREACHABLE:
                value = duration(self.lasting)
            case RuleKind.OVERRIDE_STOPPED | RuleKind.TRAIL_BROKEN:
                return self.kind.value
            case _:
                assert_never(self.kind)
        return f"{self.kind.value}: {value}"
