"""Backends that hang, fail in the middle or come back; a console that breaks."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic

import pytest

from console.core.faults import Unreachable
from console.ui.app import Console
from console.ui.screens.failures import FailuresScreen
from tests.patience import busy
from tests.ui.driving import console, failures, items, keys, opened, screen_text, until
from tests.ui.world import make_async, make_tasks, open_queue, session, small_world


class Frozen:
    """A backend whose every call hangs until it is thawed, as a stopped database server does."""

    def __init__(self, real) -> None:
        self._real = real
        self.thawed = threading.Event()
        self.thawed.set()
        self.name, self.plugin, self.place = real.name, real.plugin, real.place
        self.policy, self.sorts = real.policy, real.sorts

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        self.thawed.set()
        self._real.close()

    def __getattr__(self, name: str):
        method = getattr(self._real, name)

        def call(*args, **more):
            self.thawed.wait(60)
            return method(*args, **more)

        return call


async def test_a_frozen_backend_shows_so_and_slows_nothing(tmp_path: Path) -> None:
    make_async(tmp_path / "a.db", 200)
    make_tasks(tmp_path / "b.db", 40)
    ice = Frozen(open_queue(tmp_path / "a.db", "ice"))
    async with opened(session([ice, open_queue(tmp_path / "b.db", "live", "tasks")]), deadline=5.0) as pilot:
        healths = console(pilot).monitor.healths
        await until(pilot, lambda: healths["ice"].counts and healths["live"].counts)
        ice.thawed.clear()
        froze = monotonic()
        await until(pilot, lambda: healths["ice"].fault)
        assert monotonic() - froze < 5.5 * busy()
        await until(pilot, lambda: "1 down" in screen_text(pilot))
        await pilot.press("2")
        await until(pilot, lambda: any(key.startswith("job") for key in keys(pilot)))
        assert "ice: Timed out" in screen_text(
            pilot
        ) or "ice: waiting for an answer" in screen_text(pilot)
        slowest = 0.0
        for _ in range(10):
            began = monotonic()
            items(pilot).action_move(1)
            await pilot.pause()
            slowest = max(slowest, monotonic() - began)
        assert slowest < busy()
        ice.thawed.set()
        await until(pilot, lambda: healths["ice"].fault is None)
        items(pilot).reload()
        await until(pilot, lambda: any(key.startswith("task") for key in keys(pilot)))


async def test_quitting_does_not_wait_for_a_frozen_backend(tmp_path: Path) -> None:
    make_async(tmp_path / "a.db", 20)
    ice = Frozen(open_queue(tmp_path / "a.db", "ice"))
    ice.thawed.clear()
    try:
        async with opened(session([ice])) as pilot:
            await pilot.press("2")
            await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen))
            began = monotonic()
            await pilot.press("q")
        assert monotonic() - began < 3 * busy()
    finally:
        ice.thawed.set()


async def test_a_backend_that_breaks_in_the_middle_is_a_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    given = small_world(tmp_path, 300)
    broken, _ = given.backends
    page = broken.page

    def sometimes(request):
        if request.after is not None:
            raise Unreachable("gone in the middle")
        return page(request)

    broken.page = sometimes  # type: ignore[method-assign]
    async with opened(given) as pilot:
        await failures(pilot)
        table = items(pilot)
        await pilot.press("end")
        await until(pilot, lambda: table.item is not None)
        await pilot.press("home")
        for _ in range(8):
            table.action_page(1)
            await pilot.pause(0.1)
        await until(pilot, lambda: "gone in the middle" in screen_text(pilot))


async def test_a_plugin_that_raises_anything_is_reported_on_its_card(tmp_path: Path) -> None:
    given = small_world(tmp_path, 30)
    given.backends[0].counts = lambda *_: 1 / 0  # type: ignore[method-assign]
    async with opened(given) as pilot:
        await until(pilot, lambda: "ZeroDivisionError" in screen_text(pilot))
        await until(pilot, lambda: console(pilot).monitor.healths["jobs"].counts)  # the others are counted


async def test_an_error_of_our_own_ends_the_console_and_prints_no_locals(tmp_path: Path, capsys) -> None:
    secret = "hunter2-canary"  # a local that must not be shown
    app = Console(lambda: small_world(tmp_path, 10))
    with pytest.raises(RuntimeError, match="ours"):  # noqa: PT012 - the error comes while the console runs
        async with app.run_test() as pilot:

            def boom() -> None:
                password = secret
                raise RuntimeError(f"ours {len(password)}")

            pilot.app.call_later(boom)
            await pilot.pause(1)
    assert isinstance(app.crash, RuntimeError)
    assert app.return_code == 1
    assert secret not in "".join(capsys.readouterr())


async def test_an_error_in_a_worker_of_a_screen_is_not_swallowed(tmp_path: Path) -> None:
    app = Console(lambda: small_world(tmp_path, 10))
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the error comes while the console runs
        async with app.run_test() as pilot:
            await until(pilot, lambda: not app.loading_session)
            screen = await failures(pilot)

            async def broken() -> None:
                raise ZeroDivisionError

            screen.run_worker(broken(), exit_on_error=False)
            await pilot.pause(1)
    assert isinstance(app.crash, ZeroDivisionError)
