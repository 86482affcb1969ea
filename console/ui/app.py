"""The app: modes, theme, keymap, wiring. No logic.

`run_console(desk)` is the whole contract. It returns the exit code; an error of our own is raised after the
terminal is as it was, so that whoever called can tell it in one line. With `lay` the desk only names what there
is, and the real one, drivers and all, is laid behind the first frame; until then there are the counts and rows that
somebody sent `ahead` has read. `demo` lays what the welcome offers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from textual._styles_cache import StylesCache
from textual.app import SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.driver import Driver
from textual.screen import Screen

from console.core.catalogue import EVERYWHERE, PLACES, action_named, actions_of
from console.core.desk import Desk
from console.core.faults import Fault
from console.core.item import ItemKey
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.foretold import Ahead
from console.ui.lanes import off_loop
from console.ui.lost import steadied
from console.ui.messages import HealthChanged, RunChanged
from console.ui.opening import Lay, Opening
from console.ui.screens.overview import OverviewScreen
from console.ui.screens.place import Place
from console.ui.words import here

if TYPE_CHECKING:
    from console.core.override import Override
    from console.core.plan import Confirmation, Plan, Selection
    from console.ui.tour import Tour


def run_console(
    desk: Desk, lay: Lay | None = None, *, demo: Lay | None = None, ahead: Ahead | None = None, guided: bool = False
) -> int:
    """Open the console on a desk until the person leaves; the exit code."""
    app = Console(desk, lay=lay, demo=demo, ahead=ahead)
    app.guided = guided
    try:
        app.run()
    finally:
        app.runs.finish()
    if app.crash is not None:
        raise app.crash
    return app.return_code or 0


def late(module: str, name: str) -> Callable[..., Any]:
    """A screen whose module is loaded when it is first made, or behind the first frame, whichever comes first."""
    return lambda *args, **more: getattr(import_module(f"console.ui.screens.{module}"), name)(*args, **more)


ItemScreen, HelpScreen, RunScreen = late("item", "ItemScreen"), late("help", "HelpScreen"), late("run", "RunScreen")
PlanScreen, PickScreen, Choice = late("plan", "PlanScreen"), late("pick", "PickScreen"), late("pick", "Choice")


class Console(Opening):
    """One mode per place, each with its own stack of screens."""

    TITLE = "Retriage"
    CSS_PATH = Path(__file__).with_name("console.tcss")
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of(EVERYWHERE))
    MODES: ClassVar[dict[str, Any]] = {
        "overview": OverviewScreen,
        "failures": late("failures", "FailuresScreen"),
        "groups": late("groups", "GroupsScreen"),
        "trail": late("trail", "TrailScreen"),
    }
    DEFAULT_MODE = "overview"
    ENABLE_COMMAND_PALETTE = True
    guided = False
    """Whether it opens with the tour."""
    _tour: Tour | None = None

    def get_driver_class(self) -> type[Driver]:
        return steadied(super().get_driver_class())

    async def reseat(self, renamed: bool) -> None:
        for stack in self._screen_stacks.values():
            for screen in stack:
                if isinstance(screen, Place):
                    await screen.reseated(renamed)

    def opened(self) -> None:
        if self.guided:
            self.action_tour()
        self.start(self._offer_resume, "resume")

    def load_the_rest(self) -> None:
        for module in ("failures", "groups", "trail", "help", "run"):
            import_module(f"console.ui.screens.{module}")

    # -- when something goes wrong -----------------------------------------------------------------

    def _handle_exception(self, error: Exception) -> None:
        """Textual would print the locals, passwords among them; keep the error and go."""
        if self.crash is None:
            self.crash = error
        self._return_code = 1
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        self._close_messages_no_wait()

    def worker_failed(self, error: Exception) -> None:
        if isinstance(error, Fault):
            self.say(str(error), severity="error")
        else:
            self._handle_exception(error)

    # -- for the screens ---------------------------------------------------------------------------

    def pop_screen(self) -> AwaitComplete:
        """Textual remembers two colours by the widget they were asked for, and would keep all that it had painted."""
        StylesCache.get_inner_outer.cache_clear()
        return super().pop_screen()

    def health_changed(self, name: str) -> None:
        if self.is_running and self._screen_stacks.get(self.current_mode):
            self.screen.post_message(HealthChanged(name))

    def say(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        self.notify(safe.line(here(text), 400), severity=severity, markup=False)

    def copy(self, text: str, what: str) -> None:
        """To the clipboard of the terminal, as it was stored; what cannot be encoded is replaced."""
        self._clipboard = text
        if self._driver is not None:
            encoded = base64.b64encode(text.encode("utf-8", "surrogateescape" if _was_bytes(text) else "replace"))
            self._driver.write(f"\x1b]52;c;{encoded.decode()}\a")
        self.say(f"Copied {what}: {len(text)} characters")

    def errors_seen(self) -> dict[str, str]:
        """A cause by one of its errors, as far as the lists have shown one."""
        seen: dict[str, str] = {}
        for stack in self._screen_stacks.values():
            for screen in stack:
                if isinstance(screen, Place):
                    seen |= screen.errors_seen()
        return seen

    def show_failures(self, text: str) -> None:
        """Go to Failures, narrowed by this filter."""
        self.call_later(self._show_failures, text)

    async def _show_failures(self, text: str) -> None:
        (await self._show("failures")).narrow(text)

    async def _show(self, place: str) -> Place:
        """Go to a place, whatever lies on it. What is left there is not waited for: the key may have come from it."""
        await self.switch_mode(place)
        while not (isinstance(self.screen, Place) and place == self.screen.PLACE):
            self.pop_screen()
        return self.screen

    # -- overrides ---------------------------------------------------------------------------------

    def run_changed(self) -> None:
        """From the override's thread."""
        if self.is_running and self._screen_stacks.get(self.current_mode):
            self.screen.post_message(RunChanged())

    def run_words(self) -> str:
        run = self.runs.latest
        if run is None or run.over:
            return ""
        return f"override {run.progress.done / max(run.plan.changes, 1):.0%}" if run.progress else "override"

    def plan(self, selection: Selection) -> None:
        """Show what a requeue of this would change; carry it out when it is confirmed."""
        self._plan(PlanScreen(selection))

    def plan_undo(self, op_id: str) -> None:
        self._plan(PlanScreen(None, undo_of=op_id))

    def _plan(self, screen: Screen[Any]) -> None:
        if self.runs.running:
            self.say("An override is running here already: 5 shows it", severity="warning")
        else:
            self.push_screen(screen, self._confirmed)

    def _confirmed(self, answer: tuple[Plan, Confirmation] | None) -> None:
        if answer is not None:
            for screen in self.screen_stack:
                if isinstance(screen, Place):
                    screen.planned()
            self.runs.carry_out(*answer)
            self._show_run()

    def resume(self, override: Override) -> None:
        if override.state.over:
            self.say("It is finished: there is nothing to resume")
        elif self.runs.running:
            self.say("An override is running here already: 5 shows it", severity="warning")
        else:
            self.start(partial(self._resumed, override), "resume")

    async def _resumed(self, override: Override) -> None:
        book = self.desk.book
        assert book is not None
        plan = await off_loop(lambda: book.plan(override.plan_id))
        self.runs.resume(plan, override.op_id, sum(override.counts.values()))
        self._show_run()

    def _show_run(self) -> None:
        """Where it is open already, what lies on it goes, as with every place."""
        if not any(isinstance(screen, Place) and screen.PLACE == "run" for screen in self.screen_stack):
            self.push_screen(RunScreen())
        while not (isinstance(self.screen, Place) and self.screen.PLACE == "run"):
            self.pop_screen()

    async def _offer_resume(self) -> None:
        """What a crash or a lost session left behind is told at the start."""
        book = self.desk.book
        if book is None:
            return
        unresolved = await off_loop(book.unresolved)
        stopped = [o for o in await off_loop(lambda: book.overrides(50)) if not o.state.over and not o.alive]
        if unresolved or stopped:
            count = len({intent.op_id for intent in unresolved} | {o.op_id for o in stopped})
            what = "1 override was" if count == 1 else f"{count} overrides were"
            resumes = "" if self.desk.read_only else ", x resumes one"
            self.say(f"{what} not finished: 4 shows what there is{resumes}", severity="warning")

    # -- actions -----------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        known = action_named(EVERYWHERE, action)
        if known is not None and known.at_once and not (isinstance(self.screen, Place) and not self.screen.typing):
            return False  # it is a character of what is typed, or a dialog is open
        return super().check_action(action, parameters)

    async def action_overview(self) -> None:
        await self._show("overview")

    async def action_failures(self) -> None:
        await self._show("failures")

    async def action_groups(self) -> None:
        await self._show("groups")

    async def action_trail(self) -> None:
        await self._show("trail")

    def action_run(self) -> None:
        if self.runs.latest is None:
            self.say("No override has been started here: r on an item plans one")
        else:
            self._show_run()

    async def action_quit(self) -> None:
        if not self.runs.running:
            self.exit()
            return
        stay = [
            Choice("", "Stay"),
            Choice("quit", "Quit", "the override stops after this chunk; the next start offers to resume it"),
        ]
        self.push_screen(PickScreen("An override is running", stay), lambda chosen: self.exit() if chosen else None)

    def action_help(self) -> None:
        place = self.screen
        if isinstance(place, Place):
            refused = {a.id: why for a in actions_of(place.PLACE) if (why := place.refusal(a))}
            self.push_screen(HelpScreen(place.PLACE, self.desk.keymap, refused))

    def action_tour(self) -> None:
        if self._tour is None:
            from console.ui.tour import Tour

            self._tour = Tour(self)
        self._tour.toggle()

    def action_read_again(self) -> None:
        if isinstance(self.screen, Place):
            self.screen.read_again()
        self.start(self.monitor.read_again, "again")

    def action_go_to(self) -> None:
        from console.ui import views

        choices = [Choice(f"place {mode}", PLACES[mode], "place") for mode in self.MODES]
        choices += [Choice(f"filter backend:{name}", name, "backend") for name in self.desk.names]
        known = views.known(self.desk.views)
        choices += [Choice(f"filter {text}", name, f"view: {text}") for name, text in known.items()]
        self.push_screen(PickScreen("Go to", choices, free="an item's key, a place, a backend or a view"), self._go)

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
        self.desk.backend(key.backend)
        detail = await self.lanes[key.backend].ask(lambda backend: backend.item(key, self.desk.clock.now()))
        self.push_screen(ItemScreen(detail.item))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette: everything that can be done here, then what Textual offers."""
        if isinstance(screen, Place):
            for action in actions_of(screen.PLACE):
                if screen.check_action(action.name, ()):
                    yield SystemCommand(action.label, action.help, self._runner(screen, action.name))
        for action in actions_of(EVERYWHERE):
            yield SystemCommand(action.label, action.help, self._runner(self, action.name))
        yield SystemCommand("Theme", "Change what the console looks like", self.action_change_theme)

    def _runner(self, target: Any, name: str) -> Callable[[], Any]:
        return getattr(target, f"action_{name}")  # type: ignore[no-any-return]


def _was_bytes(text: str) -> bool:
    """Whether every surrogate in the text stands for a byte that was not UTF-8."""
    return all(0xDC80 <= ord(char) <= 0xDCFF for char in text if 0xD800 <= ord(char) <= 0xDFFF)
