"""When this user last looked at the causes: a small file in the state folder, not a record.

Causes that were first seen after it are new to this user. In read-only mode nothing is written.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from console.xdg import state_folder

_LONGEST = 64


def _file(folder: Path | None) -> Path:
    return (folder or state_folder()) / "last-looked"


def last_looked(folder: Path | None = None) -> datetime | None:
    """When this user looked before; None if never, or if the file cannot be read. The demo has a folder of its own."""
    try:
        with _file(folder).open(encoding="ascii") as file:
            found = datetime.fromisoformat(file.read(_LONGEST).strip())
    except (OSError, ValueError):
        return None
    return found if found.tzinfo is not None else None


def note_look(now: datetime, folder: Path | None = None) -> None:
    """Note that this user has looked. Not being able to is no reason to stop anybody from looking."""
    path = _file(folder)
    temporary = path.with_suffix(f".{os.getpid()}.new")
    with suppress(OSError):
        if path.exists() and path.stat().st_uid != os.getuid():
            return  # two users share this folder
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # of a killed process with the same number
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(now.isoformat())
        temporary.replace(path)
