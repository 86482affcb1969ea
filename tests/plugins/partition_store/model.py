"""A second model of the validators, written from their description. It shares no code with the plugin.

`verdict` is what the real validator says about a run's files. `day` is what a validator takes in a day.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

Row = dict[str, Any]


def verdict(payload: bytes | None, metadata: bytes | None) -> str:
    """`success`, `failed`, or `error` where the real program stops and stores nothing."""
    if payload is None or metadata is None:
        return "failed"
    try:
        parsed = json.loads(metadata.decode("utf-8"))
    except (ValueError, RecursionError):
        return "failed"
    try:
        text = payload.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError):
        return "failed"
    if not isinstance(parsed, dict):
        return "error"
    try:
        count = int(parsed["record_count"]) if "record_count" in parsed else len(rows)
    except (TypeError, ValueError, OverflowError):
        return "error"
    return "success" if count == len(rows) else "failed"


def newest(runs: Mapping[str, object]) -> str:
    return max(runs)


def day(rows: list[Row], now: datetime, *, ours: bool) -> set[str]:
    """The partitions that a validator takes by itself in a day. Somebody else's does not read our table."""
    taken = set()
    for row in rows:
        if not row["has_row"]:
            continue
        wanted = row["status"] == "pending" or (ours and row["status"] == "success" and row["request"] == "reprocess")
        held = ours and (row["paused"] or (row["next_run_at"] or now) > now + timedelta(days=1))
        if wanted and not held:
            taken.add(row["id"])
    return taken
