"""The app: one mode per place, theme, keys, and what the screens share.

`run_console` is all that `__main__` needs. It returns the exit code, and raises an error of ours only after the
terminal is restored, so that the caller can report it in one line.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from textual.app import SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from console.actions.catalogue import EVERYWHERE, PLACES, Action, action_named, actions_of
from console.actions.keymap import checked_keymap
from console.core.faults import Fault
from console.core.item import ItemKey
from console.core.session import Session
from console.ui import safe, themes
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.backend_calls import BackendCallers, off_loop
from console.ui.health import Monitor
from console.ui.live_overrides import LiveOverrides
from console.ui.messages import HealthChanged, OverrideProgressed
from console.ui.screens.base import BaseScreen
from console.ui.screens.overview import OverviewScreen
from console.ui.startup import StartupScreen
from console.ui.textual_workarounds import PatchedApp, limit_arenas, resume_collector
from console.ui.worker_errors import ReportsWorkerErrors

if TYPE_CHECKING:
    from console.core.confirm import Confirmation
    from console.core.override import Override
    from console.core.plan import Plan, Selection
    from console.ui.tour import Tour

DEADLINE = 5.0
"""Seconds after which the console stops waiting for a backend, whatever the plugin does."""
_DEMO = "demo"
"""What the app returns when the person asked for the demo."""


def run_console(
    open_session: Callable[[], Session],
    *,
    systems: Sequence[str] = (),
    theme: str | None = None,
    demo: Callable[[], int] | None = None,
    guided: bool = False,
) -> int:
    """Run the console until the person leaves; returns the exit code.

    The first frame shows `systems` in `theme`; `open_session` runs behind it in a thread. `demo` is run after the
    console has closed, when the person asked for it.
    """
    app = Console(open_session, systems, theme, offers_demo=demo is not None, guided=guided)
    try:
        app.run()
    finally:
        app.finish_overrides()
    if app.crash is not None:
        raise app.crash
    if demo is not None and app.return_value == _DEMO:
        return demo()
    return app.return_code or 0


def late(module: str, name: str) -> Callable[..., Any]:
    """A screen whose module is imported when it is first made, to keep the start short."""
    return lambda *args, **more: getattr(import_module(f"console.ui.screens.{module}"), name)(*args, **more)


ItemScreen, HelpScreen = late("item", "ItemScreen"), late("help", "HelpScreen")
PlanScreen, LiveOverrideScreen = late("plan", "PlanScreen"), late("override_live", "LiveOverrideScreen")
PickScreen, Choice = late("pick", "PickScreen"), late("pick", "Choice")


class Console(ReportsWorkerErrors, PatchedApp[str]):
    """Opens on the StartupScreen. Every other screen is made after the session is open, and can rely on it."""

    TITLE = "Retriage"
    CSS_PATH = Path(__file__).with_name("console.tcss")
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(EVERYWHERE))
    MODES: ClassVar[dict[str, Any]] = {
        "overview": OverviewScreen,
        "failures": late("failures", "FailuresScreen"),
        "causes": late("causes", "CausesScreen"),
        "trail": late("trail", "TrailScreen"),
    }
    ENABLE_COMMAND_PALETTE = True

    # Set when the session is open.
    session: Session
    callers: BackendCallers
    monitor: Monitor
    live_overrides: LiveOverrides

    def __init__(
        self,
        open_session: Callable[[], Session],
        systems: Sequence[str] = (),
        theme: str | None = None,
        *,
        deadline: float = DEADLINE,
        offers_demo: bool = False,
        guided: bool = False,
    ) -> None:
        self.colourless = bool(os.environ.get("NO_COLOR"))
        """Send no colours; the selection is shown reversed."""
        super().__init__(ansi_color=True if self.colourless else None)
        self.set_class(self.colourless, "colourless")
        self.loading_session = True
        self.offers_demo = offers_demo
        self._open_session = open_session
        self._systems = systems
        self._call_deadline = deadline
        self._guided = guided
        self._first_place = "overview"
        self._keys: dict[str, str] = {}
        self._tour: Tour | None = None
        for ours in themes.OURS:
            self.register_theme(ours)
        self._set_theme(theme)
        self.use_fast_stylesheet()

    def _set_theme(self, name: str | None) -> None:
        self.theme = themes.ANSI.name if self.colourless else themes.chosen(name)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.fallbacks(self.current_theme)

    # -- startup -----------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        return StartupScreen(self._systems)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with suppress(ValueError, RuntimeError):  # not in the main thread: a test
                loop.add_signal_handler(number, partial(self.exit, return_code=128 + number))
        self.call_next(self.paint_now)
        self.call_after_refresh(self.start, self._load, "load")

    async def _load(self) -> None:
        """Open the session in a thread, show the first place, then load what is needed later."""
        try:
            session = await off_loop(self._open_session)
        except Fault as fault:
            self.fail(fault)
            return
        await off_loop(limit_arenas)
        self._use(session)
        for watch in self.monitor.watches():
            self.start(watch, "monitor", exclusive=False)
        await self._show(self._first_place)
        if self._guided:
            self.action_tour()
        self.start(self._offer_resume, "resume")
        await self.monitor.answered(within=3.0)
        await off_loop(_import_screens)
        resume_collector()

    def _use(self, session: Session) -> None:
        self.session = session
        self._set_theme(session.theme)
        self._keys = checked_keymap(session.keymap)
        self.set_keymap(self._keys)
        self.callers = BackendCallers(
            session.backends, self._call_deadline, session.load, session.refresh.total_seconds()
        )
        self.monitor = Monitor(session, self.callers, self.health_changed)
        self.live_overrides = LiveOverrides(session, self.override_progressed)
        self.loading_session = False

    def on_unmount(self) -> None:
        for backend in () if self.loading_session else self.session.backends:
            with suppress(Fault):
                backend.cancel()

    def finish_overrides(self) -> None:
        """Let the chunk that is being written end, and be recorded."""
        if not self.loading_session:
            self.live_overrides.finish()

    # -- for the screens ---------------------------------------------------------------------------

    def worker_failed(self, error: Exception) -> None:
        if isinstance(error, Fault):
            self.say(fault_text(error), severity="error")
        else:
            self.fail(error)

    def keys_of(self, action: Action) -> list[str]:
        """The keys of an action, as a key event names them."""
        return self._keys.get(action.id, action.key).split(",")

    def health_changed(self, name: str) -> None:
        if self.has_screen:
            self.screen.post_message(HealthChanged(name))

    def say(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        self.notify(safe.line(text, 400), severity=severity, markup=False)

    def copy(self, text: str, what: str) -> None:
        """Copy a text exactly as it was stored to the terminal's clipboard."""
        self.copy_exactly(text)
        self.say(f"Copied {what} ({len(text)} characters)")

    def errors_seen(self) -> dict[str, str]:
        """Causes with one of their errors, as far as the lists have shown one."""
        seen: dict[str, str] = {}
        for screen in self.all_screens():
            if isinstance(screen, BaseScreen):
                seen |= screen.errors_seen()
        return seen

    def show_failures(self, text: str) -> None:
        """Go to Failures with this filter."""
        self.call_later(self._show_failures, text)

    async def _show_failures(self, text: str) -> None:
        await self._show("failures")
        if isinstance(self.screen, BaseScreen):
            self.screen.narrow(text)

    async def _show(self, place: str) -> None:
        """Go to a place and close the screens on top of it. During startup, choose it as the first one."""
        if self.loading_session:
            self._first_place = place
            if isinstance(self.screen, StartupScreen):
                self.screen.choose(place)
            return
        await self.switch_mode(place)
        self._close_above(place)

    def _close_above(self, place: str) -> None:
        """The closed screens are not awaited: the key may have come from one of them."""
        while not (isinstance(self.screen, BaseScreen) and place == self.screen.PLACE):
            self.pop_screen()

    # -- overrides ---------------------------------------------------------------------------------

    def override_progressed(self) -> None:
        """Called from the override's thread."""
        if self.has_screen:
            self.screen.post_message(OverrideProgressed())

    def override_words(self) -> str:
        """How far the running override is, for the top bar."""
        live = self.live_overrides.latest
        if live is None or live.over:
            return ""
        return f"override {live.progress.done / max(live.plan.changes, 1):.0%}" if live.progress else "override"

    def plan(self, selection: Selection, action: str = "requeue") -> None:
        """Preview an action on this selection; carry it out once it is confirmed."""
        self._plan(PlanScreen(selection, action))

    def plan_undo(self, override_id: str) -> None:
        """Preview the undo of an override; carry it out once it is confirmed."""
        self._plan(PlanScreen(None, undo_of=override_id))

    def _plan(self, screen: Screen[Any]) -> None:
        if not self._refuse_while_running():
            self.push_screen(screen, self._confirmed)

    def _refuse_while_running(self) -> bool:
        if self.live_overrides.running:
            self.say("An override is already running. Press 5 to see it.", severity="warning")
        return self.live_overrides.running

    def _confirmed(self, answer: tuple[Plan, Confirmation] | None) -> None:
        if answer is not None:
            for screen in self.screen_stack:
                if isinstance(screen, BaseScreen):
                    screen.planned()
            self.live_overrides.carry_out(*answer)
            self._show_live_override()

    def resume(self, override: Override) -> None:
        if override.state.over:
            self.say("This override is finished. There is nothing to resume.")
        elif not self._refuse_while_running():
            self.start(partial(self._resume, override), "resume")

    async def _resume(self, override: Override) -> None:
        trail = self.session.trail
        assert trail is not None
        plan = await off_loop(lambda: trail.plan(override.plan_id))
        self.live_overrides.resume(plan, override.override_id, sum(override.counts.values()))
        self._show_live_override()

    def _show_live_override(self) -> None:
        if not any(isinstance(screen, BaseScreen) and screen.PLACE == "live_override" for screen in self.screen_stack):
            self.push_screen(LiveOverrideScreen())
        self._close_above("live_override")

    async def _offer_resume(self) -> None:
        """Report overrides that a crash or a lost connection left unfinished."""
        trail = self.session.trail
        if trail is None:
            return
        unresolved = await off_loop(trail.unresolved)
        stopped = [o for o in await off_loop(lambda: trail.overrides(50)) if not o.state.over and not o.alive]
        if unresolved or stopped:
            count = len({intent.override_id for intent in unresolved} | {o.override_id for o in stopped})
            what = "1 override is" if count == 1 else f"{count} overrides are"
            resume = "" if self.session.read_only else " and x to resume"
            self.say(f"{what} not finished. Press 4 for the Trail{resume}.", severity="warning")

    # -- actions -----------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self.loading_session:
            return action == "quit" or action in self.MODES
        known = action_named(EVERYWHERE, action)
        if known is not None and known.at_once and not (isinstance(self.screen, BaseScreen) and not self.screen.typing):
            return False  # it is a character of what is typed, or a dialog is open
        return super().check_action(action, parameters)

    async def action_overview(self) -> None:
        await self._show("overview")

    async def action_failures(self) -> None:
        await self._show("failures")

    async def action_causes(self) -> None:
        await self._show("causes")

    async def action_trail(self) -> None:
        await self._show("trail")

    def action_override(self) -> None:
        if self.live_overrides.latest is None:
            self.say("No override was started in this console. Press r on an item to plan one.")
        else:
            self._show_live_override()

    async def action_quit(self) -> None:
        if self.loading_session or not self.live_overrides.running:
            self.exit()
            return
        choices = [
            Choice("", "Stay"),
            Choice("quit", "Quit", "the override stops after this chunk and can be resumed later"),
        ]
        self.push_screen(PickScreen("An override is running", choices), lambda chosen: self.exit() if chosen else None)

    def open_demo(self) -> None:
        """Close the console and run the demo."""
        self.exit(_DEMO)

    def action_help(self) -> None:
        screen = self.screen
        if isinstance(screen, BaseScreen):
            refused = {a.id: why for a in actions_of(screen.PLACE) if (why := screen.refusal(a))}
            self.push_screen(HelpScreen(screen.PLACE, self.session.keymap, refused))

    def action_tour(self) -> None:
        if self._tour is None:
            from console.ui.tour import Tour

            self._tour = Tour(self)
        self._tour.toggle()

    def action_read_again(self) -> None:
        if isinstance(self.screen, BaseScreen):
            self.screen.read_again()
        self.start(self.monitor.read_again, "again")

    def action_go_to(self) -> None:
        from console.ui import views

        choices = [Choice(f"place {mode}", PLACES[mode], "screen") for mode in self.MODES]
        choices += [Choice(f"filter backend:{name}", name, "system") for name in self.session.names]
        known = views.known(self.session.views)
        choices += [Choice(f"filter {text}", name, f"view: {text}") for name, text in known.items()]
        self.push_screen(PickScreen("Go to", choices, free="an item's key, a screen, a system or a view"), self._go)

    async def _go(self, chosen: str | None) -> None:
        kind, _, rest = (chosen or "").partition(" ")
        if kind == "place":
            await self._show(rest)
        elif kind == "filter":
            self.show_failures(rest)
        elif chosen:
            self.start(partial(self._open_key, chosen), "go")

    async def _open_key(self, text: str) -> None:
        key = ItemKey.parse(text)
        self.session.backend(key.backend)
        detail = await self.callers[key.backend].call(lambda backend: backend.item(key, self.session.clock.now()))
        self.push_screen(ItemScreen(detail.item))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette: the actions of this screen and of every screen, then the theme."""
        if isinstance(screen, BaseScreen):
            for action in actions_of(screen.PLACE):
                if screen.check_action(action.name, ()):
                    yield SystemCommand(action.label, action.help, getattr(screen, f"action_{action.name}"))
        for action in actions_of(EVERYWHERE):
            yield SystemCommand(action.label, action.help, getattr(self, f"action_{action.name}"))
        yield SystemCommand("Theme", "Change the colours", self.action_change_theme)


def _import_screens() -> None:
    for module in ("failures", "causes", "trail", "help", "override_live"):
        import_module(f"console.ui.screens.{module}")
