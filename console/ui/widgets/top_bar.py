"""The first line of every place: where one is, how the backends are, whether anything can be changed, the time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from console.ui import safe
from console.ui.health import Health

_TABS = (
    ("overview", "1", "Overview"),
    ("failures", "2", "Failures"),
    ("groups", "3", "Groups"),
    ("trail", "4", "Trail"),
)


class TopBar(Widget):
    """One line; what does not fit is left out from the middle."""

    now: reactive[datetime | None] = reactive(None)
    running: reactive[str] = reactive("")
    """How far an override is, in words; empty when none is running."""
    healths: reactive[Mapping[str, Health]] = reactive(dict, always_update=True)

    read_only: reactive[bool] = reactive(False)

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place

    def render(self) -> Content:
        left = [Content.from_markup(" [b $primary]Retriage[/]  ")]
        for place, key, title in _TABS:
            if place == self._place:
                left.append(Content.from_markup(f"[$accent]{key}[/] [b $foreground]{title}[/]  "))
            else:
                left.append(Content.from_markup(f"[@click=app.{place}][$muted]{key} {title}[/][/]  "))
        tabs = Content.assemble(*left)
        parts = [self._run(), self._backends(), self._badge(), self._time()]
        room = self.size.width - tabs.cell_length
        for dropped in (3, 1):  # the time goes first, then the backends, which Overview has
            if _joined(parts).cell_length >= room:
                parts[dropped] = Content("")
        state = _joined(parts)
        gap = self.size.width - tabs.cell_length - state.cell_length - 1
        return Content.assemble(tabs, " " * max(gap, 1), state, " ")

    def _run(self) -> Content:
        return safe.phrase("[@click=app.run][b $calm]▸ $far[/][/]", far=self.running) if self.running else Content("")

    def _backends(self) -> Content:
        down = [h for h in self.healths.values() if h.fault is not None]
        live = [h for h in self.healths.values() if h.fault is None and h.answered]
        parts = []
        if live:
            parts.append(safe.phrase("[$success]● $count[/]", count=len(live)))
        if down:
            parts.append(safe.phrase("[b $error]✗ $count down[/]", count=len(down)))
        return Content(" ").join(parts)

    def _badge(self) -> Content:
        return Content.from_markup("[b $background on $accent] READ-ONLY [/]") if self.read_only else Content("")

    def _time(self) -> Content:
        return Content("") if self.now is None else safe.phrase("[$muted]$at[/]", at=f"{self.now:%H:%M:%S}Z")


def _joined(parts: list[Content]) -> Content:
    return Content(" · ").join(part for part in parts if part.plain)
