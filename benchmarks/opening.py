"""A queue as the console opens it. Nothing is loaded before it is opened: how long that takes is measured too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plugins.sqlite_queue import SqliteQueue

NAME = "queue"


def open_queue(path: Path, *, read_only: bool = False) -> SqliteQueue:
    from console.core.policy import PolicyOverride
    from plugins.sqlite_queue import SqliteQueue
    from plugins.sqlite_queue.backend import Options

    return SqliteQueue.open(
        NAME, Options(url=f"sqlite:///{path}"), PolicyOverride(), read_only=read_only, deadline=timedelta(seconds=60)
    )
