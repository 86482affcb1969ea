"""Before the desk is laid: what is shown, what keys do, and how it goes on."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from console.core.desk import Desk, Unavailable
from console.core.faults import ConfigFault, PluginFault
from console.glance import Glance, glance
from console.ui.app import Console
from console.ui.screens.failures import FailuresScreen
from tests.ui.driving import console, screen_text, until
from tests.ui.world import desk, small_world


def named(laid: Desk) -> Desk:
    """The same desk of which only the names are known."""
    fault = PluginFault("it is not open yet")
    return desk([Unavailable(name, "sqlite_queue", fault) for name in laid.names], laid.clock)


async def test_keys_wait_for_the_desk_and_then_count(tmp_path: Path) -> None:
    laid, ready = small_world(tmp_path, 40), threading.Event()

    def lay() -> Desk:
        ready.wait(60)
        return laid

    app = Console(named(laid), lay=lay)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "analysis-queue" in screen_text(pilot) and "asking" in screen_text(pilot))
        assert "down" not in screen_text(pilot)
        await pilot.press("2")
        assert not isinstance(app.screen, FailuresScreen)
        ready.set()
        await until(pilot, lambda: isinstance(app.screen, FailuresScreen) and "task-00" in screen_text(pilot))
    assert app.crash is None


async def test_it_can_be_left_while_a_plugin_hangs(tmp_path: Path) -> None:
    laid, never = small_world(tmp_path, 10), threading.Event()
    app = Console(named(laid), lay=lambda: (never.wait(60), laid)[1])
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.opening)
        await pilot.press("q")
        await until(pilot, lambda: app._exit)
    never.set()


async def test_a_config_that_is_wrong_is_told_after_the_terminal_is_given_back() -> None:
    def lay() -> Desk:
        raise ConfigFault("there is no such key", where="config.yaml:3")

    app = Console(desk([]), lay=lay)
    with pytest.raises(ConfigFault):
        async with app.run_test() as pilot:
            await until(pilot, lambda: app.crash)
    assert isinstance(app.crash, ConfigFault)


async def test_names_that_a_glance_did_not_see_are_shown_once_they_are_known(tmp_path: Path) -> None:
    laid = replace(small_world(tmp_path, 20), read_only=True)
    app = Console(desk([]), lay=lambda: laid)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "jobs" in screen_text(pilot) and "READ-ONLY" in screen_text(pilot))


async def test_the_welcome_opens_the_sandbox_world(tmp_path: Path) -> None:
    laid = small_world(tmp_path, 20)
    app = Console(desk([]), demo=lambda: laid)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "d opens that world" in screen_text(pilot))
        await pilot.press("d")
        await until(pilot, lambda: "analysis-queue" in screen_text(pilot) and "terminal" in screen_text(pilot))
        await pilot.press("2")
        await until(pilot, lambda: isinstance(app.screen, FailuresScreen) and "task-00" in screen_text(pilot))
        assert console(pilot).desk is laid


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", Glance()),
        ("[", Glance()),
        ("- a\n- b", Glance()),
        ("\x00\xff", Glance()),
        ("backends: {a: 1}", Glance()),
        ("console: {theme: 7, read_only: maybe}", Glance()),
        (
            "console: {theme: ansi, read_only: true}\nbackends: {jobs: {plugin: sqlite_queue}}",
            Glance("ansi", True, (("jobs", "sqlite_queue"),)),
        ),
    ],
)
def test_a_glance_believes_nothing(tmp_path: Path, text: str, seen: Glance) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="latin-1")
    assert glance(path) == seen
    assert glance(tmp_path / "missing.yaml") == Glance()
