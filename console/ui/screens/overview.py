"""Overview: a card per system, and the retries of the next hour or day."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from console.actions.catalogue import NO_CONFIG
from console.core.text import as_of
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.screens.base import BaseScreen
from console.ui.startup import card_columns
from console.ui.widgets.backend_card import BackendCard, ages_of
from console.ui.widgets.upcoming_chart import UpcomingChart

_WELCOME = """[b]No systems are configured yet.[/b]

Add them to [$accent]$config[/] and start again:

[$muted]  backends:
    jobs:
      plugin: sqlite_queue
      dialect: tasks
      url: "sqlite:////srv/jobs/queue.db"[/]

[$accent]config.example.yaml[/] shows every option.
[$accent]retriage check[/] tests the config.
[$accent]retriage demo[/] opens a demo with made-up systems.$offer"""
_OFFER = """

Press [b $accent]d[/] to open the demo now. It touches nothing of yours."""

_LOW = 20
"""Below this many lines the chart is drawn smaller."""


class OverviewScreen(BaseScreen):
    """Where the console opens."""

    PLACE = "overview"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("overview"))

    def compose_content(self) -> ComposeResult:
        if not self.session.entries:
            offer = Content.from_markup(_OFFER) if self.console_app.offers_demo else Content("")
            yield Static(safe.phrase(_WELCOME, config=self.session.config, offer=offer), classes="welcome")
            return
        with Container(id="cards-scroll"), Container(id="cards"):
            for health in self.console_app.monitor.healths.values():
                yield BackendCard(health)
        yield UpcomingChart()

    def on_mount(self) -> None:
        self.on_resize()

    def on_resize(self) -> None:
        self.set_class(self.size.height < _LOW, "low")
        for grid in self.query("#cards"):
            grid.set_classes(card_columns(self.size.width, len(self.session.entries)))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "demo" and not self.has(NO_CONFIG):
            return False  # hidden, not greyed
        return super().check_action(action, parameters)

    def ticked(self) -> None:
        now, healths = self.session.clock.now(), self.console_app.monitor.healths
        for card in self.query(BackendCard):
            card.health = healths[card.backend]
            card.ages = ages_of(healths[card.backend], now, self.session.refresh)
        read = [at for health in healths.values() if (at := health.read_at.get("retries")) is not None]
        for chart in self.query(UpcomingChart):
            chart.healths = dict(healths)
            chart.age = as_of(now - min(read), self.session.refresh) if read else ""

    def on_screen_resume(self) -> None:
        self.console_app.monitor.show(True)

    def on_screen_suspend(self) -> None:
        self.console_app.monitor.show(False)

    def has(self, need: str) -> bool:
        if need == NO_CONFIG:
            return self.console_app.offers_demo and not self.session.entries
        return bool(self.session.entries)

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

    def action_span(self) -> None:
        for chart in self.query(UpcomingChart):
            chart.day = not chart.day

    def action_next_card(self) -> None:
        self.focus_next(BackendCard)

    def action_previous_card(self) -> None:
        self.focus_previous(BackendCard)

    def action_copy(self) -> None:
        if card := self._card():
            self.console_app.copy(card.health.place, "the address of this system")
