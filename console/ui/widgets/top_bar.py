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


class Tab(NamedTuple):
    """A place of the top bar: its name in the catalogue, its key, its title, and what is new there."""

    place: str
    key: str
    title: str
    badge: str = ""


_TABS = (
    Tab("overview", "1", "Overview"),
    Tab("failures", "2", "Failures"),
    Tab("causes", "3", "Causes"),
    Tab("trail", "4", "Trail"),
)
"""While the session is opened."""


_SHORTER = ((" Retriage  ", True, True), (" ", True, True), (" ", True, False), (" ", False, False))
"""The name of the product, whether other tabs have titles, and whether the progress of an override is called that: for
less and less room."""


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
    """One line. Where it is too narrow the time is left out first, then the systems, the name of the product, the
    word before the progress, and the titles of other tabs.

    A time of the past is never left out.
    """

    place: reactive[str] = reactive("")
    """The highlighted tab."""
    tabs: reactive[tuple[Tab, ...]] = reactive(_TABS)
    now: reactive[datetime | None] = reactive(None)
    override: reactive[str] = reactive("")
    """How far the running override is, in words; empty when none is running."""
    systems: reactive[SystemStates] = reactive(SystemStates(0, 0))
    read_only: reactive[bool] = reactive(False)
    past: reactive[str] = reactive("")
    """How long ago `now` is, if a recorded time is shown; empty for the present."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.set_reactive(TopBar.place, place)

    def render(self) -> Content:
        return self.line(self.size.width)

    def line(self, width: int) -> Content:
        """What is shown in this many columns."""
        kept = (0, 2, 3) if self.past else (0, 2)
        others = [self._systems_part(), self._read_only_part(), self._time_part()]
        tabs, parts = Content(""), list[Content]()
        for name, titles, called in _SHORTER:
            tabs, parts = self._tabs(name, titles=titles), [self._override_part(called), *others]
            if tabs.cell_length + _with_edge([parts[n] for n in kept]) <= width:
                break
        for dropped in (3, 1):
            if dropped not in kept and tabs.cell_length + _with_edge(parts) > width:
                parts[dropped] = Content("")
        gap = width - tabs.cell_length - _with_edge(parts)
        return Content.assemble(tabs, " " * max(gap, 0), _joined(parts), " ")

    def _tabs(self, name: str, *, titles: bool = True) -> Content:
        left = [safe.phrase("[b $primary]$name[/]", name=name)]
        for tab in self.tabs:
            badge = safe.phrase("[b $accent] $badge[/]", badge=tab.badge) if tab.badge else Content("")
            here = tab.place == self.place
            style = "[b $accent]$key[/] [b $foreground]$title[/]" if here else "[$muted]$key $title[/]"
            template = style if here else f"[@click=app.{tab.place}]{style}[/]"
            template = template if titles or here else template.replace(" $title", "")
            named = safe.phrase(template, key=tab.key, title=tab.title)
            left += [named, badge, Content("  ")]
        return Content.assemble(*left)

    def _override_part(self, called: bool) -> Content:
        if not self.override:
            return Content("")
        shown = self.override if called else self.override.removeprefix("override ")
        return safe.phrase("[@click=app.override][b $calm]▸ $progress[/][/]", progress=shown)

    def _systems_part(self) -> Content:
        parts = []
        if self.systems.live:
            parts.append(safe.phrase("[$success]●[/] [$muted]$count live[/]", count=self.systems.live))
        if self.systems.down:
            parts.append(safe.phrase("[b $error]✗ $count down[/]", count=self.systems.down))
        return Content(" ").join(parts)

    def _read_only_part(self) -> Content:
        return Content.from_markup("[b $on-accent on $accent] READ-ONLY [/]") if self.read_only else Content("")

    def _time_part(self) -> Content:
        if self.now is None:
            return Content("")
        if self.past:
            at = f"{self.now:%m-%d %H:%M}Z"
            return safe.phrase("[b $on-accent on $accent] $at, $past [/]", at=at, past=self.past)
        return safe.phrase("[$muted]$at[/]", at=f"{self.now:%H:%M:%S}Z")


def _with_edge(parts: list[Content]) -> int:
    """The width of these parts, with the cell between them and the edge."""
    width = _joined(parts).cell_length
    return width + 1 if width else 0


def _joined(parts: list[Content]) -> Content:
    return Content(" · ").join(part for part in parts if part.plain)
