"""Proposals: submitted, checked again, approved, rejected, withdrawn, expired; all of it on the trail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.access import AccessRules, Limit, Permission, Right
from console.core.approvals import Approvals
from console.core.confirm import Who
from console.core.faults import Fault, NotAllowed, NotConfirmed, PlanAltered, PlanExpired, PlanStale, ReadOnlyRefused
from console.core.operations import Operations
from console.core.override import OverrideState
from console.core.plan import Plan
from console.core.proposals import Proposal, ProposalState, Recheck
from tests.faults.world import KEEP, ORIGIN, RESET, WHO, World, confirm, matching, world_in

BOB = Who(1001, "bob", groups=("leads",))
HOUR = timedelta(hours=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as found:
        found.queue.fill(30)
        found.queue.forget()
        yield found


def seat(world: World, who: Who = WHO, rules: AccessRules | None = None, **options: Any) -> tuple[Operations, Approvals]:
    """One person at a console."""
    operations = world.console(**options)
    operations._who, operations._origin = who, ORIGIN
    operations.rules = rules or AccessRules()
    return operations, Approvals(operations, world.clock, who, ORIGIN)


def submitted(world: World, limit: int = 10, who: Who = WHO, rules: AccessRules | None = None) -> tuple[Plan, Proposal]:
    operations, approvals = seat(world, who, rules)
    plan = operations.propose(matching("condition:terminal", limit=limit), RESET)
    return plan, approvals.submit(plan, "provider is back", "OPS-7")


def refusals(operations: Operations) -> list[str]:
    return [record.body["why"] for record in operations.trail.records() if record.kind == "refusal"]


def test_a_proposal_is_approved_by_somebody_else(world: World) -> None:
    plan, proposal = submitted(world)
    assert (proposal.state, proposal.items, proposal.changes) == (ProposalState.OPEN, 10, {"queue": 10})
    assert world.queue.touched() == set(), "a proposal changes nothing"
    operations, approvals = seat(world, BOB)
    (found,) = approvals.open()
    assert found == proposal
    override = approvals.approve(found, 10)
    assert override.state is OverrideState.FINISHED
    assert override.counts == {"applied": 10}
    assert (override.who, override.reason, override.ticket) == ("bob", "provider is back", "OPS-7")
    assert override.proposed_by == str(WHO)
    assert len(world.queue.touched()) == 10
    decided = approvals.get(plan.id[:6])
    assert (decided.state, decided.decided_by, decided.override_id) == (ProposalState.APPROVED, "bob", override.override_id)
    assert approvals.open() == []
    kinds = [record.kind for record in operations.trail.records()]
    assert kinds[:3] == ["planned", "submitted", "confirmed"]
    assert operations.trail.verified().what == ""


def test_one_item_is_not_counted() -> None:
    assert Recheck(same=1).summary() == "Its item is still as planned"
    assert Recheck(gone=1).summary() == "1 of 1 no longer there"


def test_every_item_is_checked_again(world: World) -> None:
    plan, proposal = submitted(world)
    _, approvals = seat(world, BOB)
    assert approvals.recheck(plan).summary() == "All 10 items are still as planned"
    keys = [row.key for rows in approvals._trail.rows(plan.id, 0, 9) for row in rows]
    first, second, third = (key.partition("/")[2] for key in keys[:3])
    world.queue.run("UPDATE async_tasks SET attempts = 99 WHERE task_id IN (?, ?)", (first, second))
    world.queue.run("DELETE FROM async_tasks WHERE task_id = ?", (third,))
    again = approvals.recheck(plan)
    assert (again.same, again.changed, again.gone) == (7, 2, 1)
    assert again.summary() == "2 of 10 changed since, 1 of 10 no longer there"
    assert sorted(again.differing) == sorted(keys[:3])
    override = approvals.approve(proposal, 10)
    assert override.counts["applied"] == 7, "what changed since is left alone"


def test_rejected_with_a_reason_and_withdrawn_by_the_proposer(world: World) -> None:
    _, first = submitted(world)
    _, second = submitted(world)
    operations, approvals = seat(world, BOB)
    with pytest.raises(NotConfirmed, match="a reason is required"):
        approvals.reject(first, " ")
    approvals.reject(first, "wrong filter")
    assert (approvals.get(first.plan_id).state, approvals.get(first.plan_id).note) == (ProposalState.REJECTED, "wrong filter")
    with pytest.raises(NotAllowed, match="Only ann"):
        approvals.withdraw(second)
    seat(world)[1].withdraw(second)
    assert approvals.get(second.plan_id).state is ProposalState.WITHDRAWN
    for proposal in (first, second):
        with pytest.raises(PlanStale, match="already by"):
            approvals.approve(approvals.get(proposal.plan_id), 10)
        with pytest.raises(PlanStale):
            approvals.approve(proposal, 10)  # as it was shown before the decision
    assert world.queue.touched() == set()
    assert refusals(operations) == ["NotConfirmed", "NotAllowed", *["PlanStale"] * 4]
    assert operations.trail.verified().what == ""


def test_the_number_is_typed_and_nothing_else_counts(world: World) -> None:
    _, proposal = submitted(world)
    operations, approvals = seat(world, BOB)
    for count in (None, 9, 11):
        with pytest.raises(NotConfirmed):
            approvals.approve(proposal, count)
    assert world.queue.touched() == set()
    assert approvals.open() == [proposal]
    assert refusals(operations) == ["NotConfirmed"] * 3


def test_a_proposal_expires_after_a_day_and_outlives_its_plan(world: World) -> None:
    plan, proposal = submitted(world)
    world.clock.tick(timedelta(hours=23))
    operations, approvals = seat(world, BOB)
    assert approvals.open() == [proposal]
    with pytest.raises(PlanExpired):
        operations.carry_out(plan, confirm(plan))
    world.clock.tick(HOUR)
    assert approvals.get(plan.id).state is ProposalState.EXPIRED
    with pytest.raises(PlanExpired, match="The proposal expired"):
        approvals.approve(proposal, 10)
    with pytest.raises(PlanExpired):
        approvals.approve(approvals.get(plan.id), 10)
    assert world.queue.touched() == set()


def test_a_clock_that_is_set_back_renews_nothing(world: World) -> None:
    _, proposal = submitted(world)
    world.clock.tick(timedelta(hours=25))
    operations, approvals = seat(world, BOB)
    operations.trail.refuse({"why": "test"}, world.clock.now())
    world.clock.tick(-timedelta(hours=25))
    with pytest.raises(PlanExpired, match="clock is"):
        approvals.approve(proposal, 10)


def test_a_submitted_plan_is_not_applied_directly_dropped_or_submitted_again(world: World) -> None:
    plan, proposal = submitted(world)
    operations, approvals = seat(world)
    with pytest.raises(PlanStale, match="waits for its approval"):
        operations.carry_out(plan, confirm(plan))
    with pytest.raises(PlanStale, match="submitted already"):
        approvals.submit(plan, "again")
    operations.trail.discard(plan.id)
    world.clock.tick(timedelta(hours=5))
    operations.propose(matching("condition:terminal", limit=1), KEEP)  # a later plan purges what expired
    assert approvals.approve(proposal, 10).counts == {"applied": 10}


def test_a_plan_that_changes_nothing_or_has_no_reason_is_not_submitted(world: World) -> None:
    operations, approvals = seat(world)
    plan = operations.propose(matching("condition:terminal error~nowhere"), RESET)
    with pytest.raises(PlanStale, match="Nothing in this plan"):
        approvals.submit(plan, "why")
    plan = operations.propose(matching("condition:terminal"), RESET)
    with pytest.raises(NotConfirmed):
        approvals.submit(plan, "\u200b")
    assert approvals.all() == []


def test_read_only_decides_nothing(world: World) -> None:
    _, proposal = submitted(world)
    _, approvals = seat(world, BOB, read_only=True)
    assert approvals.open() == [proposal]
    for attempt in (lambda: approvals.approve(proposal, 10), lambda: approvals.reject(proposal, "x"), lambda: approvals.withdraw(proposal)):
        with pytest.raises(ReadOnlyRefused):
            attempt()


@pytest.mark.parametrize("edit", [
    "UPDATE plan_block SET body = CAST(replace(CAST(body AS TEXT), 't000029', 't000001') AS BLOB)",
    "UPDATE plan SET hash = CASE substr(hash, 1, 2) WHEN 'ab' THEN 'cd' ELSE 'ab' END || substr(hash, 3)",
    "DELETE FROM plan_block",
])
def test_an_altered_plan_is_not_approved(world: World, edit: str) -> None:
    _, proposal = submitted(world)
    operations, approvals = seat(world, BOB)
    world.trail_run(edit)
    with pytest.raises(PlanAltered):
        approvals.approve(proposal, 10)
    assert world.queue.touched() == set()
    assert not operations.trail.verified().ok


# --- the rules ----------------------------------------------------------------------------------------

ONCALL = Permission("queue", Right.REQUEUE, ("ann", "oncall"), "config.yaml:12")
LEADS = Permission("queue", Right.APPROVE, ("leads",), "config.yaml:13")


def carry(world: World, who: Who, rules: AccessRules, limit: int = 5) -> None:
    operations, _ = seat(world, who, rules)
    plan = operations.propose(matching("condition:terminal", limit=limit), RESET)
    operations.carry_out(plan, replace(confirm(plan), who=who))


def test_who_may_requeue(world: World) -> None:
    rules = AccessRules((ONCALL,))
    carry(world, WHO, rules)
    carry(world, Who(7, "eve", groups=("oncall",)), rules)
    with pytest.raises(NotAllowed, match=r"config.yaml:12: bob may not requeue in queue\. Allowed: ann, oncall"):
        carry(world, BOB, rules)
    with pytest.raises(NotAllowed, match="a user namespace hides who you are"):
        carry(world, Who(0, "ann", in_namespace=True, groups=("oncall",)), rules)
    with pytest.raises(NotAllowed, match="Allowed: nobody"):
        carry(world, WHO, AccessRules((ONCALL._replace(names=()),)))
    carry(world, BOB, AccessRules((ONCALL._replace(backend="other"),)))
    assert refusals(seat(world)[0]) == ["NotAllowed"] * 3


def test_the_claimed_name_gives_no_right(world: World) -> None:
    with pytest.raises(NotAllowed):
        carry(world, BOB._replace(claimed="ann"), AccessRules((ONCALL,)))


def test_who_may_approve_and_reject(world: World) -> None:
    rules = AccessRules((ONCALL, LEADS))
    _, proposal = submitted(world, who=Who(9, "eve"), rules=rules)
    for who in (WHO, Who(9, "eve")):
        _, approvals = seat(world, who, rules)
        assert approvals.may_approve(proposal) is not None
        with pytest.raises(NotAllowed, match=r"config.yaml:13: \w+ may not approve in queue"):
            approvals.approve(proposal, 10)
        with pytest.raises(NotAllowed):
            approvals.reject(proposal, "no")
    _, approvals = seat(world, BOB, rules)
    assert approvals.may_approve(proposal) is None
    assert approvals.approve(proposal, 10).counts == {"applied": 10}


def test_an_approver_needs_the_right_to_change_for_a_proposal_of_their_own(world: World) -> None:
    """Otherwise the right to approve would be the right to requeue."""
    rules = AccessRules((ONCALL, LEADS))
    _, proposal = submitted(world, who=BOB, rules=rules)
    with pytest.raises(NotAllowed, match="bob may not requeue"):
        seat(world, BOB, rules)[1].approve(proposal, 10)


def test_limits_count_everybody_and_end_with_time(world: World) -> None:
    rules = AccessRules(limits=(Limit(("queue",), 12, HOUR, "config.yaml:20"),))
    carry(world, WHO, rules, 5)
    carry(world, BOB, rules, 5)
    with pytest.raises(NotAllowed, match=r"config.yaml:20: In queue, 12 items may be changed in 1h. 10 were changed, and this plan changes 5 more. Select at most 2, or wait"):
        carry(world, WHO, rules, 5)
    carry(world, WHO, rules, 2)
    with pytest.raises(NotAllowed, match="Wait"):
        carry(world, BOB, rules, 1)
    world.clock.tick(-timedelta(hours=3))
    with pytest.raises(Fault):
        carry(world, BOB, rules, 1)
    world.clock.tick(timedelta(hours=3) + HOUR)
    carry(world, BOB, rules, 5)


def test_the_rules_in_force_are_on_record_when_they_change(world: World) -> None:
    first, second = AccessRules((ONCALL,)), AccessRules(limits=(Limit(("queue",), 100, HOUR),))
    carry(world, WHO, AccessRules(), 1)
    for rules in (first, first, second, AccessRules(), AccessRules()):
        carry(world, WHO, rules, 1)
    operations, _ = seat(world)
    records = operations.trail.records()
    policies = {record.seq: record.body["rules"] for record in records if record.kind == "policy"}
    assert [AccessRules.of(body) for body in policies.values()] == [AccessRules((ONCALL._replace(line=""),)), second, AccessRules()]
    named = [record.body["policy"] for record in records if record.kind == "confirmed"]
    a, b, c = policies
    assert named == [None, a, a, b, c, c]
    assert operations.trail.verified().what == ""


def test_resuming_needs_the_right_too(world: World) -> None:
    operations, _ = seat(world)
    plan = operations.propose(matching("condition:terminal", limit=5), RESET)
    override = operations.carry_out(plan, confirm(plan), detached=True)
    assert override.state is OverrideState.QUEUED
    assert world.queue.touched() == set()
    with pytest.raises(NotAllowed):
        seat(world, BOB, AccessRules((ONCALL,)))[0].resume(override.override_id, BOB, ORIGIN)
    operations.stop(override.override_id)
    stopped = operations.trail.override(override.override_id)
    assert (stopped.state, stopped.note) == (OverrideState.STOPPED, "Stopped before a runner took it.")
    assert operations.trail.verified().what == ""
