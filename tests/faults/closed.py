"""No change without a durable intent: the trail becomes unusable before or during an override."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from console.core.backend import PageRequest
from console.core.executor import Progress
from console.core.faults import TrailBroken, TrailUnavailable
from console.core.query import Filter
from tests.faults import processes, systems
from tests.faults.world import confirm
from tests.patience import busy
from tests.trail.world import writing_connection

HOLD = "import sqlite3, sys, time\nc = sqlite3.connect(sys.argv[1], isolation_level=None)\nc.execute('BEGIN IMMEDIATE')\nprint('held', flush=True)\ntime.sleep(600)"
PROMISED, MARGIN = 2.0, 1.5
"""Seconds until the fault is reported: the promise, and the margin for a busy test machine."""


@contextmanager
def full_by_pages(trail_file: Path, console: object) -> Iterator[None]:
    """The file cannot grow by a page."""
    connection = writing_connection(console.trail)  # type: ignore[attr-defined]  # the limit is per connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with suppress(TrailUnavailable):
        while True:
            console.trail.refuse({"why": "x" * 200}, datetime.now(UTC))  # type: ignore[attr-defined]
    yield


@contextmanager
def deleted(trail_file: Path, console: object) -> Iterator[None]:
    trail_file.unlink()
    yield


@contextmanager
def folder_deleted(trail_file: Path, console: object) -> Iterator[None]:
    shutil.rmtree(trail_file.parent)
    yield


@contextmanager
def replaced(trail_file: Path, console: object) -> Iterator[None]:
    copy = trail_file.with_name("copy.db")
    shutil.copy(trail_file, copy)
    copy.replace(trail_file)
    yield


@contextmanager
def log_deleted(trail_file: Path, console: object) -> Iterator[None]:
    trail_file.with_name("trail.db-wal").unlink()
    yield


@contextmanager
def locked(trail_file: Path, console: object) -> Iterator[None]:
    holder = sqlite3.connect(trail_file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield
    holder.close()


@contextmanager
def hung(trail_file: Path, console: object) -> Iterator[None]:
    """Another process holds the lock and is suspended."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(trail_file)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.send_signal(signal.SIGSTOP)
    yield
    holder.kill()
    holder.communicate()


@contextmanager
def overwritten(trail_file: Path, console: object) -> Iterator[None]:
    """Somebody put another chain into the same file."""
    holder = sqlite3.connect(trail_file, isolation_level=None)
    for name in [name for (name,) in holder.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()]:
        holder.execute(f"DROP TRIGGER {name}")
    holder.execute("UPDATE record SET hash = substr(hash, 2) || 'g' WHERE seq = (SELECT max(seq) FROM record)")
    holder.close()
    yield


Break = Callable[[Path, object], object]
WAYS: dict[str, Break] = {
    "full": full_by_pages, "deleted": deleted, "folder deleted": folder_deleted, "replaced": replaced,
    "log deleted": log_deleted, "locked": locked, "hung": hung, "overwritten": overwritten,
}


@dataclass
class Closed:
    """Trials of one way; `changed` and `late` must be 0, and every trial refused."""

    trials: int = 0
    refused: int = 0
    changed: int = 0
    """Rows changed after the trail had become unusable."""
    late: int = 0
    slowest: float = 0.0
    reads_failed: int = 0

    def tell(self, took: float, *, changed: int, read: int) -> None:
        self.slowest = max(self.slowest, took)
        self.late += took > (PROMISED + MARGIN) * busy()
        self.changed += changed
        self.reads_failed += read != 10

    @property
    def ok(self) -> bool:
        return self.refused == self.trials and not (self.changed or self.late or self.reads_failed)

    def __str__(self) -> str:
        return (
            f"changed {self.changed}, not refused {self.trials - self.refused}, late {self.late}, reads failed {self.reads_failed},"
            f" slowest {self.slowest:.2f} s"
        )


def _undismayed(trail: object) -> None:
    """The naive console: it continues without a trail that cannot be written."""

    def undismayed(real: Callable[..., object]) -> Callable[..., object]:
        def going_on(*given: object, **more: object) -> object:
            try:
                return real(*given, **more)
            except (TrailUnavailable, TrailBroken):
                return None

        return going_on

    for name in ("intend", "conclude", "beat", "mark"):
        setattr(trail, name, undismayed(getattr(trail, name)))


