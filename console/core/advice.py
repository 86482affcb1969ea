"""What a person can do about a refusal, a warning or a skipped item.

Core and plugins say which step would help. Each front end words the step in its own terms: the command line names an
option (`--attempts reset`), the console names the switch ("reset attempts").
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Step(StrEnum):
    """One thing a person can do. The comment says what `Advice.value` holds."""

    SET_ATTEMPTS = "set_attempts"
    """`keep` or `reset`: make the plan with that choice."""
    TURN_ON = "turn_on"
    """The value of a `Flag`: make the plan with that switch on."""
    CHOOSE_KIND = "choose_kind"
    """The ids of switches, separated by spaces: make the plan with exactly one of them on."""
    CONFIRM = "confirm"
    """The number of items to confirm."""
    APPLY_PLAN = "apply_plan"
    """The id of a plan that is still valid."""
    SELECT_ALL = "select_all"
    """Say that everything is meant, although nothing narrows the selection."""
    SELECT_FEWER = "select_fewer"
    """Select only the first N items; the value is N."""
    ALLOW_WRITES = "allow_writes"
    """Start again without read-only mode."""
    VERIFY_TRAIL = "verify_trail"
    RESUME = "resume"
    """The id of an override."""
    SUBMIT = "submit"
    """Submit the plan, for somebody else to approve."""
    COPY_KEY = "copy_key"
    """Copy an item's key from a list."""


class Advice(NamedTuple):
    """A step that would help, and the value it needs."""

    step: Step
    value: str = ""


class Notice(NamedTuple):
    """A sentence about an item or a plan, and what can be done about it."""

    text: str
    advice: Advice | None = None
