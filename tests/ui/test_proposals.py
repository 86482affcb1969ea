"""Proposals in the console: submitted from a plan, listed, looked at, approved, rejected, withdrawn."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from console.core.access import AccessRules, Approval, Compare
from console.core.backend import Attempts, Operation
from console.core.confirm import Origin, Who
from console.core.faults import Refused
from console.core.pace import Now
from console.core.plan import Matching
from console.core.proposals import Proposal, ProposalState
from console.core.query import Filter
from console.core.session import Session
from console.ui.screens.override import OverrideScreen
from console.ui.screens.plan import PlanScreen
from console.ui.screens.proposals import ProposalsScreen, ProposedPlanScreen
from console.ui.widgets.top_bar import TopBar
from tests.ui.driving import NARROW, console, failures, opened, screen_text, toasts, until
from tests.ui.planning import fill, plan_of
from tests.ui.test_hostile import PAYLOADS, require_clean
from tests.ui.world import small_world, with_trail

ANN, BOB = Who(1000, "ann"), Who(1001, "bob")
ORIGIN = Origin("host", "pts/1", "", 4711, "0.1.0")
TIMEOUTS = "condition:terminal error~timeout backend:analysis-queue"
FOUR_EYES = AccessRules(approvals=(Approval(("analysis-queue",), 1, Compare.LOGIN, "config.yaml:7"),))


def world(folder: Path, **more: Any) -> Session:
    """Systems that several people look at."""
    return small_world(folder, 100, origin=ORIGIN, **more)


def seat(given: Session, folder: Path, who: Who, rules: AccessRules | None = None, *, read_only: bool = False) -> Session:
    """One person at a console, on the trail of all."""
    return with_trail(replace(given, who=who, rules=rules or AccessRules(), read_only=read_only), folder)


def submitted(session: Session, reason: str = "the provider is back", ticket: str | None = None) -> Proposal:
    assert session.operations is not None
    assert session.approvals is not None
    selection = Matching(Filter.parse(TIMEOUTS))
    plan = session.operations.propose(selection, Operation(attempts=Attempts.RESET), Now())
    return session.approvals.submit(plan, reason, ticket)


def only(session: Session) -> Proposal:
    assert session.approvals is not None
    (proposal,) = session.approvals.all()
    return proposal


def pending(folder: Path) -> int:
    with sqlite3.connect(folder / "analysis.db") as db:
        (count,) = db.execute("SELECT count(*) FROM async_tasks WHERE status = 'PENDING'").fetchone()
    return int(count)


async def listed(pilot: Pilot[None]) -> ProposalsScreen:
    """Go to Proposals, and wait for the list."""
    await pilot.press("6")
    await until(pilot, lambda: isinstance(pilot.app.screen, ProposalsScreen) and pilot.app.screen.table.entry)
    screen = pilot.app.screen
    assert isinstance(screen, ProposalsScreen)
    return screen


async def looked_at(pilot: Pilot[None], key: str) -> ProposedPlanScreen:
    await listed(pilot)
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, ProposedPlanScreen) and pilot.app.screen.plan)
    screen = pilot.app.screen
    assert isinstance(screen, ProposedPlanScreen)
    return screen


async def test_a_plan_is_submitted_and_changes_nothing(tmp_path: Path) -> None:
    ann = seat(world(tmp_path), tmp_path, ANN)
    async with opened(ann, NARROW) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        before = pending(tmp_path)
        assert "^s submit" in screen_text(pilot)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "✗ A reason is required." in screen_text(pilot))
        plan = screen.plan
        assert plan is not None
        fill(screen, "the provider is back")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: not isinstance(pilot.app.screen, PlanScreen))
        assert f"Submitted as proposal {plan.id}." in toasts(pilot)
        await until(pilot, lambda: "6 Proposals 1" in screen_text(pilot))
        await listed(pilot)
        await until(pilot, lambda: "the provider is back" in screen_text(pilot))
        assert f"requeue {plan.changes}" in screen_text(pilot)
    assert pending(tmp_path) == before
    proposal = only(ann)
    assert (proposal.plan_id, proposal.state, proposal.who) == (plan.id, ProposalState.OPEN, "ann")


async def test_a_refused_submission_is_explained_and_the_plan_stays(tmp_path: Path, monkeypatch: Any) -> None:
    ann = seat(world(tmp_path), tmp_path, ANN)
    assert ann.trail is not None

    def refuses(*_: object, **__: object) -> Proposal:
        raise Refused("Too many proposals are open", fix="Decide some first.")

    monkeypatch.setattr(ann.trail, "submit", refuses)
    async with opened(ann) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        fill(screen, "the provider is back")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "Too many proposals are open" in screen_text(pilot))
        assert pilot.app.screen is screen
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, PlanScreen))


async def test_a_proposal_is_checked_again_and_approved_by_its_number(tmp_path: Path) -> None:
    given = world(tmp_path)
    proposal = submitted(seat(given, tmp_path, ANN, FOUR_EYES))
    bob = seat(given, tmp_path, BOB, FOUR_EYES)
    assert bob.trail is not None
    key = next(row.key for rows in bob.trail.rows(proposal.plan_id, 0, 0) for row in rows)
    with sqlite3.connect(tmp_path / "analysis.db") as db:
        db.execute("UPDATE async_tasks SET attempts = 9 WHERE task_id = ?", (key.partition("/")[2],))
    before = pending(tmp_path)
    async with opened(bob, NARROW) as pilot:
        await until(pilot, lambda: "6 Proposals 1" in screen_text(pilot))
        screen = await looked_at(pilot, "a")
        assert f"1 of {proposal.items} changed since; those are left alone." in screen_text(pilot)
        assert key in screen_text(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: f"✗ Type {proposal.items}, the number" in screen_text(pilot))
        assert pending(tmp_path) == before
        await pilot.press(*str(proposal.items), "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverrideScreen) and not pilot.app.screen.followed.running)
        await until(pilot, lambda: "changed since the plan" in screen_text(pilot))
        assert screen is not pilot.app.screen
        await listed(pilot)
        await until(pilot, lambda: "✓ approved" in screen_text(pilot))
        await pilot.press("enter")  # the override that it began
        await until(pilot, lambda: isinstance(pilot.app.screen, OverrideScreen))
    assert pending(tmp_path) == before + proposal.items - 1
    decided = only(bob)
    assert (decided.state, decided.decided_by) == (ProposalState.APPROVED, "bob")
    override = bob.trail.override(decided.override_id or "")
    assert (override.who, override.proposed_by, override.reason) == ("bob", "ann", "the provider is back")


async def test_who_may_not_approve_sees_why(tmp_path: Path) -> None:
    given = world(tmp_path)
    ann = seat(given, tmp_path, ANN, FOUR_EYES)
    submitted(ann)
    async with opened(ann, NARROW) as pilot:
        await listed(pilot)
        why = "ann proposed this, so somebody else must approve it"
        await until(pilot, lambda: "You cannot approve it." in screen_text(pilot))
        assert why in " ".join(screen_text(pilot).split())
        await pilot.press("a")
        await until(pilot, lambda: why in toasts(pilot))
        assert isinstance(pilot.app.screen, ProposalsScreen)
        screen = await looked_at(pilot, "enter")
        assert not screen.query_one("#count-row").display
        await pilot.press("enter")
        await until(pilot, lambda: "✗ You cannot approve it." in screen_text(pilot))
        assert pilot.app.screen is screen
    assert only(ann).state is ProposalState.OPEN


async def test_a_proposal_of_somebody_else_is_rejected_with_a_reason(tmp_path: Path) -> None:
    given = world(tmp_path)
    proposal = submitted(seat(given, tmp_path, ANN))
    bob = seat(given, tmp_path, BOB)
    async with opened(bob) as pilot:
        await listed(pilot)
        await pilot.press("x")
        await until(pilot, lambda: f"Reject proposal {proposal.plan_id}" in screen_text(pilot))
        await pilot.press("enter")  # a reason is required
        assert only(bob).state is ProposalState.OPEN
        await pilot.press(*"wrong filter", "enter")
        await until(pilot, lambda: "✗ rejected" in screen_text(pilot))
        assert "wrong filter" in screen_text(pilot)
        assert not console(pilot).open_proposals
        await pilot.press("a")
        await until(pilot, lambda: "Approve needs an open proposal" in toasts(pilot))
    assert (only(bob).state, only(bob).note) == (ProposalState.REJECTED, "wrong filter")


async def test_ones_own_proposal_is_withdrawn(tmp_path: Path) -> None:
    ann = seat(world(tmp_path), tmp_path, ANN)
    proposal = submitted(ann)
    async with opened(ann) as pilot:
        await listed(pilot)
        await pilot.press("x")
        await until(pilot, lambda: f"Withdraw proposal {proposal.plan_id}" in screen_text(pilot))
        await pilot.press(*"not needed", "enter")
        await until(pilot, lambda: "– withdrawn" in screen_text(pilot))
    assert only(ann).state is ProposalState.WITHDRAWN


async def test_a_proposal_that_somebody_else_has_decided_meanwhile(tmp_path: Path) -> None:
    given = world(tmp_path)
    ann = seat(given, tmp_path, ANN)
    proposal = submitted(ann)
    async with opened(seat(given, tmp_path, BOB)) as pilot:
        await looked_at(pilot, "a")
        assert ann.approvals is not None
        ann.approvals.withdraw(proposal)
        before = pending(tmp_path)
        await pilot.press(*str(proposal.items), "enter")
        await until(pilot, lambda: "The proposal was decided meanwhile." in screen_text(pilot))
        assert pending(tmp_path) == before


async def test_a_read_only_console_shows_proposals_and_decides_none(tmp_path: Path) -> None:
    given = world(tmp_path)
    submitted(seat(given, tmp_path, ANN))
    async with opened(seat(given, tmp_path, BOB, read_only=True), NARROW) as pilot:
        await listed(pilot)
        assert "READ-ONLY" in screen_text(pilot)
        assert "1 open of 1" in screen_text(pilot)
        for key, label in (("a", "Approve"), ("x", "Reject/withdraw")):
            await pilot.press(key)
            said = f"{label} is not available: this console is read-only."
            await until(pilot, lambda said=said: said in toasts(pilot))
        screen = await looked_at(pilot, "enter")
        assert "still as planned" in screen_text(pilot)
        assert "this console is read-only" in screen_text(pilot)
        assert not screen.query_one("#count-row").display


async def test_without_a_trail_there_are_no_proposals(tmp_path: Path) -> None:
    async with opened(world(tmp_path)) as pilot:
        await pilot.press("6")
        await until(pilot, lambda: "There is no trail, so there are no proposals." in toasts(pilot))
        assert "proposals" not in console(pilot).places()


async def test_the_badge_follows_the_trail_and_the_bar_stays_if_nothing_changed(tmp_path: Path) -> None:
    given = replace(world(tmp_path), refresh=timedelta(milliseconds=200))
    bob = seat(given, tmp_path, BOB)
    async with opened(bob, NARROW) as pilot:
        await failures(pilot)
        assert "6 Proposals" not in screen_text(pilot)
        submitted(seat(given, tmp_path, ANN))
        await until(pilot, lambda: "6 Proposals 1" in screen_text(pilot))
        bar = pilot.app.screen.query_one(TopBar)
        tabs = bar.tabs
        await pilot.pause(1.2)
        assert bar.tabs is tabs  # an equal value is not set, so nothing is painted


async def test_hostile_text_in_a_proposal_is_harmless(tmp_path: Path) -> None:
    texts = [p.decode("latin-1") if isinstance(p, bytes) else p[:300] for p in PAYLOADS.values()]
    everything = " ".join(texts)[:1500]
    given = world(tmp_path)
    submitted(seat(given, tmp_path, Who(1000, everything[:60], everything)), everything, everything)
    async with opened(seat(given, tmp_path, BOB)) as pilot:
        await listed(pilot)
        require_clean(pilot)
        await looked_at(pilot, "enter")
        require_clean(pilot)
        await pilot.press("escape", "x")
        await pilot.pause()
        require_clean(pilot)
