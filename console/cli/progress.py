"""Progress on stderr: bars on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from console.cli.context import ReportProgress
from console.cli.render import note
from console.core.executor import Progress
from console.core.text import neutralise
from console.core.watch import WatchProgress


class ShowProgress:
    """Shows the progress of an override, and remembers why items of its canary failed again."""

    def __init__(self, draw: Callable[[int, str], None] = lambda _done, _words: None) -> None:
        self._draw = draw
        self.heads: tuple[str, ...] = ()
        """The beginnings of the errors."""

    def __call__(self, progress: Progress) -> None:
        self.heads = tuple(progress.heads.values())
        self._draw(progress.done, " · ".join(word for word in (progress.stage, progress.note) if word))


@contextmanager
def override_progress(total: int) -> Iterator[ShowProgress]:
    """A bar with rate and time left for an override that is being carried out."""
    with _bar(total, timed=True) as draw:
        yield ShowProgress(draw)


@contextmanager
def watch_progress(total: int) -> Iterator[Callable[[WatchProgress], None]]:
    """The results of the items so far: a bar on a terminal, else a line whenever it changes."""
    said = ""

    def words_of(progress: WatchProgress) -> str:
        return " · ".join((progress.summary(), *(f"{name}: {why}" for name, why in progress.faults.items())))

    def say(progress: WatchProgress) -> None:
        nonlocal said
        words = words_of(progress)
        if words != said:
            said = words
            note(words)

    if not sys.stderr.isatty():
        yield say
        return
    with _bar(total, timed=False) as draw:
        yield lambda progress: draw(progress.total - progress.open, words_of(progress))


@contextmanager
def _bar(total: int, *, timed: bool) -> Iterator[Callable[[int, str], None]]:
    """A bar with a few words after it; nothing when stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _words: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    time = (TaskProgressColumn(show_speed=True), TimeRemainingColumn()) if timed else ()
    columns = (BarColumn(), MofNCompleteColumn(), *time, TextColumn("{task.fields[note]}", markup=False))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, note="")
        yield lambda done, words: bar.update(task, completed=done, note=neutralise(words, 80))


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
