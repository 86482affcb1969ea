"""The console in a real terminal: its first frame, its keys, its memory, and how long it ever holds its loop.

The references run in the same kind of pty, in turn with ours: an empty Textual app, and a DataTable.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data import CACHE, async_tasks
from benchmarks.measure import Result, from_pairs
from benchmarks.terminal import PAINTED, Terminal, says

PROGRAMS = Path(__file__).parent / "programs"
DOWN, PAGE_DOWN = b"\x1b[B", b"\x1b[6~"
_LOOP = 0.050
"""Seconds nothing in the event loop may take longer than."""
_PER_MILLION = 8.0
"""Megabytes a million listed rows may cost."""
_UNSTEADY = 2.0
"""Megabytes a process comes and goes by anyhow; only few rows are listed when it is quick."""
_PAGES = 20
"""So many pages are in a table of a thousand rows."""


def program(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.programs.{name}", *map(str, arguments)]


def console(config: Path) -> list[str]:
    return [sys.executable, "-m", "console", "--config", str(config)]


def config_for(database: Path) -> Path:
    """A config with one queue in it, and a trail."""
    path = CACHE / f"{database.stem}.yaml"
    trail = (CACHE / f"{database.stem}_trail.db").absolute()
    path.write_text(
        f"console:\n  trail: 'sqlite:///{trail}'\n"
        f"backends:\n  queue: {{plugin: sqlite_queue, url: 'sqlite:///{database.absolute()}'}}\n"
    )
    path.chmod(0o600)
    return path


def cases(quick: bool) -> Iterator[Result]:
    large = async_tasks(200_000 if quick else 10_000_000)
    small = async_tasks(10_000)
    yield from _opening(large, small, 5 if quick else 11)
    yield from _keys(large, 15 if quick else 60)
    yield _memory(large, small, 2 if quick else 3)
    million = async_tasks(1_000_000)
    yield _paging(million if quick else large, 120_000 if quick else 1_000_000)
    yield _stalls(million, 60 if quick else 300)


# -- first frame -----------------------------------------------------------------------------------


def _opening(large: Path, small: Path, turns: int) -> Iterator[Result]:
    """The list on the large queue; the console's figures on the small one, where counting takes no time of its own,
    and its rows on the large one again, asked for by a key that was typed before there was anything to see."""
    commands = (program("empty"), program("bare_list", large), console(config_for(small)))
    for command in commands:  # byte code is cached, files are in memory
        with Terminal(command) as terminal:
            terminal.when(PAINTED)
    bare, bare_rows, whole, figures, whole_rows = [], [], [], [], []
    listing = console(config_for(large))
    for _ in range(turns):
        empty = _frame(commands[0])
        frame, rows = _frame_and_rows(commands[1], " terminal")
        bare.append((frame, empty))
        bare_rows.append((rows, frame))
        frame, rows = _frame_and_rows(commands[2], "● live")
        whole.append((frame, empty))
        figures.append((rows, frame))
        whole_rows.append((_rows_asked_for(listing), frame))
    yield from_pairs("first frame: the list alone", 1.2, bare, note="against an empty app")
    yield from_pairs("first rows: the list alone", 2.2, bare_rows, note="against its first frame")
    yield from_pairs("first frame: the console", 1.6, whole, note="against an empty app")
    yield from_pairs("first figures: the console", 2.0, figures, note="against its first frame")
    yield from_pairs("first rows: the console", 2.2, whole_rows, note="against its first frame")


def _frame(command: Sequence[str]) -> float:
    with Terminal(command) as terminal:
        return terminal.when(PAINTED)


def _frame_and_rows(command: Sequence[str], words: str) -> tuple[float, float]:
    with Terminal(command) as terminal:
        return terminal.when(PAINTED), terminal.when(says(words))


def _rows_asked_for(command: Sequence[str]) -> float:
    with Terminal(command) as terminal:
        terminal.send(b"2")
        return terminal.when(says("ERR_"))


# -- keys ------------------------------------------------------------------------------------------


def _keys(database: Path, turns: int) -> Iterator[Result]:
    with Terminal(console(config_for(database))) as ours:
        at_failures(ours)
        with Terminal(program("data_table")) as table:
            _at_rows(table)
            for _ in range(table.size[0]):  # from here on every key scrolls
                ours.press(DOWN)
                table.press(DOWN)
            down = [(ours.press(DOWN)[0], table.press(DOWN)[0]) for _ in range(turns)]
        page: list[tuple[float, float]] = []
        while len(page) < turns:
            with Terminal(program("data_table")) as table:  # a new one: it remembers every row it has drawn
                _at_rows(table)
                page += [(ours.press(PAGE_DOWN)[0], table.press(PAGE_DOWN)[0]) for _ in range(_PAGES)]
    yield from_pairs("key down to repaint", 0.5, down, note="against a DataTable of 1 000 rows")
    yield from_pairs("page down to repaint", 0.3, page, note="against a DataTable of 1 000 rows")


def _at_rows(table: Terminal) -> None:
    table.when(says("row 5"))
    table.settle()


def at_failures(terminal: Terminal) -> None:
    terminal.when(PAINTED)
    terminal.send(b"2")
    terminal.when(says("next retry"))
    terminal.when(says("ERR_"))
    terminal.settle(0.4, 8.0)


# -- memory ----------------------------------------------------------------------------------------


def _memory(large: Path, small: Path, turns: int) -> Result:
    pairs = [(_held(large), _held(small)) for _ in range(turns)]
    return from_pairs("memory, large against small", 1.1, pairs, unit="MB")


def _held(database: Path) -> float:
    with Terminal(console(config_for(database))) as terminal:
        at_failures(terminal)
        for key in (PAGE_DOWN,) * 5:
            terminal.press(key)
        terminal.settle(0.4, 6.0)
        return terminal.memory()


def _paging(database: Path, rows: int) -> Result:
    """Megabytes more after so many rows have been listed, against what it may be."""
    with Terminal(program("paging", database, rows)) as terminal:
        terminal.when(says("paged"), within=400)
        before, after, listed = _said(terminal, "paged", 3)
    allowed = max(_PER_MILLION * listed / 1e6, _UNSTEADY)
    return from_pairs(f"memory grown by {listed / 1e6:.2g} million listed", 1.0, [(after - before, allowed)], unit="MB")


# -- the event loop --------------------------------------------------------------------------------


def _stalls(database: Path, keys: int) -> Result:
    """The longest any callback has held the loop while the list is scrolled and read again."""
    with Terminal(program("stalls", database, keys)) as terminal:
        terminal.when(says("longest"), within=120)
        (longest,) = _said(terminal, "longest", 1)
    return from_pairs("longest hold of the event loop", 1.0, [(longest, _LOOP)])


def _said(terminal: Terminal, word: str, numbers: int) -> list[float]:
    """What a program has left on the screen after its word."""
    return [float(number) for number in " ".join(terminal.screen.display).split(word)[1].split()[:numbers]]
