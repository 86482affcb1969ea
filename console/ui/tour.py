"""The tour: a panel at the bottom of every screen that guides through the first five minutes.

A step is over as soon as the person has done it, in whichever way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import Widget

from console.actions.catalogue import CATALOGUE
from console.core.pace import Over
from console.ui import safe
from console.ui.actions import key_words
from console.ui.live_overrides import FollowedOverride
from console.ui.screens.base import BaseScreen
from console.ui.screens.plan import PlanScreen
from console.ui.widgets.status_line import StatusLine

if TYPE_CHECKING:
    from console.ui.app import Console

_CHECK_EVERY = 0.25


class TourStep(NamedTuple):
    """What to see and to do. `$` names are keys of the catalogue; `over` says whether it was done."""

    title: str
    text: str
    over: Callable[[Console], bool]


def _at(place: str) -> Callable[[Console], bool]:
    return lambda app: isinstance(app.screen, BaseScreen) and place == app.screen.PLACE


def _own(app: Console) -> FollowedOverride | None:
    return app.live_overrides.latest


def _is_written(app: Console) -> bool:
    own = _own(app)
    return own is not None and not own.running


def _is_spread(app: Console) -> bool:
    """Whether the person has started an override whose items run later."""
    own = _own(app)
    return own is not None and own.plan is not None and isinstance(own.plan.pace, Over)


def _planning(app: Console) -> bool:
    return isinstance(app.screen, PlanScreen)


def _undoing(app: Console) -> bool:
    return isinstance(app.screen, PlanScreen) and app.screen.undoes is not None


def _verified(app: Console) -> bool:
    state = app.screen.query("#state").results(StatusLine) if _at("trail")(app) else iter(())
    return any(word in line.left.plain for line in state for word in ("intact", "broken"))


STEPS: tuple[TourStep, ...] = (
    TourStep(
        "A retry storm is coming",
        "Each line is one system. The chart below shows the retries of the next hour; the tall bars are a storm. "
        "Press [b]$app_causes[/] to see its causes.",
        _at("causes"),
    ),
    TourStep(
        "Causes",
        "One line per cause over all systems, the biggest first. Press [b]$causes_requeue[/] to plan a requeue of this "
        "one. Nothing is changed yet.",
        _planning,
    ),
    TourStep(
        "A plan with a canary",
        "It shows what will be requeued, what is skipped and why. Ten items go first: that is the canary. Type a "
        "reason and press [b]enter[/], then type the number of items and press [b]enter[/] again.",
        lambda app: _own(app) is not None,
    ),
    TourStep(
        "Did it work?",
        "The ten are watched. When they have recovered, the rest follows, and is watched too. [b]enter[/] on a number "
        "lists its items. [b]$app_override[/] comes back to this screen.",
        _is_written,
    ),
    TourStep(
        "Spread over time",
        "Press [b]$app_causes[/], go down to another cause and press [b]$causes_requeue[/]. In the plan, go up "
        "to Pace and choose [b]over 30 min[/] with the arrow keys, then confirm it like the first one.",
        _is_spread,
    ),
    TourStep(
        "Undo",
        "These items run over the next half hour. Press [b]$override_undo[/] to plan an undo.",
        _undoing,
    ),
    TourStep(
        "Only untouched items",
        "Items that no worker has picked up yet are restored exactly. The others are skipped, with the reason. Confirm "
        "it, or leave it with [b]esc[/].",
        lambda app: not _planning(app),
    ),
    TourStep("The trail", "Press [b]$app_trail[/] to see who did what, when and why, and the results.", _at("trail")),
    TourStep("Integrity", "Press [b]$trail_verify[/] to check that no record was altered.", _verified),
    TourStep(
        "That was the tour",
        "Next, look at the second cause: an expired key. A retry cannot help there, and its plan says so. "
        "[b]?[/] lists the keys of a screen.",
        lambda _: False,
    ),
)


class TourPanel(Widget):
    """Shows one step."""

    DEFAULT_CSS = """
    TourPanel { dock: bottom; margin-bottom: 1; height: auto; max-height: 6; border: round $accent; padding: 0 1;
      background: $surface; color: $foreground; border-title-color: $accent; border-subtitle-color: $foreground; }
    """

    step: reactive[int] = reactive(0, layout=True)

    def __init__(self, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._keys = keys

    def watch_step(self, step: int) -> None:
        self.border_title = safe.phrase(
            "Tour $n of $all: [b]$title[/]", n=step + 1, all=len(STEPS), title=STEPS[step].title
        )
        self.border_subtitle = safe.phrase("$key closes the tour", key=self._keys["app_tour"])

    def render(self) -> Content:
        return safe.phrase(STEPS[self.step].text, **self._keys)


class Tour:
    """Shows the current step on whichever screen is open."""

    def __init__(self, app: Console) -> None:
        self._app = app
        self._step = 0
        self._timer: Timer | None = None
        self._panels: list[TourPanel] = []
        keymap = app.session.keymap
        self._keys = {a.id.replace(".", "_"): key_words(keymap.get(a.id, a.key)) for a in CATALOGUE}

    def toggle(self) -> None:
        """Show the tour at its current step, or hide it."""
        if self._timer is None:
            if self._step == 0 and isinstance(self._app.screen, BaseScreen) and not STEPS[0].over(self._app):
                self._app.call_next(self._app.action_overview)  # which the first step is about
            self._timer = self._app.set_interval(_CHECK_EVERY, self._check)
            self._check()
            return
        self._timer.stop()
        self._timer = None
        for panel in self._panels:
            if panel.is_attached:
                panel.screen.remove_class("touring")
            panel.remove()
        self._panels.clear()

    def _check(self) -> None:
        if not self._app.has_screen:  # it closes
            return
        while STEPS[self._step].over(self._app):
            self._step += 1
        self._panels = [panel for panel in self._panels if panel.is_attached]
        screen = self._app.screen
        if not any(panel.screen is screen for panel in self._panels):
            panel = TourPanel(self._keys)
            self._panels.append(panel)
            screen.mount(panel)
            screen.add_class("touring")
        for panel in self._panels:
            panel.step = self._step
