"""`plugins` and `run`: the installed backends, and their own engines."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from typing import Any

from console.cli.backend_selection import NONE_ANSWERED
from console.cli.columns import Column
from console.cli.context import CommandContext, PluginInfo
from console.cli.render import RowFormat, note, note_fault, print_rows
from console.core.backend import RunsEngine
from console.core.faults import BackendFault, ConfigFault, ReadOnlyRefused, UsageFault
from console.core.text import instant, plural

FIELDS = ("name", "distribution", "version", "capabilities", "systems", "problem")


def list_plugins(args: Namespace, context: CommandContext) -> int:
    found = context.plugins()
    print_rows(found, RowFormat(FIELDS, _record, _COLUMNS), args.format)
    return 1 if any(plugin.problem for plugin in found) else 0


def _record(plugin: PluginInfo) -> dict[str, Any]:
    return {
        "name": plugin.name, "distribution": plugin.distribution, "version": plugin.version,
        "capabilities": list(plugin.capabilities), "systems": [row._asdict() for row in plugin.systems],
        "problem": plugin.problem or None,
    }


_COLUMNS: tuple[Column[PluginInfo], ...] = (
    Column("name", lambda plugin: plugin.name),
    Column("distribution", lambda plugin: f"{plugin.distribution} {plugin.version}".strip(), dropped=1),
    Column("capabilities", lambda plugin: ", ".join(plugin.capabilities) or "–"),
    Column("problem", lambda plugin: plugin.problem, least=20, wraps=True),
)


# --- run --------------------------------------------------------------------------------------------


def run_engine(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    backend = session.backend(args.backend)
    if session.read_only or args.backend in session.read_only_backends:
        raise ReadOnlyRefused("an engine changes its queue", where=args.backend)
    if not isinstance(backend, RunsEngine):
        raise UsageFault(f"{backend.name} has no engine", fix="`retriage plugins` shows which plugins have one.")
    handler = load_handler(backend.handler, args.backend)

    def log(text: str) -> None:
        note(f"{instant(session.clock.now().replace(microsecond=0))} {args.backend}: {text}")

    log(f"running with {backend.handler}")
    try:
        executions = backend.run(handler, session.clock, session.stop, log)
    except BackendFault as fault:
        note_fault(fault, args.backend)
        return NONE_ANSWERED
    log(f"stopped after {executions} {plural(executions, 'execution')}")
    return 0


def load_handler(name: str | None, backend: str) -> Callable[..., object]:
    """Import the function that a config names as `package.module:function`."""
    where = f"backends.{backend}.handler"
    if not name:
        raise ConfigFault("No handler is configured", where=where, fix="Add handler: package.module:function.")
    module, colon, function = name.partition(":")
    if not (colon and module and function):
        raise ConfigFault(f"'{name}' is not a handler", where=where, fix="Write package.module:function.")
    try:
        found = getattr(import_module(module), function, None)
    except Exception as error:  # somebody else's module may raise anything while it is imported
        raise ConfigFault(
            f"Cannot import {module}: {type(error).__name__}: {error}", where=where,
            fix="Install it next to Retriage, or add it to PYTHONPATH.",
        ) from error
    if not callable(found):
        raise ConfigFault(f"{module} has no function '{function}'", where=where)
    return found  # type: ignore[no-any-return]
