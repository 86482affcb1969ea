"""The command line: arguments → settings → a command or the console, and the exit code.

With `console.sessions` the only module that may import everything. Imports are late on purpose: `--version` and
`--help` load no libraries, no command loads Textual, and a mistake in the config is reported before a database driver
is loaded.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from console import __version__
from console.cli.parser import parse
from console.core.faults import ConfigFault, Fault, UsageFault
from console.core.paths import expanded

if TYPE_CHECKING:
    from argparse import Namespace

    from console.attach import Attachables
    from console.cli.context import Demo, DemoOptions, MappingProposal, PluginInfo, ReportProgress
    from console.core.agent import AgentSession
    from console.core.session import Session
    from console.core.system_table import SystemRow
    from console.settings import Settings

_OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Imports create many objects that live for ever. Collecting among them would be a tenth of the start-up time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Errors are one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _escape_unprintable_text()
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # a plugin of pydantic would see the secrets in the config
    try:
        code = _run(arguments)
        sys.stdout and sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _end("retriage: Interrupted.")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Fault as fault:
        from console.cli.render import note_fault

        note_fault(fault)
        return fault.exit_code
    except Exception as error:  # noqa: BLE001  the last resort: one line and a crash file, never a traceback
        return _crash(error, arguments)


def _escape_unprintable_text() -> None:
    """Print an escape for a character that the terminal's encoding lacks, instead of failing."""
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
        return _end(f"retriage: Cannot write the output: {error.strerror}")
    words = [word for word in arguments if word.isalpha()][:1]
    try:
        path = write_crash_file(error, f"retriage {__version__} {' '.join(words)}".rstrip())
    except Exception:  # noqa: BLE001  the error that is reported is the first one
        path = None
    details = f"Details are in {path}." if path else "The details could not be stored."
    return _end(f"retriage: Internal error ({type(error).__name__}). {details}")


def _run(arguments: list[str]) -> int:
    try:
        args = parse(arguments, __version__)
    except SystemExit as end:  # argparse, after --help and --version
        return end.code if isinstance(end.code, int) else 0
    from console.install_check import require_own_packages

    require_own_packages()
    context = AppContext(args)
    try:
        return context.run_command()
    finally:
        context.close()


