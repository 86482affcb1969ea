"""`python screenshots/make.py [NAME …]`: makes the README's pictures from the demo, with a fixed seed and clock.

Textual writes the SVG; a headless Chromium makes the PNG, if there is one on PATH.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from textual.pilot import Pilot

from console.cli.context import DemoOptions
from console.core.backend import Operation
from console.core.cause_life import CauseStates
from console.core.confirm import Confirmation, Limits, Origin, Who
from console.core.faults import Fault
from console.core.operations import Operations
from console.core.plan import Matching
from console.core.ports import Never
from console.core.query import Filter
from console.core.session import Session
from console.demo.build import open_demo
from console.demo.handlers import payments
from console.history.store import open_history
from console.registry import open_all
from console.settings import load
from console.trail.store import open_trail
from console.ui import backend_calls
from console.ui.app import Console
from console.ui.screens import overview as overview_screen
from console.ui.screens.plan import PlanScreen

HERE = Path(__file__).parent.resolve()
ANN, BO = Who(1000, "ann"), Who(1001, "bo")
HERE_NOW = Origin("ops-1", "pts/3", "10.8.0.4", 4242, "0.1.0")
NOW = datetime(2026, 11, 17, 3, 12, 40, tzinfo=UTC)
TALL, WIDE, LOW = (146, 47), (132, 34), (132, 24)
PATIENCE = 240.0
"""Seconds for which a picture or a system is waited for, also on a busy machine."""
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
            self._config = open_demo(DemoOptions(str(folder)), lambda *_: None, keep, NOW).config
        for path in folder.rglob("*"):  # made just now, which is after the held clock
            if path.stat().st_mtime > NOW.timestamp():
                os.utime(path, (NOW.timestamp(), NOW.timestamp()))
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
        causes = CauseStates(trail, self._clock, ANN, HERE_NOW, read_only=read_only)
        return Session(
            backends, self._clock, Never(), Limits(), read_only, "", "", timedelta(minutes=5),
            console.views, console.runbooks, trail=trail, operations=operations,
            who=ANN, origin=HERE_NOW, causes=causes,
            history=open_history(settings.history.store_url(), read_only=read_only),
        )

    def work(self, holds: Callable[[], bool], leave: Event) -> Thread:
        """Run the payments worker. It waits while `holds`, and not between its rounds: the clock stands still."""

        def handle(type: str, payload: Any) -> None:
            while holds():
                sleep(0.05)
            payments(type, payload)

        class Leaving:
            @property
            def requested(self) -> bool:
                return leave.is_set()

        backend: Any = self.session().backend("payments")
        backend.abilities = replace(backend.abilities, throughput=None)
        thread = Thread(target=backend.run, args=(handle, self._clock, Leaving(), lambda _: None), daemon=True)
        thread.start()
        return thread


# --- the pictures --------------------------------------------------------------------------


def shown(pilot: Pilot[None]) -> str:
    app = pilot.app
    lines = app.screen._compositor.render_strips(app.size)
    return "\n".join("".join(segment.text for segment in line) for line in lines)


async def until(pilot: Pilot[None], text: str) -> None:
    end = monotonic() + PATIENCE
    while not re.search(text, shown(pilot)):
        assert monotonic() < end, f"{text!r} did not come:\n{shown(pilot)}"
        await pilot.pause(0.05)


async def overview(pilot: Pilot[None]) -> None:
    await until(pilot, "▲ storm")
    await until(pilot, "RATE_LIMITED: ")  # the causes of all systems were counted
    app: Any = pilot.app
    end = monotonic() + PATIENCE
    while not all(h.counts and h.recent and h.findings and h.soon for h in app.monitor.healths.values()):
        assert monotonic() < end, "not all was answered"
        await pilot.pause(0.1)
    app.screen.update_each_second()
    await pilot.pause(0.3)


async def failures(pilot: Pilot[None]) -> None:
    await pilot.press("2")
    await until(pilot, "next retry")
    await pilot.press("slash", *keys("condition:terminal updated<2h -error~429"), "enter")
    await until(pilot, r"of \d+")
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
    await until(pilot, r"\d+ selected will be requeued")
    await until(pilot, "‹canary 10›")
    await pilot.press(*keys("the provider is back, see their status page"))
    await pilot.pause(0.5)


async def confirm(pilot: Pilot[None]) -> None:
    screen = pilot.app.screen
    assert isinstance(screen, PlanScreen)
    assert screen.plan is not None
    await pilot.press("enter", *str(screen.plan.changes), "enter")


async def override(pilot: Pilot[None]) -> None:
    await plan(pilot)
    await confirm(pilot)
    await until(pilot, r"[2-4]\d recovered · \d+ failed")
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
    await until(pilot, r"\d+ selected will be requeued")
    await until(pilot, "Tour 3 of")
    await pilot.pause(0.3)


PICTURES: dict[str, tuple[Story, tuple[int, int]]] = {
    "overview": (overview, TALL), "failures": (failures, LOW), "causes": (causes, LOW), "item": (item, WIDE),
    "plan": (plan, (132, 44)), "tour": (tour, WIDE), "read-only": (audit, LOW), "override": (override, LOW),
    "trail": (trail, LOW),
}
"""In this order: `trail` shows what `override` did."""
INCIDENT, RECORDING = "incident", (110, 32)
"""The recording, and its size."""


def keys(text: str) -> list[str]:
    names = {" ": "space", ":": "colon", "~": "tilde", "<": "less_than_sign", ",": "comma", "-": "minus"}
    return [names.get(char, char) for char in text]


# --- taking them --------------------------------------------------------------------------------------


async def take(name: str, world: World, into: Path) -> None:
    story, size = PICTURES[name]
    session = world.session(read_only=name == "read-only")
    app = Console(lambda: replace(session, theme=None), deadline=PATIENCE)
    with working(app, world) if name == "override" else nullcontext() as go_on:
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, r"\d live")
            await story(pilot)
            svg = app.export_screenshot(title="Retriage")
            if go_on is not None:
                go_on.set()
            while app.live_overrides.running:
                await pilot.pause(0.1)
        app.finish_overrides()
    session.close()
    (into / f"{name}.svg").write_text(svg)


@contextmanager
def working(app: Console, world: World) -> Iterator[Event]:
    """Run the worker. It waits in the middle of the second step of a canary, until the event is set."""
    go_on, leave = Event(), Event()

    def holds() -> bool:
        if app.loading_session or go_on.is_set() or app.live_overrides.latest is None:
            return False
        progress = app.live_overrides.latest.progress
        canary = progress.canary if progress is not None else None
        return canary is not None and canary.step == 2 and canary.recovered >= 20

    worker = world.work(holds, leave)
    try:
        yield go_on
    finally:
        go_on.set()
        leave.set()
        worker.join()


async def record(world: World, into: Path) -> None:
    """One incident as an animated picture: from the storm to the result."""
    session = world.session()
    app = Console(lambda: replace(session, theme=None), deadline=PATIENCE)
    frames: list[tuple[str, float]] = []

    def shoot(seconds: float) -> None:
        frames.append((app.export_screenshot(title="Retriage"), seconds))

    with working(app, world) as go_on:
        async with app.run_test(size=RECORDING, notifications=True) as pilot:
            await until(pilot, r"\d live")
            await overview(pilot)
            shoot(3)
            await causes(pilot)
            shoot(3)
            await pilot.press("r")
            await until(pilot, "‹canary 10›")
            shoot(3)
            await pilot.press(*keys("the provider is back"))
            await pilot.pause(0.3)
            shoot(2)
            await confirm(pilot)
            await until(pilot, r"[2-4]\d recovered · \d+ failed")
            await pilot.pause(0.5)
            shoot(3)
            go_on.set()
            await until(pilot, r"\d+ of 165 recovered")
            while app.live_overrides.running:
                await pilot.pause(0.1)
            await until(pilot, r"of 165 recovered, \d+ failed again: ")
            await pilot.pause(1)
            shoot(4)
        app.finish_overrides()
    session.close()
    (into / "incident.svg").write_text(animated(frames))


def animated(frames: list[tuple[str, float]]) -> str:
    """The pictures as one that shows each for its seconds, again and again."""
    whole = sum(seconds for _, seconds in frames)
    size = re.search(r'viewBox="([\d. ]+)"', frames[0][0])
    assert size is not None
    font = re.findall(r"@font-face \{.*?\}", frames[0][0], re.DOTALL)
    parts, rules, at = [], [*font], 0.0
    for n, (svg, seconds) in enumerate(frames):
        begin, end = at / whole * 100, (at + seconds) / whole * 100
        rules.append(
            f"@keyframes f{n} {{ 0% {{ visibility: {'visible' if not n else 'hidden'} }} "
            f"{begin:.2f}% {{ visibility: visible }} {end:.2f}% {{ visibility: hidden }} }}\n"
            f".f{n} {{ visibility: hidden; animation: f{n} {whole:g}s step-end infinite }}"
        )
        inner = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
        parts.append(f'<g class="f{n}">{inner}</g>')
        at += seconds
    style = "\n".join(rules)
    box = size[1]
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}"><style>{style}</style>{"".join(parts)}</svg>\n'


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
    for place in (overview_screen, backend_calls):  # no read is given up, also on a busy machine
        vars(place)["HOLD_LIMIT"] = None
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # relative places are shown
        world = World(Path("demo"))
        for name in names or [*PICTURES, INCIDENT]:
            if name == INCIDENT:
                asyncio.run(record(World(Path("incident")), into))
            else:
                asyncio.run(take(name, world, into))
                if pixels:
                    to_png(into / f"{name}.svg")
            print(into / f"{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
