"""The base of every full screen: top bar, footer, keys from the catalogue, and the rule for dangerous actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events, on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input, Static

from console.actions.catalogue import A_PANEL, CATALOGUE, EVERYWHERE, PLACES, KeyAction, action_named, actions_of
from console.core.cause_life import CauseLife
from console.core.faults import Fault
from console.core.query import Filter
from console.ui.actions import key_words
from console.ui.command_line import filter_words
from console.ui.completion import Vocabulary
from console.ui.messages import HealthChanged
from console.ui.screens.dialog import SmallTerminal
from console.ui.screens.filter_language import LanguageScreen
from console.ui.widgets.filter_bar import FilterBar
from console.ui.widgets.key_line import KeyLine
from console.ui.widgets.line_table import LineTable
from console.ui.widgets.status_line import StatusLine
from console.ui.widgets.text_pane import Line, Panel
from console.ui.widgets.top_bar import SystemStates, TopBar
from console.ui.worker_errors import ReportsWorkerErrors

if TYPE_CHECKING:
    from console.core.session import Session
    from console.ui.app import Console


_FIRST_FIGURES = 5.0
"""Seconds after a screen was opened in which its first figures arrive."""


_HINT_EVERY = 4.0
"""Seconds between two hints about keys of other screens: a word typed by mistake must not fill the screen."""


class BaseScreen(ReportsWorkerErrors, SmallTerminal[Any]):
    """A screen whose actions are in the catalogue. It is read again at the configured interval while it is shown."""

    PLACE: ClassVar[str] = ""
    """Its name in the catalogue."""
    AUTO_FOCUS = "LineTable, TextPane"
    """Never the filter: a key typed early would become a character of it."""
    TAB: ClassVar[str] = ""
    """The tab of the top bar it belongs to, if it is not one itself."""
    _shown_at = 0.0
    _hinted_at = -1e9

    @property
    def console_app(self) -> Console:
        return cast("Console", self.app)

    @property
    def session(self) -> Session:
        return self.console_app.session

    @property
    def tab(self) -> str:
        """The tab of the top bar that is highlighted."""
        return self.TAB or self.PLACE

    def compose(self) -> ComposeResult:
        yield TopBar(self.tab)
        yield from self.compose_content()
        yield KeyLine()

    def compose_content(self) -> ComposeResult:
        """The widgets between the top bar and the footer."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.set_interval(1.0, self.update_each_second)
        self.set_interval(self.session.refresh.total_seconds(), self.refresh_if_shown)
        self.update_each_second()

    def update_each_second(self) -> None:
        """Update the top bar and what depends on the time, if this screen is shown."""
        if self.is_current:
            bar = self.query_one(TopBar)
            bar.now = self.session.clock.now()
            bar.systems = SystemStates.of(self.console_app.monitor.healths.values())
            bar.read_only = self.session.read_only
            bar.override = self.console_app.override_words()
            bar.tabs = self.console_app.tabs()
            self.ticked()

    def ticked(self) -> None:
        """A second has passed."""

    def refresh_if_shown(self) -> None:
        if self.is_current:
            self.read_again()

    def read_again(self) -> None:
        """Read what is on this screen again."""

    def on_screen_resume(self) -> None:
        self._shown_at = monotonic()
        self.update_each_second()

    @on(HealthChanged)
    def _health_changed(self) -> None:
        """The first figures are shown at once. Later news wait for the next second: many systems have news all the
        time."""
        if monotonic() - self._shown_at < _FIRST_FIGURES:
            self.update_each_second()

    def narrow(self, text: str) -> None:
        """Show only what matches this filter, if the screen lists items."""

    @property
    def filter_text(self) -> str:
        """The filter that is applied, if the screen has one."""
        return ""

    def errors_seen(self) -> Mapping[str, str]:
        """The causes listed here, each with one of its errors."""
        return {}

    def lives_seen(self) -> Mapping[str, CauseLife]:
        """The lives of the causes listed here, as they are now."""
        return {}

    def planned(self) -> None:
        """The items marked here are now being requeued or discarded."""

    def back(self) -> Callable[[], object] | None:
        """What escape undoes on this screen: a search, marks, a filter. None if there is nothing to undo."""
        return None

    def command(self) -> Sequence[str] | None:
        """The words of the command that shows the same as this screen; None if there is none."""
        return None

    # -- the text beside or below the list ---------------------------------------------------------

    @property
    def panel(self) -> Panel | None:
        """The text beside or below the list, if it is shown."""
        return next((panel for panel in self.query(Panel) if panel.display), None)

    @property
    def in_panel(self) -> bool:
        """Whether the keys that move scroll the panel."""
        return isinstance(self.focused, Panel)

    def action_panel(self) -> None:
        """Let the keys that move scroll the panel, or move in the list again."""
        if self.in_panel:
            self.query_one(LineTable).focus()
        elif self.panel is not None:
            self.panel.focus()

    # -- what is allowed ---------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        """Whether what an action needs is there."""
        return need != A_PANEL or self.panel is not None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        known = action_named(self.PLACE, action)
        if known is None:
            return True
        if known.at_once and self.typing:
            return False  # it is a character of what is typed
        if self.refusal(known) or (known.needs and not self.has(known.needs)):
            return None
        return True

    @property
    def typing(self) -> bool:
        """Whether keys are characters of a text now."""
        return isinstance(self.focused, Input)

    def refusal(self, action: KeyAction) -> str:
        """Why an action is not available in this console at all; empty if it is."""
        if (action.dangerous or action.saves) and self.session.read_only:
            return "this console is read-only"
        if action.dangerous and self.session.operations is None:
            return "there is no trail to record it in"
        return ""

    def why_not(self, action: KeyAction) -> str:
        """Why an action cannot be used now, as a sentence without its full stop; empty if it can."""
        if why := self.refusal(action):
            return f"{action.label} is not available: {why}"
        return f"{action.label} needs {action.needs}" if action.needs and not self.has(action.needs) else ""

    def on_key(self, event: events.Key) -> None:
        """Say why when the key of a disabled action is pressed, or where a key of other screens works."""
        binding = self.active_bindings.get(event.key)
        if binding is not None and binding.enabled:
            return
        for action in (*actions_of(self.PLACE), *actions_of(EVERYWHERE)):
            if event.key in self.console_app.keys_of(action):
                self._say_why_not(action)
                return
        places = dict.fromkeys(PLACES[a.place] for a in CATALOGUE if event.key in self.console_app.keys_of(a))
        now = monotonic()
        if places and not self.typing and now - self._hinted_at > _HINT_EVERY:
            self._hinted_at = now
            self.console_app.hint(f"{key_words(event.key)} does nothing here. It works in {', '.join(places)}.")

    def _say_why_not(self, action: KeyAction) -> None:
        if action.name == "back":
            self.console_app.hint(f"There is nothing to go back to. Press {self.console_app.key('quit')} to quit.")
        elif why := self.why_not(action):
            self.console_app.hint(f"{why}.", severity="warning" if self.refusal(action) else "information")


