"""A child process that never outlives its parent, however the parent ends.

The standard input of our own modules is a pipe that nobody writes to. When the parent exits or is killed, the system
closes the other end; the child reads the end of the pipe and exits. For a foreign program, Linux can do that.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

_SECONDS_TO_EXIT = 10.0
SECONDS_TO_STOP = 20.0
"""What a database server gets to write what it has in memory."""
_PARENT_DEATH = 1
_CODE = Path(__file__).parents[2]
"""Where this code was imported from."""


@contextmanager
def child_process(
    module: str, arguments: Sequence[str] = (), *, read_output: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Run `python -m module` until the block ends; with `read_output`, its stdout is a pipe."""
    out = subprocess.PIPE if read_output else subprocess.DEVNULL
    paths = [str(_CODE), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(  # noqa: S603  our own module
        [sys.executable, "-P", "-m", module, *arguments],  # -P: the current folder may contain one called console
        stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,  # ctrl-C at the terminal is for the parent only
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        wait_or_kill(process)
        if process.stdout is not None:
            process.stdout.close()


def wait_or_kill(process: subprocess.Popen[Any], seconds: float = _SECONDS_TO_EXIT) -> None:
    """Wait for a process to end, and kill it if that takes too long."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_with_parent(number: signal.Signals) -> None:
    """Called in a child before it becomes another program: the system sends it this signal when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, number)


def on_parent_exit(leave: Callable[[], None]) -> None:
    """In the child: call `leave`, in a thread of its own, when the parent is gone."""

    def wait() -> None:
        while sys.stdin.buffer.read(4_096):
            pass
        leave()

    Thread(target=wait, daemon=True).start()
