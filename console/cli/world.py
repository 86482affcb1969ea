"""`demo` and `tour`: build or reuse the sandbox world, let its workers work, and open the console on it."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from console.cli.doors import Doors, World, WorldOrder
from console.cli.render import note, print_text
from console.core.faults import UsageFault

Progress = Callable[[str, int, int], None]


def demo(args: Namespace, doors: Doors) -> int:
    if args.no_open and args.postgres:
        raise UsageFault("the world's PostgreSQL lives only while the console is open", fix="Leave out --no-open.")
    order = WorldOrder(args.dir, args.scale, args.seed, args.speed, args.reset, args.postgres)
    world = _built(order, doors)
    if args.no_open:
        print_text(str(world.config), 4096)
        return 0
    return _opened(world, args, doors, guided=False)


def tour(args: Namespace, doors: Doors) -> int:
    return _opened(_built(WorldOrder(args.dir), doors), args, doors, guided=True)


def _built(order: WorldOrder, doors: Doors) -> World:
    with _progress() as progress:
        world = doors.world(order, progress)
    if world.told:
        note(world.told)
    return world


def _opened(world: World, args: Namespace, doors: Doors, *, guided: bool) -> int:
    """With its workers at work, unless nothing may change."""
    note(f"The sandbox world is at {world.config}; `retriage --config` opens it, `demo --reset` builds it anew.")
    if not args.read_only:
        doors.live(world)
    return doors.open_console(str(world.config), guided=guided)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr while a terminal watches."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    parts = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, object] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)  # type: ignore[arg-type]

        yield show
