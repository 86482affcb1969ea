"""The tour: a guide through the first five minutes, at the foot of every screen until it is dismissed.

It only watches: each step is over once the person has done it, whichever way they did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import Widget

from console.core.catalogue import CATALOGUE
from console.ui import safe
from console.ui.actions import key_words
from console.ui.runs import Run, Runs
from console.ui.screens.place import Place
from console.ui.screens.plan import PlanScreen
from console.ui.widgets.status_line import StatusLine

if TYPE_CHECKING:
    from console.ui.app import Console

_LOOKS_EVERY = 0.25


class Step(NamedTuple):
    """What to see and to do; `$` names are keys from the catalogue, `over` tells that it was done."""

    title: str
    text: str
    over: Callable[[Console], bool]


def _at(place: str) -> Callable[[Console], bool]:
    return lambda app: isinstance(app.screen, Place) and place == app.screen.PLACE


def _run(app: Console) -> Run | None:
    runs: Runs = app.runs
    return runs.latest


def _planning(app: Console) -> bool:
    return isinstance(app.screen, PlanScreen)


def _undoing(app: Console) -> bool:
    return isinstance(app.screen, PlanScreen) and app.screen.undoes is not None


def _verified(app: Console) -> bool:
    state = app.screen.query("#state").results(StatusLine) if _at("trail")(app) else iter(())
    return any(word in line.left.plain for line in state for word in ("intact", "broken"))


STEPS: tuple[Step, ...] = (
    Step(
        "A storm is coming",
        "Each card is one system. Below are the retries of the next hour; the tall bars are a storm. "
        "Press [b]$app_groups[/] to see what causes it.",
        _at("groups"),
    ),
    Step(
        "Causes, not rows",
        "One line per cause, across systems, the biggest first. Press [b]$groups_requeue[/] to plan handing that one "
        "back. Nothing is written yet.",
        _planning,
    ),
    Step(
        "A plan, and a canary",
        "See what would change, what is blocked and why. Type [b]canary 10[/] as the release, a reason, the number of "
        "items; then Requeue. [b]tab[/] moves on.",
        lambda app: _run(app) is not None,
    ),
    Step(
        "Ten first",
        "Ten are handed back and watched. The rest follow in growing steps, only while those succeed. Wait until it is "
        "finished; [b]$app_run[/] comes back here.",
        lambda app: (run := _run(app)) is not None and run.over,
    ),
    Step("On record", "Press [b]$app_trail[/]: who did it, when, why, and what became of each item.", _at("trail")),
    Step("Undo", "Press [b]$trail_undo[/] to plan taking it back.", _undoing),
    Step(
        "Only what nobody has claimed",
        "What a worker took meanwhile is blocked, and says so; the rest could be put back exactly. [b]esc[/] leaves.",
        lambda app: not _planning(app),
    ),
    Step("Proof", "In the Trail, press [b]$trail_verify[/]: is every record as it was written?", _verified),
    Step(
        "That was it",
        "Now the expired key: the second cause cannot recover, and its plan says so. [b]?[/] has the keys of a place.",
        lambda _: False,
    ),
)


class TourPanel(Widget):
    """One step, in a few lines."""

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
            "tour, $n of $all: [b]$title[/]", n=step + 1, all=len(STEPS), title=STEPS[step].title
        )
        self.border_subtitle = safe.phrase("$key closes it", key=self._keys["app_tour"])

    def render(self) -> Content:
        return safe.phrase(STEPS[self.step].text, **self._keys)


class Tour:
    """Follows the person from screen to screen."""

    def __init__(self, app: Console) -> None:
        self._app = app
        self._step = 0
        self._timer: Timer | None = None
        self._panels: list[TourPanel] = []
        self._keys = {
            action.id.replace(".", "_"): key_words(app.desk.keymap.get(action.id, action.key)) for action in CATALOGUE
        }

    def toggle(self) -> None:
        """Show it where the person is in it, or put it away."""
        if self._timer is None:
            self._timer = self._app.set_interval(_LOOKS_EVERY, self._look)
            self._look()
            return
        self._timer.stop()
        self._timer = None
        for panel in self._panels:
            panel.remove()
        self._panels.clear()

    def _look(self) -> None:
        while STEPS[self._step].over(self._app):
            self._step += 1
        self._panels = [panel for panel in self._panels if panel.is_attached]
        screen = self._app.screen
        if not any(panel.screen is screen for panel in self._panels):
            panel = TourPanel(self._keys)
            self._panels.append(panel)
            screen.mount(panel)
        for panel in self._panels:
            panel.step = self._step
