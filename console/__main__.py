"""The composition root: arguments → settings → backends → a command or the console.

The only module that sees everything. Imports are late on purpose: `--version` and `--help` load none of the
libraries, no command loads Textual, and a config mistake is told before a database driver is touched.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NoReturn

from console import __version__
from console.cli.parser import parse
from console.core.faults import ConfigFault, Fault, PluginFault, UsageFault
from console.core.paths import expanded

if TYPE_CHECKING:
    from argparse import Namespace

    from console.cli.doors import PluginInfo, Sketch, World, WorldOrder
    from console.core.backend import Count
    from console.core.desk import Desk
    from console.core.item import Condition
    from console.core.query import Page
    from console.glance import Glance
    from console.settings import Settings

_OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Imports make many objects that stay: looking through them again and again is a tenth of the start."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line; the exit code. Nothing but a line on stderr tells of what went wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    _bear_any_text()
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # a config holds secrets: no package beside ours may listen in
    try:
        code = _run(arguments)
        sys.stdout and sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _end("retriage: interrupted")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Fault as fault:
        from console.cli.render import note_fault

        note_fault(fault)
        return fault.exit_code
    except Exception as error:  # noqa: BLE001  the last door: one line and a crash file, never a traceback
        return _crash(error, arguments)


def _bear_any_text() -> None:
    """A terminal that cannot show a character gets an escape for it, not an exception."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _end(line: str) -> int:
    from console.cli.render import note

    note(line)
    return 1


def _crash(error: Exception, arguments: list[str]) -> int:
    from console.process import write_crash_file

    if isinstance(error, OSError) and error.filename is None:  # stdout itself: a full disk, a closed terminal
        return _end(f"retriage: the output cannot be written: {error.strerror}")
    words = [word for word in arguments if word.isalpha()][:1]
    try:
        path = write_crash_file(error, f"retriage {__version__} {' '.join(words)}".rstrip())
    except Exception:  # noqa: BLE001  while failing, nothing may fail louder
        path = None
    told = f"Details are in {path}" if path else "The details could not be stored"
    return _end(f"retriage: this is a fault in Retriage itself ({type(error).__name__}). {told}.")


def _run(arguments: list[str]) -> int:
    try:
        args = parse(arguments, __version__)
    except SystemExit as left:  # argparse, after --help and --version
        return left.code if isinstance(left.code, int) else 0
    from console.guard import require_own_packages

    require_own_packages()
    house = House(args)
    try:
        return house.carry_out()
    finally:
        house.close()


