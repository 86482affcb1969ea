"""How outcomes and results look: a sign, a tone and a meaning for each. Their words are in `console.core`."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from console.core.backend import OutcomeKind
from console.core.override import NOT_APPLIED, Actions, outcome_label
from console.core.recovery import Result


class OutcomeLook(NamedTuple):
    """How an outcome is shown, and what it means for the item."""

    sign: str
    word: str
    tone: str
    meaning: str = ""


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
            return OutcomeLook("✗", word, "error", "refused by its database")
        case OutcomeKind.UNKNOWN:
            return OutcomeLook("?", word, "error", "could not be read again; resume it to find out")
        case _:
            assert_never(kind)


def result_look(result: Result) -> OutcomeLook:
    """The look of the result of a requeued item."""
    match result:
        case Result.RECOVERED:
            return OutcomeLook("●", result.label, "good", "done since the requeue")
        case Result.FAILED_AGAIN:
            return OutcomeLook("✗", result.label, "error")
        case Result.RUNNING:
            return OutcomeLook("▸", result.label, "calm")
        case Result.NOT_RUN_YET:
            return OutcomeLook("○", result.label, "muted", "waiting in its system")
        case Result.CHANGED_BY_OTHERS:
            return OutcomeLook("≠", result.label, "warning", "changed without a run")
        case Result.NOT_KNOWN:
            return OutcomeLook("?", result.label, "warning", "its system cannot tell")
        case _:
            assert_never(result)
