"""Times as the history stores them: minutes since 1970."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from console.sql.database import Row


def minute_of(at: datetime) -> int:
    return int(at.timestamp() // 60)


def time_of(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC)


def last_minute(rows: Iterable[Row]) -> int | None:
    """The only value of a `max` query."""
    return next((row[0] for row in rows), None)
