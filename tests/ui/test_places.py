"""Overview, Groups, Item, help, palette, go to: each place does what it says."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from textual.keys import Keys, _character_to_key

from console.actions.catalogue import CATALOGUE, EVERYWHERE, PLACES, actions_of
from console.actions.keymap import NAMED_KEYS, checked_keymap, textual_name
from console.actions.themes import THEMES
from console.core.faults import ConfigFault, PluginFault
from console.core.session import Unavailable
from console.ui import themes
from console.ui.actions import key_table, key_words
from console.ui.app import Console
from console.ui.screens.base import BaseScreen
from console.ui.screens.causes import CausesScreen
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.item import ItemScreen
from console.ui.screens.override import OverrideScreen
from console.ui.screens.override_live import LiveOverrideScreen
from console.ui.screens.overview import OverviewScreen
from console.ui.screens.trail import TrailScreen
from console.ui.widgets.cause_list import CauseList
from console.ui.widgets.upcoming_chart import UpcomingChart, storms
from tests.ui.driving import NARROW, WIDE, console, failures, items, keys, opened, screen_text, until
from tests.ui.world import ERRORS, NOON, make_async, open_queue, session, small_world

SCREENS = {
    EVERYWHERE: Console,
    "overview": OverviewScreen,
    "failures": FailuresScreen,
    "causes": CausesScreen,
    "trail": TrailScreen,
    "item": ItemScreen,
    "override": OverrideScreen,
    "live_override": LiveOverrideScreen,
}


# -- the catalogue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", CATALOGUE, ids=lambda action: action.id)
def test_every_action_has_its_method_and_help(action) -> None:
    assert hasattr(SCREENS[action.place], f"action_{action.name}")
    assert action.help
    assert action.label
    assert f"`{key_words(action.key)}`" in key_table()


def test_a_keymap_is_checked() -> None:
    assert checked_keymap({"failures.requeue": "R", "app.help": "f1,?"}) == {
        "failures.requeue": "R",
        "app.help": "f1,question_mark",
    }
    with pytest.raises(ConfigFault, match=r"Did you mean 'failures.requeue'\?"):
        checked_keymap({"failures.reqeue": "r"})
    with pytest.raises(ConfigFault, match="unknown key"):
        checked_keymap({"failures.requeue": "ctrl+banana"})
    with pytest.raises(ConfigFault, match=r"used for failures\.sort"):
        checked_keymap({"failures.requeue": "s"})
    with pytest.raises(ConfigFault, match=r"failures\.requeue: .*j is already used for moving .*\(down\)"):
        checked_keymap({"failures.requeue": "j"})
    with pytest.raises(ConfigFault, match=r"ctrl\+p is already used for the palette"):
        checked_keymap({"app.tour": "ctrl+p"})
    assert checked_keymap({"overview.span": "G"}) == {"overview.span": "G"}  # there is no list


def test_an_unknown_theme_is_a_fault() -> None:
    with pytest.raises(ConfigFault, match="Unknown theme 'purple'"):
        themes.chosen("purple")


def test_the_themes_known_to_commands_are_those_of_the_console(tmp_path: Path) -> None:
    assert set(Console(lambda: small_world(tmp_path, 1)).available_themes) == THEMES


def test_the_keys_known_to_commands_are_those_of_textual() -> None:
    named = {key.value for key in Keys if key.value.isalnum()} - {"return"}  # no terminal sends it
    assert named == NAMED_KEYS


async def test_every_place_is_read_again_by_one_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual calls on_mount of every base class. A call of super() in a subclass would start a second clock."""
    begun: list[str] = []
    mounted = BaseScreen.on_mount
    monkeypatch.setattr(BaseScreen, "on_mount", lambda self: (begun.append(self.PLACE), mounted(self))[1])
    async with opened(small_world(tmp_path, 40)) as pilot:
        await failures(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        await pilot.press("escape", "3", "4")
        await until(pilot, lambda: len(set(begun)) == 5)
    assert sorted(begun) == ["causes", "failures", "item", "overview", "trail"]


@pytest.mark.parametrize(
    ("written", "pressed"),
    [
        ("f3", "f3"),
        ("*", "*"),
        ("asterisk", "*"),
        ("comma", ","),
        ("shift+b", "B"),
        ("ctrl+_", "ctrl+underscore"),
        ("shift+ctrl+left", "ctrl+shift+left"),
    ],
)
async def test_keys_can_be_moved(tmp_path: Path, written: str, pressed: str) -> None:
    async with opened(small_world(tmp_path, 20, keymap={"app.causes": written})) as pilot:
        await pilot.press(pressed)
        await until(pilot, lambda: isinstance(pilot.app.screen, CausesScreen))


def test_a_character_is_the_key_textual_takes_it_for() -> None:
    for character in filter(str.isprintable, map(chr, range(0x3000))):
        assert textual_name(character) == _character_to_key(character)
    sent = {key.value for key in Keys} - {"return", "ctrl-at"}  # which no terminal sends
    assert [key for key in sent if not key.startswith("<") and textual_name(key) != key] == []


@pytest.mark.parametrize("key", ["shift+1", "ctrl+R", "ctrl+", "+r", "ctrl+ctrl+r", "low_line", ""])
def test_a_key_that_no_terminal_sends_is_refused(key: str) -> None:
    with pytest.raises(ConfigFault, match=f"unknown key '{re.escape(key)}'"):
        checked_keymap({"app.causes": key})


def test_two_names_of_one_key_clash() -> None:
    with pytest.raises(ConfigFault, match=r"colon is already used for failures\.requeue"):
        checked_keymap({"failures.sort": ":", "failures.requeue": "colon"})


@pytest.mark.parametrize("theme", ["retriage-day", "ansi", "textual-light", "nord"])
async def test_themes(tmp_path: Path, theme: str) -> None:
    async with opened(small_world(tmp_path, 20, theme=theme)) as pilot:
        await failures(pilot)
        assert "retrying" in screen_text(pilot)


async def test_without_colour_everything_is_still_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(small_world(tmp_path, 20)) as pilot:
        await failures(pilot)
        await pilot.press("space")
        text = screen_text(pilot)
        assert "↻ retrying" in text
        assert "● 1 marked" in text


# -- overview ----------------------------------------------------------------------------------------


async def test_overview_in_a_tiny_terminal_cuts_lines_and_keeps_its_numbers(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 100), (60, 15)) as pilot:
        await until(pilot, lambda: console(pilot).monitor.healths["analysis-queue"].oldest)
        await until(pilot, lambda: "failures   oldest" in screen_text(pilot))
        card, chart = screen_text(pilot).split("Retries in the next hour")
        assert card.count("attempts ·") == 1  # the third line of the first card: nothing before it has wrapped
        assert "+1h" in chart
        assert " due " in chart
        assert "h: next day" in chart


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_overview_tells_of_every_backend(tmp_path: Path, size: tuple[int, int]) -> None:
    given = small_world(tmp_path, 100)
    lost = Unavailable("lost", "nosuch", PluginFault("no such plugin is installed", where="nosuch"))
    gone = open_queue(tmp_path / "missing.db", "gone")
    given = session([*given.backends, gone, lost], given.clock)
    async with opened(given, size) as pilot:
        healths = console(pilot).monitor.healths
        await until(
            pilot, lambda: healths["jobs"].recent and healths["analysis-queue"].recent and healths["gone"].fault
        )
        await until(pilot, lambda: "2 down" in screen_text(pilot))
        text = screen_text(pilot)
        assert "analysis-queue" in text
        assert "↻ 30 retrying" in text
        assert "⊗ 40 terminal" in text
        assert "4 attempts · 5m, 15m, 1h" in text
        assert "Retries in the next hour" in text
        if size == WIDE:
            assert "there is no such file" in text
            assert "no such plugin is installed" in text
        await pilot.press("h")
        await until(pilot, lambda: "Retries in the next day" in screen_text(pilot))
        await pilot.press("down", "enter")
        await until(
            pilot,
            lambda: isinstance(pilot.app.screen, FailuresScreen) and str(pilot.app.screen.filter) == "backend:jobs",
        )


