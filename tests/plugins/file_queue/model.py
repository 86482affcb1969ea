"""A second model of the file queue's workers, written from its description. It shares no code with the plugin."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_FIRST = datetime.min.replace(tzinfo=UTC)


def taken_by(queue: Path, end: datetime) -> set[str]:
    """Which tasks workers have taken by then, if every execution succeeds and nothing else happens.

    At each moment they take the first due task by eta and then by creation. A task whose comparison raises is left out.
    A task that is not PENDING makes them raise, every time, so nothing after it is taken.
    """
    tasks = []
    for path in queue.glob("*.task"):
        task = json.loads(path.read_text())
        if (when := _eta(task)) is not None:
            tasks.append((when, datetime.fromisoformat(task["created_at"]), task["id"], task["status"]))
    taken = set()
    for when, _, id, status in sorted(tasks):
        if when > end or status in ("FAILED", "SUCCESS", "CANCELLED"):
            break
        if status == "PENDING":
            taken.add(id)
    return taken


def _eta(task: dict[str, Any]) -> datetime | None:
    """When it is due; None if a worker cannot tell."""
    eta = task["schedule"].get("eta")
    if eta is None:
        return _FIRST
    try:
        when = datetime.fromisoformat(eta)
        return when if when > _FIRST else _FIRST
    except (TypeError, ValueError):
        return None
