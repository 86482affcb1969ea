"""The start: what the first frame shows, what keys do while the session is loaded, and how it continues."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from console.config_peek import Peek, peek
from console.core.faults import ConfigFault
from console.core.session import Session
from console.ui.app import Console
from console.ui.screens.base import BaseScreen
from console.ui.screens.failures import FailuresScreen
from tests.ui.driving import screen_text, toasts, until
from tests.ui.world import session, small_world

SYSTEMS = ("analysis-queue", "jobs")


async def test_the_first_frame_names_the_systems_and_the_figures_follow(tmp_path: Path) -> None:
    opened, ready = small_world(tmp_path, 40), threading.Event()

    def open_session() -> Session:
        ready.wait(60)
        return opened

    app = Console(open_session, SYSTEMS)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "analysis-queue" in screen_text(pilot) and "◌ …" in screen_text(pilot))
        assert "down" not in screen_text(pilot)
        assert "live" not in screen_text(pilot)
        ready.set()
        await until(pilot, lambda: "● live" in screen_text(pilot))
    assert app.crash is None


async def test_the_key_of_a_tab_chooses_the_first_screen(tmp_path: Path) -> None:
    opened, ready = small_world(tmp_path, 40), threading.Event()
    app = Console(lambda: (ready.wait(60), opened)[1], SYSTEMS)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4", "2")
        assert app.loading_session
        ready.set()
        await until(pilot, lambda: isinstance(app.screen, FailuresScreen) and "task-00" in screen_text(pilot))
    assert app.crash is None


@pytest.mark.parametrize(("key", "words"), [
    ("r", "r"), ("slash", "/"), ("question_mark", "?"), ("ctrl+p", "^p"), ("5", "5"), ("g", "g"), ("enter", "enter"),
    ("ctrl+j", "enter"), ("down", "↓"), ("tab", "tab"), ("ctrl+t", "^t"),
])
async def test_any_other_key_is_answered_with_a_message(tmp_path: Path, key: str, words: str) -> None:
    opened, ready = small_world(tmp_path, 40), threading.Event()
    app = Console(lambda: (ready.wait(60), opened)[1], SYSTEMS)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press(key)
        assert f"Still loading. Press {words} again in a moment." in toasts(pilot)
        assert len(app.screen_stack) == 1
        ready.set()
        await until(pilot, lambda: isinstance(app.screen, BaseScreen) and "terminal" in screen_text(pilot))
    assert app.crash is None


async def test_it_can_be_left_while_a_plugin_hangs(tmp_path: Path) -> None:
    opened, never = small_world(tmp_path, 10), threading.Event()
    app = Console(lambda: (never.wait(60), opened)[1], SYSTEMS)
    async with app.run_test() as pilot:
        await pilot.press("q")
        await until(pilot, lambda: app._exit)
    never.set()


async def test_a_wrong_config_is_raised_after_the_terminal_is_restored() -> None:
    def open_session() -> Session:
        raise ConfigFault("there is no such key", where="config.yaml:3")

    app = Console(open_session)
    with pytest.raises(ConfigFault):
        async with app.run_test() as pilot:
            await until(pilot, lambda: app.crash)
    assert isinstance(app.crash, ConfigFault)


async def test_systems_that_were_not_named_in_the_first_frame_appear(tmp_path: Path) -> None:
    opened = replace(small_world(tmp_path, 20), read_only=True)
    app = Console(lambda: opened)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "jobs" in screen_text(pilot) and "READ-ONLY" in screen_text(pilot))
        await until(pilot, lambda: all(worker.is_finished for worker in app.workers if worker.group == "load"))


async def test_the_welcome_offers_the_demo() -> None:
    app = Console(lambda: session([]), offers_demo=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "Press D to open the demo" in screen_text(pilot))
        await pilot.press("D")
        await until(pilot, lambda: app._exit)
    assert app.return_value == "demo"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", Peek()),
        ("[", Peek()),
        ("- a\n- b", Peek()),
        ("\x00\xff", Peek()),
        ("backends: 7", Peek()),
        ("backends: {a: 1}", Peek(("a",))),
        ("console: 3\nbackends: {a: 1}", Peek()),
        ("console: {theme: 7}\nbackends: {a: 1}", Peek(("a",))),
        ("console: {theme: [x]}\nbackends: {a: 1}", Peek()),
        ("[" * 5_000, Peek()),
        ("console: {theme: ansi}\nbackends: {jobs: {plugin: sqlite_queue}}", Peek(("jobs",), "ansi")),
    ],
)
def test_a_peek_at_the_config_ignores_mistakes(tmp_path: Path, text: str, seen: Peek) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="latin-1")
    assert peek(path) == seen
    assert peek(tmp_path / "missing.yaml") == Peek()
