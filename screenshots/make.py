"""`python screenshots/make.py [NAME …]`: makes the README's pictures from the demo, with a fixed seed and clock.

Textual writes the SVG; a headless Chromium makes the PNG, if there is one on PATH.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from textual.pilot import Pilot

from console.cli.context import DemoOptions
from console.core.backend import Operation
from console.core.confirm import Confirmation, Limits, Origin, Who
from console.core.faults import Fault
from console.core.operations import Operations
from console.core.plan import Matching
from console.core.ports import Never
from console.core.query import Filter
from console.core.session import Session
from console.demo.handlers import payments
from console.demo.world import open_world
from console.registry import open_all
from console.settings import load
from console.trail.store import open_trail
from console.ui.app import Console
from console.ui.screens.plan import PlanScreen

HERE = Path(__file__).parent
ANN, BO = Who(1000, "ann"), Who(1001, "bo")
HERE_NOW = Origin("ops-1", "pts/3", "10.8.0.4", 4242, "0.1.0")
NOW = datetime(2026, 11, 17, 3, 12, 40, tzinfo=UTC)
TALL, WIDE, LOW = (146, 47), (132, 34), (132, 24)
Story = Callable[[Pilot[None]], Awaitable[None]]


class HeldClock:
    """Stands still, except for a microsecond per call, so that later calls return later times."""

    def __init__(self) -> None:
        self.held = NOW
        self._asked = 0

    def now(self) -> datetime:
        self._asked += 1
        return self.held + timedelta(microseconds=self._asked)

    def sleep(self, seconds: float) -> None:
        sleep(min(seconds, 0.05))


class World:
    """The demo's systems at one fixed moment."""

    def __init__(self, folder: Path) -> None:
        with ExitStack() as keep:
            self._config = open_world(DemoOptions(str(folder)), lambda *_: None, keep, NOW).config
        self._clock = HeldClock()
        self._make_history()

    def _make_history(self) -> None:
        """Overrides of the last hour, for the trail."""
        session = self.session()
        for ago, who, where, reason in (
            (52, BO, "backend:warehouse error~COUNT_MISMATCH", "source re-exported, run again"),
            (31, ANN, "backend:jobs error~401", "key is rotated"),
            (24, ANN, "backend:webhooks condition:terminal error~503", "partner is reachable again"),
        ):
            self._clock.held = NOW - timedelta(minutes=ago)
            operations: Any = session.operations
            plan = operations.propose(Matching(Filter.parse(where)), Operation())
            with suppress(Fault):  # the expired key is not recoverable: that one is refused and recorded
                operations.carry_out(plan, Confirmation(who, HERE_NOW, reason, plan.changes, None))
        self._clock.held = NOW
        session.close()

    def session(self, *, read_only: bool = False) -> Session:
        settings = load(self._config)
        settings = settings.as_read_only() if read_only else settings
        console = settings.console
        backends: list[Any] = list(open_all(settings))
        for backend in backends:
            backend.now = self._clock.now
            tables = getattr(backend, "tables", None)
            for database in filter(None, (getattr(backend, "database", None), getattr(tables, "state", None))):
                database.now = self._clock.now
        trail = open_trail(console.trail.get_secret_value(), read_only=read_only, anchor=None, clock=self._clock)
        operations = Operations({b.name: b for b in backends}, trail, self._clock, read_only=read_only)
        return Session(
            backends, self._clock, Never(), Limits(), read_only, "", str(self._config), timedelta(minutes=5),
            console.views, console.runbooks, trail=trail, operations=operations,
            who=ANN, origin=HERE_NOW,
        )

    def work(self, session: Session, most: int, go_on: Event, leave: Event) -> Thread:
        """Run the payments worker for `most` items, then wait until `go_on` is set."""
        done = 0

        def handle(type: str, payload: Any) -> None:
            nonlocal done
            if done >= most:
                go_on.wait()
            done += 1
            payments(type, payload)

        class Leaving:
            @property
            def requested(self) -> bool:
                return leave.is_set()

        backend: Any = session.backend("payments")
        thread = Thread(target=backend.run, args=(handle, self._clock, Leaving(), lambda _: None), daemon=True)
        thread.start()
        return thread


# --- the pictures --------------------------------------------------------------------------


def shown(pilot: Pilot[None]) -> str:
    app = pilot.app
    lines = app.screen._compositor.render_strips(app.size)
    return "\n".join("".join(segment.text for segment in line) for line in lines)


async def until(pilot: Pilot[None], text: str) -> None:
    end = monotonic() + 60
    while not re.search(text, shown(pilot)):
        assert monotonic() < end, f"{text!r} did not come:\n{shown(pilot)}"
        await pilot.pause(0.05)


