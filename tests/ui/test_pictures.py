"""Each place as a picture, at the smallest size and on a wide screen, with the clock held."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest
from textual.pilot import Pilot

from console.actions.catalogue import PLACES
from console.core.confirm import Who
from console.core.faults import PluginFault
from console.core.session import Unavailable
from console.ui.app import Console
from console.ui.screens.base import BaseScreen
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.item import ItemScreen
from console.ui.screens.override import OverrideItemsScreen
from console.ui.screens.overview import OverviewScreen
from console.ui.screens.trail import TrailScreen
from console.ui.widgets.cause_list import CauseList
from console.ui.widgets.top_causes import TopCauses
from tests.patience import PATIENCE
from tests.ui.driving import NARROW, WIDE, console, failures, filtered, items, screen_text, until
from tests.ui.planning import confirm, fill, planned
from tests.ui.world import open_queue, session, small_world, with_trail

Story = Callable[[Pilot[None]], Awaitable[None]]


async def _healthy(pilot: Pilot[None]) -> None:
    """Everything that is asked in the background has been answered."""
    await until(pilot, lambda: isinstance(pilot.app.screen, BaseScreen))
    healths = console(pilot).monitor.healths
    await until(
        pilot, lambda: all(h.fault or (h.counts and h.recent and h.findings and h.soon) for h in healths.values())
    )


async def overview(pilot: Pilot[None]) -> None:
    await _healthy(pilot)
    pilot.app.screen.update_each_second()  # type: ignore[attr-defined]
    await until(pilot, lambda: "failed" in screen_text(pilot) and "down" in screen_text(pilot))
    await until(pilot, lambda: _are_causes_counted(pilot))


def _are_causes_counted(pilot: Pilot[None]) -> bool:
    """Whether the Overview shows the causes of every system that answers."""
    screen = pilot.app.screen
    assert isinstance(screen, OverviewScreen)
    live = {name for name, health in console(pilot).monitor.healths.items() if health.fault is None}
    return bool(screen.query_one(TopCauses).causes) and not screen._counting and live == screen._passes.keys()


async def failures_place(pilot: Pilot[None]) -> None:
    await _healthy(pilot)
    screen = await failures(pilot)
    await until(pilot, lambda: screen._count)
    await pilot.press("down", "space", "space")
    await until(pilot, lambda: items(pilot).cursor == 3 and screen._soon is None and "2 marked" in screen_text(pilot))
    preview = screen.preview
    await until(pilot, lambda: not preview.display or (preview.item is not None and preview.item.key in preview._details))


async def mistake(pilot: Pilot[None]) -> None:
    await failures_place(pilot)
    await filtered(pilot, "attempts:many")
    await until(pilot, lambda: "not a number of attempts" in screen_text(pilot))


async def item(pilot: Pilot[None]) -> None:
    await _healthy(pilot)
    await failures(pilot)
    await pilot.press("down", "enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen) and pilot.app.screen._detail)
    await until(pilot, lambda: "History" in screen_text(pilot))


async def causes(pilot: Pilot[None]) -> None:
    await _healthy(pilot)
    await pilot.press("3")
    await until(pilot, lambda: pilot.app.screen.query_one(CauseList).causes and not pilot.app.screen._busy)  # type: ignore[attr-defined]


async def helped(pilot: Pilot[None]) -> None:
    await failures_place(pilot)
    await pilot.press("question_mark")
    await until(pilot, lambda: "Keys in Failures" in screen_text(pilot))


async def plan(pilot: Pilot[None]) -> None:
    await _healthy(pilot)
    await failures(pilot)
    await filtered(pilot, "condition:terminal backend:analysis-queue")
    await until(pilot, lambda: items(pilot).item is not None)
    await pilot.press("A", "r")
    screen = await planned(pilot)
    fill(screen, "the rate limits are lifted", "")
    await until(pilot, lambda: "will be requeued" in screen_text(pilot) and "Confirm" in screen_text(pilot))


async def override(pilot: Pilot[None]) -> None:
    await _healthy(pilot)
    await failures(pilot)
    await filtered(pilot, "condition:terminal error~timeout backend:analysis-queue")
    await until(pilot, lambda: items(pilot).item is not None)
    await pilot.press("space", "r")
    screen = await planned(pilot)
    await confirm(pilot, screen, "the timeouts are over")
    await until(pilot, lambda: "watching until" in screen_text(pilot) and "finished: 1" in screen_text(pilot))
    pilot.app.clear_notifications()  # else it depends on how fast the machine is whether one is in the picture
    await until(pilot, lambda: "finished: 1" not in screen_text(pilot) and "▸ override" not in screen_text(pilot))


async def trail(pilot: Pilot[None]) -> None:
    await override(pilot)
    await pilot.press("4")
    await until(pilot, lambda: isinstance(pilot.app.screen, TrailScreen) and "the timeout" in screen_text(pilot))
    await pilot.press("v")
    await until(pilot, lambda: "✓ intact" in screen_text(pilot) and "watching until" in screen_text(pilot))


async def override_items(pilot: Pilot[None]) -> None:
    await override(pilot)
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, OverrideItemsScreen) and "1 item" in screen_text(pilot))


async def proposals(pilot: Pilot[None]) -> None:
    await plan(pilot)
    await pilot.press("ctrl+s")
    await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen))
    await pilot.press("6")
    await until(pilot, lambda: "open of" in screen_text(pilot) or "Submitted as" in screen_text(pilot))
    pilot.app.clear_notifications()
    await until(pilot, lambda: "1 open of 1" in screen_text(pilot) and "Submitted as" not in screen_text(pilot))


async def go_to(pilot: Pilot[None]) -> None:
    await failures_place(pilot)
    await pilot.press("colon")
    await until(pilot, lambda: "Go to" in screen_text(pilot))


def settled(story: Story) -> Story:
    """The story, then a wait until the whole screen is painted and does not change any more."""

    async def recorded(pilot: Pilot[None]) -> None:
        await story(pilot)
        before = ""
        while before != screen_text(pilot) or "Retriage" not in before:
            before = screen_text(pilot)
            await pilot.pause(0.3)

    return recorded


STORIES: dict[str, Story] = {
    "overview": overview,
    "failures": failures_place,
    "mistake": mistake,
    "item": item,
    "causes": causes,
    "help": helped,
    "plan": plan,
    "trail": trail,
    "proposals": proposals,
    "override": override,
    "override_items": override_items,
    "go to": go_to,
}


@pytest.fixture(autouse=True)
def _gives_no_read_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a read may take long, but it comes."""
    monkeypatch.setattr("console.ui.health._BEAT_DEADLINE", PATIENCE)
    for place in ("screens.overview", "screens.causes", "backend_calls"):
        monkeypatch.setattr(f"console.ui.{place}.HOLD_LIMIT", None)


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A world whose every word is the same in each run: relative places, counted ids, a fixed person."""
    monkeypatch.chdir(tmp_path)
    ids = count(0x5E)  # a preview may be proposed again before the picture is taken
    monkeypatch.setattr(secrets, "token_hex", lambda size=8: f"{next(ids):0{2 * size}x}")
    monkeypatch.setattr("console.ui.live_overrides.monotonic", lambda: 0.0)  # no rate is measured
    small = small_world(Path(), 120)
    gone = open_queue(Path("missing.db"), "partitions")
    lost = Unavailable(
        "steps", "workflow_steps", PluginFault("it needs psycopg", where="steps", fix="Install retriage[postgres].")
    )
    words = {"views": small.views, "runbooks": small.runbooks, "who": Who(1000, "ada")}
    return with_trail(session([*small.backends, gone, lost], small.clock, **words), Path())


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["80x24", "160x50"])
@pytest.mark.parametrize("story", STORIES)
def test_looks_as_it_did(given, snap_compare, story: str, size: tuple[int, int]) -> None:
    assert snap_compare(Console(lambda: given, deadline=PATIENCE), terminal_size=size, run_before=settled(STORIES[story]))


@pytest.mark.parametrize("theme", ["retriage-day", "ansi"])
def test_other_themes_look_as_they_did(tmp_path: Path, snap_compare, theme: str) -> None:
    assert snap_compare(
        Console(lambda: small_world(tmp_path, 60, theme=theme), deadline=PATIENCE), terminal_size=NARROW,
        run_before=settled(failures_place),
    )


def test_read_only_looks_as_it_did(tmp_path: Path, snap_compare) -> None:
    given = with_trail(small_world(tmp_path, 60, read_only=True), tmp_path)
    assert snap_compare(Console(lambda: given, deadline=PATIENCE), terminal_size=NARROW, run_before=settled(failures_place))


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["80x24", "160x50"])
def test_the_welcome_looks_as_it_did(snap_compare, size: tuple[int, int]) -> None:
    async def welcomed(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "No systems are configured" in screen_text(pilot))

    app = Console(lambda: session([], config="~/.config/retriage/config.yaml"), offers_demo=True)
    assert snap_compare(app, terminal_size=size, run_before=settled(welcomed))


def test_every_place_has_a_picture() -> None:
    assert set(PLACES) <= set(STORIES)
