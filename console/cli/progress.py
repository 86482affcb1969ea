"""Progress bars on stderr; nothing is shown when stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from console.cli.context import ReportProgress
from console.core.executor import Progress
from console.core.text import neutralise


@contextmanager
def override_progress(total: int) -> Iterator[Callable[[Progress], None]]:
    """A bar with rate and time left for an override that is being carried out."""
    if not sys.stderr.isatty():
        yield lambda _progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(), MofNCompleteColumn(), TaskProgressColumn(show_speed=True), TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, note="")

        def show(progress: Progress) -> None:
            words = " · ".join(word for word in (progress.stage, progress.note) if word)
            bar.update(task, completed=progress.done, note=neutralise(words, 80))

        yield show


@contextmanager
def build_progress() -> Iterator[ReportProgress]:
    """A bar for each system of the demo while it is being built."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield show
