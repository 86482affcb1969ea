"""What a console that nobody touches takes of the systems it watches, in each place, by the server's own statistics.

Each place is opened and left alone until it has read what it was opened for. Then it is watched for a while. The bar is
600 ms of server time a minute. PostgreSQL says how long it was active for us (`pg_stat_database.active_time`), MariaDB
too (`userstat`), Redis adds up the time of its commands, and for SQLite the statements are timed in the process. All
systems are watched at the same time, each by a console of its own. `retriage history record` is measured on the
servers. The last cases are a console on a server that others keep at 100 %, with its keys, and the processor time of
the console itself on the demo's systems.

Both sizes together take two hours on two idle cores. These variables choose a part:

    RETRIAGE_IDLE_ROWS=10000000       one number of rows
    RETRIAGE_IDLE_ONLY=River,SQLite   systems whose names contain one of these, without the last cases
    RETRIAGE_IDLE_PLACES=Overview     places
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.console import console
from benchmarks.idle_systems import System, at_its_limit, systems
from benchmarks.measure import Result, from_pairs, processor_time
from benchmarks.terminal import PAINTED, Terminal, says

PLACES = {"Overview": b"1", "Failures": b"2", "Causes": b"3", "Trail": b"4", "Proposals": b"5"}
_BAR = 0.6
"""Seconds of server time a minute."""
_OWN_BAR = 0.03
"""Of a core."""
_SHARE_BAR = 0.01
_KEY_BAR = 0.1
_SCROLLING = (b"j", b"j", b"j", b"j", b"k") * 2
_READ_WITHIN = 1_800.0
_FIRST_SAMPLES = 130.0
"""A console begins to record the history within a minute. What a slow system has not answered then is asked for with
the next sample."""
_CALM = 15.0


def cases(quick: bool) -> Iterator[Result]:
    given = os.environ.get("RETRIAGE_IDLE_ROWS")
    sizes = [int(given)] if given else [50_000] if quick else [1_000_000, 10_000_000]
    seconds = 20.0 if quick else 120.0
    for rows in sizes:
        with ExitStack() as stack, TemporaryDirectory() as folder:
            watched = [one for one in systems(stack, rows, Path(folder)) if _is_chosen("RETRIAGE_IDLE_ONLY", one.name)]
            with ThreadPoolExecutor(len(watched)) as pool:
                list(pool.map(lambda system: system.fill(), watched))
            size = f"{rows:,}".replace(",", " ")
            for place, key in PLACES.items():
                if not _is_chosen("RETRIAGE_IDLE_PLACES", place):
                    continue
                for system, opening, idle in _taken(watched, Path(folder), key, seconds):
                    case = f"{place}: {size} rows, {system.name}"
                    yield from_pairs(case, 1.0, [(idle, _BAR)], note=f"opening it took {opening:.2f} s")
            servers = [system for system in watched if system.command is console]
            for system, taken, own in _recording(servers, Path(folder), seconds):
                case = f"history record: {size} rows, {system.name}"
                yield from_pairs(case, 1.0, [(taken, _BAR)], note=f"{own:.2f} s of its own processor time a minute")
    if "RETRIAGE_IDLE_ONLY" not in os.environ:
        yield from _at_its_limit(50_000 if quick else 600_000, seconds)
        yield _own(seconds)


def _is_chosen(variable: str, name: str) -> bool:
    """Whether the environment chooses this name, or makes no choice."""
    return any(part.strip().lower() in name.lower() for part in os.environ.get(variable, "").split(","))


def _taken(
    watched: Sequence[System], folder: Path, key: bytes, seconds: float
) -> list[tuple[System, float, float]]:
    """Of each system the seconds of its time that opening a place took, and the seconds a minute after that."""
    with ExitStack() as stack:
        commands = [system.command(_config(folder, n, system.backend)) for n, system in enumerate(watched)]
        closed = [system.taken() for system in watched]
        consoles = [stack.enter_context(Terminal(command)) for command in commands]
        for terminal in consoles:
            terminal.when(PAINTED)
            terminal.send(key)
        _wait_until_read(watched, consoles)
        began = time.perf_counter()
        opened = [system.taken() for system in watched]
        _wait(consoles, seconds)
        minutes = (time.perf_counter() - began) / 60
        left_alone = [system.taken() for system in watched]
    return [
        (system, after - before, (later - after) / minutes)
        for system, before, after, later in zip(watched, closed, opened, left_alone, strict=True)
    ]


def _recording(watched: Sequence[System], folder: Path, seconds: float) -> list[tuple[System, float, float]]:
    """Of each system the seconds of its time that `retriage history record` takes a minute, and of the processor's."""
    configs = [_config(folder, n, system.backend) for n, system in enumerate(watched)]
    processes = [subprocess.Popen([*console(config), "history", "record"]) for config in configs]
    try:
        time.sleep(_FIRST_SAMPLES)
        before = [(system.taken(), processor_time(one.pid)) for system, one in zip(watched, processes, strict=True)]
        began = time.perf_counter()
        time.sleep(max(60.0 * round(seconds / 60), 60.0))
        minutes = (time.perf_counter() - began) / 60
        after = [(system.taken(), processor_time(one.pid)) for system, one in zip(watched, processes, strict=True)]
    finally:
        for one in processes:
            one.terminate()
            one.wait()
    return [
        (system, (taken - was[0]) / minutes, (own - was[1]) / minutes)
        for system, was, (taken, own) in zip(watched, before, after, strict=True)
    ]


