"""The usual rules for requeueing and discarding an item, and the sentences that explain them to a person.

A plugin whose system has other rules still uses these sentences where they say what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple, assert_never

from console.core.advice import Advice, Notice, Step
from console.core.backend import Attempts, Flag, Operation
from console.core.item import Condition, Verdict
from console.core.policy import Facts, RetryPolicy, limit_of
from console.core.prediction import Prediction

NOT_REQUEUEABLE: Mapping[Condition, Notice] = {
    Condition.WAITING: Notice("Has not failed; it waits for its first run."),
    Condition.RUNNING: Notice("Running, within its time limit."),
    Condition.DONE: Notice("Already done."),
    Condition.CANCELLED: Notice("Was cancelled."),
    Condition.UNKNOWN: Notice("Its native status is unknown, so no rule applies."),
}
"""Why an item in one of these conditions is never requeued."""

TOO_LARGE = Notice("Its key or a column that the write compares is larger than 64 kB.")
NOT_STORABLE = Notice("Holds a value that a plan cannot store, so a write could not be guarded.")
UNRECOVERABLE = Notice("Its error is not recoverable.", Advice(Step.TURN_ON, Flag.INCLUDE_UNRECOVERABLE.value))
NO_ATTEMPTS_LEFT = Notice(
    "No attempts left, so its system would ignore it.", Advice(Step.SET_ATTEMPTS, Attempts.RESET.value)
)
ATTEMPTS_STAY = Notice(
    "Its system never resets attempts.", Advice(Step.SET_ATTEMPTS, Attempts.KEEP.value)
)
ALREADY_DUE = Notice("Already scheduled; runs when due.")
ONLY_EARLIER = Notice(
    "Already scheduled; it can only be run earlier, with its attempts kept.",
    Advice(Step.SET_ATTEMPTS, Attempts.KEEP.value),
)
ONE_MORE_TRY = Notice("Attempts are kept: one more try, then terminal.")
OLD_WORKER = Notice("Ran longer than its limit; the old worker may still be alive.")
GIVEN_UP = Notice("Already given up by its system; acknowledge the cause instead.")
ALREADY_CANCELLED = Notice("Already cancelled.")
MAY_BE_HELD = Notice("Ran longer than its limit; a worker may still hold it and finish it.")
DELETES = Notice("Its system deletes discarded items. This cannot be undone.")
CANNOT_BE_UNDONE = Notice("This discard cannot be undone.")


def not_taken(predicted: Prediction) -> Notice:
    """Why an item is skipped that its system would not take."""
    return Notice(f"Its system would not take it: {predicted.why}.", predicted.advice)


class Decision(NamedTuple):
    """Whether an item is requeued or discarded: why it is skipped, or else what to warn of."""

    skipped: Notice | None = None
    warning: Notice | None = None


def decide(facts: Facts, verdict: Verdict, operation: Operation, policy: RetryPolicy, now: datetime) -> Decision:
    """The rules of a queue that runs an item again once its row is ready, if attempts are left or it has failed."""
    limit = limit_of(facts, policy)
    used_up = limit is not None and facts.attempts >= limit
    keeps = operation.attempts is Attempts.KEEP
    match verdict.condition:
        case Condition.RETRYING:
            return Decision(why_not_earlier(facts, now, keeps=keeps))
        case Condition.STUCK if used_up and keeps:
            return Decision(NO_ATTEMPTS_LEFT)
        case Condition.STUCK:
            return Decision(warning=OLD_WORKER)
        case Condition.FAILED | Condition.TERMINAL:
            if verdict.recoverable is False and Flag.INCLUDE_UNRECOVERABLE not in operation.flags:
                return Decision(UNRECOVERABLE)
            return Decision(warning=ONE_MORE_TRY if used_up and keeps else None)
        case Condition.WAITING | Condition.RUNNING | Condition.DONE | Condition.CANCELLED | Condition.UNKNOWN:
            return Decision(NOT_REQUEUEABLE[verdict.condition])
        case _:
            assert_never(verdict.condition)


def why_not_earlier(facts: Facts, now: datetime, *, keeps: bool) -> Notice | None:
    """Why an item that waits for its next attempt is not run earlier; None if it is. `keeps`: it keeps its attempts."""
    if not keeps:
        return ONLY_EARLIER
    if facts.ignored is None and (facts.due_at is None or facts.due_at <= now):
        return ALREADY_DUE
    return None


def why_not_moved(verdict: Verdict, operation: Operation, *, waits: bool) -> Notice | None:
    """Why a job of a library that keeps its jobs in lists and sets is not moved back to its queue; None if it is.

    A scheduled job that still `waits` can be run earlier, but keeps its attempts.
    """
    match verdict.condition:
        case Condition.RETRYING if operation.attempts is not Attempts.KEEP:
            return ONLY_EARLIER
        case Condition.RETRYING:
            return None if waits else ALREADY_DUE
        case Condition.FAILED | Condition.TERMINAL | Condition.STUCK:
            insists = Flag.INCLUDE_UNRECOVERABLE in operation.flags
            return UNRECOVERABLE if verdict.recoverable is False and not insists else None
        case Condition.WAITING | Condition.RUNNING | Condition.DONE | Condition.CANCELLED | Condition.UNKNOWN:
            return NOT_REQUEUEABLE[verdict.condition]
        case _:
            assert_never(verdict.condition)


def decide_discard(condition: Condition, *, takes_terminal: bool = False) -> Decision:
    """The usual rule: an item that would run again or waits for a person is discarded.

    A terminal one is not, unless its system has a way to close or delete it (`takes_terminal`): it will not run again
    in any case.
    """
    match condition:
        case Condition.RETRYING | Condition.FAILED:
            return Decision()
        case Condition.STUCK:
            return Decision(warning=MAY_BE_HELD)
        case Condition.TERMINAL:
            return Decision() if takes_terminal else Decision(GIVEN_UP)
        case Condition.CANCELLED:
            return Decision(ALREADY_CANCELLED)
        case Condition.WAITING | Condition.RUNNING | Condition.DONE | Condition.UNKNOWN:
            return Decision(NOT_REQUEUEABLE[condition])
        case _:
            assert_never(condition)
