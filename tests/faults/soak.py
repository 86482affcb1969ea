"""Soak: the console in a real terminal for thousands of refreshes, resizes and screens, while it carries out a large
override and workers run. Its memory is measured in every turn, and at the end nothing of it may be left.

    python -m tests.faults.soak CONFIG COUNTER [naive]

starts the console itself and counts the answers to its list. The naive variant keeps every page with its text, and must be caught.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pexpect
import pyte

from tests.faults import kill, processes, systems
from tests.patience import PATIENCE
from tests.ui.terminal import Terminal
from tests.ui.test_hostile_terminal import WAYS as HOSTILE_WAYS

ESCAPE = "\x1b[27u"
"""The escape key in the form that cannot be the beginning of a longer sequence, so that nothing has to wait."""
PLAN = "selected will be"
WAYS = {**HOSTILE_WAYS, "proposals": [("6", "No proposals yet")]}
DIALOGS = {
    "help": ("overview", "?", "Keys in"),
    "palette": ("overview", "\x10", "ype to filter"),
    "go to": ("overview", ":", "an item's key, a screen"[1:]),
    "views": ("failures", "f", "no filter"),
    "order": ("failures", "s", "Order and columns"),
    "save view": ("failures", "w", "name of the view"[1:]),
    "export": ("failures", "e", "ile, with its folder"),
    "plan": ("failures", "r", PLAN),
    "plan of a cause": ("causes", "r", PLAN),
    "undo": ("trail", "z", PLAN),
    "plan of an item": ("item", "r", PLAN),
}
"""What opens over a place: which place, by which key, and what is then to be read; the first letter of a text that
is to be replaced is under the cursor, and painted apart."""
SIZE = (45, 140)
SIZES = ((24, 80), (50, 160), (15, 60), (40, 120), (24, 200), (60, 80), (25, 81), (80, 100), (30, 132), SIZE)
REFRESHES = 100
"""Refreshes in each turn, in addition to the resizes."""
FEWEST = 12
"""With fewer turns there is only warm-up."""
GROWTH = 1.05
"""The largest memory at the end, as a part of the memory after the warm-up."""


@dataclass
class Soaked:
    """The result: nothing may be left, the override must have the right outcomes, and memory must not grow."""

    turns: int = 0
    refreshes: int = 0
    resizes: int = 0
    opened: dict[str, int] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)
    """Megabytes after each turn."""
    descriptors: list[int] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Processes, sockets and files that exist at the end and did not exist at the beginning."""
    tally: kill.Tally = field(default_factory=lambda: kill.Tally("sqlite_queue", 1))
    """The result of the override."""

    @property
    def growth(self) -> float:
        """The end as a part of the beginning, once it is warm. A quarter of the turns is warm-up: until then the page caches of
        the databases fill."""
        warm = self.memory[len(self.memory) // 4 :]
        part = max(len(warm) // 4, 1)
        return statistics.median(warm[-part:]) / statistics.median(warm[:part])

    @property
    def flat(self) -> bool:
        return self.growth <= GROWTH


_MODES = [way[0][0] for place, way in WAYS.items() if len(way) == 1]


class Watched(Terminal):
    """What it says is looked for as it comes, and not kept: there will be very much of it."""

    at = WAYS["failures"][0]
    """A screen by its key, and words that it shows."""
    crashes: Path
    """Where the console writes its crash file."""
    last_words = b""
    """What it printed last, whatever was pressed since."""

    def _take(self, within: float) -> bool:
        try:
            data = self.child.read_nonblocking(1 << 16, timeout=within)
        except pexpect.TIMEOUT:
            return False
        except pexpect.EOF:
            time.sleep(0.01)
            return False
        self.sent = self.sent[-(1 << 18) :] + data
        self.last_words = (self.last_words + data)[-2000:]
        return True

    def press_for(self, keys: str, words: str, way: Sequence[tuple[str, str]] = ()) -> None:
        """Until the words have been painted since. What is still open below takes the key: then it is pressed again,
        in the place that `way` leads to, because escape may have left it."""
        end = time.monotonic() + PATIENCE
        while not self._pressed(keys, words):
            assert time.monotonic() < end, f"{keys!r} does not lead to {words!r}; what is there instead:\n{self._painted_anew()}"
            self.child.send(ESCAPE)
            self.watch(0.2)
            for key, _ in way:
                self.child.send(key)
                self.watch(1)
            if keys in _MODES:  # it is there already, and paints nothing
                self.child.send(_MODES[_MODES.index(keys) - 1])
                self.watch(0.2)

    def _painted_anew(self) -> str:
        """All that is on the screen: what is not kept is asked for again, by another size."""
        if not self.child.isalive():
            reports = "\n".join(file.read_text() for file in self.crashes.glob("*"))
            return f"nothing: the console has ended with {self.child.exitstatus}, and said {self.last_words!r}\n{reports}"
        lines, columns = SIZE[0] - 1, SIZE[1] - 1
        self.sent = b""
        self.child.setwinsize(lines, columns)
        self.watch(3)
        screen = pyte.Screen(columns, lines)
        pyte.ByteStream(screen).feed(self.sent)
        return "\n".join(line.rstrip() for line in screen.display)

    def press_once(self, keys: str, words: str) -> None:
        """For keys that may not be pressed twice, because they change something."""
        assert self._pressed(keys, words, PATIENCE), f"{keys!r} does not lead to {words!r}:\n{self._painted_anew()}"

    def _pressed(self, keys: str, words: str, within: float = 10) -> bool:
        self.sent = b""
        self.child.send(keys)
        end = time.monotonic() + within
        while words.encode() not in self.sent and time.monotonic() < end:
            self._take(0.5)
        return words.encode() in self.sent

    def close(self) -> None:
        """What lies over another screen; that one is painted then."""
        self.child.send(ESCAPE)
        self.watch(0.03)

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._take(left)

    def resize(self, size: tuple[int, int]) -> None:
        """Resize the terminal; the console has seen it when it paints."""
        self.child.setwinsize(*size)
        self._take(1.0)
        self.watch(0.03)

    def resident(self) -> float:
        pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self) -> int:
        """Files and sockets it has open."""
        return sum(1 for _ in Path(f"/proc/{self.child.pid}/fd").iterdir())


# --- the console that is soaked ---------------------------------------------------------------------------


def console(config: str, counter: str, *naive: str) -> int:
    """The real one, started as a user starts it; only what its queue answers is counted, where it is asked."""
    from console.__main__ import main
    from plugins.sqlite_queue import SqliteQueue

    answered, lock, kept = 0, threading.Lock(), []
    file = os.open(counter, os.O_WRONLY)

    def counting(ask: Any) -> Any:
        def asked(*given: Any, **more: Any) -> Any:
            nonlocal answered
            answer = ask(*given, **more)
            with lock:
                answered += 1
                os.pwrite(file, answered.to_bytes(8), 0)
                if naive:
                    kept.append((answer, repr(answer)))
            return answer

        return asked

    SqliteQueue.page = counting(SqliteQueue.page)  # type: ignore[method-assign]
    return main(["--config", config])


# --- its surroundings -------------------------------------------------------------------------------------

CONFIG = """
console:
  refresh: 80ms
  chunk_target: 1ms
  max_items: 1000000
  canary_failure_limit: 100%
  confirm_from: 1000000
  trail: sqlite:///{queue}/state/trail.db
  views: {{storms: "condition:retrying next<15m"}}
  runbooks: {{timed out: "https://wiki.example/timeouts"}}
backends:
  queue: {{plugin: sqlite_queue, url: "sqlite:///{queue}/queue.db"}}
  files: {{plugin: file_queue, path: "{files}/base"}}
  parts: {{plugin: partition_store, url: "sqlite:///{parts}/queue.db", raw_sink: "{parts}/raw"}}
"""
OTHERS = {"files": "file_queue", "parts": "partition_store"}


@contextmanager
def surroundings(folder: Path, items: int) -> Iterator[tuple[systems.System, list[str]]]:
    """Three systems and a config; the queue is the one with workers."""
    made = {}
    for name, kind, count in (("queue", "sqlite_queue", items), *((name, kind, 150) for name, kind in OTHERS.items())):
        (folder / name).mkdir()
        made[name] = systems.create(kind, folder / name, count)
    (folder / "config.yaml").write_text(CONFIG.format(**{name: folder / name for name in made}))
    (folder / "config.yaml").chmod(0o600)
    (folder / "counter").write_bytes(bytes(8))
    (folder / "tmp").mkdir()
    try:
        yield made["queue"]
    finally:
        for system, _ in made.values():
            system.drop()


def trial(turns: int, items: int, total: Soaked, *, naive: bool = False) -> None:
    """So many turns of everything; the override of all the queue's items begins with the first."""
    folder = Path(tempfile.mkdtemp(prefix="retriage-soak-"))
    try:
        with surroundings(folder, items) as (system, ids):
            _trial(folder, system, ids, turns, total, naive=naive)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _trial(folder: Path, system: systems.System, ids: list[str], turns: int, total: Soaked, *, naive: bool) -> None:
    home = {"TMPDIR": str(folder / "tmp"), "HOME": str(folder / "tmp"), "XDG_STATE_HOME": str(folder / "state")}
    config = str(folder / "config.yaml")
    with ExitStack() as stack:
        for n in range(2):
            stack.enter_context(ended(processes.start("work", str(system.folder), str(n), env=home)))
        more = ["naive"] if naive else []
        terminal = Watched([sys.executable, "-m", "tests.faults.soak", config, str(folder / "counter"), *more], SIZE, home)
        terminal.crashes = folder / "state" / "retriage" / "crashes"
        stack.callback(terminal.child.close, force=True)
        terminal.press_for("", "retries, next")
        _requeue_one(terminal)
        override = processes.command(
            "requeue", "--config", config, "--backend", system.name, "--where", systems.FAILED, "--reason", "soak",
            "--confirm", str(len(ids)), "--pace", "canary 20", env=home,
        )
        stack.enter_context(ended(override))
        for turn in range(turns):
            _turn(terminal, folder, turn, total)
        _, said = override.communicate(timeout=600)
        assert override.returncode == 0, said
        terminal.child.send("q")
        exit_code = terminal.left(30)
    total.left += _left_behind(folder) + ([f"exit code {exit_code}"] if exit_code else [])
    kill.check(system, ids, total.tally, naive=False, reason="soak")


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def _requeue_one(terminal: Watched) -> None:
    """Requeue one item, so that there is an override to look at."""
    terminal.press_for("2", "next retry")
    terminal.press_for("/backend:parts\r", "COUNT_MISMATCH")
    terminal.watch(0.5)
    terminal.press_for("r", "will be requeued")
    terminal.child.send("the upstream is back")
    terminal.watch(0.5)
    terminal.press_once("\r", "failed again")
    terminal.close()
    terminal.press_for("/" + "\x7f" * 20 + "\r", "t00", WAYS["failures"])
    terminal.watch(0.5)


def _turn(terminal: Watched, folder: Path, turn: int, total: Soaked) -> None:
    """One turn: every screen once, some sizes, and refreshes on one screen after the other."""
    for place in WAYS:
        with _opened(terminal, place, total):
            for dialog, (over, key, words) in DIALOGS.items():
                if over == place:
                    terminal.press_for(key, words, WAYS[place])
                    terminal.close()
                    _count(total, dialog)
    with _opened(terminal, list(WAYS)[turn % len(WAYS)], total):
        for size in SIZES:
            terminal.resize(size)
            total.resizes += 1
    with _opened(terminal, "failures", total):
        while (refreshed := int.from_bytes((folder / "counter").read_bytes())) < (turn + 1) * REFRESHES:
            terminal.watch(0.05)
    total.turns, total.refreshes = turn + 1, refreshed
    total.memory.append(terminal.resident())
    total.descriptors.append(terminal.descriptors())


@contextmanager
def _opened(terminal: Watched, place: str, total: Soaked) -> Iterator[None]:
    """Come from elsewhere, so that it is painted anew; and leave what was laid over another place."""
    way = WAYS[place]
    if way[0] == terminal.at:
        terminal.press_for(*WAYS["causes" if terminal.at == WAYS["trail"][0] else "trail"][0])
    for key, shown in way:
        terminal.press_for(key, shown)
    yield
    _count(total, place)
    terminal.at = way[0]
    for _ in way[1:]:
        terminal.close()


def _count(total: Soaked, opened: str) -> None:
    total.opened[opened] = total.opened.get(opened, 0) + 1


def _left_behind(folder: Path) -> list[str]:
    """Processes that still run, and files that nobody needs any more."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != str(os.getpid()):
            try:
                if str(folder / "tmp").encode() in (process / "environ").read_bytes():
                    found.append(f"process {process.name}: {(process / 'cmdline').read_bytes()!r}")
            except OSError:
                continue
    found += [str(file) for file in (folder / "tmp").rglob("*") if file.is_file()]
    found += [str(file) for file in folder.rglob("*") if file.name.endswith(("-wal", "-shm", "-journal", ".retriage"))]
    return found


if __name__ == "__main__":
    sys.exit(console(*sys.argv[1:]))
