"""The app: one mode per place, theme, keys, and what the screens share.

`run_console` is all that `__main__` needs. It returns the exit code, and raises an error of ours only after the
terminal is restored, so that the caller can report it in one line.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from textual import on
from textual.binding import BindingType
from textual.screen import Screen

from console.actions.catalogue import EVERYWHERE, PLACES, KeyAction, action_named
from console.actions.keymap import checked_keymap
from console.core.cause_life import CauseLife
from console.core.faults import Fault
from console.core.item import ItemKey
from console.core.session import Session
from console.ui import lazy_screens, safe, themes
from console.ui.actions import bindings_of, key_words
from console.ui.advice import fault_text
from console.ui.backend_calls import BackendCallers, CancelFlag, in_thread, off_loop
from console.ui.health import Monitor
from console.ui.lazy_screens import CommandScreen, HelpScreen, ItemScreen, PickScreen, QuitScreen
from console.ui.live_overrides import LiveOverrides
from console.ui.messages import HealthChanged, HookFailed, OverrideHappened, OverrideProgressed
from console.ui.notices import desktop_notification
from console.ui.override_dialogs import OverrideDialogs
from console.ui.places import PlaceHistory, Visit
from console.ui.recording import record_while_open
from console.ui.screens.base import BaseScreen
from console.ui.signals import ClosingSignals
from console.ui.startup import StartupScreen
from console.ui.textual_workarounds import PatchedApp, limit_arenas, resume_collector
from console.ui.widgets.top_bar import Tab
from console.ui.worker_errors import ReportsWorkerErrors

if TYPE_CHECKING:
    from console.core.events import OverrideEvent
    from console.core.plan import Selection
    from console.core.proposals import Proposal
    from console.ui.tour import Tour

DEADLINE = 5.0
"""Seconds after which the console stops waiting for a backend, whatever the plugin does."""
_ANNOUNCED_FOR = 15.0
"""Seconds for which the end of an override is shown."""
_DEMO = "demo"
"""What the app returns when the person asked for the demo."""


def run_console(
    open_session: Callable[[], Session],
    *,
    systems: Sequence[str] = (),
    theme: str | None = None,
    demo: Callable[[], int] | None = None,
    guided: bool = False,
    deadline: float = DEADLINE,
) -> int:
    """Run the console until the person leaves; returns the exit code.

    The first frame shows `systems` in `theme`; `open_session` runs behind it in a thread. `demo` is run after the
    console has closed, when the person asked for it.
    """
    app = Console(open_session, systems, theme, deadline=deadline, offers_demo=demo is not None, guided=guided)
    try:
        with app.signals.kept_until_started():
            app.run()
    finally:
        app.finish_overrides()
    if app.crash is not None:
        raise app.crash
    if demo is not None and app.return_value == _DEMO:
        return demo()
    return app.return_code or 0


class Console(ReportsWorkerErrors, PatchedApp[str]):
    """Opens on the StartupScreen. Every other screen is made after the session is open, and can rely on it."""

    TITLE = "Retriage"
    CSS_PATH = Path(__file__).with_name("console.tcss")
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(EVERYWHERE))
    MODES: ClassVar[dict[str, Any]] = lazy_screens.MODES
    ENABLE_COMMAND_PALETTE = False
    """The palette is one of ours, see `action_palette`."""

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
        self._history = PlaceHistory()
        self._quitting = CancelFlag()
        self.override_dialogs = OverrideDialogs(self)
        self.signals = ClosingSignals()
        self._news: set[str] = set()
        """Overrides that have ended and were not looked at since."""
        self.open_proposals = 0
        """How many proposals wait for a decision, as last read."""
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

    def on_load(self) -> None:
        """Before the terminal is touched."""
        self.signals.close_with(self._leave)

    def on_mount(self) -> None:
        self.call_next(self.paint_now)
        self.call_after_refresh(self.start, self._load, "load")

    def _leave(self, number: int) -> None:
        """End because of a signal. A runner may continue overrides that stop because the terminal is gone."""
        if number == signal.SIGHUP and not self.loading_session:
            self.live_overrides.terminal_gone()
        self.exit(return_code=128 + number)

    async def _load(self) -> None:
        """Open the session in a thread, show the first place, then load what is needed later."""
        try:
            session = await off_loop(self._open)
        except Fault as fault:
            self.fail(fault)
            return
        await off_loop(limit_arenas)
        self._use(session)
        for watch in self.monitor.watches():
            self.start(watch, "monitor", exclusive=False)
        await self.show_place(self._first_place)
        if self._guided:
            self.action_tour()
        self.start(self.override_dialogs.report_unfinished, "resume")
        self.start(self._count_proposals, "proposals")
        budgets = {caller.name: caller.budget for caller in self.callers}
        in_thread(lambda: record_while_open(session, budgets, self._quitting, self._recording_failed))
        await self.monitor.answered(within=3.0)
        await off_loop(lazy_screens.import_all)
        resume_collector()

    def _open(self) -> Session:
        """In a thread: also import the first screen, which the first frame does not need."""
        session = self._open_session()
        lazy_screens.import_place(self._first_place)
        return session

    def _use(self, session: Session) -> None:
        self.session = session
        self._set_theme(session.theme)
        self._keys = checked_keymap(session.keymap)
        self.set_keymap(self._keys)
        self.callers = BackendCallers(
            session.backends, self._call_deadline, session.load, session.refresh.total_seconds(),
            None if session.operations is None else session.operations.budgets,
        )
        self.monitor = Monitor(session, self.callers, self.health_changed)
        self.live_overrides = LiveOverrides(session, self.override_progressed, self.override_happened)
        if session.event_hooks is not None:
            session.event_hooks.report = partial(self._hook_failed, session.event_hooks.report)
        self.loading_session = False

    def _recording_failed(self, why: str) -> None:
        with suppress(RuntimeError):  # the console has just been closed
            self.call_from_thread(self.say, f"The history is not recorded. {why}", "warning")

    def _hook_failed(self, report_elsewhere: Callable[[str], None], why: str) -> None:
        """Called from the thread of a hook. It must not wait for the console, which waits for hooks when it closes."""
        shown = False
        with suppress(RuntimeError):  # the console has just been closed
            shown = self.post_message(HookFailed(why))
        if not shown:
            report_elsewhere(why)

    @on(HookFailed)
    def _tell_hook_failed(self, message: HookFailed) -> None:
        self.say(message.why, severity="warning")

    def on_unmount(self) -> None:
        self._quitting.requested = True
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

    def keys_of(self, action: KeyAction) -> list[str]:
        """The keys of an action, as a key event names them."""
        return self._keys.get(action.id, action.key).split(",")

    def key(self, action: str, place: str = EVERYWHERE) -> str:
        """The key of an action, as a sentence names it."""
        found = action_named(place, action)
        return "" if found is None else key_words(self.keys_of(found)[0])

    def health_changed(self, name: str) -> None:
        if self.has_screen:
            self.screen.post_message(HealthChanged(name))

    def say(
        self,
        text: str,
        severity: Literal["information", "warning", "error"] = "information",
        seconds: float | None = None,
    ) -> None:
        self.notify(safe.line(text, 400), severity=severity, markup=False, timeout=seconds)

    def hint(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        """Answer a key that did nothing else. The next key takes it away, so that hints never cover what comes next."""
        self.notify_until_key(safe.line(text, 400), severity)

    def copy(self, text: str, what: str) -> None:
        """Copy a text exactly as it was stored to the terminal's clipboard."""
        self.copy_exactly(text)
        self.hint(f"Copied {what} ({len(text)} characters)")

    def errors_seen(self) -> dict[str, str]:
        """Causes with one of their errors, as far as the lists have shown one."""
        seen: dict[str, str] = {}
        for screen in self.all_screens():
            if isinstance(screen, BaseScreen):
                seen |= screen.errors_seen()
        return seen

    def life_of(self, signature: str) -> CauseLife | None:
        """The life of a cause, as far as a list of causes has read it."""
        screens = (screen for screen in self.all_screens() if isinstance(screen, BaseScreen))
        return next((life for screen in screens if (life := screen.lives_seen().get(signature)) is not None), None)

    def tabs(self) -> tuple[Tab, ...]:
        """The places of the top bar."""
        found = [self._tab(place) for place in self.MODES if place != "proposals"]
        if not self.loading_session and self.live_overrides.latest is not None:
            found.append(self._tab("override", "!" if self._news else ""))
        if self.open_proposals or self.current_mode == "proposals":
            found.append(self._tab("proposals", str(self.open_proposals or "")))
        return tuple(found)

    def _tab(self, place: str, badge: str = "") -> Tab:
        return Tab(place, self.key(place), PLACES[place], badge)

    def places(self) -> Sequence[str]:
        """The places that can be gone to."""
        return [place for place in self.MODES if place != "proposals" or self.session.approvals is not None]

    def key_of_place(self, place: str) -> str:
        action = action_named(EVERYWHERE, place)
        return "" if action is None else self.keys_of(action)[0]

    def show_failures(self, text: str) -> None:
        """Go to Failures with this filter."""
        self.call_later(self._show_failures, text)

    async def _show_failures(self, text: str) -> None:
        origin, before = self.current_mode, self._filter_of("failures")
        await self._enter("failures")
        if isinstance(self.screen, BaseScreen):
            self._history.left(Visit(origin, "failures", text, before))
            self.screen.narrow(text)

    def _filter_of(self, place: str) -> str:
        screens = (screen for screen in self.all_screens() if isinstance(screen, BaseScreen) and place == screen.PLACE)
        return next((screen.filter_text for screen in screens), "")

    def arrived_with(self, place: str) -> str:
        """The filter with which this place was entered last."""
        return self._history.arrived_with(place)

    async def show_place(self, place: str) -> None:
        """Go to a place and close the screens on top of it. During startup, choose it as the first one."""
        if self.loading_session:
            self._first_place = place
            if isinstance(self.screen, StartupScreen):
                self.screen.choose(place)
            return
        if self.current_mode in self.MODES:
            self._history.left(Visit(self.current_mode, place))
        await self._enter(place)

    async def _enter(self, place: str) -> None:
        await self.switch_mode(place)
        self.close_above(place)

    def back_step(self) -> Callable[[], Any] | None:
        """What escape does now: undo something on the screen, close it, or return to the last place."""
        screen = self.screen
        if not isinstance(screen, BaseScreen):
            return None
        if screen.in_panel:
            return screen.action_panel
        if (own := screen.back()) is not None:
            return own
        if len(self.screen_stack) > 1:
            return partial(screen.dismiss, None)
        return self._return if self._history.last() is not None else None

    async def _return(self) -> None:
        visit = self._history.go_back()
        if visit is None:
            return
        if visit.before is not None and isinstance(self.screen, BaseScreen) and visit.to == self.screen.PLACE:
            self.screen.narrow(visit.before)
        await self._enter(visit.place)

    def close_above(self, place: str) -> None:
        """Close the screens on top of a place. They are not awaited: the key may have come from one of them."""
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
        if live is None or not live.running:
            return ""
        if live.progress is None or live.plan is None:
            return "override"
        return f"override {live.progress.done / max(live.plan.changes, 1):.0%}"

    def override_happened(self, event: OverrideEvent) -> None:
        """Called from the thread of an override or its watch."""
        self.post_message(OverrideHappened(event))

    @on(OverrideHappened)
    def _announce(self, message: OverrideHappened) -> None:
        """Tell the person, whatever screen is open and wherever they look: nothing ends silently."""
        event = message.event
        self.say(event.text, severity="warning" if event.bad else "information", seconds=_ANNOUNCED_FOR)
        self.bell()
        if self.session.notify:
            self.send_to_terminal(desktop_notification(event.text, os.environ))
        shown = getattr(self.screen, "followed", None)
        if shown is None or shown.override_id != event.override_id:
            self._news.add(event.override_id)
        if self.has_screen:
            self.screen.post_message(OverrideProgressed())

    def seen(self, override_id: str | None) -> None:
        """The person looks at this override."""
        self._news.discard(override_id or "")

    def plan(self, selection: Selection, action: str = "requeue") -> None:
        """Preview an action on what a list has selected; carry it out once it is confirmed."""
        self.override_dialogs.plan(selection, action)

    # -- proposals ---------------------------------------------------------------------------------

    async def _count_proposals(self) -> None:
        """Read how many proposals are open, again at every refresh."""
        approvals = self.session.approvals
        while approvals is not None:
            with suppress(Fault):  # the Trail and the list of proposals say why it cannot be read
                self.open_proposals = len(await off_loop(approvals.open))
            await asyncio.sleep(self.session.refresh.total_seconds())

    def submitted(self, proposal: Proposal) -> None:
        """Say that a plan was submitted."""
        self.open_proposals += 1
        key = self.key("proposals")
        self.say(f"Submitted as proposal {proposal.plan_id}. Nothing is changed until it is approved; {key} lists it.")

    # -- actions -----------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self.loading_session:
            return action == "quit" or action in self.MODES
        if action == "back":
            return self.back_step() is not None
        known = action_named(EVERYWHERE, action)
        if known is not None and known.at_once and not (isinstance(self.screen, BaseScreen) and not self.screen.typing):
            return False  # it is a character of what is typed, or a dialog is open
        return super().check_action(action, parameters)

    async def action_overview(self) -> None:
        await self.show_place("overview")

    async def action_failures(self) -> None:
        await self.show_place("failures")

    async def action_causes(self) -> None:
        await self.show_place("causes")

    async def action_trail(self) -> None:
        await self.show_place("trail")

    async def action_proposals(self) -> None:
        if not self.loading_session and self.session.approvals is None:
            self.hint("There is no trail, so there are no proposals.")
        else:
            await self.show_place("proposals")

    def action_override(self) -> None:
        if self.live_overrides.latest is None:
            key = self.key("requeue", "failures")
            self.hint(f"No override was started in this console. Press {key} on an item to plan one.")
        else:
            self.override_dialogs.show_own()

    async def action_quit(self) -> None:
        if self.loading_session or not self.live_overrides.running:
            self.exit()
            return
        done = self.override_words().removeprefix("override").strip() or "0%"
        self.push_screen(QuitScreen(f"It is {done} done."), lambda quits: self.exit() if quits else None)

    def action_help_quit(self) -> None:
        """What ctrl+c does: in a console that writes to production, an accidental key must not end anything."""
        copy = self.key("copy", "failures")
        quits = f"Press {self.key('quit')} to quit, or {copy} to copy what is under the cursor."
        self.hint(f"ctrl+c does not close the console. {quits}")

    def open_demo(self) -> None:
        """Close the console and run the demo."""
        self.exit(_DEMO)

    def action_help(self) -> None:
        screen = self.screen
        if isinstance(screen, BaseScreen):
            self.push_screen(HelpScreen(screen, self.session.keymap))

    def action_tour(self) -> None:
        if self._tour is None:
            from console.ui.tour import Tour

            self._tour = Tour(self)
        self._tour.toggle()

    def action_read_again(self) -> None:
        if isinstance(self.screen, BaseScreen):
            self.screen.read_again()
        self.start(self.monitor.read_again, "again")

    async def action_back(self) -> None:
        if (step := self.back_step()) is not None:
            self.call_later(step)

    def action_command(self) -> None:
        """Show the command line for this screen, to copy it."""
        from console.ui.command_line import command_line

        words = self.screen.command() if isinstance(self.screen, BaseScreen) else None
        if words is None:
            self.hint("There is no command for this screen.")
            return
        command = command_line(self.session, words)
        self.push_screen(CommandScreen(command), lambda copy: self.copy(command, "the command") if copy else None)

    def action_palette(self) -> None:
        from console.ui import palette

        self.push_screen(
            PickScreen("Commands", palette.commands(self), enter="run"), partial(palette.run_command, self)
        )

    def action_go_to(self) -> None:
        from console.ui import palette

        free = "an item's key, a screen, a system or a view"
        picker = PickScreen("Go to", palette.destinations(self), free=free, enter="go")
        self.push_screen(picker, partial(palette.go_to, self))

    def open_key(self, text: str) -> None:
        """Open the item with this key."""
        self.start(partial(self._open_key, text), "go")

    async def _open_key(self, text: str) -> None:
        key = ItemKey.parse(text)
        self.session.backend(key.backend)
        detail = await self.callers[key.backend].call(lambda backend: backend.item(key, self.session.clock.now()))
        self.push_screen(ItemScreen(detail.item))
