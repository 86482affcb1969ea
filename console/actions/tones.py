"""The tone of each condition. The console's themes and the command line map a tone to a colour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from console.core.item import Condition

COLOURS: Mapping[str, str] = {
    "muted": "bright_black", "calm": "blue", "good": "green", "warning": "yellow", "error": "red",
}
"""The colour of a tone in a terminal with 16 colours."""


def tone(of: Condition) -> str:
    """The tone of a condition, the same on every screen and in every table."""
    match of:
        case Condition.WAITING | Condition.CANCELLED:
            return "muted"
        case Condition.RUNNING | Condition.DONE:
            return "good"
        case Condition.RETRYING:
            return "calm"
        case Condition.FAILED | Condition.UNKNOWN:
            return "warning"
        case Condition.TERMINAL | Condition.STUCK:
            return "error"
        case _:
            assert_never(of)
