"""Before the desk is laid: what is shown, what keys do, and how it goes on."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from textual import events

from console.ahead import Ahead, said
from console.core.backend import PageRequest
from console.core.desk import Desk, Unavailable
from console.core.faults import ConfigFault, PluginFault
from console.core.query import Filter
from console.glance import Glance, glance
from console.ui.app import Console
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.plan import PlanScreen
from console.ui.widgets.filter_bar import FilterBar
from tests.ui.driving import console, items, screen_text, until
from tests.ui.world import desk, small_world, with_trail


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


@contextmanager
def foretelling(laid: Desk) -> Iterator[Ahead]:
    """Somebody ahead who has read this desk's backends, and has not ended yet."""
    reading, writing = os.pipe()
    requests = [(backend, PageRequest(Filter(), laid.clock.now())) for backend in laid.backends]
    words: list[Any] = [(backend.name, backend.counts(Filter(), laid.clock.now())) for backend, _ in requests]
    words += [(backend.name, backend.page(request)) for backend, request in requests]
    ahead = Ahead(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600"), reading)
    threading.Thread(target=lambda: [os.write(writing, said(word)) for word in words], daemon=True).start()
    try:
        yield ahead
    finally:
        ahead.close()
        os.close(writing)


async def test_rows_that_were_foretold_stay_until_those_that_are_read_here_are_there(tmp_path: Path) -> None:
    laid, ready = small_world(tmp_path, 40), threading.Event()
    with foretelling(laid) as ahead:
        app = Console(named(laid), lay=lambda: (ready.wait(60), laid)[1], ahead=ahead)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("2")
            await until(pilot, lambda: "task-00" in screen_text(pilot) and "of 36" in screen_text(pilot))
            await pilot.press("down", "down")
            assert app.opening
            assert items(pilot).cursor == 0
            told = items(pilot).lanes
            ready.set()
            while items(pilot).cursor < 2:
                assert "task-00" in screen_text(pilot)
                await pilot.pause()
            assert items(pilot).lanes is not told
            await pilot.press("slash", *"deadlock", "enter")
            await until(pilot, lambda: items(pilot).complete and 0 < items(pilot).total() < 36)
    assert app.crash is None


async def test_the_desk_may_be_laid_while_a_place_is_only_coming_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid, laying, ready = small_world(tmp_path, 40), threading.Event(), threading.Event()
    composed = FailuresScreen.compose_place

    def lay() -> Desk:
        laying.set()
        ready.wait(60)
        return laid

    def compose(self: FailuresScreen) -> Iterator[Any]:
        ready.set()
        time.sleep(0.3)  # as long as a first import of its module may hold the loop
        yield from composed(self)

    monkeypatch.setattr(FailuresScreen, "compose_place", compose)
    with foretelling(laid) as ahead:
        app = Console(named(laid), lay=lay, ahead=ahead)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: laying.is_set())
            await pilot.press("2")
            await until(pilot, lambda: "task-00" in screen_text(pilot) and not app.opening)
            await until(pilot, lambda: items(pilot).lanes is app.lanes)
    assert app.crash is None


async def test_a_place_that_was_foretold_is_read_as_often_as_the_config_says(tmp_path: Path) -> None:
    laid, ready = replace(small_world(tmp_path, 40), refresh=timedelta(milliseconds=50)), threading.Event()
    with foretelling(laid) as ahead:
        app = Console(replace(named(laid), refresh=timedelta(hours=1)), lay=lambda: (ready.wait(60), laid)[1], ahead=ahead)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("2")
            await until(pilot, lambda: "task-00" in screen_text(pilot))
            ready.set()
            await until(pilot, lambda: not app.opening)
            with sqlite3.connect(tmp_path / "analysis.db") as queue:
                queue.execute("DELETE FROM async_tasks")
            await until(pilot, lambda: "  gone" in screen_text(pilot))
    assert app.crash is None


async def test_a_key_typed_behind_one_that_waits_waits_too(tmp_path: Path) -> None:
    laid, ready = small_world(tmp_path, 40), threading.Event()
    with foretelling(laid) as ahead:
        app = Console(named(laid), lay=lambda: (ready.wait(60), laid)[1], ahead=ahead)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("2", "slash", "1", "2", "enter")
            assert isinstance(app.screen, FailuresScreen)
            ready.set()
            await until(pilot, lambda: str(app.screen.query_one(FilterBar).filter) == "12")
            assert isinstance(app.screen, FailuresScreen)
    assert app.crash is None


async def test_a_key_that_is_on_its_way_when_the_desk_is_laid_does_not_overtake_one_that_waited(tmp_path: Path) -> None:
    laid, ready = with_trail(small_world(tmp_path, 40), tmp_path), threading.Event()
    with foretelling(laid) as ahead:
        app = Console(named(laid), lay=lambda: (ready.wait(60), laid)[1], ahead=ahead)
        opened = app.opened
        app.opened = lambda: (app.post_message(events.Key("r", "r")), opened())[1]  # type: ignore[method-assign]
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("2")
            await until(pilot, lambda: "task-00" in screen_text(pilot))
            await pilot.press("A")
            assert app.opening
            ready.set()
            await until(pilot, lambda: isinstance(app.screen, PlanScreen) and app.screen.plan is not None)
            assert isinstance(app.screen, PlanScreen)
            assert app.screen.plan is not None
            assert app.screen.plan.selected > 1
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
        await until(pilot, lambda: all(worker.is_finished for worker in app.workers if worker.group == "begin"))


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
