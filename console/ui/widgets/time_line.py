"""The timeline at the bottom of a screen that shows the past: the time, and what happened around it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from console.core.text import duration
from console.ui import safe

_SPANS = (timedelta(hours=3), timedelta(days=1), timedelta(days=7), timedelta(days=30))
_NEAR = timedelta(hours=1)
_HERE, _MARK, _OVERRIDE = "▲", "│", "●"


class Happening(NamedTuple):
    """A deploy mark, or an override."""

    at: datetime
    text: str
    is_override: bool = False

    @property
    def symbol(self) -> str:
        return _OVERRIDE if self.is_override else _MARK

    @property
    def tone(self) -> str:
        return "$warning" if self.is_override else "$accent"


class TimeLine(Widget):
    """Shown only while a screen shows the past."""

    at: reactive[datetime | None] = reactive(None, init=False)
    """The time that is shown; None for the present."""
    now: datetime | None = None
    happenings: reactive[Sequence[Happening]] = reactive(tuple)
    """In order of time."""

    def on_mount(self) -> None:
        self.display = False

    def watch_at(self) -> None:
        self.display = self.at is not None

    def render(self) -> Content:
        if self.at is None or self.now is None:
            return Content("")
        span = next((one for one in _SPANS if self.now - self.at < one), _SPANS[-1])
        return Content("\n").join([self._track(self.at, self.now - span, span), self._around(self.at)])

    def _track(self, at: datetime, start: datetime, span: timedelta) -> Content:
        first, last = f" {start:%m-%d %H:%M}Z ", " now "
        width = max(self.size.width - len(first) - len(last), 8)

        def column(moment: datetime) -> int:
            return min(max(int((moment - start) / span * width), 0), width - 1)

        parts = ["[$muted]─[/]"] * width
        for one in self.happenings:
            if one.at >= start:
                parts[column(one.at)] = f"[{one.tone}]{one.symbol}[/]"
        parts[column(at)] = f"[b]{_HERE}[/]"
        return Content.assemble(
            safe.phrase("[$muted]$first[/]", first=first), Content.from_markup("".join(parts)),
            safe.phrase("[$muted]$last[/]", last=last),
        )

    def _around(self, at: datetime) -> Content:
        """What happened within an hour of the time that is shown, the nearest first."""
        near = sorted((one for one in self.happenings if abs(one.at - at) < _NEAR), key=lambda one: abs(one.at - at))
        words = [
            safe.phrase(f"[{one.tone}]{one.symbol}[/] $text [$muted]$when[/]", text=safe.line(one.text),
                        when=_distance(one.at - at))
            for one in near
        ]
        if not words:
            return Content.from_markup("[$muted] No deploy or override within an hour of this.[/]")
        return Content.assemble(" ", Content("   ").join(words)).truncate(self.size.width, ellipsis=True)


def _distance(after: timedelta) -> str:
    distance = timedelta(minutes=round(abs(after) / timedelta(minutes=1)))
    return f"{duration(distance)} {'later' if after > timedelta(0) else 'before'}" if distance else "now"