def _config(folder: Path, number: int, backend: str) -> Path:
    path = folder / f"{number}.yaml"
    path.write_text(
        f"console:\n  trail: 'sqlite:///{folder}/trail.{number}.db'\n"
        f"history:\n  url: 'sqlite:///{folder}/history.{number}.db'\nbackends:\n  watched: {{{backend}}}\n"
    )
    path.chmod(0o600)
    return path


def _wait(consoles: Sequence[Terminal], seconds: float) -> None:
    """A console that nobody reads from would stop."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for terminal in consoles:
            terminal.read(0.2)


def _wait_until_read(watched: Sequence[System], consoles: Sequence[Terminal]) -> None:
    """Until no console says that it is reading, and no system has worked for one for longer than a short question."""
    end = time.perf_counter() + _READ_WITHIN
    _wait(consoles, _FIRST_SAMPLES)
    calm_since, before = time.perf_counter(), set[str]()
    while time.perf_counter() - calm_since < _CALM:
        _wait(consoles, 0.5)
        working = {system.name for system in watched if system.working()}
        if working & before or any(terminal.shows("reading") for terminal in consoles):
            calm_since = time.perf_counter()
        before = working
        if time.perf_counter() > end:
            raise TimeoutError(f"a place was still being read after {_READ_WITHIN:g} s")


def _at_its_limit(rows: int, seconds: float) -> Iterator[Result]:
    """The console's share of the time of a server that has none left, and its keys meanwhile."""
    with ExitStack() as stack, TemporaryDirectory() as folder:
        system = at_its_limit(stack, rows)
        system.fill()
        terminal = stack.enter_context(Terminal(system.command(_config(Path(folder), 0, system.backend))))
        terminal.when(PAINTED)
        terminal.send(PLACES["Failures"])
        terminal.when(says("connection timeout"), within=300)
        _wait_until_read([system], [terminal])
        before, began, keys = system.taken(), time.perf_counter(), list[float]()
        while time.perf_counter() - began < seconds:
            keys += [terminal.press(key)[0] for key in _SCROLLING]
            _wait([terminal], 2.0)
        share = (system.taken() - before) / (time.perf_counter() - began)
    yield from_pairs(f"share of the time of {system.name}", 1.0, [(share, _SHARE_BAR)], note="of its time")
    slowest = sorted(keys)[int(len(keys) * 0.95)]
    yield from_pairs(f"key to repaint on {system.name}, 19 of 20", 1.0, [(slowest, _KEY_BAR)])


def _own(seconds: float) -> Result:
    """The console's own processor time on the demo's systems."""
    with Terminal([sys.executable, "-m", "console", "demo"]) as terminal:
        terminal.when(PAINTED)
        terminal.settle(6.0, 60.0)
        _wait([terminal], 20.0)
        before, began = processor_time(terminal.process.pid), time.perf_counter()
        _wait([terminal], seconds)
        share = (processor_time(terminal.process.pid) - before) / (time.perf_counter() - began)
    return from_pairs("the console itself, on the demo's systems", 1.0, [(share, _OWN_BAR)], note="of a core")
