"""The side panel of the Overview: texts in full, charts and a list where there is room, never more than its height."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from console.core.backend import Finding, Severity
from console.ui.cells import Cell
from console.ui.screens.overview import OverviewScreen
from console.ui.side_panel import Chart, arranged
from console.ui.widgets.text_pane import Line, TextPane
from console.ui.widgets.top_causes import TopCauses
from tests.ui.driving import WIDE, opened, until
from tests.ui.world import small_world

TEXTS: list[Line] = [[Cell("jobs")], [Cell("⚠ "), Cell("a warning with many words " * 6)]]
CHARTS = [
    Chart([Cell(title)], (1, 2, None, 4), "calm", ("-24h", "now")) for title in ("failures in a day", "retries in an hour")
]
LISTED: list[Line] = [[Cell("causes")], *([Cell("  12  "), Cell(f"cause {n}")] for n in range(6))]


def drawn(height: int, texts: list[Line] = TEXTS) -> list[str]:
    return ["".join(cell.text for cell in line) for line in arranged(texts, CHARTS, LISTED, 40, height)]


@pytest.mark.parametrize("height", range(1, 70))
def test_it_is_never_higher_than_its_room_and_texts_come_first(height: int) -> None:
    lines = drawn(height)
    assert len(lines) <= height
    whole = [row.strip() for row in drawn(100)[:6]]
    assert [line.strip() for line in lines[: len(whole)]][: height - 1] == whole[: height - 1]


def test_what_has_no_room_goes_in_this_order() -> None:
    assert all(any(word in line for line in drawn(50)) for word in ("failures", "retries", "cause 5"))
    lines = drawn(17)
    assert any("failures" in line for line in lines)
    assert not any("retries" in line or "cause 5" in line for line in lines)
    assert drawn(4)[-1] == "…"


def test_a_chart_has_the_whole_width() -> None:
    lines = drawn(60)
    axis = next(line for line in lines if line.startswith("-24h"))
    assert axis == "-24h".ljust(37) + "now"
    assert {len(line) for line in lines[lines.index(axis) - 4 : lines.index(axis)]} == {40}


async def test_a_long_warning_and_policy_leave_nothing_to_scroll(tmp_path: Path) -> None:
    given = small_world(tmp_path, 200)
    async with opened(given, WIDE) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, OverviewScreen)
        panel = screen.query_one("#panel", TextPane)
        await until(pilot, lambda: screen.query_one(TopCauses).causes and panel.lines)
        healths = screen.console_app.monitor.healths
        await until(pilot, lambda: all(h.counts and h.recent and h.findings and h.soon for h in healths.values()))
        many = tuple(Finding(Severity.WARNING, f"check {n}", "many words " * 60) for n in range(12))
        for name in healths:
            healths[name] = replace(healths[name], findings=many)
        screen.update_each_second()
        await until(pilot, lambda: "…" in panel.lines[-1][0].text)
        for key in ("down", "tab"):
            await pilot.press(key)
            await until(pilot, lambda: panel.virtual_size.height <= panel.size.height)
            assert not panel.show_vertical_scrollbar
