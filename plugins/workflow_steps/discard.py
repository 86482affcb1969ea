"""Gives steps up as the operators of their system do: cancelled, or resolved by hand.

Both mark the step as processed and add one transition. The difference is what comes after it: a resolved step counts as
complete for the steps that depend on it, a cancelled one does not.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from console.core.action_rules import MAY_BE_HELD, decide_discard
from console.core.advice import Advice, Notice, Step
from console.core.backend import Action, Operation
from console.core.capabilities import DISCARD_AS, SwitchSpec
from console.core.item import Verdict
from plugins.workflow_steps.image import StepImage
from plugins.workflow_steps.prediction import WAKE_TASK, TaskState, refused
from plugins.workflow_steps.rows import AT_WORK, StepRow

AS_CANCELLED, AS_RESOLVED = f"{DISCARD_AS}cancelled", f"{DISCARD_AS}resolved"
SWITCHES = (
    SwitchSpec(
        AS_CANCELLED, "as cancelled", "Cancel the steps: steps that depend on them never run.",
        actions=(Action.DISCARD,),
    ),
    SwitchSpec(
        AS_RESOLVED, "as resolved", "Mark the steps as resolved by hand: steps that depend on them run.",
        actions=(Action.DISCARD,),
    ),
)
_STATES = {AS_CANCELLED: "cancelled", AS_RESOLVED: "resolved_manually"}
_CHOOSE = Notice("Choose how it is discarded.", Advice(Step.CHOOSE_KIND, f"{AS_CANCELLED} {AS_RESOLVED}"))
_NEVER = "Cancelled: steps that depend on it never run, and its task does not complete."
_MAY_RUN = "Resolved by hand: steps that depend on it run, without its result."
_WOKEN = "Its task is woken: a transition to waiting_for_retry is added."


class Decision(NamedTuple):
    """Why a step is skipped, or else what to warn of and whether its task must be woken."""

    skipped: Notice | None
    warnings: tuple[str, ...] = ()
    wakes: bool = False
    advice: Advice | None = None
    """What can be done about the warnings."""


def state_of(operation: Operation) -> str | None:
    """The state that the steps get; None unless exactly one way was chosen."""
    chosen = [state for switch, state in _STATES.items() if switch in operation.flags]
    return chosen[0] if len(chosen) == 1 else None


def why_not(verdict: Verdict, operation: Operation) -> Notice | None:
    """Why a step is not given up, whatever its task is."""
    if state_of(operation) is None:
        return _CHOOSE
    return decide_discard(verdict.condition, takes_terminal=True).skipped


def consequences(
    step: StepRow, task: TaskState, remaining: int, operation: Operation, now: datetime
) -> Decision:
    """What follows from giving up a step. `remaining` counts the steps of its task that stay in error."""
    held = (MAY_BE_HELD.text,) if step.state in AT_WORK else ()
    if state_of(operation) == _STATES[AS_CANCELLED]:
        return Decision(None, (_NEVER, *held))
    ignored = refused(task._replace(failed=remaining), now)
    if ignored is None:
        return Decision(None, (_MAY_RUN, *held))
    if ignored.advice == Advice(Step.TURN_ON, WAKE_TASK):
        if WAKE_TASK in operation.flags:
            return Decision(None, (_MAY_RUN, _WOKEN, *held), wakes=True)
        return Decision(None, (_MAY_RUN, ignored.why, *held), advice=ignored.advice)
    return Decision(None, (_MAY_RUN, ignored.why, *held))


def given_up(step: StepImage, state: str, moment: Any) -> StepImage:
    """The step as its own system leaves it: processed, with one more transition."""
    sort_key = (step.sort_key or 0) + 1
    return step._replace(
        state=state, sort_key=sort_key, in_process=False, processed=True, processed_at=moment, updated_at=moment
    )
