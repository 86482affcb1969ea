"""Causes: the error gets the room, the panel says what is known, people record what they decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from console.core.backend import Operation
from console.core.cause_life import CauseStates
from console.core.confirm import Confirmation, Who
from console.core.pace import Now
from console.core.plan import Matching
from console.core.query import Filter
from console.core.session import Session
from console.ui.screens.causes import CausesScreen
from console.ui.screens.plan import PlanScreen
from console.ui.widgets.cause_list import CauseColumn
from tests.ui.driving import NARROW, console, opened, screen_text, toasts, until
from tests.ui.planning import planned
from tests.ui.world import small_world, with_trail


def with_states(folder: Path, **more: object) -> Session:
    given = with_trail(small_world(folder, 200, who=Who(1000, "ada"), **more), folder)
    assert given.trail is not None
    return replace(given, causes=CauseStates(given.trail, given.clock, given.who, given.origin, read_only=given.read_only))


async def causes(pilot: Pilot[None]) -> CausesScreen:
    await pilot.press("3")
    screen = pilot.app.screen
    assert isinstance(screen, CausesScreen)
    await until(pilot, lambda: screen.table.causes and not screen._busy and screen.table.past.lives)
    return screen


async def test_the_cause_comes_first_and_the_panel_says_the_rest(tmp_path: Path) -> None:
    given = with_states(tmp_path)
    operations = given.operations
    assert operations is not None
    plan = operations.propose(Matching(Filter.parse("condition:terminal error~limit backend:analysis-queue")), Operation(), Now())
    operations.carry_out(plan, Confirmation(given.who, given.origin, "the limits are lifted", plan.changes))
    async with opened(given, NARROW) as pilot:
        screen = await causes(pilot)
        heading = screen_text(pilot).splitlines()[2].split()
        assert heading[:2] == ["cause", "count↓"]
        while "rate limit" not in screen.table.cause.sample:  # type: ignore[union-attr]
            await pilot.press("down")
        await until(pilot, lambda: "HTTP 429 rate limit exceeded, retry after" in screen_text(pilot))
        text = screen_text(pilot)
        assert "analysis-queue " in text
        assert "https://wiki.example/runbooks/rate-limit" in text
        assert "first " in text
        assert "ago   last " in text
        await until(pilot, lambda: f"{plan.changes} requeued (reason: the limits are lifted)" in screen_text(pilot))
        lines = [line.split()[0] for line in screen_text(pilot).splitlines() if line.split()]
        assert lines.index("overrides") < lines.index("recoverable"), "on a small screen the end of the panel is cut off"
        followed = console(pilot).live_overrides.of(screen._audit.overrides[0])
        await until(pilot, lambda: followed.results is not None and followed.results.counts.total)
        await pilot.press("down", "up")
        await until(pilot, lambda: f"0 of {plan.changes} recovered, " in " ".join(screen_text(pilot).split()))


async def test_sorting_works_by_key_and_by_the_heading(tmp_path: Path) -> None:
    async with opened(with_states(tmp_path)) as pilot:
        screen = await causes(pilot)
        counts = [cause.count for cause in screen.table.causes]
        assert counts == sorted(counts, reverse=True)
        await pilot.press("s")
        await until(pilot, lambda: "Sort by" in screen_text(pilot))
        await pilot.press(*"cause", "enter")
        await until(pilot, lambda: screen.table.sort.column is CauseColumn.CAUSE)
        assert screen.table.causes[0].sample < screen.table.causes[-2].sample
        await until(pilot, lambda: "by cause ↑" in screen_text(pilot))
        x = screen_text(pilot).splitlines()[2].index("count")
        await pilot.click(screen.table, offset=(x, 0))
        await until(pilot, lambda: screen.table.sort.column is CauseColumn.COUNT)


async def test_one_cause_is_one_cause(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        await pilot.press("3", "slash", *"KeyError", "enter")
        await until(pilot, lambda: "1 cause of 6 failures" in screen_text(pilot))


async def test_what_a_person_decides_is_recorded_and_shown(tmp_path: Path) -> None:
    given = with_states(tmp_path)
    async with opened(given) as pilot:
        screen = await causes(pilot)
        first = screen.table.cause
        assert first is not None
        assert "new" in screen_text(pilot)
        await pilot.press("a")
        await until(pilot, lambda: "acknowledged by ada" in screen_text(pilot))
        assert screen.table.causes.index(first) > 0  # listed last
        assert screen.table.cause == first  # and the cursor goes with it
        await pilot.press("n", *"later", "enter")
        await until(pilot, lambda: "ada now: later" in screen_text(pilot) or ": later" in screen_text(pilot))
        await pilot.press("i", "enter")
        await until(pilot, lambda: "owner ada" in screen_text(pilot))
        await pilot.press("S")
        await until(pilot, lambda: "until it doubles" in screen_text(pilot))
        await pilot.press(*"doubles", "enter")
        await until(pilot, lambda: "snoozed by ada until it doubles" in screen_text(pilot))
        await pilot.press("x")
        await until(pilot, lambda: "resolved by ada" in screen_text(pilot))
        await pilot.press("x")
        await until(pilot, lambda: "No longer resolved." in toasts(pilot))
    kinds = [record.body.get("change") for record in given.trail.newest(limit=10) if record.kind == "cause"]  # type: ignore[union-attr]
    assert kinds == ["reopened", "resolved", "snoozed", "assigned", "noted", "acknowledged"]


async def test_the_next_cause_takes_the_place_of_one_that_somebody_else_resolved(tmp_path: Path) -> None:
    """Such as an override: its cause sinks, and nobody looks for the cursor at the end of the list."""
    given = with_states(tmp_path)
    async with opened(given) as pilot:
        screen = await causes(pilot)
        first, second = screen.table.causes[:2]
        given.causes.resolve(first)  # type: ignore[union-attr]
        await pilot.press("ctrl+r")
        await until(pilot, lambda: screen.table.causes.index(first) > 1 and not screen._busy)
        assert screen.table.cursor == 0
        assert screen.table.cause.signature == second.signature  # type: ignore[union-attr]


async def test_read_only_says_why_and_records_nothing(tmp_path: Path) -> None:
    async with opened(replace(with_states(tmp_path), read_only=True)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: pilot.app.screen.query_one("CauseList").causes)  # type: ignore[attr-defined]
        await pilot.press("a")
        await until(pilot, lambda: "Acknowledge is not available: this console is read-only" in toasts(pilot))


async def test_a_cause_is_discarded_by_a_plan(tmp_path: Path) -> None:
    async with opened(with_states(tmp_path)) as pilot:
        await causes(pilot)
        await pilot.press("d")
        screen = await planned(pilot)
        assert isinstance(screen, PlanScreen)
        assert screen.plan.operation.action == "discard"  # type: ignore[union-attr]
        text = screen_text(pilot)
        assert "Discard" in text
        assert "Pace" not in text
        assert "canary" not in text
