"""A progress bar on stderr with rate and time left; quiet when stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from console.core.override import Progress
from console.core.text import neutralise


@contextmanager
def watching(total: int) -> Iterator[Callable[[Progress], None]]:
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

        def watch(progress: Progress) -> None:
            words = " · ".join(word for word in (progress.stage, progress.note) if word)
            bar.update(task, completed=progress.done, note=neutralise(words, 80))

        yield watch
