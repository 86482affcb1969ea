"""A clock and a stop that obey the test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 11, 10, 12, tzinfo=UTC)


class FrozenClock:
    """Stands still until a test calls `tick` or `sleep`. `sleep` returns at once."""

    def __init__(self, at: datetime = NOON) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at

    def sleep(self, seconds: float) -> None:
        self.tick(timedelta(seconds=max(seconds, 0)))

    def tick(self, by: timedelta = timedelta(seconds=1)) -> datetime:
        self._at += by
        return self._at


class StopFlag:
    """A Stop that a test sets, or that sets itself when it is asked for the n-th time."""

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
