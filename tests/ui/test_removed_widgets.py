"""A widget that is being removed may still be called, when its children are already gone."""

from __future__ import annotations

import asyncio

import pytest
from textual import events
from textual.app import ComposeResult
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Static

from console.ui.textual_workarounds import PatchedApp


class SlowToLeave(Static):
    """Keeps its screen from being gone for a moment."""

    async def on_unmount(self, _event: events.Unmount) -> None:
        await asyncio.sleep(0.5)


class Detail(Screen[None]):
    looked = 0
    missed = 0

    def compose(self) -> ComposeResult:
        yield Static("keys", id="keys")
        yield SlowToLeave("slow")

    def look(self) -> None:
        self.looked += 1
        try:
            self.query_one("#keys")
        except NoMatches:
            self.missed += 1
            raise


async def test_a_callback_of_a_screen_that_is_being_removed_does_not_end_the_console() -> None:
    app = PatchedApp[None]()
    async with app.run_test() as pilot:
        detail = Detail()
        await app.push_screen(detail)
        await pilot.pause()
        removed = app.pop_screen()
        for _ in range(200):
            if detail.missed:
                break
            app.call_after_refresh(detail.look)  # the screen on top calls it, whoever asked for it
            await asyncio.sleep(0.02)
        await removed
        assert detail.missed, "nothing was called while the screen was being removed"
        assert app.crash is None
        await app.push_screen(Detail())
        assert isinstance(app.screen, Detail), "the app goes on"


async def test_a_mistake_on_a_screen_that_stays_still_ends_the_console() -> None:
    class Mistaken(Detail):
        def on_mount(self) -> None:
            self.call_after_refresh(lambda: self.query_one("#missing"))

    app = PatchedApp[None]()

    async def opened() -> None:
        async with app.run_test() as pilot:
            await app.push_screen(Mistaken())
            await pilot.pause()

    with pytest.raises(NoMatches):
        await opened()
    assert isinstance(app.crash, NoMatches)