async def test_a_storm_is_seen(tmp_path: Path) -> None:
    make_async(tmp_path / "a.db", 0)
    with sqlite3.connect(tmp_path / "a.db") as db:
        for n in range(60):
            due = NOON + timedelta(minutes=20, seconds=n / 2) if n < 40 else NOON + timedelta(minutes=n)
            db.execute(
                "INSERT INTO async_tasks VALUES (?,?,?,?,?,?,?,?,?)",
                (f"t{n}", "T", "e", "PENDING", 1, due.isoformat(), "boom", NOON.isoformat(), NOON.isoformat()),
            )
    async with opened(session([open_queue(tmp_path / "a.db", "q")])) as pilot:
        await until(pilot, lambda: "storm" in screen_text(pilot))
        assert "peak 40 in 20m 00s" in screen_text(pilot)
        assert pilot.app.screen.query_one(UpcomingChart).day is False
    assert storms([1] * 60) == set()


async def test_no_backends_is_a_welcome(tmp_path: Path) -> None:
    async with opened(session([], config="/etc/retriage.yaml"), NARROW) as pilot:
        await until(pilot, lambda: "No systems are configured yet" in screen_text(pilot))
        assert "retriage demo" in screen_text(pilot)
        assert "/etc/retriage.yaml" in screen_text(pilot)


