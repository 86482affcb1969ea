"""This process: its clock, and its crash file."""

from __future__ import annotations

import os
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path


class SystemClock:
    """This machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def write_crash_file(error: BaseException, about: str) -> Path | None:
    """Write the traceback to a private file, without locals and with secrets masked; None if that fails."""
    from console.settings import mask_text
    from console.xdg import state_folder

    folder = state_folder() / "crashes"
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.txt"
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"{about}\nPython {python} on {sys.platform}\n\n{''.join(traceback.format_exception(error))}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(mask_text(text))
    except OSError:
        return None
    return path
