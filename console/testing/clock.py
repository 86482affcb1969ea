"""A clock and a stop that obey the test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 11, 10, 12, tzinfo=UTC)


class FrozenClock:
    """Stands still until somebody sleeps or ticks; whoever sleeps is awake at once."""

    def __init__(self, at: datetime = NOON) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at

    def sleep(self, seconds: float) -> None:
        self.tick(timedelta(seconds=max(seconds, 0)))

    def tick(self, by: timedelta = timedelta(seconds=1)) -> datetime:
        self._at += by
        return self._at


class Flag:
    """A Stop that somebody raises, or that raises itself at the n-th look."""

    def __init__(self, after_looks: int | None = None) -> None:
        self._raised = False
        self._looks_left = after_looks

    def set(self) -> None:
        self._raised = True

    @property
    def requested(self) -> bool:
        if self._looks_left is not None:
            self._looks_left -= 1
            self._raised = self._raised or self._looks_left < 0
        return self._raised
