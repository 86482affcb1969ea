"""The real command line in a real terminal, on a sandbox world."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pexpect
import pyte

from tests.ui.test_pty import ROOT
from tests.ui.test_pty import Terminal as Console


class Terminal(Console):
    """`retriage …` under a pty."""

    def __init__(self, *arguments: str, size: tuple[int, int] = (24, 80)) -> None:
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        environment = {**inherited, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT)}
        self.child = pexpect.spawn(
            sys.executable, ["-m", "console", *arguments], dimensions=size, env=environment, cwd=str(ROOT)
        )
        self.screen = pyte.Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self.screen)
        self.sent = b""


def beside(folder: Path) -> list[int]:
    """The processes that serve the world in that folder, the console itself left out."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if any(word.startswith(b"console.demo.") for word in words) and str(folder).encode() in b" ".join(words):
            found.append(int(entry.name))
    return found


def nothing_beside(folder: Path, within: float = 10) -> bool:
    end = time.monotonic() + within
    while beside(folder) and time.monotonic() < end:
        time.sleep(0.05)
    return not beside(folder)
