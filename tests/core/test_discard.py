"""Discard: which items it takes, what it warns of, how it is confirmed, and what its undo restores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from console.core.action_rules import decide_discard
from console.core.backend import Action, Operation, OutcomeKind
from console.core.confirm import ConfirmationForm, Limits
from console.core.faults import NotConfirmed, PlanAltered, PlanStale, ReadOnlyRefused, UsageFault
from console.core.item import Condition
from console.core.operations import Operations
from console.core.override import OverrideState, outcome_summary
from console.core.pace import Canary, Over
from console.testing import FrozenClock, MemoryQueue
from console.testing.memory_queue import Row
from tests.faults.world import NOON, World, confirm, marked, outcomes, why_blocked, world_in
from tests.plugins.memory_queue import Deletes

DISCARD = Operation(Action.DISCARD)
GIVEN_UP = "Already given up by its system; acknowledge the cause instead."


class CannotDiscard(MemoryQueue):
    abilities = replace(
        MemoryQueue.abilities, actions=frozenset({Action.REQUEUE, Action.UNDO}), discard=None,
        no_discard="Its rows belong to a view.",
    )


def row(status: str, attempts: int = 2, *, due: datetime | None = None, updated: datetime = NOON) -> Row:
    return {"status": status, "attempts": attempts, "due": due, "error": "boom", "type": "mail",
            "created": NOON - timedelta(days=1), "updated": updated}


def sample() -> dict[str, Row]:
    return {
        "retrying": row("ready", due=NOON + timedelta(minutes=5)),
        "failed": row("failed"),
        "terminal": row("failed", 3),
        "stuck": row("running", updated=NOON - timedelta(hours=1)),
        "running": row("running"),
        "waiting": row("ready", 0),
        "done": row("done"),
        "cancelled": row("cancelled"),
    }


class Consoles:
    """Consoles over one memory queue and one trail."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows = sample()

    def over(self, kind: type[MemoryQueue] = MemoryQueue, limits: Limits | None = None) -> Operations:
        backend = kind("memory", self.rows, clock=FrozenClock(NOON))
        return Operations({"memory": backend}, self.world.trail(), self.world.clock, limits=limits, owner="me")


@pytest.fixture
def consoles(tmp_path: Path) -> Iterator[Consoles]:
    with world_in(tmp_path) as world:
        yield Consoles(world)


def keys(rows: Sequence[str]) -> list[str]:
    return [f"memory/{id}" for id in rows]


def test_every_condition_has_a_rule() -> None:
    taken = {condition for condition in Condition if decide_discard(condition).skipped is None}
    assert taken == {Condition.RETRYING, Condition.FAILED, Condition.STUCK}
    also = {condition for condition in Condition if decide_discard(condition, takes_terminal=True).skipped is None}
    assert also == taken | {Condition.TERMINAL}
    warned = {condition for condition in Condition if decide_discard(condition).warning is not None}
    assert warned == {Condition.STUCK}


def test_a_plan_says_who_is_discarded_and_why_the_others_are_not(consoles: Consoles) -> None:
    console = consoles.over()
    plan = console.propose(marked(*keys(list(consoles.rows))), DISCARD)
    assert plan.changes == 3
    assert plan.by_condition == {"retrying": 1, "failed": 1, "stuck": 1}
    assert plan.warnings == {"Ran longer than its limit; a worker may still hold it and finish it.": 1}
    assert why_blocked(console, plan) == {
        "memory/terminal": GIVEN_UP, "memory/running": "Running, within its time limit.",
        "memory/waiting": "Has not failed; it waits for its first run.", "memory/done": "Already done.",
        "memory/cancelled": "Already cancelled.",
    }


def test_discarded_items_are_cancelled_and_an_undo_restores_them(consoles: Consoles) -> None:
    console, before = consoles.over(), sample()
    plan = console.propose(marked(*keys(["retrying", "failed", "stuck"])), DISCARD)
    override = console.carry_out(plan, confirm(plan))
    assert (override.state, override.counts, override.action) == (OverrideState.FINISHED, {"applied": 3}, "discard")
    assert outcome_summary(override.counts, override.action) == "3 discarded"
    assert {consoles.rows[id]["status"] for id in ("retrying", "failed", "stuck")} == {"cancelled"}
    undo = console.undo(override.override_id)
    assert (undo.changes, undo.by_condition) == (3, {"discarded": 3})
    console.carry_out(undo, confirm(undo))
    assert consoles.rows == before


def test_an_item_that_changed_since_is_not_discarded(consoles: Consoles) -> None:
    console = consoles.over()
    plan = console.propose(marked("memory/failed"), DISCARD)
    consoles.rows["failed"]["updated"] = NOON + timedelta(seconds=1)
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"changed": 1}
    assert consoles.rows["failed"]["status"] == "failed"


@pytest.mark.parametrize("pace", [Over(timedelta(minutes=30)), Canary(5)])
def test_a_discard_has_no_pace(consoles: Consoles, pace: Over | Canary) -> None:
    with pytest.raises(UsageFault, match="A discard has no pace"):
        consoles.over().propose(marked("memory/failed"), DISCARD, pace)


