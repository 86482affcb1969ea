"""When this user last looked at the causes: a small file in the state folder, not a record.

Causes that were first seen after it are new to this user. In read-only mode nothing is written.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path

from console.xdg import is_of_another_user, replace_file, state_folder

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
    with suppress(OSError):
        if not is_of_another_user(path):
            replace_file(path, now.isoformat())
