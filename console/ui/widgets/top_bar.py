"""The first line of every screen: the tabs, how many systems answer, whether the console is read-only, the time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from console.ui import safe
from console.ui.health import Health

_TABS = (
    ("overview", "1", "Overview"),
    ("failures", "2", "Failures"),
    ("causes", "3", "Causes"),
    ("trail", "4", "Trail"),
)


class SystemStates(NamedTuple):
    """How many systems answer, and how many do not."""

    live: int
    down: int

    @classmethod
    def of(cls, healths: Iterable[Health]) -> SystemStates:
        known = list(healths)
        down = sum(health.fault is not None for health in known)
        return cls(sum(health.fault is None and health.answered for health in known), down)


class TopBar(Widget):
    """One line. Where it is too narrow the time is left out first, then the systems."""

    place: reactive[str] = reactive("")
    """The highlighted tab."""
    now: reactive[datetime | None] = reactive(None)
    override: reactive[str] = reactive("")
    """How far the running override is, in words; empty when none is running."""
    systems: reactive[SystemStates] = reactive(SystemStates(0, 0))
    read_only: reactive[bool] = reactive(False)

    def __init__(self, place: str) -> None:
        super().__init__()
        self.set_reactive(TopBar.place, place)

    def render(self) -> Content:
        left = [Content.from_markup(" [b $primary]Retriage[/]  ")]
        for place, key, title in _TABS:
            if place == self.place:
                left.append(Content.from_markup(f"[$accent]{key}[/] [b $foreground]{title}[/]  "))
            else:
                left.append(Content.from_markup(f"[@click=app.{place}][$muted]{key} {title}[/][/]  "))
        tabs = Content.assemble(*left)
        parts = [self._override_part(), self._systems_part(), self._read_only_part(), self._time_part()]
        room = self.size.width - tabs.cell_length
        for dropped in (3, 1):
            if _joined(parts).cell_length >= room:
                parts[dropped] = Content("")
        state = _joined(parts)
        gap = self.size.width - tabs.cell_length - state.cell_length - 1
        return Content.assemble(tabs, " " * max(gap, 1), state, " ")

    def _override_part(self) -> Content:
        if not self.override:
            return Content("")
        return safe.phrase("[@click=app.override][b $calm]▸ $progress[/][/]", progress=self.override)

    def _systems_part(self) -> Content:
        parts = []
        if self.systems.live:
            parts.append(safe.phrase("[$success]● $count[/]", count=self.systems.live))
        if self.systems.down:
            parts.append(safe.phrase("[b $error]✗ $count down[/]", count=self.systems.down))
        return Content(" ").join(parts)

    def _read_only_part(self) -> Content:
        return Content.from_markup("[b $background on $accent] READ-ONLY [/]") if self.read_only else Content("")

    def _time_part(self) -> Content:
        return Content("") if self.now is None else safe.phrase("[$muted]$at[/]", at=f"{self.now:%H:%M:%S}Z")


def _joined(parts: list[Content]) -> Content:
    return Content(" · ").join(part for part in parts if part.plain)
