"""`demo`: build or reuse the sandbox world, then open the console on it."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from console.cli.doors import Doors, WorldOrder
from console.cli.render import note, print_text

Progress = Callable[[str, int, int], None]


def demo(args: Namespace, doors: Doors) -> int:
    order = WorldOrder(args.dir, args.scale, args.seed, args.reset)
    with _progress() as progress:
        config = doors.world(order, progress)
    if args.no_open:
        print_text(config, 4096)
        return 0
    note(f"The sandbox world is at {config}; `retriage --config` opens it again, `demo --reset` builds it anew.")
    return doors.open_console(doors.desk(config))


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