class TableScreen(BaseScreen):
    """A screen around a list. A text takes the place of an empty list."""

    def make_list(self) -> LineTable:
        raise NotImplementedError

    def on_mount(self) -> None:
        self.query_one(".empty").display = False
        self.query_one(LineTable).focus()


class EntriesScreen(TableScreen):
    """A list, below it what the list has no room for, and a status line."""

    OTHER_LINES: ClassVar[int] = 3
    """Of the top bar, the status and the footer."""

    def compose_content(self) -> ComposeResult:
        yield self.make_list()
        yield Static(classes="empty")
        yield Panel(id="entry")
        yield StatusLine(id="state")

    def on_resize(self) -> None:
        self._share_height()

    def on_screen_resume(self) -> None:
        self.read_again()

    def _share_height(self) -> None:
        """Give the panel the lines that the list does not need."""
        table = self.query_one(LineTable)
        has_room = table.take_height(self.size.height - self.OTHER_LINES)
        self.query_one("#entry").display = has_room and table.display

    def _empty_text(self, fault: Fault | None) -> Content:
        """What is shown instead of a list without entries."""
        raise NotImplementedError

    def show_list(self, *, filled: bool, fault: Fault | None) -> None:
        """Show the list, or why it is empty."""
        self.query_one(LineTable).display = filled
        self._share_height()
        empty = self.query_one(".empty", Static)
        empty.display = not filled
        if not filled:
            empty.update(self._empty_text(fault))

    def show_entry(self, lines: tuple[Line, ...]) -> None:
        """Show what is known about the entry under the cursor."""
        panel = self.query_one("#entry", Panel)
        if lines != panel.lines:
            panel.lines = lines
            panel.scroll_home(animate=False)


class ListScreen(TableScreen):
    """A list with its filter and two status lines."""

    HINT: ClassVar[str] = ""
    """What an empty filter means, and some examples."""

    def compose_content(self) -> ComposeResult:
        yield FilterBar(self.HINT, Vocabulary(self.session.names))
        yield self.make_list()
        yield Static(classes="empty")
        yield StatusLine(id="why")
        yield StatusLine(id="state")

    @property
    def bar(self) -> FilterBar:
        return self.query_one(FilterBar)

    @property
    def filter(self) -> Filter:
        return self.bar.filter

    @property
    def filter_text(self) -> str:
        return str(self.filter)

    def action_filter(self) -> None:
        self.bar.edit()

    @on(FilterBar.LanguageAsked)
    def _show_language(self) -> None:
        self.app.push_screen(LanguageScreen())

    def back(self) -> Callable[[], object] | None:
        """Show what was shown when this screen was entered."""
        first = self.console_app.arrived_with(self.PLACE)
        return None if str(self.filter) == first else lambda: self.narrow(first)

    def narrow(self, text: str) -> None:
        self.bar.set_text(text)
        self.query_one(LineTable).focus()

    def command(self) -> Sequence[str]:
        return [self.PLACE, *filter_words(self.filter)]
