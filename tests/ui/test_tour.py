"""The tour: it follows the person from the storm to the verified trail, and ends when the person closes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from console.core.session import Session
from console.ui.screens.plan import PlanScreen
from console.ui.tour import STEPS, TourPanel
from tests.ui.driving import NARROW, opened, screen_text, until
from tests.ui.planning import choose, confirm, planned
from tests.ui.world import NOON, make_async, open_queue, session, with_trail


@pytest.fixture
def given(tmp_path: Path) -> Session:
    make_async(tmp_path / "queue.db", 120, NOON)
    return with_trail(session([open_queue(tmp_path / "queue.db", "queue")]), tmp_path)


def step(pilot: Pilot[None]) -> str:
    """The title of the step that is shown where the person is."""
    (panel,) = pilot.app.screen.query(TourPanel)
    return STEPS[panel.step].title


async def at(pilot: Pilot[None], title: str) -> None:
    await until(pilot, lambda: step(pilot) == title)


async def test_it_goes_from_the_storm_to_the_verified_trail(given: Session) -> None:
    async with opened(given) as pilot:
        await pilot.press("ctrl+t")
        await at(pilot, "A retry storm is coming")
        assert "Press 3" in screen_text(pilot)
        await pilot.press("3")
        await at(pilot, "Causes")
        await until(pilot, lambda: "causes of" in screen_text(pilot))
        await pilot.press("r")
        await at(pilot, "A plan with a canary")
        screen = pilot.app.screen
        assert isinstance(screen, PlanScreen)
        await until(pilot, lambda: screen.plan is not None)
        await choose(pilot, screen, "pace", "now")
        await confirm(pilot, screen, "the provider is back")
        await at(pilot, "Spread over time")
        await pilot.press("3")
        await until(pilot, lambda: "causes of" in screen_text(pilot))
        await pilot.press("down", "r")
        second = await planned(pilot)
        await choose(pilot, second, "pace", "over 30m")
        await confirm(pilot, second, "not all at once")
        await at(pilot, "Undo")
        await pilot.press("z")
        await at(pilot, "Only untouched items")
        undo = await planned(pilot)
        assert undo.plan.changes == second.plan.changes  # type: ignore[union-attr]
        assert undo.plan.changes > 0  # type: ignore[union-attr]
        await pilot.press("escape")
        await at(pilot, "The trail")
        await pilot.press("4")
        await at(pilot, "Integrity")
        await pilot.press("v")
        await at(pilot, "That was the tour")


async def test_it_is_dismissed_everywhere_and_comes_back_where_it_was(given: Session) -> None:
    async with opened(given, NARROW) as pilot:
        await pilot.press("ctrl+t", "3")
        await at(pilot, "Causes")
        await pilot.press("ctrl+t", "1")
        await until(pilot, lambda: "retries, next" in screen_text(pilot))
        assert not pilot.app.screen.query(TourPanel)
        await pilot.press("ctrl+t")
        await at(pilot, "Causes")


@pytest.mark.parametrize("place", ["4", "6"])
async def test_its_first_step_stands_on_the_screen_that_it_speaks_about(given: Session, place: str) -> None:
    async with opened(given, NARROW) as pilot:
        await pilot.press(place)
        await until(pilot, lambda: "No overrides yet" in screen_text(pilot) or "No proposals yet" in screen_text(pilot))
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "retries, next" in screen_text(pilot) and "Each line is one system" in screen_text(pilot))


async def test_without_being_asked_for_it_is_not_there(given: Session) -> None:
    async with opened(given) as pilot:
        await until(pilot, lambda: "terminal" in screen_text(pilot))
        assert not pilot.app.screen.query(TourPanel)


async def test_the_chart_and_the_toasts_leave_room_for_the_tour(given: Session) -> None:
    async with opened(given, (100, 30)) as pilot:
        await pilot.press("ctrl+t")
        await at(pilot, "A retry storm is coming")
        await until(pilot, lambda: "└now" in screen_text(pilot))
        assert pilot.app.screen.has_class("touring")
        await pilot.press("ctrl+t")
        await until(pilot, lambda: not pilot.app.screen.has_class("touring"))
