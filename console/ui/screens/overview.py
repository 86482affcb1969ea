"""Overview: a card per backend, and the retries that are coming."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from console.core.catalogue import NO_CONFIG
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.screens.place import Place
from console.ui.widgets.backend_card import BackendCard
from console.ui.widgets.upcoming_chart import UpcomingChart

_WELCOME = """[b]No backends are configured yet.[/b]

Write them into [$accent]$config[/], then start again:

[$muted]  backends:
    jobs:
      plugin: sqlite_queue
      dialect: tasks
      url: "sqlite:////srv/jobs/queue.db"[/]

[$accent]config.example.yaml[/] shows all that can be said there,
[$accent]retriage check[/] tells whether it works,
[$accent]retriage demo[/] opens a sandbox world to look around in.$offer"""
_OFFER = """

[b $accent]d[/] opens that world here and now: nothing in it is real,
and nothing outside it is touched."""

_LOW = 20
"""Lines of a terminal below which the chart gives way."""


class OverviewScreen(Place):
    """Where the console opens."""

    PLACE = "overview"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("overview"))

    def compose_place(self) -> ComposeResult:
        if not self.desk.entries:
            yield Static(self._welcome(), classes="welcome")
            return
        with Container(id="cards-scroll"), Container(id="cards"):
            for name in self.console_app.healths:
                yield BackendCard(name)
        yield UpcomingChart()

    def _welcome(self) -> Content:
        if self.console_app.opening:
            return Content.from_markup("[$muted]a moment…[/]")
        offer = Content.from_markup(_OFFER) if self.console_app.demo else Content("")
        return safe.phrase(_WELCOME, config=self.desk.config, offer=offer)

    def on_mount(self) -> None:
        self.on_resize()

    def on_resize(self) -> None:
        self.set_class(self.size.height < _LOW, "low")
        for grid in self.query("#cards"):
            cards = len(self.desk.entries)
            grid.set_class(self.size.width >= 120 and cards > 1, "two")
            grid.set_class(self.size.width >= 200 and cards > 2, "three")

    async def reseated(self, renamed: bool) -> None:
        await super().reseated(renamed)
        if renamed:
            await self.recompose()
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "demo" and not self.has(NO_CONFIG):
            return False  # nobody with backends looks for it
        return super().check_action(action, parameters)

    def ticked(self) -> None:
        self.on_resize()
        now, healths = self.desk.clock.now(), self.console_app.healths
        for card in self.query(BackendCard):
            card.now = now
            card.health = healths[card.backend]
        for chart in self.query(UpcomingChart):
            chart.healths = dict(healths)

    def has(self, need: str) -> bool:
        if need == NO_CONFIG:
            return self.console_app.demo is not None and not self.desk.entries
        return bool(self.desk.entries)

    def _card(self) -> BackendCard | None:
        if isinstance(self.focused, BackendCard):
            return self.focused
        return self.query(BackendCard).first() if self.query(BackendCard) else None

    @on(BackendCard.Chosen)
    def _chosen(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        if card := self._card():
            self.console_app.show_failures(f"backend:{card.backend}")

    def action_demo(self) -> None:
        self.console_app.open_demo()
        self.query_one(".welcome", Static).update(self._welcome())

    def action_span(self) -> None:
        for chart in self.query(UpcomingChart):
            chart.day = not chart.day

    def action_next_card(self) -> None:
        self.focus_next(BackendCard)

    def action_previous_card(self) -> None:
        self.focus_previous(BackendCard)

    def action_copy(self) -> None:
        if card := self._card():
            self.console_app.copy(self.console_app.healths[card.backend].place, "where it is attached")
