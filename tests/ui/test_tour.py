"""The tour: it follows the person from the storm to the verified trail, and ends when the person closes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from console.core.session import Session
from console.ui.screens.plan import PlanScreen
from console.ui.tour import STEPS, TourPanel
from tests.ui.driving import NARROW, opened, screen_text, until
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
        await pilot.press("o", "k")
        count = screen.plan.changes if screen.plan else 0
        await pilot.press("enter", *(str(count) if count >= 20 else ()), "enter")
        await at(pilot, "The trail")
        await pilot.press("4")
        await at(pilot, "Undo")
        await until(pilot, lambda: "ok" in screen_text(pilot))
        await pilot.press("z")
        await at(pilot, "Only what is still untouched")
        await pilot.press("escape")
        await at(pilot, "Integrity")
        await pilot.press("v")
        await at(pilot, "That was the tour")


async def test_it_is_dismissed_everywhere_and_comes_back_where_it_was(given: Session) -> None:
    async with opened(given, NARROW) as pilot:
        await pilot.press("ctrl+t", "3")
        await at(pilot, "Causes")
        await pilot.press("ctrl+t", "1")
        await until(pilot, lambda: "Retries in the next" in screen_text(pilot))
        assert not pilot.app.screen.query(TourPanel)
        await pilot.press("ctrl+t")
        await at(pilot, "Causes")


async def test_without_being_asked_for_it_is_not_there(given: Session) -> None:
    async with opened(given) as pilot:
        await until(pilot, lambda: "terminal" in screen_text(pilot))
        assert not pilot.app.screen.query(TourPanel)