async def overview(pilot: Pilot[None]) -> None:
    await until(pilot, r"storm: peak")
    app: Any = pilot.app
    end = monotonic() + 60
    while not all(h.counts and h.recent and h.findings and h.soon for h in app.monitor.healths.values()):
        assert monotonic() < end, "not all was answered"
        await pilot.pause(0.1)
    app.screen.update_each_second()
    await pilot.pause(0.3)


async def failures(pilot: Pilot[None]) -> None:
    await pilot.press("2")
    await until(pilot, "next retry")
    await pilot.press("slash", *keys("condition:terminal,stuck updated<2h -error~429"), "enter")
    await until(pilot, r"of \d+")
    await pilot.press("s")
    await until(pilot, "jobs")
    await pilot.press("down", "down", "space", "space", "down", "space")
    await pilot.pause(0.5)


async def causes(pilot: Pilot[None]) -> None:
    await pilot.press("3")
    await until(pilot, r"causes of \d+")
    await pilot.pause(0.5)


async def item(pilot: Pilot[None]) -> None:
    await pilot.press("2")
    await until(pilot, "next retry")
    await pilot.press("slash", *keys("backend:fulfilment condition:terminal error~429"), "enter")
    await until(pilot, "charge_card|[0-9a-f]{8}-")
    await pilot.press("enter")
    await until(pilot, "History")
    await pilot.pause(0.5)


async def plan(pilot: Pilot[None]) -> None:
    await causes(pilot)
    await pilot.press("r")
    await until(pilot, r"\d+ will be requeued")
    screen = pilot.app.screen
    assert isinstance(screen, PlanScreen)
    screen.query_one("#pace").value = "canary 10"  # type: ignore[attr-defined]
    while screen.plan is None or str(screen.plan.pace) != "canary 10":
        await pilot.pause(0.1)
    await pilot.press(*keys("the provider is back, see their status page"))
    await pilot.pause(0.3)


async def override(pilot: Pilot[None]) -> None:
    await plan(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, PlanScreen)
    assert screen.plan is not None
    await pilot.press("enter", *str(screen.plan.changes), "enter")
    await until(pilot, r"Canary: 2\d of 50 succeeded")
    await pilot.pause(1.2)


async def trail(pilot: Pilot[None]) -> None:
    await pilot.press("4")
    await until(pilot, "the provider is back")
    await pilot.press("v")
    await until(pilot, "intact")
    await pilot.pause(0.3)


async def audit(pilot: Pilot[None]) -> None:
    await failures(pilot)
    await pilot.press("r")
    await until(pilot, "not available")


async def tour(pilot: Pilot[None]) -> None:
    await causes(pilot)
    await pilot.press("ctrl+t")
    await until(pilot, "Tour 2 of")
    await pilot.press("r")
    await until(pilot, r"\d+ will be requeued")
    await until(pilot, "Tour 3 of")
    await pilot.pause(0.3)


PICTURES: dict[str, tuple[Story, tuple[int, int]]] = {
    "overview": (overview, TALL), "failures": (failures, LOW), "causes": (causes, LOW), "item": (item, WIDE),
    "plan": (plan, (132, 44)), "tour": (tour, WIDE), "read-only": (audit, LOW), "override": (override, LOW),
    "trail": (trail, LOW),
}
"""In this order: `trail` shows what `override` did."""


def keys(text: str) -> list[str]:
    names = {" ": "space", ":": "colon", "~": "tilde", "<": "less_than_sign", ",": "comma", "-": "minus"}
    return [names.get(char, char) for char in text]


# --- taking them --------------------------------------------------------------------------------------


async def take(name: str, world: World, into: Path) -> None:
    story, size = PICTURES[name]
    session = world.session(read_only=name == "read-only")
    go_on, leave = Event(), Event()
    worker = world.work(session, 35, go_on, leave) if name == "override" else None
    app = Console(lambda: replace(session, theme=None))
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, "live since")
        await story(pilot)
        svg = app.export_screenshot(title="Retriage")
        go_on.set()
        while app.live_overrides.running:
            await pilot.pause(0.1)
    app.finish_overrides()
    leave.set()
    if worker is not None:
        worker.join()
    session.close()
    (into / f"{name}.svg").write_text(svg)


def to_png(svg: Path) -> None:
    """Make a PNG of the picture, if there is a browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg.read_text())
    if browser is None or box is None:
        print(f"{svg.name}: no browser on PATH, no PNG", file=sys.stderr)
        return
    size = ",".join(str(round(float(number))) for number in box.groups())
    subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--default-background-color=00000000",
         f"--window-size={size}", f"--screenshot={svg.with_suffix('.png')}", svg.as_uri()],
        check=True, capture_output=True, timeout=120,
    )


def main(names: list[str], into: Path = HERE, *, pixels: bool = True) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "world")
        for name in names or PICTURES:
            asyncio.run(take(name, world, into))
            if pixels:
                to_png(into / f"{name}.svg")
            print(into / f"{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