# -- causes ------------------------------------------------------------------------------------------


async def test_groups_count_and_narrow(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 100)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: pilot.app.screen.query_one(CauseList).causes)
        screen = pilot.app.screen
        assert isinstance(screen, CausesScreen)
        await until(pilot, lambda: not screen._busy)
        cause = screen.table.cause
        assert cause is not None
        assert "✓ yes" in screen_text(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen) and items(pilot).complete)
        table = items(pilot)
        assert table.total() == cause.count
        assert {table.item_at(row).signature for row in range(table.total())} == {cause.signature}  # type: ignore[union-attr]
        assert "scanned" in screen_text(pilot)


async def test_groups_are_read_again_at_once_when_asked(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 100)) as pilot:
        await pilot.press("3")
        screen = pilot.app.screen
        assert isinstance(screen, CausesScreen)
        await until(pilot, lambda: screen.table.causes and not screen._busy)
        with sqlite3.connect(tmp_path / "analysis.db") as db:
            db.execute("UPDATE async_tasks SET last_error = 'a new cause' WHERE status = 'FAILED'")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "a new cause" in screen_text(pilot))


async def test_a_group_has_its_runbook(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 100)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: pilot.app.screen.query_one(CauseList).causes)
        table = pilot.app.screen.query_one(CauseList)
        table.cursor = next(n for n, g in enumerate(table.causes) if "rate limit" in g.sample)
        await until(pilot, lambda: "https://wiki.example/runbooks/rate-limit" in screen_text(pilot))
        await pilot.press("o")
        assert console(pilot).clipboard == "https://wiki.example/runbooks/rate-limit"
        await pilot.press("y")
        assert console(pilot).clipboard == table.cause.sample  # type: ignore[union-attr]


async def test_the_cursor_stays_on_the_group_without_an_error(tmp_path: Path) -> None:
    """Failures without error text have no signature, but are a row of the list."""
    async with opened(small_world(tmp_path, 20)) as pilot:
        await pilot.press("3")
        screen = pilot.app.screen
        assert isinstance(screen, CausesScreen)
        await until(pilot, lambda: screen.table.causes and not screen._busy)
        table, cause = screen.table, screen.table.causes[0]
        silent = replace(cause, signature=None, sample="")
        table.causes = [silent, cause]
        table.cursor = 0
        table.causes = [*(replace(cause, signature=f"{n:016x}") for n in range(80)), silent]
        assert table.cause == silent
        await until(pilot, lambda: "no error text" in screen_text(pilot))