class House:
    """Opens the doors a command asks for, and closes what was opened."""

    def __init__(self, args: Namespace) -> None:
        self._args = args
        self._desks: list[Desk] = []
        self._beside = ExitStack()

    def carry_out(self) -> int:
        if self._args.command is None:
            return self.open_console()
        from importlib import import_module

        module, _, function = self._args.run.partition(".")
        command: Callable[[Namespace, House], int] = getattr(import_module(f"console.cli.{module}"), function)
        return command(self._args, self)

    def close(self) -> None:
        for desk in self._desks:
            desk.close()
        self._beside.close()

    # -- the doors -------------------------------------------------------------------------------

    def desk(self, config: str | None = None) -> Desk:
        settings = self._settings(config or self._args.config)
        desk = _lay(
            settings,
            graceful=getattr(self._args, "graceful", False),
            keeps_book=getattr(self._args, "keeps_book", True),
        )
        self._desks.append(desk)
        return desk

    def _settings(self, named: str | None) -> Settings:
        from console.places import config_folder
        from console.settings import find_config, load

        path = find_config(expanded(named) if named is not None else None)
        if path is None:
            raise ConfigFault(
                "there is none", fix=f"Write {config_folder() / 'config.yaml'}, name one with --config, "
                "or look around in a sandbox: `retriage demo`."
            )
        settings = load(path)
        return settings.as_read_only() if self._args.read_only else settings

    def plugins(self) -> Sequence[PluginInfo]:
        from console import registry
        from console.cli.doors import PluginInfo

        found = []
        for plugin in registry.available():
            capabilities, problem = _looked_at(plugin.name)
            found.append(PluginInfo(plugin.name, plugin.distribution, plugin.version, capabilities, problem))
        return found

    def sketch(self, place: str, table: str | None) -> Sketch:
        from console.settings import ConsoleSettings, mask_url
        from plugins.sql_table.looking import look

        if "://" not in place:
            settings = self._settings(self._args.config)
            url = _url_of(settings, place)
            return look(url, table, settings.console.deadline, mask_url(url))
        _refuse_password(place)
        try:
            return look(place, table, ConsoleSettings().deadline, mask_url(place))
        except ConfigFault as fault:  # there is no configuration in it
            raise UsageFault(fault.detail, where=fault.where, fix=fault.fix) from None

    def world(self, order: WorldOrder, progress: Callable[[str, int, int], None]) -> World:
        from console.demo.world import Wanted, open_world

        wanted = Wanted(order.folder, order.scale, order.seed, order.speed, order.reset, order.postgres)
        return open_world(wanted, progress, self._beside)

    def live(self, world: World) -> None:
        world.live(self._beside)

    def open_console(self, config: str | None = None, *, guided: bool = False) -> int:
        """The first frame needs a glance at the config only: it is read, and drivers are loaded, behind it."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            self._settings(config or self._args.config)  # without one, that is what to tell
            raise UsageFault("the console needs a terminal", fix="`retriage list` works without one.")
        gc.disable()  # until the console has begun: it turns it on again
        from console.ahead import send, worthwhile
        from console.glance import Glance, find_config, glance

        named = config or self._args.config
        path = find_config(expanded(named) if named is not None else None)
        ahead = send(lambda: _foretold(self._settings(named))) if path is not None and worthwhile() else None
        from console.ui.app import run_console  # not before: until here there is one thread and little to copy

        if path is None:
            from console.places import config_folder

            bare = _bare(Glance(), self._args.read_only, str(config_folder() / "config.yaml"))
            return run_console(bare, demo=self._demo)
        try:
            bare = _bare(glance(path), self._args.read_only)
            return run_console(bare, lambda: self.desk(named), guided=guided, ahead=ahead)
        finally:
            if ahead is not None:
                ahead.close()

    def _demo(self) -> Desk:
        """The world the welcome offers."""
        from console.cli.doors import WorldOrder

        world = self.world(WorldOrder(), lambda _what, _done, _total: None)
        self.live(world)
        return self.desk(str(world.config))


def _foretold(settings: Settings) -> Iterator[tuple[str, Mapping[Condition, Count] | Page]]:
    """The first rows of every backend, then its counts, by connections that cannot write; of one that does not answer
    nothing is said. Rows go first: those of a large table are there at once, to count it takes longer."""
    from console.core.backend import PageRequest
    from console.core.desk import Unavailable
    from console.core.query import Filter
    from console.process import SystemClock
    from console.registry import open_each

    answering = []
    for backend in open_each(settings.as_read_only()):
        if not isinstance(backend, Unavailable):
            with suppress(Exception):  # a plugin may raise anything; the console will tell what
                yield backend.name, backend.page(PageRequest(Filter(), SystemClock().now()))
                answering.append(backend)
    for backend in answering:
        with suppress(Exception):  # as above
            yield backend.name, backend.counts(Filter(), SystemClock().now())


def _bare(seen: Glance, read_only: bool, config: str = "") -> Desk:
    """All of the desk that needs no driver; the backends are only named."""
    from console.core.desk import Desk, Unavailable
    from console.core.limits import Limits
    from console.core.ports import Never
    from console.process import SystemClock

    unopened = PluginFault("it is not open yet")
    named = [Unavailable(name, plugin, unopened) for name, plugin in seen.backends]
    read_only = read_only or seen.read_only
    return Desk(named, SystemClock(), Never(), Limits(), read_only, config=config, theme=seen.theme)


def _url_of(settings: Settings, name: str) -> str:
    """Where a configured backend is attached."""
    from console.settings import suggestion

    for backend in settings.backends:
        if backend.name == name:
            url = backend.options.values.get("url")
            if isinstance(url, str):
                return url
            raise UsageFault(f"the backend {name!r} has no url", fix="`map` looks at databases only.")
    known = suggestion(name, [backend.name for backend in settings.backends])
    raise UsageFault(f"there is no backend {name!r}", fix=f"{known[0].upper()}{known[1:]}.".replace("?.", "?"))


def _refuse_password(url: str) -> None:
    from console.settings.urls import password_in, query_password_in

    if password_in(url) or query_password_in(url):
        raise UsageFault(
            "a password on the command line can be read by everyone on this machine",
            fix="Use a passfile (~/.pgpass, PGPASSFILE), or name a configured backend instead of a URL.",
        )


def _lay(settings: Settings, *, graceful: bool, keeps_book: bool) -> Desk:
    from console.core.desk import Desk
    from console.core.limits import Limits
    from console.process import Signals, SystemClock, whence, who
    from console.registry import open_all

    console = settings.console
    stop = Signals()
    if graceful:
        stop.listen()
    limits = Limits(
        console.confirm_from, console.max_items, console.canary_failure_limit, console.canary_deadline,
        console.chunk_target,
    )
    desk = Desk(
        open_all(settings), SystemClock(), stop, limits, console.read_only, console.operator,
        str(settings.path or ""), console.refresh, console.views, console.runbooks, console.keymap, console.theme,
        who=who(console.operator), whence=whence(__version__), anchor=_anchor(settings),
    )
    return _with_book(desk, settings) if keeps_book else desk


def _anchor(settings: Settings) -> str | None:
    return None if settings.console.anchor is None else str(settings.console.anchor)


def _with_book(desk: Desk, settings: Settings) -> Desk:
    """The trail is opened only for what reads or writes it; opening it touches nothing yet."""
    from dataclasses import replace

    from console.core.operations import Operations
    from console.trail.faultpoint import reach
    from console.trail.owner import owner_token
    from console.trail.store import open_book

    url = settings.console.trail_url()
    book = open_book(url, read_only=desk.read_only, anchor=desk.anchor, clock=desk.clock)
    operations = Operations(
        {backend.name: backend for backend in desk.backends}, book, desk.clock,
        limits=desk.limits, read_only=desk.read_only, owner=owner_token(), reach=reach,
    )
    return replace(desk, book=book, operations=operations)


def _looked_at(name: str) -> tuple[tuple[str, ...], str]:
    """What a plugin can do, and what is wrong with it if something is."""
    from console import registry

    try:
        plugin = registry.load(name)
    except Fault as fault:
        return (), str(fault)
    verbs = {"page": "read", "swap": "requeue", "run": "run"}
    return tuple(word for method, word in verbs.items() if callable(getattr(plugin, method, None))), ""


def start() -> NoReturn:
    """What the installed command runs. All is closed by now: to take every library apart again, object by object, is a
    tenth of what a listing costs."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more: main has told so where it matters
            stream and stream.flush()
    os._exit(code)


if __name__ == "__main__":
    start()
