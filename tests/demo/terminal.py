"""The real command line in a real terminal, on a sandbox world."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.patience import PATIENCE
from tests.ui.terminal import Terminal as Program


class Terminal(Program):
    """`retriage …` under a pty."""

    def __init__(self, *arguments: str, size: tuple[int, int] = (24, 80)) -> None:
        super().__init__([sys.executable, "-m", "console", *arguments], size)


def workers_of(folder: Path) -> list[int]:
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


def no_worker_left(folder: Path, within: float = PATIENCE) -> bool:
    end = time.monotonic() + within
    while workers_of(folder) and time.monotonic() < end:
        time.sleep(0.05)
    return not workers_of(folder)
