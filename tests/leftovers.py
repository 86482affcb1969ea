"""Processes that a test has started and not ended: found, ended, and reported."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RUN = "RETRIAGE_TEST_RUN"
"""The environment variable that marks every process of one test run."""
_kept: set[int] = set()


@contextmanager
def kept(pid: int | None) -> Iterator[None]:
    """A process that may outlive the test that started it, such as a database server."""
    if pid is not None:
        _kept.add(pid)
    try:
        yield
    finally:
        _kept.discard(pid or 0)


def descendants(of: int | None = None) -> set[int]:
    """The running processes below one, without those that may stay."""
    found: set[int] = set()
    for pid in _children(os.getpid() if of is None else of):
        if pid not in _kept and _runs(pid):
            found |= {pid} | descendants(pid)
    return found


def marked(run: str) -> set[int]:
    """All other processes on this machine that belong to a test run, whoever their parent is now."""
    mark = f"{RUN}={run}".encode()
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0") and _runs(int(folder.name)):
                    found.add(int(folder.name))
    return found


def end(pids: Iterable[int], patience: float) -> list[str]:
    """Wait until they have ended by themselves; kill those that do not, and return their command lines."""
    deadline = time.monotonic() + patience
    left = [pid for pid in pids if _runs(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [pid for pid in left if _runs(pid)]
    names = [_command(pid) for pid in left]
    for pid in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return names


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _runs(pid: int) -> bool:
    """It exists and is more than an entry that nobody has waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return str(pid)
