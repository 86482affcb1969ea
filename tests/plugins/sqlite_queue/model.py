"""A second model of both SQLite queues, written from the description of the systems. It shares no code with the plugin."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

Row = dict[str, Any]

DELAYS = (300, 900, 3600)
RUN = timedelta(minutes=5)


def taken_by_analysis_workers(
    rows: Collection[Mapping[str, Any]], start: datetime, end: datetime, types: Collection[str], batch: int = 10
) -> set[str]:
    """Which tasks are taken if a worker runs every five minutes and every execution succeeds.

    A worker first takes back what has been RUNNING for more than 360 s: PENDING while attempts are left, else FAILED.
    """
    tasks: list[Row] = [dict(row) for row in rows]
    taken: set[str] = set()
    now = start
    while now <= end:
        text = now.isoformat()
        for task in tasks:
            if task["status"] == "RUNNING" and task["updated_at"] < (now - timedelta(seconds=360)).isoformat():
                left = task["attempts"] < 4
                task["status"] = "PENDING" if left else "FAILED"
                task["next_run_at"] = text if left else task["next_run_at"]
        due = [
            task for task in tasks
            if task["status"] == "PENDING" and task["task_type"] in types and task["next_run_at"] <= text
        ]
        for task in sorted(due, key=lambda task: task["next_run_at"])[:batch]:
            task["status"] = "DONE"
            taken.add(task["task_id"])
        now += RUN
    return taken


def taken_by_contract_workers(rows: Collection[Mapping[str, Any]], end: datetime) -> set[str]:
    """Which tasks are taken by the end: PENDING ones without an eta, or with one that is not later, as text."""
    text = end.isoformat()
    return {row["id"] for row in rows if row["status"] == "PENDING" and (row["eta"] is None or row["eta"] <= text)}
