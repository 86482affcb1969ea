"""What is closed is gone: a console that is open for days must not keep what it has painted."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from textual._styles_cache import StylesCache

from tests.ui.driving import failures, opened, until
from tests.ui.world import small_world, with_trail

OPENINGS = 6


def _painted() -> int:
    """How many widgets have lines of theirs kept."""
    gc.collect()
    return sum(isinstance(found, StylesCache) for found in gc.get_objects())


@pytest.mark.parametrize("key", ["r", "f", "e", "g", "question_mark", "ctrl+p"])
async def test_what_is_closed_is_not_kept(tmp_path: Path, key: str) -> None:
    async with opened(with_trail(small_world(tmp_path, 60), tmp_path)) as pilot:
        place = await failures(pilot)
        kept = []
        for _ in range(OPENINGS):
            await pilot.press(key)
            await until(pilot, lambda: pilot.app.screen is not place)
            await pilot.pause(0.1)
            await pilot.press("escape")
            await until(pilot, lambda: pilot.app.screen is place)
            await pilot.pause(0.1)
            kept.append(_painted())
    assert kept[-1] - kept[0] < OPENINGS, kept