class AppContext:
    """The `CommandContext` of every command: it opens what a command asks for, and closes it at the end."""

    def __init__(self, args: Namespace) -> None:
        self._args = args
        self._sessions: list[Session] = []
        self._exit_stack = ExitStack()

    def run_command(self) -> int:
        if self._args.command is None:
            return self.open_console()
        from importlib import import_module

        module, _, function = self._args.run.rpartition(".")
        command: Callable[[Namespace, AppContext], int] = getattr(import_module(module), function)
        return command(self._args, self)

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._exit_stack.close()

    # -- what a command can ask for ----------------------------------------------------------------

    def session(self, config: str | None = None) -> Session:
        from console.sessions import open_session
        from console.signals import Signals

        settings = self._settings(config or self._args.config)
        stop = Signals()
        if getattr(self._args, "graceful", False):
            self._exit_stack.enter_context(stop.listen())
        session = open_session(settings, stop=stop, needs_trail=getattr(self._args, "needs_trail", True))
        self._sessions.append(session)
        return session

    def agent_session(self) -> AgentSession:
        from console.sessions import open_agent_session

        session = open_agent_session(self._settings(self._args.config))
        self._exit_stack.callback(session.close)
        return session

    def _settings(self, named: str | None) -> Settings:
        from console.settings import find_config, load
        from console.xdg import config_folder

        path = find_config(expanded(named) if named is not None else None)
        if path is None:
            raise ConfigFault(
                "No config file found",
                fix=f"Create {config_folder() / 'config.yaml'}, name one with --config, or try `retriage demo`.",
            )
        settings = load(path)
        return settings.as_read_only() if self._args.read_only else settings

    def plugins(self) -> Sequence[PluginInfo]:
        from console import registry
        from console.cli.context import PluginInfo

        found = []
        for plugin in registry.available():
            inspected = ((), (), plugin.problem) if plugin.problem else _inspect_plugin(plugin.name)
            found.append(PluginInfo(plugin.name, plugin.distribution, plugin.version, *inspected))
        return found

    def propose_mapping(self, place: str, table: str | None) -> MappingProposal:
        from console.core.item import is_backend_name
        from console.settings import ConsoleSettings, mask_url
        from console.settings.given_url import given_url, url_of
        from plugins.sql_table.backend import SqlTable
        from plugins.sql_table.discovery import discover

        if not is_backend_name(place) and Path(place).is_file():
            place = f"sqlite:///{Path(place).absolute()}"
        if "://" not in place:
            settings = self._settings(self._args.config)
            url = url_of(settings, place)
            return discover(SqlTable, url, table, settings.console.deadline, mask_url(url))
        try:
            return discover(SqlTable, given_url(place), table, ConsoleSettings().deadline, mask_url(place))
        except ConfigFault as fault:  # the URL comes from the command line, not from a config
            raise UsageFault(fault.detail, where=fault.where, fix=fault.fix) from None

    def find_queues(self, place: str) -> Attachables:
        from console.attach import find_queues
        from console.settings import ConsoleSettings
        from console.settings.given_url import given_url

        url = place
        if "://" in place:
            url = given_url(place)
        elif Path(place).is_file():
            url = place = f"sqlite:///{Path(place).absolute()}"
        elif not Path(place).is_dir():
            raise UsageFault(f"There is no file or folder {place}", fix="Name a URL such as postgresql://USER@HOST/NAME.")
        settings = self._settings(self._args.config) if self.config_path().exists() else None
        deadline = ConsoleSettings().deadline if settings is None else settings.console.deadline
        return find_queues(url, settings, deadline, written=place)

    def section_of(self, queues: Sequence[Any]) -> str:
        from console.attach import section

        return section(queues)

    def config_path(self) -> Path:
        from console.config_peek import find_config
        from console.xdg import config_folder

        named = self._args.config
        return find_config(expanded(named) if named is not None else None) or config_folder() / "config.yaml"

    def add_to_config(self, queues: Sequence[Any]) -> bool:
        from console.attach import add_to_config

        return add_to_config(self.config_path(), queues)

    def build_demo(self, options: DemoOptions, progress: ReportProgress) -> Demo:
        from console.demo.build import open_demo
        from console.signals import Signals

        stop = Signals()

        def report(what: str, done: int, total: int) -> None:
            if stop.requested:
                raise KeyboardInterrupt
            progress(what, done, total)

        # An interrupt in the middle of drawing the progress bar can leave its lock taken for ever.
        with stop.listen():
            demo = open_demo(options, report, self._exit_stack)
        if stop.requested:
            raise KeyboardInterrupt
        return demo

    def start_demo_workers(self, demo: Demo) -> None:
        demo.start_workers(self._exit_stack)

    def open_console(self, config: str | None = None, *, guided: bool = False) -> int:
        """Show the first frame at once; check the config and load the drivers behind it."""
        named = config or self._args.config
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            self._settings(named)  # a missing or wrong config is reported first
            raise UsageFault("The console needs a terminal", fix="`retriage list` works without one.")
        gc.disable()  # until everything is loaded; the console turns it on again
        from console.config_peek import find_config, peek
        from console.sessions import empty_session
        from console.ui.app import run_console

        path = find_config(expanded(named) if named is not None else None)
        if path is None:
            return run_console(lambda: empty_session(self._args.read_only), demo=self._demo)
        systems, theme = peek(path)
        return run_console(lambda: self.session(named), systems=systems, theme=theme, guided=guided)

    def _demo(self) -> int:
        """What the welcome screen offers: the demo command."""
        return _run([*(["--read-only"] if self._args.read_only else []), "demo"])


def _inspect_plugin(name: str) -> tuple[tuple[str, ...], tuple[SystemRow, ...], str]:
    """What a plugin can do, and to which systems; or why it cannot be loaded."""
    from console import registry
    from console.core.system_table import NO, systems_of

    try:
        plugin = registry.load(name)
    except Fault as fault:
        return (), (), str(fault)
    systems = tuple(systems_of(name, plugin))
    done = [word for word in ("read", "requeue", "discard", "undo") if any(getattr(s, word) != NO for s in systems)]
    return (*done, *(["run"] if callable(getattr(plugin, "run", None)) else [])), systems, ""


def start() -> NoReturn:
    """The installed command. It exits without tearing down the libraries, which would take a tenth of a listing."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader is gone; main has reported it where it matters
            stream and stream.flush()
    os._exit(code)


if __name__ == "__main__":
    start()
