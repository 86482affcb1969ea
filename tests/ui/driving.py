"""Drives the console in tests: opens it, waits for a condition, reads the screen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from unittest.mock import patch

from textual.pilot import Pilot

from console.core.session import Session
from console.ui import health
from console.ui.app import Console
from console.ui.screens.base import BaseScreen
from console.ui.screens.failures import FailuresScreen
from console.ui.widgets.item_list import ItemList
from tests.patience import PATIENCE

WIDE = (160, 50)
NARROW = (80, 24)


@asynccontextmanager
async def opened(
    session: Session, size: tuple[int, int] = WIDE, deadline: float = PATIENCE
) -> AsyncIterator[Pilot[None]]:
    """The console, driven. On a busy machine a system may take longer than the console's own deadline to answer, so
    only a test of that deadline sets a short one."""
    app = Console(lambda: session, deadline=deadline)
    try:
        with patch.object(health, "_BEAT_DEADLINE", deadline / 2):
            async with app.run_test(size=size, notifications=True) as pilot:
                await until(pilot, lambda: isinstance(app.screen, BaseScreen))
                yield pilot
    finally:
        app.finish_overrides()
    assert app.crash is None


async def until(pilot: Pilot[None], holds: Callable[[], object], within: float = PATIENCE) -> None:
    """Wait until it holds; on a timeout the screen is in the failure."""
    end = monotonic() + within
    while True:
        await pilot.pause(0.02)
        try:
            if holds():
                return
        except Exception:  # not there yet
            if monotonic() > end:
                raise
        assert monotonic() < end, screen_text(pilot)


def console(pilot: Pilot[None]) -> Console:
    assert isinstance(pilot.app, Console)
    return pilot.app


def screen_text(pilot: Pilot[None]) -> str:
    """What is on the screen, line by line."""
    app = pilot.app
    height = app.size.height
    lines = app.screen._compositor.render_strips(app.size)
    return "\n".join("".join(segment.text for segment in line) for line in lines[:height])


def items(pilot: Pilot[None]) -> ItemList:
    return pilot.app.screen.query_one(ItemList)


async def failures(pilot: Pilot[None]) -> FailuresScreen:
    """Go to Failures and wait for its first rows."""
    await pilot.press("2")
    await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen) and items(pilot).item is not None)
    screen = pilot.app.screen
    assert isinstance(screen, FailuresScreen)
    return screen


async def filtered(pilot: Pilot[None], text: str) -> None:
    """Type a filter and enter it."""
    await pilot.press("slash")
    pilot.app.screen.query_one("QueryInput").value = text  # type: ignore[attr-defined]
    await pilot.press("enter")
    await pilot.pause()


def keys(pilot: Pilot[None]) -> list[str]:
    """The ids of the rows on the screen."""
    table = items(pilot)
    return [item.key.id for row in table.rows_on_screen() if (item := table.item_at(row)) is not None]


def toasts(pilot: Pilot[None]) -> str:
    """The notifications so far, one per line."""
    return "\n".join(str(notification.message) for notification in pilot.app._notifications)
