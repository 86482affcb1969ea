"""ssh lost: the terminal of a console with a running override is closed, or accepts nothing and then a signal comes.

The current chunk is finished and recorded, and the next console offers to resume the override.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from console.core.override import OverrideState
from tests.faults import processes, systems
from tests.faults.signals import MARGIN, PROMISED, Signalled
from tests.faults.world import ORIGIN, WHO, final_outcomes
from tests.patience import PATIENCE, busy
from tests.ui.terminal import Terminal

ITEMS = 60_000
_UNREAD = 0.5
"""Seconds in which places that are switched fill what a terminal holds that nobody reads."""
CONFIG = """
console: {{refresh: 1s, chunk_target: 1ms, max_items: 1000000, confirm_from: 1000000, trail: "sqlite:///{folder}/state/trail.db"}}
backends:
  queue: {{plugin: sqlite_queue, url: "sqlite:///{folder}/queue.db"}}
"""


def trial(total: Signalled, *, hangs: bool = False) -> None:
    folder = Path(tempfile.mkdtemp(prefix="retriage-hangup-"))
    try:
        system, _ = systems.create("sqlite_queue", folder, ITEMS)
        (folder / "config.yaml").write_text(CONFIG.format(folder=folder))
        (folder / "config.yaml").chmod(0o600)
        took = _lost(system, hangs)
        if len(system.requeued()) < ITEMS:
            _offered(folder)
        _judge(system, took, total)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _opened(folder: Path) -> Iterator[Terminal]:
    home = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    terminal = Terminal([sys.executable, "-m", "console", "--config", str(folder / "config.yaml")], (40, 120), home)
    try:
        yield terminal
    finally:
        if not terminal.child.closed:
            terminal.close()


def _lost(system: systems.System, hangs: bool) -> float:
    """Everything that failed is requeued by keys; seconds from the loss of the terminal to the end of the console."""
    with _opened(system.folder) as terminal:
        terminal.until("retries, next")
        terminal.press("2")
        terminal.until(f"t{ITEMS - 1:06d}")
        terminal.press("A")
        terminal.until("marked: all that match")
        terminal.press("r")
        terminal.until("will be requeued")
        terminal.press("the upstream is back")
        terminal.until("the upstream is back")
        time.sleep(1)  # what was typed is judged
        end, pressed = time.monotonic() + PATIENCE, 0.0
        while not system.requeued():
            if time.monotonic() > pressed + 1.5:  # to the button, and again for yes; a busy machine may miss one
                terminal.press("\r")
                pressed = time.monotonic()
            terminal._take(0.05)  # not until it is quiet: a run that is under way paints all the time
            assert time.monotonic() < end, f"nothing is requeued:\n{terminal.read()}"
        pid = terminal.child.pid
        if hangs:
            terminal.press("1212" * 10)
            time.sleep(_UNREAD)
            os.kill(pid, signal.SIGTERM)
        else:
            terminal.child.ptyproc.fileobj.close()
        began = time.monotonic()
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            assert time.monotonic() < began + PATIENCE, "it waits for a terminal that is gone"
            time.sleep(0.005)
        terminal.child.closed = terminal.child.terminated = True
        return time.monotonic() - began


def _offered(folder: Path) -> None:
    with _opened(folder) as terminal:
        terminal.until("not finished")
        terminal.press("q")
        terminal.left()


def _judge(system: systems.System, took: float, total: Signalled) -> None:
    console = processes.console_of(system.folder)
    (override,) = console.trail.overrides()
    recorded = final_outcomes(console.trail, override.override_id)
    total.trials += 1
    total.slowest = max(total.slowest, took)
    total.late += took > (PROMISED + MARGIN) * busy()
    total.open += len(console.trail.open_intents(override.override_id))
    total.unrecorded += len({f"{system.name}/{id}" for id in system.requeued()} ^ recorded.keys())
    total.midway += override.state is OverrideState.STOPPED
    if override.state is not OverrideState.FINISHED:
        override = console.resume(override.override_id, WHO, ORIGIN)
    requeued = system.requeued()
    total.unfinished += override.state is not OverrideState.FINISHED
    total.unfinished += len(requeued) != ITEMS
    total.twice += sum(times > 1 for times in requeued.values())
    processes.close(console)
