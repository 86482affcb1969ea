"""A second model of the retry loop, written from the description of the real system. It shares no code with the plugin.

Rows are dicts as the table stores them, with instants as times. `day` runs the loop for a simulated day.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

PIPELINES = ("vectorization", "dp_update")
SKIPPED_ERRORS = (
    "invalid json", "missing required field", "unauthorized", "invalid api key", "malformed", "invalid format",
)
WAITS = (60, 300, 900, 1800)
LAST = datetime.max

Row = dict[str, Any]
Taken = set[tuple[int, str]]


def order(row: Row) -> tuple[bool, datetime, int]:
    """Oldest first; what has no time comes last."""
    at = row["processed_at"]
    return at is None, LAST if at is None else at.replace(tzinfo=None), row["id"]


def day(rows: list[Row], now: datetime, fails: Callable[[int, str], bool], *, joined: bool) -> Taken:
    """What the loop takes until nothing can happen any more, at most in a day."""
    taken: Taken = set()
    quiet = 0
    for minute in range(24 * 60):
        done = cycle(rows, now + timedelta(minutes=minute), fails, joined=joined)
        taken |= done
        quiet = 0 if done else quiet + 1
        if quiet > 45:
            break
    return taken


def cycle(rows: list[Row], now: datetime, fails: Callable[[int, str], bool], *, joined: bool) -> Taken:
    """One minute: ten of each pipeline, then ten rows that hang."""
    seen = [row for row in rows if not joined or row["user_answer_id"] is not None]
    taken: Taken = set()

    def room(row: Row) -> bool:
        return row["retry_count"] is not None and row["retry_count"] < 3

    def execute(row: Row, pipeline: str) -> None:
        row["retry_count"] += 1
        row["last_retry_at"] = now
        failed = fails(row["id"], pipeline)
        row[f"{pipeline}_status"] = "failed" if failed else "success"
        taken.add((row["id"], pipeline))

    for pipeline in PIPELINES:
        chosen = [
            row for row in seen
            if row[f"{pipeline}_status"] == "failed" and room(row)
            and (row["last_retry_at"] is None or row["last_retry_at"] < now - timedelta(minutes=1))
        ]
        for row in sorted(chosen, key=order)[:10]:
            since = row["last_retry_at"] or row["processed_at"]
            if since is not None and (now - since).total_seconds() < WAITS[min(row["retry_count"], 3)]:
                continue
            if any(pattern in (row[f"{pipeline}_error"] or "").lower() for pattern in SKIPPED_ERRORS):
                continue
            execute(row, pipeline)

    hanging = [
        row for row in seen
        if any(row[f"{pipeline}_status"] == "pending" for pipeline in PIPELINES) and room(row)
        and row["processed_at"] is not None and row["processed_at"] < now - timedelta(minutes=10)
    ]
    for row in sorted(hanging, key=order)[:10]:
        for pipeline in [pipeline for pipeline in PIPELINES if row[f"{pipeline}_status"] == "pending"]:
            execute(row, pipeline)
    return taken