# -- item --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_an_item_tells_all(tmp_path: Path, size: tuple[int, int]) -> None:
    async with opened(small_world(tmp_path, 60), size) as pilot:
        await failures(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen) and "attempt" in screen_text(pilot))
        screen = pilot.app.screen
        assert isinstance(screen, ItemScreen)
        await until(pilot, lambda: screen._detail)
        text = screen_text(pilot)
        assert "runs again automatically" in text
        assert "Next" in text
        assert "cause" in text
        await pilot.press("slash", *"status", "enter")
        await until(pilot, lambda: "lines contain status" in screen_text(pilot))
        await pilot.press("n", "N", "escape", "y")
        assert console(pilot).clipboard == screen._detail.error  # type: ignore[union-attr]
        await pilot.press("Y")
        assert console(pilot).clipboard == str(screen._item.key)
        await pilot.press("c")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, FailuresScreen) and "cause:" in str(pilot.app.screen.filter)
        )


async def test_an_item_that_is_gone_says_so(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        await failures(pilot)
        key = items(pilot).item.key  # type: ignore[union-attr]
        with sqlite3.connect(tmp_path / "analysis.db") as db:
            db.execute("DELETE FROM async_tasks WHERE task_id = ?", key.parts)
        await pilot.press("enter")
        await until(pilot, lambda: "No such item" in screen_text(pilot))


# -- everywhere --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "place"), [("1", "overview"), ("2", "failures"), ("3", "causes"), ("4", "trail")])
async def test_help_is_the_catalogue(tmp_path: Path, key: str, place: str) -> None:
    async with opened(small_world(tmp_path, 30), (120, 60)) as pilot:
        await pilot.press(key, "question_mark")
        await until(pilot, lambda: f"Keys in {PLACES[place]}" in screen_text(pilot))
        text = screen_text(pilot)
        assert all(action.help[:40] in text for action in (*actions_of(place), *actions_of(EVERYWHERE)))
        await pilot.press("escape")
        await until(pilot, lambda: "Keys in" not in screen_text(pilot))


async def test_a_key_leads_to_its_place_whatever_lies_on_it(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30)) as pilot:
        listed = await failures(pilot)
        for keys_back in (["2"], ["1", "2"], ["g", *"failures", "enter"], ["1", "g", *"failures", "enter"]):
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
            await pilot.press(*keys_back)
            await until(pilot, lambda: pilot.app.screen is listed)
        for typed in (["2"], ["g", *"failures", "enter"]):
            listed.table.cursor = 0
            await pilot.press("enter", *typed, "down")
            assert listed.table.cursor == 1  # what is typed after it is meant for where it leads


async def test_go_to_an_item_by_its_key(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30)) as pilot:
        await pilot.press("g", *"analysis-queue/task-00003", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        await pilot.press("escape", "g", *"nonsense", "enter")
        await until(pilot, lambda: "Not an item key" in screen_text(pilot))
        await pilot.press("g", *"storms", "enter")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, FailuresScreen) and "next<15m" in str(pilot.app.screen.filter)
        )


async def test_the_palette_has_every_action_of_the_place(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30)) as pilot:
        await failures(pilot)
        offered = {command.title for command in pilot.app.get_system_commands(pilot.app.screen)}
        assert {"Filter", "Sort", "Views", "Help", "Theme", "Quit"} <= offered
        assert "Requeue" not in offered  # this session has no trail
        await pilot.press("ctrl+p")
        await pilot.pause(0.1)
        await pilot.press(*"causes", "down", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, CausesScreen))


async def test_tracebacks_are_told_by_their_last_line(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        await failures(pilot)
        assert keys(pilot)
        assert "KeyError: 'user'" in screen_text(pilot)
        assert "Traceback" not in screen_text(pilot)
        assert any(error.startswith("Traceback") for error in ERRORS)