def trial(kind: str, folder: Path, way: str, total: Closed, *, midway: bool, items: int = 600, naive: bool = False) -> None:
    """Break the trail between plan and apply, or after the first chunk of an override."""
    system, _ = systems.create(kind, folder, items)
    try:
        _trial(system, way, total, midway=midway, naive=naive)
    finally:
        system.drop()


def _trial(system: systems.System, way: str, total: Closed, *, midway: bool, naive: bool) -> None:
    folder = system.folder
    console = processes.console_of(folder, chunk=1)
    if naive:
        _undismayed(console.trail)
    plan = processes.propose(console, folder)
    console.trail.refuse({"why": "so that there is a chain"}, console._clock.now())
    system.forget()
    trail_file = folder / "state" / "trail.db"
    began = time.monotonic()
    allowed = 0
    broken = None

    def break_it(progress: Progress | None = None) -> None:
        nonlocal began, allowed, broken
        if broken is None:
            allowed = progress.done if progress else 0
            broken = WAYS[way](trail_file, console)
            broken.__enter__()  # type: ignore[attr-defined]
            began = time.monotonic()

    total.trials += 1
    try:
        if not midway:
            break_it()
        console.carry_out(plan, confirm(plan), watch=break_it if midway else lambda _: None)
    except (TrailUnavailable, TrailBroken):
        total.refused += 1
    took = time.monotonic() - began
    backend = console.backends[system.name]
    page = backend.page(PageRequest(Filter.parse("condition:*"), backend.now(), limit=10))
    total.tell(took, changed=len(system.touched()) - allowed, read=len(page.items))
    if broken is not None:
        broken.__exit__(None, None, None)  # type: ignore[attr-defined]
    processes.close(console)


def trials(kind: str, way: str, count: int, *, naive: bool = False) -> Closed:
    total = Closed()
    for n in range(count):
        folder = Path(tempfile.mkdtemp(prefix="retriage-closed-"))
        try:
            trial(kind, folder, way, total, midway=naive or n % 2 == 1, naive=naive)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return total


# --- ways that need a process of their own ----------------------------------------------------------------


def _as_limited(folder: Path, way: str) -> tuple[bool, float, int]:
    """In a process that loses its rights or its disk space: whether it was refused, in how many seconds, and how many
    items it can still read."""
    console = processes.console_of(folder, chunk=1)
    plan = console.trail.plan((folder / "plan").read_text())
    (backend,) = console.backends.values()

    def read() -> int:
        return len(backend.page(PageRequest(Filter.parse("condition:*"), backend.now(), limit=10)).items)

    read()
    if way == "size":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        console.trail.refuse({"plan": plan.id}, console._clock.now())
        size = (folder / "state" / "trail.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    elif os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    refused, began = False, time.monotonic()
    try:
        console.carry_out(plan, confirm(plan))
    except TrailUnavailable as fault:
        refused = bool(str(fault))
    return refused, time.monotonic() - began, read()


def limited(folder: Path, way: str, total: Closed) -> None:
    """A process that may not write the trail's files, or not make them larger."""
    system, _ = systems.create("sqlite_queue", folder, 100)
    console = processes.console_of(folder)
    processes.propose(console, folder)
    processes.close(console)
    system.forget()
    if way != "size":  # may write the queue and read the trail, or not even that
        for file in (folder, folder / "system", *folder.glob("queue.db*")):
            file.chmod(0o777)
        for file in (folder / "state").iterdir():
            file.chmod(0o644)
        (folder / "state").chmod(0o755 if way == "nobody" else 0o700)
    answer, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(said, json.dumps(_as_limited(folder, way)).encode())
        finally:
            os._exit(0)
    os.close(said)
    with os.fdopen(answer) as file:
        refused, took, read = json.load(file)
    os.waitpid(pid, 0)
    total.trials += 1
    total.refused += refused
    total.tell(took, changed=len(system.touched()), read=read)