def test_a_backend_without_a_rule_says_why(consoles: Consoles) -> None:
    console = consoles.over(CannotDiscard)
    plan = console.propose(marked("memory/failed"), DISCARD)
    assert plan.changes == 0
    assert plan.skipped == {"memory cannot discard items. Its rows belong to a view.": 1}


# -- where it deletes ------------------------------------------------------------------------------------


def test_deleting_is_announced_and_the_number_is_always_typed(consoles: Consoles) -> None:
    console = consoles.over(Deletes)
    plan = console.propose(marked("memory/terminal"), DISCARD)
    assert (plan.changes, plan.deletes) == (1, True)
    assert plan.warnings == {"Its system deletes discarded items. This cannot be undone.": 1}
    form = ConfirmationForm(console.trail.plan(plan.id), console.limits)
    assert form.needs_number
    assert form.question == "This deletes 1 item and cannot be undone. Type the number to confirm: "
    assert form.confirmed_count("y") is None
    with pytest.raises(NotConfirmed):
        form.confirmation(confirm(plan).who, confirm(plan).origin, "why", form.confirmed_count("yes"))
    console.carry_out(plan, confirm(plan))
    assert "terminal" not in consoles.rows


def test_a_requeue_of_the_same_backend_deletes_nothing(consoles: Consoles) -> None:
    console = consoles.over(Deletes)
    plan = console.propose(marked("memory/failed"), Operation())
    assert not plan.deletes
    assert not ConfirmationForm(plan, console.limits).needs_number


def test_deleted_items_cannot_be_restored(consoles: Consoles) -> None:
    console = consoles.over(Deletes)
    plan = console.propose(marked(*keys(["failed", "terminal"])), DISCARD)
    override = console.carry_out(plan, confirm(plan))
    undo = console.undo(override.override_id)
    assert (undo.changes, undo.skipped) == (0, {"Its system has deleted it.": 2})


def test_a_discard_that_deletes_since_the_plan_was_made_is_refused(consoles: Consoles) -> None:
    plan = consoles.over().propose(marked("memory/failed"), DISCARD)
    with pytest.raises(PlanStale, match="What a discard does here has changed"):
        consoles.over(Deletes).carry_out(plan, confirm(plan))
    with pytest.raises(PlanStale, match="What a discard does here has changed"):
        consoles.over(CannotDiscard).carry_out(plan, confirm(plan))
    assert consoles.rows == sample()


def test_a_plan_that_no_longer_says_that_it_deletes_is_altered(consoles: Consoles) -> None:
    """Otherwise somebody with access to the trail could have a deletion confirmed with a mere yes."""
    console = consoles.over(Deletes)
    plan = console.propose(marked("memory/failed"), DISCARD)
    consoles.world.trail_run("UPDATE plan SET body = replace(body, '\"deletes\": true', '\"deletes\": false')")
    consoles.world.trail_run("UPDATE plan SET body = replace(body, '\"deletes\":true', '\"deletes\":false')")
    stored = console.trail.plan(plan.id)
    assert not stored.deletes
    for shown in (plan, stored):
        with pytest.raises(PlanAltered):
            console.carry_out(shown, confirm(shown))
    assert consoles.rows == sample()


def test_nothing_is_discarded_in_read_only_mode(consoles: Consoles) -> None:
    console = consoles.over()
    plan = console.propose(marked("memory/failed"), DISCARD)
    console.read_only = True
    with pytest.raises(ReadOnlyRefused):
        console.carry_out(plan, confirm(plan))
    assert consoles.rows == sample()


class Interrupted(Exception):
    """The process dies here."""


@pytest.mark.parametrize(("point", "outcome", "detail"), [
    ("before_write", "not_applied", "found by reading again"),
    ("after_write", "unknown", "found by reading again: no longer there; this override or its system deleted it"),
])
def test_an_interrupted_deletion_is_never_taken_for_certain(
    consoles: Consoles, point: str, outcome: str, detail: str
) -> None:
    def reach(name: str) -> None:
        if name == point:
            raise Interrupted

    dying = consoles.over(Deletes)
    dying._reach = reach
    plan = dying.propose(marked("memory/failed"), DISCARD)
    with pytest.raises(Interrupted):
        dying.carry_out(plan, confirm(plan))
    consoles.world.clock.tick(timedelta(minutes=5))
    console = consoles.over(Deletes)
    console._owner = "another"
    (settled,) = console.settle_unresolved(confirm(plan).who, confirm(plan).origin)
    assert outcomes(console, settled)["memory/failed"] == (outcome, detail)


# -- the words for outcomes -----------------------------------------------------------------------------


def test_every_outcome_has_its_word() -> None:
    counts = {kind.value: 1 for kind in OutcomeKind}
    assert outcome_summary(counts, "discard") == "1 discarded, 1 changed since the plan, 1 rejected, 1 outcome unknown"


def test_no_other_action_is_taken_for_a_requeue() -> None:
    """A plugin that has only these two writes neither for an action that was added later."""
    assert Operation(Action.DISCARD).discards
    assert not Operation(Action.REQUEUE).discards
    for other in (Action.UNDO, "shelve"):
        with pytest.raises(ValueError):
            _ = Operation(other).discards
