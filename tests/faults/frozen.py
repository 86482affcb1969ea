"""A frozen backend: PostgreSQL is stopped (SIGSTOP); its reader gets an error in time, others answer meanwhile, closing works."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from console.core.backend import Backend, PageRequest
from console.core.faults import BackendFault
from console.core.query import Filter
from tests.faults import systems
from tests.patience import PATIENCE, busy
from tests.plugins.postgres_analyses.server import server

EVERYTHING = Filter.parse("condition:*")
PROMISED, MARGIN = 5.0, 2.0
"""Seconds until the reader gets an error: the promise, and the margin for a busy test machine."""

QUICK = 0.1
"""Nineteen of twenty reads of other systems take less than this many seconds."""


@dataclass
class Frozen:
    """The trials: `silent` and `late` must be 0, and the other backend must be read quickly."""

    trials: int = 0
    silent: int = 0
    """Reads of the frozen backend that did not end in a fault, or reads after it thawed that did."""
    late: int = 0
    slowest: float = 0.0
    others: list[float] = field(default_factory=list)
    """Seconds of reads of another backend meanwhile."""

    @property
    def p95(self) -> float:
        return sorted(self.others)[int(len(self.others) * 0.95)] if self.others else 0.0

    @property
    def ok(self) -> bool:
        return not (self.silent or self.late) and len(self.others) > self.trials and self.p95 < QUICK


def _processes(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


@contextmanager
def stopped() -> Iterator[None]:
    pid = server().pid
    assert pid is not None, "only a server of our own can be stopped"
    frozen = _processes(pid)
    for one in frozen:
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in frozen:
            with suppress(ProcessLookupError):  # one that had just ended, and whose parent goes on first
                os.kill(one, signal.SIGCONT)


def _read(backend: Backend) -> None:
    backend.page(PageRequest(EVERYTHING, backend.now(), limit=20))


def trial(total: Frozen, *, warm: bool) -> None:
    folders = [Path(tempfile.mkdtemp(prefix="retriage-frozen-")) for _ in range(2)]
    one, _ = systems.create("postgres_analyses", folders[0], 50)
    other, _ = systems.create("sqlite_queue", folders[1], 50)
    frozen, lively = one.open(timedelta(seconds=PROMISED - 1)), other.open()
    try:
        if warm:
            _read(frozen)
        _read(lively)
        _trial(frozen, lively, total)
    finally:
        for backend in (frozen, lively):
            backend.close()
        one.drop()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _trial(frozen: Backend, lively: Backend, total: Frozen) -> None:
    errors: list[float] = []
    began = time.monotonic()

    def read() -> None:
        try:
            _read(frozen)
        except BackendFault:
            errors.append(time.monotonic() - began)

    reader = threading.Thread(target=read)
    with stopped():
        began = time.monotonic()
        reader.start()
        while reader.is_alive() and time.monotonic() - began < PATIENCE:
            at = time.monotonic()
            _read(lively)
            total.others.append(time.monotonic() - at)
            time.sleep(0.05)
    reader.join(PATIENCE)
    total.trials += 1
    total.silent += not errors
    total.slowest = max(total.slowest, *errors, 0.0)
    total.late += any(seconds > (PROMISED + MARGIN) * busy() for seconds in errors)
    try:
        _read(frozen)
    except BackendFault:
        total.silent += 1
