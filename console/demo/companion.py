"""A process that lives as long as the one that started it, and no longer: however that ends.

The companion's standard input is a pipe nobody writes to. When the starter leaves, is interrupted or is killed, the
system closes the other end; the companion reads the end of the pipe and goes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

_PATIENCE = 10.0
_OURS = Path(__file__).parents[2]
"""Where this very code was imported from."""


@contextmanager
def companion(module: str, arguments: Sequence[str] = (), *, talks: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run `python -m module` beside this process; with `talks`, its output is for us to read."""
    out = subprocess.PIPE if talks else subprocess.DEVNULL
    paths = [str(_OURS), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(  # noqa: S603  our own module
        [sys.executable, "-P", "-m", module, *arguments],  # -P: a folder called console may be where the person is
        stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,  # ctrl-C at the terminal is for the console; this one goes with it
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def when_alone(leave: Callable[[], None]) -> None:
    """In the companion: call `leave`, in a thread of its own, once whoever started it is gone."""

    def wait() -> None:
        while sys.stdin.buffer.read(4_096):
            pass
        leave()

    Thread(target=wait, daemon=True).start()
