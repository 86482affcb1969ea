"""How outcomes look: a sign, a tone and a meaning for each. Their words are in `console.core.override`."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from console.core.backend import OutcomeKind
from console.core.override import NOT_APPLIED, SKIPPED, Actions, outcome_label


class OutcomeLook(NamedTuple):
    """How an outcome is shown, and what it means for the item."""

    sign: str
    word: str
    tone: str
    meaning: str = ""


SKIPPED_LOOK = OutcomeLook("–", SKIPPED, "muted", "left out of the plan, not touched")


def outcome_look(outcome: str, action: str, actions: Actions) -> OutcomeLook:
    """The look of an outcome as a progress or the trail names it. `actions` are the plugins' own."""
    word = outcome_label(outcome, action, actions)
    if outcome == NOT_APPLIED:
        return OutcomeLook("○", word, "muted")
    kind = OutcomeKind(outcome)
    match kind:
        case OutcomeKind.APPLIED:
            return OutcomeLook("✓", word, "good")
        case OutcomeKind.CHANGED_SINCE:
            return OutcomeLook("≠", word, "warning", "not touched")
        case OutcomeKind.REJECTED:
            return OutcomeLook("✗", word, "error", "the database refused the change")
        case OutcomeKind.UNKNOWN:
            return OutcomeLook("?", word, "error", "could not be read again; resume settles it")
        case _:
            assert_never(kind)
