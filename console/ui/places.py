"""Which places were visited, so that escape returns to where a person came from."""

from __future__ import annotations

from typing import NamedTuple

_MOST = 20


class Visit(NamedTuple):
    """A place that was left for another one."""

    place: str
    to: str
    given: str | None = None
    """The filter that the other place was opened with; None if it kept its own."""
    before: str | None = None
    """The filter that the other place had before."""


class PlaceHistory:
    """The places that were left, the last one at the end."""

    def __init__(self) -> None:
        self._visits: list[Visit] = []

    def left(self, visit: Visit) -> None:
        if visit.place == visit.to and visit.given == visit.before:
            return
        self._visits.append(visit)
        del self._visits[:-_MOST]

    def last(self) -> Visit | None:
        return self._visits[-1] if self._visits else None

    def go_back(self) -> Visit | None:
        return self._visits.pop() if self._visits else None

    def arrived_with(self, place: str) -> str:
        """The filter with which this place was entered last."""
        last = self.last()
        return (last.given or "") if last is not None and last.to == place else ""
